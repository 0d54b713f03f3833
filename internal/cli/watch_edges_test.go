package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// TestWatchURL: an address needs no scheme; what is none is refused.
func TestWatchURL(t *testing.T) {
	for text, want := range map[string]string{
		"http://10.0.0.1:9000":   "http://10.0.0.1:9000",
		"https://router/prefix/": "https://router/prefix/",
		"10.0.0.1:9000":          "http://10.0.0.1:9000",
		"localhost:8000":         "http://localhost:8000",
		"router":                 "http://router",
		"[::1]:8000/prefix":      "http://[::1]:8000/prefix",
		"":                       "",
		"ftp://x":                "",
		"://x":                   "",
		"router:8000?x=1":        "",
		"router:port":            "",
		":8000":                  "http://:8000", // this machine, as Go and curl take it
	} {
		got := ""
		u, err := watchURL(text)
		if err == nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestWarningsOfTheRouterItself: what is no worker's fault has no worker before it.
func TestWarningsOfTheRouterItself(t *testing.T) {
	s := &snapshot.Snapshot{Warnings: []snapshot.Warning{
		{Severity: "error", RouteKey: "w:1", Text: "breaker open"},
		{Severity: "error", Text: "3 requests were not answered"},
	}}
	var b bytes.Buffer
	if err := writeSnapshot(&b, s); err != nil {
		t.Fatal(err)
	}
	if want := "error: w:1: breaker open\nerror: 3 requests were not answered\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("got %q, want %q at its end", b.String(), want)
	}
}

// TestRecordingOfNothing: a recording that nothing came for is not left in the way of the next one; one that holds
// something is.
func TestRecordingOfNothing(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"schema":"kvroute.snapshot/v1","run":"r","seq":1,"at_unix_ms":1700000000000}`) //nolint:errcheck // seen below
	}))
	defer srv.Close()
	for _, c := range []struct {
		name string
		args []string
		code int
		kept bool
	}{
		{"answered", []string{srv.URL}, exitOK, true},
		{"not there", []string{"http://127.0.0.1:1"}, exitUnreachable, false},
		{"no room for its heading", []string{srv.URL, "--record-max-size", "10"}, exitFailed, false},
		{"no room for a snapshot", []string{srv.URL, "--record-max-size", "100"}, exitFailed, false},
	} {
		file := filepath.Join(t.TempDir(), "run.watch")
		var out, errs bytes.Buffer
		code := Run(context.Background(), append([]string{"watch", "--once", "--record", file}, c.args...), strings.NewReader(""), &out, &errs)
		_, err := os.Stat(file)
		if code != c.code || (err == nil) != c.kept {
			t.Errorf("%s: exit code %d, want %d; the file: %v, want it kept: %v; stderr %q", c.name, code, c.code, err, c.kept, &errs)
		}
	}
}

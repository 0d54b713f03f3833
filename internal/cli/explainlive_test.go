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

	"github.com/kvroute/kvroute/internal/score"
)

// explained is what a router answers.
func explained(t *testing.T) string {
	t.Helper()
	dec, err := score.Explain(score.Defaults(), score.Request{ID: "live", BlockSize: 16}, 10, []score.ExplainCandidate{{Name: "a", Hits: 8}, {Name: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	return `{"schema":"kvroute.explain/v1","version":"v9","flags":{"router-policy":"least-work"},` + string(dec.AppendJSON(nil)[1:])
}

func TestExplainLive(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	for _, tc := range []struct {
		name   string
		status int
		answer string
		code   int
		stdout string
		stderr string
		sent   string // Authorization
	}{
		{name: "explained", status: 200, answer: explained(t), stdout: "picked a by"},
		{name: "with a token", status: 200, answer: explained(t), stdout: "picked a by", sent: "Bearer s3cret"},
		{name: "no token", status: 401, answer: `{"error":{"message":"a token is needed"}}`, code: 2, stderr: "401 Unauthorized: a token is needed\nhint: name the router's admin token"},
		{name: "unknown model", status: 404, answer: `{"error":{"message":"no worker serves x"}}`, code: 2, stderr: "no worker serves x"},
		{name: "not a router", status: 404, answer: `nothing here`, code: 2, stderr: "hint: is this a kvroute router?"},
		{name: "no worker", status: 503, answer: `{"error":{"message":"no worker"}}`, code: 1, stderr: "the router cannot explain"},
		{name: "another schema", status: 200, answer: `{"schema":"x/v2"}`, code: 1, stderr: "not kvroute.explain/v1"},
		{name: "not JSON", status: 200, answer: `<html>`, code: 1, stderr: "cannot read the router's answer"},
		{name: "a field too few", status: 200, answer: strings.Replace(explained(t), `"seq":1,`, "", 1), code: 1, stderr: "seq"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got, auth, id string
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/admin/explain" {
					t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
				}
				got, auth, id = string(b), r.Header.Get("Authorization"), r.Header.Get("X-Request-Id")
				w.WriteHeader(tc.status)
				io.WriteString(w, tc.answer)
			}))
			defer srv.Close()
			args := []string{"explain", "--url", srv.URL, "--request", "-", "--id", "mine"}
			if tc.sent != "" {
				file := filepath.Join(t.TempDir(), "token")
				if err := os.WriteFile(file, []byte("\ns3cret\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--token-file", file)
			}
			var out, errs bytes.Buffer
			code := Run(context.Background(), args, strings.NewReader(body), &out, &errs)
			if code != tc.code || !strings.Contains(out.String(), tc.stdout) || !strings.Contains(errs.String(), tc.stderr) {
				t.Errorf("code %d, stdout %q, stderr %q; want %d, %q, %q", code, out.String(), errs.String(), tc.code, tc.stdout, tc.stderr)
			}
			if got != body || auth != tc.sent || id != "mine" {
				t.Errorf("the router got %q with %q as %q", got, auth, id)
			}
		})
	}
}

func TestExplainUnreachable(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	url := srv.URL
	srv.Close()
	var out, errs bytes.Buffer
	code := Run(context.Background(), []string{"explain", "--url", url, "--request", "-"}, strings.NewReader("{}"), &out, &errs)
	if code != exitUnreachable || out.Len() > 0 || !strings.HasPrefix(errs.String(), "kvroute: cannot reach the router: "+url) {
		t.Errorf("code %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}

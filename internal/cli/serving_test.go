package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// guarded is a buffer that is read while it is written.
type guarded struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (g *guarded) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(p)
}

func (g *guarded) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.String()
}

// await waits for a pattern on stderr and returns its first group.
func (g *guarded) await(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if m := re.FindStringSubmatch(g.String()); m != nil {
			return m[len(m)-1]
		}
	}
	t.Fatalf("waited in vain for %s in\n%s", pattern, g)
	return ""
}

// A signal ends serve well: with code 0, unless something is not as it was asked for. That was told as an
// interruption once.
func TestServeTellsAfterASignalWhatIsNotWhole(t *testing.T) {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"m","object":"model"}]}`) //nolint:errcheck // seen by the router
		case "/health":
		case "/v1/chat/completions":
			io.WriteString(w, `{"choices":[]}`) //nolint:errcheck // seen by the client
		default:
			http.NotFound(w, r)
		}
	}))
	defer worker.Close()
	for _, tc := range []struct {
		name string
		gone bool // the folder of the recording is removed
		code int
		says string
	}{
		{"whole", false, 0, "msg=stopped"},
		{"not whole", true, 1, "kvroute: the recording is not whole: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "records")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			code, errs := make(chan int, 1), &guarded{}
			go func() {
				code <- Run(ctx, []string{
					"serve", "--listen", "127.0.0.1:0", "--worker", worker.URL, "--model", "m", "--drain-delay", "0",
					"--record", filepath.Join(dir, "run.jsonl"), "--record-max-size", "1",
				}, strings.NewReader(""), io.Discard, errs)
			}()
			url := "http://" + errs.await(t, `msg=serving address=(\S+)`)
			errs.await(t, `msg=ready`)
			if tc.gone {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the first may still fit into the file that is open
				resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}]}`))
				if err != nil {
					t.Fatal(err)
				}
				if resp.Body.Close(); resp.StatusCode != 200 {
					t.Errorf("answered %d", resp.StatusCode)
				}
				if tc.gone {
					errs.await(t, `the recording ended early`)
				}
			}
			cancel()
			if got := <-code; got != tc.code || !strings.Contains(errs.String(), tc.says) || strings.Contains(errs.String(), "interrupted") {
				t.Errorf("code %d, want %d and %q in\n%s", got, tc.code, tc.says, errs)
			}
			http.DefaultClient.CloseIdleConnections()
		})
	}
}

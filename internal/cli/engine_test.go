package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/cli"
)

// startEngine runs kvroute engine until the returned function is called, which gives the exit code. It
// skips where the program has no tokenizers.
func startEngine(t *testing.T, args ...string) (url string, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- cli.Run(ctx, append([]string{"engine", "--listen", "127.0.0.1:0"}, args...), strings.NewReader(""), io.Discard, w)
		w.Close() //nolint:errcheck // a pipe in memory
	}()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if _, at, ok := strings.Cut(line, " at http://"); ok && strings.Contains(line, "stand-in serves") {
			go io.Copy(io.Discard, r) //nolint:errcheck // the rest of the talk
			return "http://" + at, func() int { cancel(); return <-code }
		}
		if strings.Contains(line, "without cgo") || strings.Contains(line, "no ZeroMQ") {
			go io.Copy(io.Discard, r) //nolint:errcheck // the rest of the talk
			cancel()
			<-code
			t.Skip(line)
		}
		t.Log(line)
	}
	cancel()
	t.Fatalf("the engine ended with code %d before it served", <-code)
	return "", nil
}

// TestEngine: the command serves, does what its flags say, and ends well with the first signal.
func TestEngine(t *testing.T) {
	url, stop := startEngine(t, "--dialect", "sglang", "--served-model-name", "m", "--dp-size", "2", "--time-scale", "0", "--block-size", "8", "--fault", "errors=503x1")
	get := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close() //nolint:errcheck // read to its end
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	var info struct {
		Page   int                     `json:"page_size"`
		Ranks  int                     `json:"dp_size"`
		Name   string                  `json:"served_model_name"`
		Events *struct{ Topic string } `json:"kv_events"`
	}
	if _, out := get("GET", "/server_info", ""); json.Unmarshal([]byte(out), &info) != nil || info.Page != 8 || info.Ranks != 2 || info.Name != "m" || info.Events == nil {
		t.Errorf("got %s", out)
	}
	const ask = `{"messages":[{"role":"user","content":"What is a prefix cache?"}],"max_tokens":5}`
	if status, out := get("POST", "/v1/chat/completions", ask); status != 503 {
		t.Errorf("with --fault errors=503x1: got %d %s", status, out)
	}
	if status, out := get("POST", "/v1/chat/completions", ask); status != 200 || !strings.Contains(out, `"completion_tokens":5`) {
		t.Errorf("got %d %s", status, out)
	}
	if code := stop(); code != 0 {
		t.Errorf("exit code %d after the signal, want 0", code)
	}
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("it still answers")
	}
}

// TestEngineBadFlags: one line that says what and where, exit code 2 or 1, and no engine.
func TestEngineBadFlags(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"--dialect vlm", 2, "vllm"},
		{"--fault drop=3", 2, "unknown fault"},
		{"--fault drop-events=x", 2, "not a count"},
		{"--role prefill", 2, "not there yet"},
		{"--profile none-such", 2, "unknown profile"},
		{"--model-path /does/not/exist", 2, "no model"},
		{"--engine-version new --events none", 1, "version"},
		{"--max-model-len 1000000 --capacity 10 --events none", 1, "model length"},
	} {
		code, out, stderr := run(t, append([]string{"engine", "--listen", "127.0.0.1:0"}, strings.Fields(tt.args)...)...)
		if strings.Contains(stderr, "without cgo") {
			continue
		}
		if code != tt.code || out != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: code %d, %q, want %d and %q", tt.args, code, stderr, tt.code, tt.want)
		}
	}
	if code, _, stderr := run(t, "demo", "--pd"); code != 2 || !strings.Contains(stderr, "not there yet") {
		t.Errorf("demo --pd: code %d, %q", code, stderr)
	}
}

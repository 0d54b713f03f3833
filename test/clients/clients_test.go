//go:build clients

// Package clients holds kvroute serve to what the official OpenAI clients expect: their own Python and JavaScript
// packages talk to routers in front of stand-in engines and of one engine that plays scenes. make test-clients
// installs the packages, pinned, under build/clients.
package clients

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const apiKey = "sk-clients-0123456789"

// TestPython runs python/test_client.py with the package openai of PyPI.
func TestPython(t *testing.T) {
	root := repository(t)
	python := filepath.Join(root, "build/clients/venv/bin/python")
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("the Python package is not installed (make test-clients does it): %v", err)
	}
	run(t, exec.Command(python, "-m", "unittest", "-v", "test_client"), filepath.Join(root, "test/clients/python"))
}

// TestJavaScript runs js/client.test.mjs with the package openai of npm.
func TestJavaScript(t *testing.T) {
	root := repository(t)
	modules := filepath.Join(root, "build/clients/js")
	if _, err := os.Stat(filepath.Join(modules, "node_modules/openai")); err != nil {
		t.Fatalf("the npm package is not installed (make test-clients does it): %v", err)
	}
	// Modules are looked for beside the file that imports them.
	text, err := os.ReadFile(filepath.Join(root, "test/clients/js/client.test.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(modules, "client.test.mjs"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command("node", "--test", "--test-concurrency=1", "client.test.mjs"), modules)
}

// run gives a client's tests a fleet and routers of their own.
func run(t *testing.T, client *exec.Cmd, dir string) {
	bin := program(t)
	tiny := filepath.Join(t.TempDir(), "tiny")
	if out, err := exec.Command(bin, "model", "write", tiny).CombinedOutput(); err != nil {
		t.Fatalf("writing the tiny model: %v\n%s", err, out)
	}
	scene := newStage(t)
	var workers []string
	for i, dialect := range []string{"vllm", "sglang"} {
		url := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		start(t, bin, "engine", "--dialect", dialect, "--listen", strings.TrimPrefix(url, "http://"), "--time-scale", "0.05")
		workers = append(workers, url)
		client.Env = append(client.Env, fmt.Sprintf("ENGINE%d=%s", i, url))
	}
	for _, w := range workers {
		await(t, w+"/health")
	}
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("# keys of the clients' tests\n"+apiKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	common := []string{
		"--router-tokenizer-path", "tiny=" + tiny, "--explain-header", "--drain-delay", "1s", "--log-level", "warn",
		"--worker", workers[0], "--worker", workers[1], "--worker", scene.URL + ",model=scene",
	}
	open, keyed, full, drained := router(t, bin, common...), router(t, bin, append(common, "--api-key-file", keys)...),
		router(t, bin, append(common, "--max-in-flight", "1")...), router(t, bin, common...)
	client.Env = append(append(os.Environ(), client.Env...),
		"ROUTER="+open.url, "KEYED="+keyed.url, "KEY="+apiKey, "FULL="+full.url, "DRAINED="+drained.url,
		fmt.Sprintf("DRAINED_PID=%d", drained.cmd.Process.Pid), "SCENE="+scene.URL,
		"PYTHONDONTWRITEBYTECODE=1", "OPENAI_API_KEY=", "OPENAI_BASE_URL=", "NO_PROXY=127.0.0.1")
	client.Dir = dir
	out, err := client.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("the client's tests: %v", err)
	}
	if code := drained.wait(t); code != 0 {
		t.Errorf("a router that drained ended with code %d, want 0\n%s", code, drained.log())
	}
	for _, r := range []*process{open, keyed, full} {
		if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("ending a router: %v", err)
		}
		if code := r.wait(t); code != 0 {
			t.Errorf("a router ended with code %d, want 0\n%s", code, r.log())
		}
	}
}

func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// program builds kvroute once.
var build = sync.OnceValues(func() (string, error) {
	bin, err := filepath.Abs("../../build/clients/kvroute")
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/kvroute").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

func program(t *testing.T) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatalf("building kvroute: %v", err)
	}
	return bin
}

// process is a program that runs until the test ends.
type process struct {
	cmd  *exec.Cmd
	url  string
	out  *syncBuffer
	done chan struct{}
}

func start(t *testing.T, bin string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(bin, args...), out: &syncBuffer{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", args[0], err)
	}
	go func() {
		defer close(p.done)
		p.cmd.Wait() //nolint:errcheck // the code is looked at
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-p.done
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), p.log())
		}
	})
	return p
}

func (p *process) log() string { return p.out.String() }

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("a process does not end\n%s", p.log())
	}
	return p.cmd.ProcessState.ExitCode()
}

// router starts kvroute serve and waits until it is ready.
func router(t *testing.T, bin string, args ...string) *process {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	p := start(t, bin, append([]string{"serve", "--listen", addr}, args...)...)
	p.url = "http://" + addr
	await(t, p.url+"/ready")
	return p
}

// await polls a page until it answers 200.
func await(t *testing.T, url string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s does not answer 200 within a minute: %v", url, err)
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// stage is an engine that plays the scene a request names in its field "user", with the very bytes engines
// send; GET /seen tells what it saw.
type stage struct {
	URL string

	mu      sync.Mutex
	bodies  map[string]json.RawMessage // last body of each scene
	headers map[string]http.Header
	aborted map[string]int // requests whose client left
}

func newStage(t *testing.T) *stage {
	s := &stage{bodies: map[string]json.RawMessage{}, headers: map[string]http.Header{}, aborted: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"object":"list","data":[{"id":"scene","object":"model","created":1,"owned_by":"stage","max_model_len":4096,"extra":{"kept":true}}]}`)
	})
	mux.HandleFunc("GET /seen", s.seen)
	mux.HandleFunc("POST /v1/chat/completions", s.play)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(l) //nolint:errcheck // ends with Close
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	s.URL = "http://" + l.Addr().String()
	return s
}

func (s *stage) seen(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	json.NewEncoder(w).Encode(map[string]any{"bodies": s.bodies, "headers": s.headers, "aborted": s.aborted})
}

func (s *stage) play(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var q struct {
		User   string
		Stream bool
	}
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.bodies[q.User], s.headers[q.User] = body, r.Header
	s.mu.Unlock()
	defer func() {
		if r.Context().Err() != nil {
			s.mu.Lock()
			s.aborted[q.User]++
			s.mu.Unlock()
		}
	}()
	switch q.User {
	case "tools":
		if q.Stream {
			stream(w, toolStream)
		} else {
			answer(w, http.StatusOK, toolAnswer)
		}
	case "refused":
		answer(w, http.StatusBadRequest, `{"error":{"message":"top_k must be -1 or at least 1","type":"BadRequestError","param":"top_k","code":400}}`)
	case "failing":
		answer(w, http.StatusInternalServerError, `{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","param":null,"code":500}}`)
	case "error in stream":
		stream(w, text("Half an ")+`data: {"error":{"message":"out of memory","type":"InternalServerError","param":null,"code":500}}`+"\n\ndata: [DONE]\n\n")
	case "cut":
		if q.Stream {
			stream(w, text("Half an ")+`data: {"id":"chatcmpl-1","object":"chat.compl`)
		} else {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"id":"chatcmpl-1","object":"chat.completion","cho`)
			http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	case "endless":
		for i := 0; r.Context().Err() == nil; i++ {
			if i == 0 || q.Stream {
				stream(w, text("word "))
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
	case "never":
		<-r.Context().Done()
	case "while": // a stream of two seconds
		for range 100 {
			stream(w, text("w "))
			select {
			case <-time.After(20 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
		stream(w, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	default:
		answer(w, http.StatusBadRequest, `{"error":{"message":"no such scene","type":"BadRequestError","param":"user","code":400}}`)
	}
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

func stream(w http.ResponseWriter, records string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	out := bufio.NewWriter(w)
	out.WriteString(records)
	out.Flush()
	http.NewResponseController(w).Flush()
}

func text(s string) string {
	return fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[{"index":0,"delta":{"role":"assistant","content":%q},"finish_reason":null}]}`, s) + "\n\n"
}

const toolAnswer = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"scene","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[` +
	`{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Zürich\"}"}},` +
	`{"id":"call_2","type":"function","function":{"name":"weather","arguments":"{\"city\": \"東京\"}"}}]},"finish_reason":"tool_calls"}],` +
	`"usage":{"prompt_tokens":40,"completion_tokens":20,"total_tokens":60,"prompt_tokens_details":{"cached_tokens":32}}}`

const toolStream = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\": "}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"Zürich\"}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scene","choices":[],"usage":{"prompt_tokens":40,"completion_tokens":20,"total_tokens":60,"prompt_tokens_details":{"cached_tokens":32}}}

data: [DONE]

`

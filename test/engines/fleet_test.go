//go:build engines

package engines

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// kind is one engine that scripts/engines.sh can run.
type kind struct {
	name   string
	engine string
	block  int // tokens per block of its cache
	blocks int // of its cache
}

// The caches are small: 8 clients with prompts of some hundred tokens push each other's blocks out all the time.
var kinds = []kind{
	{name: "vllm-0.32.0", engine: "vllm", block: 32, blocks: 129},
	{name: "vllm-0.23.0", engine: "vllm", block: 16, blocks: 257},
	{name: "sglang-0.5.23", engine: "sglang", block: 16, blocks: 256},
}

const (
	script    = "../../scripts/engines.sh"
	modelName = "tiny"
)

// engine is one server that runs.
type engine struct {
	kind
	id                string
	http, pub, replay int
	env               []string // further settings
}

func (e *engine) url() string { return fmt.Sprintf("http://127.0.0.1:%d", e.http) }

// ports finds n free ports in a row, well below those the system gives to clients.
func ports(t testing.TB, n int) int {
	t.Helper()
search:
	for base := 20000 + os.Getpid()%500*16; base < 32000; base += 16 {
		for p := range n {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", base+p))
			if err != nil {
				continue search
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return base
	}
	t.Fatal("no free ports")
	return 0
}

// run calls the script with settings.
func run(t testing.TB, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(script, args...)
	cmd.Env = append(os.Environ(), env...)
	// Not a pipe: the engine would hold it open.
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	text, readErr := os.ReadFile(out.Name())
	if readErr != nil {
		t.Fatal(readErr)
	}
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", script, strings.Join(args, " "), err, text)
	}
	return strings.TrimSpace(string(text))
}

func installed(k kind) bool { return exec.Command(script, "installed", k.name).Run() == nil }

// endWith has an engine stopped when a test ends, whether it runs by then or not.
func (e *engine) endWith(t testing.TB) {
	if !keep() {
		t.Cleanup(func() { run(t, nil, "stop", e.id) })
	}
}

// start starts an engine. Ranks publish on ports after pub and replay.
func (e *engine) start(t testing.TB, flags ...string) {
	t.Helper()
	began := time.Now()
	if keep() && alive(e) {
		return
	}
	env := []string{fmt.Sprintf("BLOCK_SIZE=%d", e.block), fmt.Sprintf("BLOCKS=%d", e.blocks), "MODEL_NAME=" + modelName, "MAX_LEN=2048"}
	env = append(env, e.env...)
	args := append([]string{"start", e.name, e.id, strconv.Itoa(e.http), strconv.Itoa(e.pub), strconv.Itoa(e.replay)}, flags...)
	run(t, env, args...)
	t.Logf("%s answers after %.0f s", e.id, time.Since(began).Seconds())
}

// keep says that engines are left running for the next run, and are used if they run: ENGINES_KEEP=1. For
// those who write these tests, as an engine takes minutes to start on a busy machine.
func keep() bool { return os.Getenv("ENGINES_KEEP") == "1" }

func alive(e *engine) bool {
	resp, err := http.Get(e.url() + "/health")
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// pair starts n engines of a kind, at once.
func pair(t testing.TB, k kind, n int) []*engine {
	t.Helper()
	owner, base := strconv.Itoa(os.Getpid()), 0
	if keep() {
		owner, base = "kept", 19000+20*slices.Index(kinds, k)
	} else {
		base = ports(t, 3*n)
	}
	var list []*engine
	var wg sync.WaitGroup
	for i := range n {
		e := &engine{kind: k, id: fmt.Sprintf("test-%s-%s-%d", owner, k.name, i), http: base + 3*i, pub: base + 3*i + 1, replay: base + 3*i + 2}
		list = append(list, e)
		e.endWith(t)
		wg.Go(func() { e.start(t) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return list
}

// post sends a body to an engine itself.
func (e *engine) post(t testing.TB, path, body string) []byte {
	t.Helper()
	resp, err := http.Post(e.url()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("POST %s to %s: %s: %s", path, e.id, resp.Status, data)
	}
	return data
}

// forget empties an engine's cache.
func (e *engine) forget(t testing.TB) {
	t.Helper()
	path := "/reset_prefix_cache"
	if e.engine == "sglang" {
		path = "/flush_cache"
	}
	resp, err := http.Post(e.url()+path, "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("POST %s to %s: %s", path, e.id, resp.Status)
	}
}

// guess is what the router's log says about a prediction once the request is over.
type guess struct {
	Predicted int64  `json:"predicted"`
	Reported  int64  `json:"reported"`
	Outcome   string `json:"outcome"` // equal, differing, overtaken
	Why       string `json:"why"`
	Worker    string `json:"worker"`
	known     bool
}

// router is a kvroute serve that runs.
type router struct {
	url  string
	log  string // its file
	cmd  *exec.Cmd
	ends chan struct{}

	mu      sync.Mutex
	guesses map[string]guess // by request id
}

// serve starts a router in front of engines and waits until it is ready.
func serve(t testing.TB, engines []*engine, flags ...string) *router {
	t.Helper()
	r := &router{url: fmt.Sprintf("http://127.0.0.1:%d", ports(t, 1)), ends: make(chan struct{}), guesses: map[string]guess{}}
	args := []string{
		"serve", "--listen", strings.TrimPrefix(r.url, "http://"), "--explain-header", "--log-level", "debug", "--log-format", "json",
		"--block-size", strconv.Itoa(engines[0].block), "--router-tokenizer-path", modelDir(t, engines[0].kind),
	}
	for _, e := range engines {
		args = append(args, "--worker", fmt.Sprintf("%s,events=tcp://127.0.0.1:%d,replay=tcp://127.0.0.1:%d,topic=kv-events", e.url(), e.pub, e.replay))
	}
	r.cmd = exec.Command(binary(t), append(args, flags...)...)
	pipe, err := r.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.CreateTemp(logDir(t), "router-*.log")
	if err != nil {
		t.Fatal(err)
	}
	r.log = file.Name()
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go r.follow(t, pipe, file)
	t.Cleanup(func() { r.stop(t) })
	began := time.Now()
	r.await(t, "readiness", 2*time.Minute, func() bool {
		resp, err := http.Get(r.url + "/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	t.Logf("the router is ready after %.1f s (log: %s)", time.Since(began).Seconds(), r.log)
	return r
}

// follow reads the router's log to its end.
func (r *router) follow(t testing.TB, in io.Reader, out io.WriteCloser) {
	defer close(r.ends)
	defer out.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Msg       string
			RequestID string `json:"request_id"`
			guess
		}
		if _, err := out.Write(append(lines.Bytes(), '\n')); err != nil {
			t.Errorf("keeping the router's log: %v", err)
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Msg != "cached tokens" {
			continue
		}
		line.known = true
		r.mu.Lock()
		r.guesses[line.RequestID] = line.guess
		r.mu.Unlock()
	}
}

// guess returns what the log says about a request; the line may be a moment late.
func (r *router) guess(id string) guess {
	for range 600 {
		r.mu.Lock()
		g := r.guesses[id]
		r.mu.Unlock()
		if g.known {
			return g
		}
		time.Sleep(5 * time.Millisecond)
	}
	return guess{}
}

// stop drains the router, as a service manager would.
func (r *router) stop(t testing.TB) {
	t.Helper()
	if r.cmd.ProcessState != nil {
		return
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("ending the router: %v", err)
	}
	<-r.ends
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("the router ended badly: %v (log: %s)", err, r.log)
	}
}

// kill ends the router without a word.
func (r *router) kill(t testing.TB) {
	t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-r.ends
	r.cmd.Wait() //nolint:errcheck // it was killed
}

// await polls until ok, and fails the test if that takes too long.
func (r *router) await(t testing.TB, what string, most time.Duration, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	for !ok() {
		select {
		case <-r.ends:
			t.Fatalf("the router ended while waiting for %s (log: %s)", what, r.log)
		case <-ctx.Done():
			t.Fatalf("no %s within %v (log: %s)\n%s", what, most, r.log, r.get(t, "/ready"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *router) get(t testing.TB, path string) []byte {
	t.Helper()
	resp, err := http.Get(r.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// workers asks the admin API, by route key in its order.
func (r *router) workers(t testing.TB) []snapshot.Worker {
	t.Helper()
	var list struct{ Workers []snapshot.Worker }
	if err := json.Unmarshal(r.get(t, "/v1/admin/workers"), &list); err != nil {
		t.Fatal(err)
	}
	return list.Workers
}

// calm waits until no batch has come for a while: engines publish a moment after they answer.
func (r *router) calm(t testing.TB, still time.Duration) {
	t.Helper()
	seen, since := uint64(0), time.Now()
	for time.Since(since) < still {
		sum := uint64(0)
		for _, w := range r.workers(t) {
			sum += w.Stream.Batches
		}
		if sum != seen {
			seen, since = sum, time.Now()
		}
		time.Sleep(still / 10)
	}
}

var build struct {
	sync.Once
	path string
	err  error
}

// binary is the program under test: ENGINES_BIN, or what is built of this tree.
func binary(t testing.TB) string {
	t.Helper()
	build.Do(func() {
		if build.path = os.Getenv("ENGINES_BIN"); build.path != "" {
			return
		}
		build.path = filepath.Join(os.TempDir(), fmt.Sprintf("kvroute-engines-%d", os.Getpid()), "kvroute")
		out, err := exec.Command("go", "build", "-o", build.path, "../../cmd/kvroute").CombinedOutput()
		if err != nil {
			build.err = fmt.Errorf("building kvroute: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// logDir keeps what failed runs leave behind: ENGINES_LOGS, or a directory of the test's.
func logDir(t testing.TB) string {
	if d := os.Getenv("ENGINES_LOGS"); d != "" {
		return d
	}
	return t.TempDir()
}

func modelDir(t testing.TB, k kind) string { return run(t, nil, "model", k.name) }

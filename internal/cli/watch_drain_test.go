//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"io"
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

// heard keeps what a program writes while others look at it.
type heard struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.buf.Write(p)
}

func (h *heard) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.buf.String()
}

func (h *heard) expect(t *testing.T, what, text string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(tmuxPatience); !strings.Contains(h.text(), text); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: %q is not in %q", what, text, h.text())
		}
	}
}

// answers waits until url is answered with status 200 and has text in it.
func answers(t *testing.T, url, text string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := ""
	for end := time.Now().Add(tmuxPatience); time.Now().Before(end); <-tick.C {
		resp, err := http.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close() //nolint:errcheck // only read from
		if last = string(body); err == nil && resp.StatusCode == http.StatusOK && strings.Contains(last, text) {
			return
		}
	}
	t.Fatalf("%s does not have %s: %s", url, text, last)
}

// TestDrainIsWatchedOverSSH: a router that is told to stop while a request is under way and a screen is open over SSH shows so,
// lets the request end, gives the terminal back, and ends.
func TestDrainIsWatchedOverSSH(t *testing.T) {
	for _, program := range []string{"ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program+" is not installed:", err)
		}
	}
	if testing.Short() {
		t.Skip("takes some seconds and three programs")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	model, key := filepath.Join(dir, "model"), filepath.Join(dir, "key")
	for _, args := range [][]string{
		{filepath.Join(binDir, "kvroute"), "model", "write", model},
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	engine, addr, screens := freeAddr(t), freeAddr(t), freeAddr(t)
	host, _, _ := strings.Cut(engine, ":")
	running(t, ctx, "engine", "--listen", engine, "--events", "tcp://"+host+":0", "--replay", "tcp://"+host+":0", "--capacity", "500")
	serve := exec.CommandContext(ctx, filepath.Join(binDir, "kvroute"), "serve", "--listen", addr, "--worker", "http://"+engine,
		"--router-tokenizer-path", model, "--watch-ssh", screens, "--watch-ssh-authorized-keys", key+".pub", "--watch-ssh-host-key", filepath.Join(dir, "host"), "--drain-delay", "1s")
	var log heard
	serve.Stderr = &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve.Wait() }()
	answers(t, "http://"+addr+"/ready", `"ready"`)

	host, port, _ := strings.Cut(screens, ":")
	ssh := exec.CommandContext(ctx, "ssh", "-tt", "-F", "none", "-i", key, "-p", port, "-o", "StrictHostKeyChecking=no",
		"-o", "UserKnownHostsFile="+os.DevNull, "-o", "LogLevel=ERROR", "-o", "IdentitiesOnly=yes", "watcher@"+host)
	ssh.Env = append(os.Environ(), "TERM=xterm")
	in, err := ssh.StdinPipe() // open, or the session ends
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // nothing is written
	var screen heard
	ssh.Stdout, ssh.Stderr = &screen, &screen
	if err := ssh.Start(); err != nil {
		t.Fatal(err)
	}
	screen.expect(t, "first screen", "trusted")

	answered := make(chan int, 1)
	go func() {
		body := `{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":100,"ignore_eos":true}`
		resp, err := http.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			answered <- 0
			return
		}
		defer resp.Body.Close() //nolint:errcheck // only read from
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			answered <- 0
			return
		}
		answered <- resp.StatusCode
	}()
	answers(t, "http://"+addr+"/v1/admin/snapshot", `"held_requests":1`)
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	screen.expect(t, "the drain", "the router is ending")
	if code := <-answered; code != http.StatusOK {
		t.Errorf("the request under way ended with status %d, want 200", code)
	}
	if err := ssh.Wait(); err != nil {
		t.Errorf("ssh: %v, want a session that ends well", err)
	}
	if s := screen.text(); !strings.Contains(s, "\x1b[?1049l") || !strings.Contains(s, "the router is stopping") {
		t.Errorf("the terminal is not given back, or not said why: %q", s[max(0, len(s)-500):])
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v, want exit code 0; it said %s", err, log.text())
	}
}

//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// tmuxPatience is how long a test waits for what must come on a screen; none waits that long when all is well.
const tmuxPatience = 45 * time.Second

// bothTrusted are lines of two workers.
const bothTrusted = `(?s)(:\d+ +● trusted.*){2}`

// pane is kvroute watch in a terminal of tmux.
type pane struct {
	t    *testing.T
	ctx  context.Context
	sock string
	sent string // file of what the program sent to the terminal, from when it was first asked for
}

// watchInTmux starts it. The shell stays: what it finds of the terminal is what a user is left with.
func watchInTmux(t *testing.T, ctx context.Context, w, h int, addr string) *pane {
	t.Helper()
	dir := t.TempDir()
	p := &pane{t: t, ctx: ctx, sock: filepath.Join(dir, "tmux"), sent: filepath.Join(dir, "sent")}
	p.tmux("new-session", "-d", "-x", fmt.Sprint(w), "-y", fmt.Sprint(h),
		fmt.Sprintf("LC_ALL=C.UTF-8 %s watch http://%s; echo code=$?; stty -a; exec cat", filepath.Join(binDir, "kvroute"), addr))
	t.Cleanup(func() { p.tmux("kill-server") })
	return p
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", p.sock, "-f", "/dev/null"}, args...)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("tmux %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (p *pane) keys(keys ...string) { p.tmux(append([]string{"send-keys"}, keys...)...) }

// see waits for a screen that has all of what is looked for, regular expressions, and returns it.
func (p *pane) see(what string, has ...string) string {
	p.t.Helper()
	return p.seeWithout(what, "", has...)
}

// seeWithout is see of a screen that also does not have something.
func (p *pane) seeWithout(what, not string, has ...string) string {
	p.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(tmuxPatience); ; {
		s := p.tmux("capture-pane", "-p")
		wrong := ""
		for _, h := range has {
			if !regexp.MustCompile(h).MatchString(s) {
				wrong = h + " is not"
			}
		}
		if not != "" && regexp.MustCompile(not).MatchString(s) {
			wrong = not + " is"
		}
		if wrong == "" {
			return s
		}
		if p.ctx.Err() != nil || time.Now().After(end) {
			p.t.Fatalf("%s: %s on the screen:\n%s", what, wrong, s)
		}
		<-tick.C
	}
}

// listen begins to keep what the program sends to the terminal.
func (p *pane) listen() {
	p.t.Helper()
	p.tmux("pipe-pane", "cat >'"+p.sent+"'")
}

// repaints is how often the whole screen was drawn since: it is erased, and the title comes again.
func (p *pane) repaints() (erased, titles int) {
	p.t.Helper()
	b, err := os.ReadFile(p.sent)
	if err != nil && !os.IsNotExist(err) {
		p.t.Fatal(err)
	}
	return strings.Count(string(b), "\x1b[2J"), strings.Count(string(b), " kvroute ")
}

// cells checks that the screen was never drawn as a whole since listen, only cells that change, and that it is when
// it gets another size.
func (p *pane) cells(w, h int, has ...string) {
	p.t.Helper()
	if erased, titles := p.repaints(); erased+titles > 0 {
		p.t.Errorf("the whole screen was erased %d times and drawn %d times since the first frame, want never", erased, titles)
	}
	p.tmux("resize-window", "-x", fmt.Sprint(w), "-y", fmt.Sprint(h))
	p.see("another size", has...)
	for end := time.Now().Add(tmuxPatience); ; time.Sleep(20 * time.Millisecond) { // a poll
		erased, titles := p.repaints()
		if erased >= 1 && titles >= 1 {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("after another size the screen was erased %d times and its title drawn %d times, want both: are full repaints seen here?", erased, titles)
		}
	}
}

func tmuxOrSkip(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds and a whole fleet")
	}
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed:", err)
	}
}

// freeAddr is an address that nobody listens on. It is not of the host that everybody asks for free ports, where
// another program may get the same one before it is used, or while what listens there is down.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", 2+rand.IntN(250)))
	if err != nil { // a system with one loopback address
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it was only asked for
	return l.Addr().String()
}

// running is a program that a test starts, and kills at any time.
func running(t *testing.T, ctx context.Context, args ...string) (out io.Reader, kill func()) {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "kvroute"), args...)
	out, in := io.Pipe()
	var says bytes.Buffer
	cmd.Stdout, cmd.Stderr = in, &says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		in.CloseWithError(cmd.Wait())
	}()
	kill = func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-ended
	}
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("kvroute %s said: %s", strings.Join(args, " "), &says)
		}
	})
	return out, kill
}

// TestWatchInTmux watches a demo in a real terminal: keys, sizes, the router killed and started again, and what is
// left of the terminal.
func TestWatchInTmux(t *testing.T) {
	tmuxOrSkip(t)
	t.Parallel()
	addr := freeAddr(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	demo := func() (fault string, kill func()) {
		out, kill := running(t, ctx, "demo", "--workers", "2", "--listen", addr)
		fault = regexp.MustCompile(`http://[^ ]*/fault`).FindString(readUntil(t, out, "/fault"))
		go io.Copy(io.Discard, out) //nolint:errcheck // it ends with the program
		return fault, kill
	}
	fault, kill := demo()
	p := watchInTmux(t, ctx, 80, 24, addr)
	p.see("first screen", `● live`, `● trusted`, `127\.0\.0\.\d+:`, `req/s`)
	p.listen()
	p.keys("?")
	p.see("help", "moving")
	p.keys("Escape", "3") // at once, which reads as alt and 3
	p.see("decisions", `\[3 decisions\]`, "exact")
	p.keys("1")
	p.see("fleet", `\[1 fleet\]`, "warnings")

	// A worker dies and comes back.
	resp, err := http.Post(fault, "application/json", strings.NewReader(`{"crash":{"for":"3s"}}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close() //nolint:errcheck // only read from
	p.see("an engine crashed", `✗ (unhealthy|breaker)`, `1 in doubt`, `warnings \(\d going on\)`)
	p.seeWithout("the engine is back", `✗ (unhealthy|breaker)|in doubt`, bothTrusted)
	p.cells(200, 60, `\[1 fleet\].*● live`, `3 opens`, `over: .*`)

	kill()
	p.see("router killed", "● trusted|stale", `✗ stale`, "trying again") // the last picture stays
	demo()
	p.see("router started again", "● live", "● trusted")
	if p.tmux("display-message", "-p", "#{alternate_on}") != "1\n" {
		t.Error("the screen is not the alternate one")
	}
	p.keys("q")
	left := p.see("after q", "code=0", "icanon")
	if strings.Contains(left, "-icanon") || strings.Contains(left, "-echo ") {
		t.Errorf("the terminal is left raw:\n%s", left)
	}
	if got := p.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}"); got != "0 1\n" {
		t.Errorf("alternate screen and cursor are %q, want %q", got, "0 1\n")
	}
}

// readUntil reads up to a text.
func readUntil(t *testing.T, r io.Reader, until string) string {
	t.Helper()
	var b strings.Builder
	buf := make([]byte, 1024)
	for !strings.Contains(b.String(), until) {
		n, err := r.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v before %q came, after %q", err, until, b.String())
		}
	}
	return b.String()
}

// TestRestartsInTmux: a router in front of two engines is killed and started again, and an engine too, while two
// screens of different sizes watch: what was seen stays with its age, what was selected stays selected, and only
// cells that change are sent.
func TestRestartsInTmux(t *testing.T) {
	tmuxOrSkip(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	model := filepath.Join(t.TempDir(), "model")
	if out, err := exec.CommandContext(ctx, filepath.Join(binDir, "kvroute"), "model", "write", model).CombinedOutput(); err != nil {
		t.Fatalf("kvroute model write: %v\n%s", err, out)
	}
	addr, engines := freeAddr(t), []string{freeAddr(t), freeAddr(t)}
	engine := func(i int) (kill func()) {
		host, _, _ := strings.Cut(engines[i], ":")
		_, kill = running(t, ctx, "engine", "--listen", engines[i], "--events", "tcp://"+host+":0", "--replay", "tcp://"+host+":0", "--capacity", "500", "--time-scale", "0")
		return kill
	}
	router := func() (kill func()) {
		_, kill = running(t, ctx, "serve", "--listen", addr, "--worker", "http://"+engines[0], "--worker", "http://"+engines[1],
			"--router-tokenizer-path", model, "--health-interval", "200ms", "--log-level", "error")
		return kill
	}
	killEngine := engine(0)
	engine(1)
	killRouter := router()
	small, large := watchInTmux(t, ctx, 80, 24, addr), watchInTmux(t, ctx, 200, 60, addr)
	both := []*pane{small, large}
	for _, p := range both {
		p.see("first screen", `● live`, bothTrusted)
		p.keys("G") // the last one
	}
	last := regexp.QuoteMeta("▌" + engines[0])
	if !regexp.MustCompile(last).MatchString(small.see("the last selected", `2/2 `)) {
		last = regexp.QuoteMeta("▌" + engines[1])
	}
	for _, p := range both {
		p.see("the last selected", last, `2/2`)
		p.listen()
	}

	killEngine()
	for _, p := range both {
		p.see("engine killed", `✗ unhealthy`, `1 in doubt`, `does not answer`, last)
	}
	engine(0)
	for _, p := range both {
		p.seeWithout("engine started again", `✗ unhealthy|in doubt`, bothTrusted, last, `over: `)
	}

	killRouter()
	for _, p := range both {
		s := p.see("router killed", `✗ stale [2-9] s|✗ stale \d\d s`, last, `trying again`)
		if strings.Contains(s, "● live") || strings.Count(s, "127.0.0.") < 3 {
			t.Errorf("the last picture does not stay, out of date:\n%s", s)
		}
	}
	router()
	for _, p := range both {
		p.seeWithout("router started again", "stale", `● live`, bothTrusted, last, `2/2`, `up +(now|\d+ s)`)
	}
	small.cells(120, 40, `● live`, last, `gaps`)
	large.cells(80, 24, `● live`, last)
}

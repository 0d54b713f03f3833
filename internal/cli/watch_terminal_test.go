//go:build unix

package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// terminalPatience is how long a test waits for what must come; none waits that long when all is well.
const terminalPatience = 30 * time.Second

// console is a program on a terminal of its own.
type console struct {
	t      *testing.T
	screen *os.File // what a user looks at and types into
	line   *os.File // what the program has
	before *term.State
	cmd    *exec.Cmd
	end    chan error

	mu   sync.Mutex
	text bytes.Buffer
}

// onTerminal starts a program as the first of a session on a new terminal.
func onTerminal(t *testing.T, env []string, args ...string) *console {
	t.Helper()
	screen, line, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close(); line.Close() })
	if err := pty.Setsize(screen, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, screen: screen, line: line, end: make(chan error, 1)}
	if c.before, err = term.GetState(int(line.Fd())); err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(args[0], args[1:]...)
	c.cmd.Env = append(append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8"), env...)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = line, line, line
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }) // gone, if all is well
	go func() { c.end <- c.cmd.Wait() }()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := screen.Read(buf)
			c.mu.Lock()
			c.text.Write(buf[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *console) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// expect waits until all of want came, one behind the other, beginning at a place, and returns the place behind.
func (c *console) expect(from int, want ...string) int {
	c.t.Helper()
	for late := time.Now().Add(terminalPatience); ; time.Sleep(5 * time.Millisecond) { // a poll
		text, at, missing := c.shown(), from, ""
		for _, w := range want {
			i := strings.Index(text[at:], w)
			if i < 0 {
				missing = w
				break
			}
			at += i + len(w)
		}
		if missing == "" {
			return at
		}
		if time.Now().After(late) {
			c.t.Fatalf("waited in vain for %q in …%q", missing, text[max(from, len(text)-1500):])
		}
	}
}

func (c *console) press(keys string) {
	c.t.Helper()
	if _, err := c.screen.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// code waits for the program's end and returns its exit code, -1 for a signal's.
func (c *console) code() int {
	c.t.Helper()
	select {
	case err := <-c.end:
		var e *exec.ExitError
		if err != nil && !errors.As(err, &e) {
			c.t.Fatal(err)
		}
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(terminalPatience):
		c.t.Fatalf("it does not end; screen %q", c.shown())
		return -1
	}
}

var (
	modeSet  = regexp.MustCompile(`\x1b\[\?([0-9;]+)([hl])`)
	kittySet = regexp.MustCompile(`\x1b\[([><])[0-9;]*u`)
	otherSet = regexp.MustCompile(`\x1b\[>4(;[0-9]+)?m`)
)

// left tells what a program's output leaves of a terminal other than it was.
func left(text string) (wrong []string) {
	modes := map[string]bool{"25": true}
	for _, m := range modeSet.FindAllStringSubmatch(text, -1) {
		for _, mode := range strings.Split(m[1], ";") {
			modes[mode] = m[2] == "h"
		}
	}
	for mode, on := range modes {
		if on != (mode == "25") {
			wrong = append(wrong, fmt.Sprintf("mode ?%s is on: %v", mode, on))
		}
	}
	depth := 0
	for _, m := range kittySet.FindAllStringSubmatch(text, -1) {
		if m[1] == ">" {
			depth++
		} else {
			depth = max(0, depth-1) // terminals take no harm from one too many
		}
	}
	if depth != 0 {
		wrong = append(wrong, fmt.Sprintf("%d ways of keys are left", depth))
	}
	if all := otherSet.FindAllStringSubmatch(text, -1); len(all) > 0 {
		if last := all[len(all)-1][1]; last != "" && last != ";0" {
			wrong = append(wrong, "other keys are reported still")
		}
	}
	return wrong
}

// restored checks that the terminal is as it was before.
func (c *console) restored() {
	c.t.Helper()
	after, err := term.GetState(int(c.line.Fd()))
	if err != nil {
		c.t.Fatal(err)
	}
	if !reflect.DeepEqual(c.before, after) {
		c.t.Errorf("the terminal's state is %+v, was %+v", after, c.before)
	}
	const end = "(end of the test)"
	if _, err := c.line.WriteString(end); err != nil {
		c.t.Fatal(err)
	}
	c.expect(0, end) // all of its output has come
	for _, w := range left(c.shown()) {
		c.t.Error(w)
	}
}

// TestWatchLeavesTheTerminal: whatever ends the screen, the terminal is as it was.
func TestWatchLeavesTheTerminal(t *testing.T) {
	url := tellingRouter(t).URL
	// Where hang-ups are ignored, as under nohup, the program would inherit that: not those that are handled.
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangUps) })
	for _, c := range []struct {
		name string
		end  func(c *console)
	}{
		{"q", func(c *console) { c.press("q") }},
		{"ctrl+c", func(c *console) { c.press("\x03") }},
		{"SIGTERM", func(c *console) { _ = c.cmd.Process.Signal(syscall.SIGTERM) }},
		{"SIGINT", func(c *console) { _ = c.cmd.Process.Signal(syscall.SIGINT) }},
		{"SIGHUP", func(c *console) { _ = c.cmd.Process.Signal(syscall.SIGHUP) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := onTerminal(t, nil, filepath.Join(binDir, "kvroute"), "watch", url, "--mouse")
			x.expect(0, "\x1b[?1049h", "worker-0")
			if m := left(x.shown()); len(m) < 3 {
				t.Errorf("while it is shown only %v is set: the test sees nothing", m)
			}
			c.end(x)
			if code := x.code(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			x.restored()
		})
	}
}

// TestWatchByTheLocale: what cannot show UTF-8 gets none, without being asked for --ascii.
func TestWatchByTheLocale(t *testing.T) {
	url := tellingRouter(t).URL
	for _, c := range []struct{ locale, shows string }{{"C", "* trusted"}, {"C.UTF-8", "● trusted"}} {
		t.Run(c.locale, func(t *testing.T) {
			t.Parallel()
			x := onTerminal(t, []string{"LC_ALL=" + c.locale, "NO_COLOR=1"}, filepath.Join(binDir, "kvroute"), "watch", url)
			x.expect(0, c.shows)
			x.press("q")
			if code := x.code(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
		})
	}
}

// TestWatchLeavesTheTerminalAfterAFault: a panic too, in whichever goroutine it is, gives the terminal back, and tells.
func TestWatchLeavesTheTerminalAfterAFault(t *testing.T) {
	for _, c := range []struct{ where, keys string }{
		{"update", " "},    // steers what is played, while a key is looked at
		{"command", "3\r"}, // asks for a decision, beside the screen
		{"source", ""},
	} {
		t.Run(c.where, func(t *testing.T) {
			t.Parallel()
			x := onTerminal(t, []string{"KVROUTE_TEST_FAULT=" + c.where}, os.Args[0])
			at := x.expect(0, "\x1b[?1049h", "worker-0")
			x.press(c.keys)
			at = x.expect(at, "\x1b[?1049l") // what is told comes behind, where it stays
			if code := x.code(); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			x.restored()
			text := x.shown()[at:]
			for _, want := range []string{"planted fault", "goroutine ", "watch_fault_test.go:", "kvroute: the screen ended: "} {
				if !strings.Contains(text, want) {
					t.Errorf("%q is not told: %q", want, text)
				}
			}
		})
	}
}

// TestWatchStopsAndContinues: a shell gets the terminal as it was, and the screen comes back whole.
func TestWatchStopsAndContinues(t *testing.T) {
	url := tellingRouter(t).URL
	program := filepath.Join(binDir, "kvroute")
	for _, c := range []struct {
		name, between string
		again         string // how it begins anew
		stop          func(c *console, pid int)
		status        syscall.Signal
	}{
		{"ctrl+z", "", "\x1b[?1049h", func(c *console, _ int) { c.press("\x1a") }, syscall.SIGTSTP},
		// Nobody can do anything about this one, so a shell sets the terminal up for itself.
		{"SIGSTOP", "stty sane;", "\x1b[2J", func(_ *console, pid int) { _ = syscall.Kill(pid, syscall.SIGSTOP) }, syscall.SIGSTOP},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// A job of its own, as a shell on a terminal makes them. The shell goes on when the job is stopped.
			x := onTerminal(t, nil, "sh", "-c", "set -m; sh -c 'echo pid=$$; exec "+program+" watch "+url+" --mouse'; echo stopped=$?;"+c.between+"stty -a; read x; fg; echo code=$?")
			at := x.expect(0, "pid=", "\x1b[?1049h", "worker-0")
			var pid int
			if _, err := fmt.Sscanf(x.shown()[strings.Index(x.shown(), "pid="):], "pid=%d", &pid); err != nil {
				t.Fatal(err)
			}
			c.stop(x, pid)
			at = x.expect(at, fmt.Sprintf("stopped=%d", 128+int(c.status)), " icanon")
			if m := left(x.shown()[:at]); c.between == "" && len(m) > 0 {
				t.Errorf("while it is stopped: %v", m)
			}
			x.press("\n")
			at = x.expect(at, c.again, "worker-0")
			x.press("q") // no line: the terminal is raw again
			x.expect(at, "\x1b[?1049l", "code=0")
			if code := x.code(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			x.restored()
		})
	}
}

// TestWatchThatCannotBeStopped: where no shell could continue it, ctrl+z changes nothing for long. It waited for
// ever once.
func TestWatchThatCannotBeStopped(t *testing.T) {
	t.Parallel()
	x := onTerminal(t, nil, filepath.Join(binDir, "kvroute"), "watch", tellingRouter(t).URL)
	at := x.expect(0, "\x1b[?1049h", "worker-0")
	x.press("\x1a")
	at = x.expect(at, "\x1b[?1049l", "\x1b[?1049h", "worker-0")
	x.press("q")
	x.expect(at, "\x1b[?1049l")
	if code := x.code(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	x.restored()
}

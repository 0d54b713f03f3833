//go:build unix

package cli_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWatchInTmux watches a demo in a real terminal: keys, sizes, the router killed and started again, and what is
// left of the terminal.
func TestWatchInTmux(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds and a whole fleet")
	}
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed:", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	program := filepath.Join(binDir, "kvroute")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	demo := func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, program, "demo", "--workers", "2", "--listen", addr)
		cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	running := demo()
	defer func() { running.Process.Kill(); running.Wait() }()

	socket := filepath.Join(t.TempDir(), "tmux")
	tmux := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, "tmux", append([]string{"-S", socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	screen := func(what string, has ...string) string {
		t.Helper()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(30 * time.Second); ; {
			s := tmux("capture-pane", "-p")
			missing := ""
			for _, h := range has {
				if !strings.Contains(s, h) {
					missing = h
				}
			}
			if missing == "" {
				return s
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %q is not on the screen:\n%s", what, missing, s)
			}
			<-tick.C
		}
	}
	// The shell stays: what it finds of the terminal is what a user is left with.
	tmux("new-session", "-d", "-x", "80", "-y", "24",
		fmt.Sprintf("LC_ALL=C.UTF-8 %s watch http://%s; echo code=$?; stty -a; exec cat", program, addr))
	defer tmux("kill-server")
	screen("first screen", "live", "trusted", "127.0.0.1:")
	tmux("send-keys", "?")
	screen("help", "moving")
	tmux("send-keys", "Escape")
	screen("back", "warnings") // a key right behind an escape would be alt and that key
	tmux("send-keys", "3")
	screen("decisions", "exact")
	tmux("send-keys", "1")
	tmux("resize-window", "-x", "200", "-y", "60")
	wide := screen("wide", "live", "trusted")
	if n := strings.Count(wide, "\n"); n < 40 {
		t.Errorf("the wide screen has %d lines", n)
	}
	running.Process.Kill()
	running.Wait()
	screen("router killed", "trusted", "lost") // the last picture stays
	running = demo()
	screen("router started again", "live", "trusted")
	if tmux("display-message", "-p", "#{alternate_on}") != "1\n" {
		t.Error("the screen is not the alternate one")
	}
	tmux("send-keys", "q")
	left := screen("after q", "code=0", "icanon")
	if strings.Contains(left, "-icanon") || strings.Contains(left, "-echo ") {
		t.Errorf("the terminal is left raw:\n%s", left)
	}
	if got := tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}"); got != "0 1\n" {
		t.Errorf("alternate screen and cursor are %q, want %q", got, "0 1\n")
	}
}

package watchssh

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	gossh "golang.org/x/crypto/ssh"
)

// openSSH is the command line of a real client that knows the server's key and has one of its own.
func (st *stand) openSSH(listed bool, args ...string) *exec.Cmd {
	st.t.Helper()
	program, err := exec.LookPath("ssh")
	if err != nil {
		if os.Getenv("CI") != "" {
			st.t.Fatal("there is no ssh client here, which .ci/setup installs")
		}
		st.t.Skip("there is no ssh client here (Debian: openssh-client)")
	}
	dir := st.t.TempDir()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		st.t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		st.t.Fatal(err)
	}
	id := writeFile(st.t, filepath.Join(dir, "id"), string(pem.EncodeToMemory(block)))
	if listed {
		key, err := gossh.NewPublicKey(public)
		if err != nil {
			st.t.Fatal(err)
		}
		grants, err := parseKeys("test", gossh.MarshalAuthorizedKey(key))
		if err != nil {
			st.t.Fatal(err)
		}
		st.srv.cfg.Keys.mu.Lock()
		st.srv.cfg.Keys.grants = append(st.srv.cfg.Keys.grants, grants...)
		st.srv.cfg.Keys.mu.Unlock()
	}
	host, port, err := net.SplitHostPort(st.addr)
	if err != nil {
		st.t.Fatal(err)
	}
	hosts := writeFile(st.t, filepath.Join(dir, "known_hosts"), fmt.Sprintf("[%s]:%s %s", host, port, line(st.srv.cfg.HostKey)))
	all := append([]string{
		"-F", "none", "-i", id, "-p", port, "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
		"-o", "UserKnownHostsFile=" + hosts, "-o", "GlobalKnownHostsFile=none", "-l", "somebody",
	}, args...)
	cmd := exec.CommandContext(st.t.Context(), program, append(all, host)...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8")
	return cmd
}

func TestOpenSSHShowsTheScreen(t *testing.T) {
	st := start(t, Limits{}, "")
	cmd := st.openSSH(true)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 120, Rows: 40})
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(tty)
	x := &terminal{t: t, errs: &lines{}, keys: tty, more: make(chan struct{}, 1), end: make(chan error, 1)}
	go func() {
		buf := make([]byte, 1<<12)
		for {
			n, err := tty.Read(buf)
			_, _ = x.Write(buf[:n]) // cannot fail
			if err != nil {
				x.end <- cmd.Wait()
				return
			}
		}
	}()
	x.expect("worker-0", "worker-2", "least-work")
	x.forget()
	if err := pty.Setsize(tty, &pty.Winsize{Cols: 50, Rows: 12}); err != nil {
		t.Fatal(err)
	}
	x.expect("60") // the least size that is drawn
	x.press("q")
	if code := x.wait(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	x.expect(leaveScreen)
}

func TestOpenSSHIsRefusedTheRest(t *testing.T) {
	st := start(t, Limits{}, "")
	for _, c := range []struct {
		name   string
		listed bool
		args   []string
		out    string // on stdout or stderr
		code   int
	}{
		{"a key that is not listed", false, nil, "Permission denied", 255},
		{"no terminal", true, []string{"-T"}, "worker-2", 0},
		{"a subsystem", true, []string{"-s"}, "subsystem request failed", 255},
		{"a forwarded port", true, []string{"-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1"}, "forwarding failed", 255},
	} {
		cmd := st.openSSH(c.listed, c.args...)
		if c.name == "a subsystem" {
			cmd.Args = append(cmd.Args, "sftp")
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		code := 0
		var e *exec.ExitError
		if errors.As(err, &e) {
			code = e.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != c.code || !strings.Contains(out.String(), c.out) {
			t.Errorf("%s: got exit code %d, %q, want %d and %q", c.name, code, out.String(), c.code, c.out)
		}
	}
	cmd := st.openSSH(true)
	cmd.Args = append(cmd.Args, "id")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "commands are not run here") || strings.Contains(string(out), "uid=") {
		t.Errorf("a command: got %v, %q, want why it is not run", err, out)
	}
}

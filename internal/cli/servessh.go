package cli

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	gossh "golang.org/x/crypto/ssh"

	"github.com/kvroute/kvroute/internal/watchssh"
)

const groupSSH = "Watching over SSH"

// sshFlags are the flags of serve's screens over SSH.
type sshFlags struct {
	listen  string
	keys    string
	hostKey string
	idle    time.Duration
}

func bindSSH(cmd *cobra.Command, f *sshFlags) {
	fs := cmd.Flags()
	text := func(name, arg, usage string, to *string) {
		bind(cmd, fs, spec{name: name, arg: arg, group: groupSSH, usage: usage}, to, parseText)
	}
	text("watch-ssh", "ADDR", "address to show the screen of kvroute watch at over SSH", &f.listen)
	text("watch-ssh-authorized-keys", "FILE", "public keys that may watch, as in OpenSSH's authorized_keys, read again when changed", &f.keys)
	text("watch-ssh-host-key", "FILE", "the router's own key, made if missing (default: kvroute/watch_ssh_host_key in the user's state directory)", &f.hostKey)
	bind(cmd, fs, spec{name: "watch-ssh-idle", arg: "TIME", def: watchssh.Defaults().Idle.String(), group: groupSSH, usage: "time without a key pressed after which a session ends, 0: never"}, &f.idle, spanAtLeast(0))
}

// checkSSH finds what is wrong with the flags, and makes what depends on the surroundings of the program explicit.
func (a *app) checkSSH(f *sshFlags) error {
	if f.listen == "" {
		if f.keys != "" || f.hostKey != "" {
			return usage("nothing to watch at", "--watch-ssh-authorized-keys, --watch-ssh-host-key", "they are for --watch-ssh, which is not given", "add --watch-ssh :2222")
		}
		return nil
	}
	if _, err := net.ResolveTCPAddr("tcp", f.listen); err != nil {
		return usage("bad value "+f.listen, "--watch-ssh", err.Error(), "write HOST:PORT, or :PORT for all addresses")
	}
	if f.keys == "" {
		return usage("nobody may watch", "--watch-ssh", "no public keys are listed", "add --watch-ssh-authorized-keys FILE")
	}
	if _, err := watchssh.OpenKeys(f.keys, slog.New(slog.DiscardHandler)); err != nil {
		return usage("bad authorized keys", "--watch-ssh-authorized-keys", err.Error(), "")
	}
	if f.hostKey != "" {
		return checkHostKey(f.hostKey)
	}
	dir := a.env["XDG_STATE_HOME"]
	if home := a.env["HOME"]; !filepath.IsAbs(dir) && home != "" {
		dir = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(dir) {
		return usage("no place for the host key", "--watch-ssh", "neither HOME nor XDG_STATE_HOME is set", "add --watch-ssh-host-key FILE, where it is kept over restarts")
	}
	f.hostKey = filepath.Join(dir, "kvroute", "watch_ssh_host_key")
	return checkHostKey(f.hostKey)
}

// checkHostKey reads the key if there is one; none is made before it is needed.
func checkHostKey(file string) error {
	if _, err := watchssh.ReadHostKey(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usage("bad host key", "--watch-ssh-host-key", err.Error(), "")
	}
	return nil
}

// openSSH makes the server of screens, where one is asked for.
func (s *server) openSSH() error {
	f := &s.f.ssh
	if f.listen == "" {
		return nil
	}
	keys, err := watchssh.OpenKeys(f.keys, s.log)
	if err != nil {
		return usage("bad authorized keys", "--watch-ssh-authorized-keys", err.Error(), "")
	}
	key, made, err := watchssh.HostKey(f.hostKey)
	if err != nil {
		return usage("bad host key", "--watch-ssh-host-key", err.Error(), "")
	}
	lim := watchssh.Defaults()
	lim.Idle = f.idle
	if s.ssh, err = watchssh.New(watchssh.Config{
		Hub: s.hub, Keys: keys, HostKey: key, Text: writeSnapshot, Name: s.f.listen, Log: s.log, Registry: s.reg, Limits: lim,
	}); err != nil {
		return failed("cannot serve screens over SSH", "", err)
	}
	s.log.Info("host key for watching over ssh", "file", f.hostKey, "made", made, "fingerprint", gossh.FingerprintSHA256(key.PublicKey()), "keys_listed", keys.Len())
	return nil
}

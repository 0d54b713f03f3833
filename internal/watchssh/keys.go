package watchssh

import (
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	gossh "golang.org/x/crypto/ssh"
)

// Keys are the public keys that may watch: those of a file in the form of OpenSSH's authorized_keys. The file is
// read again when it changes; while it cannot be used the last good one stands.
type Keys struct {
	file string
	log  *slog.Logger
	now  func() time.Time

	mu     sync.Mutex
	looked time.Time
	stamp  string
	grants []grant
}

// grant is a line of the file.
type grant struct {
	key     string // as on the wire
	line    int
	comment string
	from    []pattern // none: from anywhere
	until   time.Time // zero: for ever
	noPTY   bool
}

// pattern is one of the addresses of from="…".
type pattern struct {
	not    bool
	prefix netip.Prefix
	glob   string // where prefix is not valid
}

// OpenKeys reads a file. One that others can write to, that has a line which is not understood, or that lists no
// key is refused.
func OpenKeys(file string, log *slog.Logger) (*Keys, error) {
	k := &Keys{file: file, log: log, now: time.Now}
	stamp, err := k.stampNow()
	if err != nil {
		return nil, err
	}
	if k.grants, err = k.read(); err != nil {
		return nil, err
	}
	k.stamp, k.looked = stamp, k.now()
	return k, nil
}

// Len is how many keys there are.
func (k *Keys) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.grants)
}

func (k *Keys) stampNow() (string, error) {
	st, err := os.Stat(k.file)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(st.ModTime().UnixNano(), st.Size(), st.Mode()), nil
}

func (k *Keys) read() ([]grant, error) {
	st, err := os.Stat(k.file)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", k.file)
	}
	if mode := st.Mode().Perm(); mode&0o022 != 0 {
		return nil, fmt.Errorf("%s can be written to by others (mode %04o), who could let themselves in; chmod go-w it", k.file, mode)
	}
	text, err := os.ReadFile(k.file)
	if err != nil {
		return nil, err
	}
	return parseKeys(k.file, text)
}

// refresh reads the file again if it has changed; it looks once a second at most.
func (k *Keys) refresh() {
	now := k.now()
	if now.Sub(k.looked) < time.Second {
		return
	}
	k.looked = now
	stamp, err := k.stampNow()
	if err != nil {
		stamp = err.Error()
	}
	if stamp == k.stamp {
		return
	}
	k.stamp = stamp // a bad file is complained of once
	var grants []grant
	if err == nil {
		grants, err = k.read()
	}
	if err != nil {
		k.log.Error("the authorized keys cannot be used, the last good ones stand", "file", k.file, "error", err)
		return
	}
	k.grants = grants
	k.log.Info("authorized keys read again", "file", k.file, "keys", len(grants))
}

// allows returns the first line that lets a key in from an address, or why none does.
func (k *Keys) allows(key gossh.PublicKey, from netip.Addr) (grant, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	wire := string(key.Marshal())
	why := errors.New("the key is not listed")
	for _, g := range k.grants {
		switch {
		case g.key != wire:
		case !g.until.IsZero() && !k.now().Before(g.until):
			why = fmt.Errorf("the key has expired (line %d)", g.line)
		case !g.admits(from):
			why = fmt.Errorf("the key is not for this address (line %d)", g.line)
		default:
			return g, nil
		}
	}
	return grant{}, why
}

// admits says whether from="…" has a pattern that matches and none with ! that does.
func (g *grant) admits(a netip.Addr) bool {
	if len(g.from) == 0 {
		return true
	}
	a, found := a.Unmap().WithZone(""), false
	for _, p := range g.from {
		match := p.prefix.Contains(a)
		if !p.prefix.IsValid() {
			match, _ = path.Match(p.glob, a.String()) // the pattern was tried when it was read
		}
		if match && p.not {
			return false
		}
		found = found || match
	}
	return found
}

// parseKeys reads the lines of a file; name is for errors.
func parseKeys(name string, text []byte) ([]grant, error) {
	var grants []grant
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		g, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		g.line = n
		grants = append(grants, g)
	}
	if len(grants) == 0 {
		return nil, fmt.Errorf("%s lists no key, so nobody could watch; want lines as in ~/.ssh/id_ed25519.pub", name)
	}
	return grants, nil
}

func parseKey(line []byte) (grant, error) {
	if bytes.Contains(line, []byte("PRIVATE KEY")) {
		return grant{}, errors.New("this is a private key; it belongs on the watcher's machine only, its .pub file here")
	}
	key, comment, options, _, err := gossh.ParseAuthorizedKey(line)
	if err != nil {
		return grant{}, errors.New("not a public key; want lines as in ~/.ssh/id_ed25519.pub")
	}
	if _, ok := key.(*gossh.Certificate); ok {
		return grant{}, errors.New("certificates are not accepted; list the key itself")
	}
	if err := strong(key); err != nil {
		return grant{}, err
	}
	g := grant{key: string(key.Marshal()), comment: comment}
	for _, o := range options {
		if err := g.option(o); err != nil {
			return grant{}, err
		}
	}
	return g, nil
}

const leastRSA = 2048

// strong refuses keys that can be broken.
func strong(key gossh.PublicKey) error {
	if key.Type() == "ssh-dss" {
		return errors.New("DSA keys are not accepted; make one with ssh-keygen -t ed25519")
	}
	c, ok := key.(gossh.CryptoPublicKey)
	if !ok {
		return nil
	}
	if k, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && k.N.BitLen() < leastRSA {
		return fmt.Errorf("an RSA key of %d bits is too weak, want %d; or make one with ssh-keygen -t ed25519", k.N.BitLen(), leastRSA)
	}
	return nil
}

// option takes an option of a line. What only forbids what is never offered is fulfilled already; what is not
// understood is refused, for it may be meant to keep somebody out.
func (g *grant) option(o string) error {
	name, value, has := strings.Cut(o, "=")
	if has {
		if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
			return fmt.Errorf("option %s: its value is not in double quotes", name)
		}
		value = strings.ReplaceAll(value[1:len(value)-1], `\"`, `"`)
	}
	switch strings.ToLower(name) {
	case "restrict", "no-pty":
		g.noPTY = true
		return nil
	case "pty":
		g.noPTY = false
		return nil
	case "no-port-forwarding", "no-agent-forwarding", "no-x11-forwarding", "no-user-rc", "permitopen", "permitlisten":
		return nil
	case "from":
		return g.parseFrom(value)
	case "expiry-time":
		return g.parseExpiry(value)
	case "command":
		return errors.New("option command: nothing is ever run here, only the screen of kvroute watch; take the option away")
	case "port-forwarding", "agent-forwarding", "x11-forwarding", "user-rc", "environment", "tunnel":
		return fmt.Errorf("option %s: it grants what is not offered here; take it away", name)
	}
	return fmt.Errorf("option %s is not supported; from, expiry-time, no-pty, restrict and pty are, and those that forbid forwarding", name)
}

func (g *grant) parseFrom(list string) error {
	for s := range strings.SplitSeq(list, ",") {
		s = strings.TrimSpace(s)
		p := pattern{}
		s, p.not = strings.CutPrefix(s, "!")
		switch a, err := netip.ParseAddr(s); {
		case err == nil:
			p.prefix = netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen())
		case strings.Contains(s, "/"):
			if p.prefix, err = netip.ParsePrefix(s); err != nil {
				return fmt.Errorf("option from: %q is not a network as in 10.0.0.0/8", s)
			}
		case s != "" && strings.Trim(s, "0123456789abcdefABCDEF.:*?") == "" && strings.ContainsAny(s, "*?"):
			p.glob = strings.ToLower(s)
		default:
			return fmt.Errorf("option from: %q is not an address, network or pattern of addresses; names of hosts are not looked up", s)
		}
		g.from = append(g.from, p)
	}
	return nil
}

// parseExpiry reads YYYYMMDD[HHMM[SS]][Z], local time without Z.
func (g *grant) parseExpiry(s string) error {
	digits, zulu := strings.CutSuffix(s, "Z")
	zone := time.Local
	if zulu {
		zone = time.UTC
	}
	layout := map[int]string{8: "20060102", 12: "200601021504", 14: "20060102150405"}[len(digits)]
	t, err := time.ParseInLocation(layout, digits, zone)
	if layout == "" || err != nil {
		return fmt.Errorf("option expiry-time: %q is not a time as in 20271231 or 202712312359Z", s)
	}
	if g.until.IsZero() || t.Before(g.until) {
		g.until = t
	}
	return nil
}

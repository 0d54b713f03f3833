package router

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// watched looks at files at most once a second and reads them again when they have changed.
type watched struct {
	paths []string
	load  func() error
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	looked time.Time
	stamp  string
	err    error // why what was read last is not what the files hold now
}

// Stale says why what is in force is not what the files hold now; nil: it is, as far as was looked.
func (w *watched) Stale() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *watched) stampNow() (string, error) {
	var b strings.Builder
	for _, p := range w.paths {
		st, err := os.Stat(p)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%d %d;", st.ModTime().UnixNano(), st.Size())
	}
	return b.String(), nil
}

// refresh reads the files again if they have changed. What cannot be read leaves what was read before.
func (w *watched) refresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if now.Sub(w.looked) < time.Second {
		return
	}
	w.looked = now
	stamp, err := w.stampNow()
	if err == nil && stamp == w.stamp {
		return // as it was, or as bad as it was
	}
	w.stamp = stamp // a bad file is complained of once, one that has gone is read when it is back
	if err == nil {
		err = w.load()
	}
	w.err = err
	if err != nil {
		w.log.Error("keeping the former contents of changed files", "files", w.paths, "err", err)
		return
	}
	w.log.Info("read changed files again", "files", w.paths)
}

func (w *watched) first() error {
	stamp, err := w.stampNow()
	if err != nil {
		return err
	}
	w.stamp, w.looked = stamp, w.now()
	return w.load()
}

// Secrets are the lines of a file: API keys or tokens. Empty lines and those that begin with # do not
// count. The file is read again when it changes.
type Secrets struct {
	watched
	set [][sha256.Size]byte // under mu of watched
}

// OpenSecrets reads a file of secrets. A file without any is refused: it would lock everybody out.
func OpenSecrets(path string, log *slog.Logger) (*Secrets, error) {
	s := &Secrets{watched: watched{paths: []string{path}, log: log, now: time.Now}}
	s.load = func() error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var set [][sha256.Size]byte
		for line := range bytes.Lines(text) {
			if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
				set = append(set, sha256.Sum256(line))
			}
		}
		if len(set) == 0 {
			return fmt.Errorf("%s holds no secret, want one a line", path)
		}
		s.set = set
		return nil
	}
	if err := s.first(); err != nil {
		return nil, fmt.Errorf("reading secrets: %w", err)
	}
	return s, nil
}

// Has reports whether v is one of the secrets, in a time that does not depend on which.
func (s *Secrets) Has(v string) bool {
	s.refresh()
	s.mu.Lock()
	set := s.set
	s.mu.Unlock()
	sum, found := sha256.Sum256([]byte(v)), 0
	for i := range set {
		found |= subtle.ConstantTimeCompare(sum[:], set[i][:])
	}
	return found == 1
}

// bearer returns the token of an Authorization header.
func bearer(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "bearer") && token != ""
}

// local reports whether a request comes from this machine and was meant for it: neither passed on by a
// proxy nor sent by a web page under a name of its own.
func local(r *http.Request) bool {
	for _, h := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip"} {
		if _, ok := r.Header[h]; ok {
			return false
		}
	}
	loopback := func(hostport string) bool {
		host, _, err := net.SplitHostPort(hostport)
		if err != nil {
			host = strings.Trim(hostport, "[]")
		}
		if strings.EqualFold(host, "localhost") {
			return true
		}
		a, err := netip.ParseAddr(host)
		return err == nil && a.Unmap().IsLoopback()
	}
	return loopback(r.RemoteAddr) && loopback(r.Host)
}

// LoadTLS returns a server configuration whose certificate is read again when its files change, and a function that says
// why the one in force is not what they hold now.
func LoadTLS(certFile, keyFile string, log *slog.Logger) (conf *tls.Config, stale func() error, err error) {
	w := &watched{paths: []string{certFile, keyFile}, log: log, now: time.Now}
	var cert *tls.Certificate
	w.load = func() error {
		c, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err == nil {
			cert = &c
		}
		return err
	}
	if err := w.first(); err != nil {
		return nil, nil, fmt.Errorf("reading the certificate %s and its key %s: %w", certFile, keyFile, err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			w.refresh()
			w.mu.Lock()
			defer w.mu.Unlock()
			return cert, nil
		},
	}, w.Stale, nil
}

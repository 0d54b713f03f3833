package watchssh

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
)

func TestParseKeys(t *testing.T) {
	key := strings.TrimSpace(line(newKey(t)))
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := gossh.NewSignerFromKey(short)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, err string }{
		{"one", key + " me@here\n", ""},
		{"comments, blank lines, CR", "# mine\r\n\r\n" + key + "\r\n", ""},
		{"what forbids what is not offered", "no-port-forwarding,no-agent-forwarding,no-X11-forwarding,no-user-rc,permitopen=\"a:1\" " + key, ""},
		{"empty", "", "lists no key"},
		{"comments only", "# none yet\n", "lists no key"},
		{"not a key", key + "\nssh-ed25519 AAAAC3\n", "f:2: not a public key"},
		{"private", "-----BEGIN OPENSSH PRIVATE KEY-----\n", "f:1: this is a private key"},
		{"command", `command="ls" ` + key, "f:1: option command: nothing is ever run here"},
		{"unknown option", "# x\nno-joke " + key, "f:2: option no-joke is not supported"},
		{"cert-authority", "cert-authority " + key, "option cert-authority is not supported"},
		{"grant of forwarding", "restrict,port-forwarding " + key, "grants what is not offered"},
		{"from a name", `from="host.example" ` + key, "names of hosts are not looked up"},
		{"from a bad network", `from="10.0.0.0/99" ` + key, "not a network"},
		{"from nothing", `from="" ` + key, "not an address"},
		{"from without quotes", `from=10.0.0.1 ` + key, "not in double quotes"},
		{"bad expiry", `expiry-time="tomorrow" ` + key, "not a time"},
		{"weak", line(weak), "f:1: an RSA key of 1024 bits is too weak"},
	} {
		grants, err := parseKeys("f", []byte(c.text))
		switch {
		case c.err == "" && (err != nil || len(grants) != 1):
			t.Errorf("%s: got %d keys, %v, want one", c.name, len(grants), err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.err)
		}
	}
}

func TestWhereAndUntilWhenAKeyIsGood(t *testing.T) {
	key := newKey(t)
	for _, c := range []struct {
		options, from string
		ok            bool
	}{
		{"", "203.0.113.9", true},
		{`from="10.0.0.0/8" `, "10.1.2.3", true},
		{`from="10.0.0.0/8" `, "::ffff:10.1.2.3", true},
		{`from="10.0.0.0/8" `, "11.1.2.3", false},
		{`from="10.0.0.0/8,!10.9.0.0/16" `, "10.9.0.1", false},
		{`from="!10.9.0.0/16" `, "10.8.0.1", false}, // one has to match
		{`from="192.168.1.?" `, "192.168.1.7", true},
		{`from="192.168.1.?" `, "192.168.1.77", false},
		{`from="192.168.*" `, "192.168.1.77", true},
		{`from="fe80::1,::1" `, "::1", true},
		{`from="fe80::/10" `, "fe80::7%eth0", true},
		{`expiry-time="20270101Z" `, "10.0.0.1", true},
		{`expiry-time="20261231Z" `, "10.0.0.1", false},
		{`expiry-time="202701010000Z",expiry-time="20250101Z" `, "10.0.0.1", false}, // the earlier one counts
	} {
		grants, err := parseKeys("f", []byte(c.options+line(key)))
		if err != nil {
			t.Errorf("%q: %v", c.options, err)
			continue
		}
		now := time.Date(2026, 12, 31, 12, 0, 0, 0, time.UTC)
		k := &Keys{grants: grants, now: func() time.Time { return now }, looked: now}
		if _, err := k.allows(key.PublicKey(), netip.MustParseAddr(c.from)); (err == nil) != c.ok {
			t.Errorf("%q from %s: got %v, want it allowed: %v", c.options, c.from, err, c.ok)
		}
	}
}

func TestKeysAreReadAgain(t *testing.T) {
	a, b := newKey(t), newKey(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "keys"), line(a))
	log := &lines{}
	k, err := OpenKeys(file, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	k.now = func() time.Time { return now }
	k.looked = now
	here := netip.MustParseAddr("127.0.0.1")
	check := func(when string, wantA, wantB bool) {
		t.Helper()
		now = now.Add(2 * time.Second)
		_, errA := k.allows(a.PublicKey(), here)
		_, errB := k.allows(b.PublicKey(), here)
		if (errA == nil) != wantA || (errB == nil) != wantB {
			t.Errorf("%s: got %v and %v, want allowed: %v and %v", when, errA, errB, wantA, wantB)
		}
	}
	check("at first", true, false)
	writeFile(t, file, line(b)+"# now the other one\n")
	check("after a change", false, true)
	writeFile(t, file, "rubbish")
	check("while bad", false, true)
	check("while bad still", false, true)
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("got %d complaints of the bad file, want one: %s", n, log)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	check("while gone", false, true)
	writeFile(t, file, line(a)+line(b))
	check("when it is good again", true, true)
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeys(file, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "can be written to by others") {
		t.Errorf("a file that all can write to: got %v, want a refusal", err)
	}
}

func TestHostKeyIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "er", "host_key")
	first, made, err := HostKey(file)
	if err != nil || !made {
		t.Fatalf("got made %v, %v, want a new key", made, err)
	}
	again, made, err := HostKey(file)
	if err != nil || made || string(first.PublicKey().Marshal()) != string(again.PublicKey().Marshal()) {
		t.Errorf("the second time: got made %v, %v, want the same key", made, err)
	}
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", st.Mode(), err)
	}
	if left, err := filepath.Glob(file + "*"); err != nil || len(left) != 1 {
		t.Errorf("got files %v, %v, want the key alone", left, err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := HostKey(file); err == nil || !strings.Contains(err.Error(), "open to others") {
		t.Errorf("a key that all can read: got %v, want a refusal", err)
	}
	if _, _, err := HostKey(writeFile(t, file+"2", "no key")); err == nil || !strings.Contains(err.Error(), "not a private key") {
		t.Errorf("no key: got %v, want a refusal", err)
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKeyWithPassphrase(short, "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := HostKey(writeFile(t, file+"3", string(pem.EncodeToMemory(block)))); err == nil || !strings.Contains(err.Error(), "needs a passphrase") {
		t.Errorf("a locked key: got %v, want a refusal", err)
	}
}

func FuzzParseKeys(f *testing.F) {
	key := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPVdMvZVjcnY4sbLqBoq1M6BJKRcTBXsQ9sOTlZbwVL a\n"
	for _, s := range []string{key, `from="10.*,!::1/64" ` + key, `expiry-time="20270101Z",restrict ` + key, `a="\"" ` + key, "\xff\x00 " + key} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		grants, err := parseKeys("f", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") && !strings.HasPrefix(err.Error(), "f lists no key") {
				t.Errorf("got %q, want where it is", err)
			}
			return
		}
		for i := range grants {
			if _, err := gossh.ParsePublicKey([]byte(grants[i].key)); err != nil {
				t.Errorf("line %d: got a key that is none: %v", grants[i].line, err)
			}
			grants[i].admits(netip.MustParseAddr("10.0.0.1"))
		}
	})
}

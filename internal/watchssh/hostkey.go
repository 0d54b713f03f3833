package watchssh

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	gossh "golang.org/x/crypto/ssh"
)

// HostKey reads the key that this machine shows itself by. Where there is none yet one is made and kept, readable by
// its owner only, so that clients know the router again after a restart; made says so.
func HostKey(file string) (key gossh.Signer, made bool, err error) {
	key, err = ReadHostKey(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	if err := makeHostKey(file); err != nil {
		return nil, false, fmt.Errorf("making a host key: %w", err)
	}
	key, err = ReadHostKey(file)
	return key, true, err
}

// ReadHostKey reads a key that is there. One that others can read, or that needs a passphrase, is refused.
func ReadHostKey(file string) (gossh.Signer, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", file)
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s is open to others (mode %04o), who could pose as this router; chmod 600 it", file, mode)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := gossh.ParsePrivateKey(text)
	var locked *gossh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, fmt.Errorf("%s needs a passphrase, which nobody types here; use a key without one", file)
	case err != nil:
		return nil, fmt.Errorf("%s is not a private key in PEM form: %w", file, err)
	}
	if err := strong(key.PublicKey()); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// makeHostKey writes a new key as a whole or not at all. One that another process makes at the same time wins.
func makeHostKey(file string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := gossh.MarshalPrivateKey(private, "kvroute")
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, filepath.Base(file)+".*") // readable by its owner only
	if err != nil {
		return err
	}
	_, err = tmp.Write(pem.EncodeToMemory(block))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		if err = os.Link(tmp.Name(), file); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return errors.Join(err, os.Remove(tmp.Name()))
}

package cli

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/kvroute/kvroute/internal/router"
)

// checkSurroundings finds what would fail, or quietly be missing, only once requests are served: files that
// cannot be read or written, addresses that are none. Flags are checked already.
func checkSurroundings(f *serveFlags) error {
	client, err := router.NewHTTP(f.workerCA, f.connectTimeout)
	if err != nil {
		return usage("bad certificates", "--worker-ca", err.Error(), "")
	}
	c := f.router
	c.Forwarder = client
	if err := c.Check(); err != nil {
		return usage("bad settings", "kvroute serve", err.Error(), "")
	}
	for _, file := range []struct{ what, flag, path string }{{"bad API keys", "--api-key-file", f.apiKeys}, {"bad admin tokens", "--admin-token-file", f.adminTokens}} {
		if file.path == "" {
			continue
		}
		if _, err := router.OpenSecrets(file.path, slog.New(slog.DiscardHandler)); err != nil {
			return usage(file.what, file.flag, err.Error(), "")
		}
	}
	if f.tlsCert != "" {
		if _, _, err := router.LoadTLS(f.tlsCert, f.tlsKey, slog.New(slog.DiscardHandler)); err != nil {
			return usage("bad certificate", "--tls-cert, --tls-key", err.Error(), "")
		}
	}
	if f.workersFile != "" {
		if _, err := readWorkers(f.workersFile); err != nil {
			return err
		}
	}
	for _, l := range []struct{ flag, address string }{{"--listen", f.listen}, {"--admin-listen", f.adminListen}} {
		if _, err := net.ResolveTCPAddr("tcp", l.address); l.address != "" && err != nil {
			return usage("bad value "+l.address, l.flag, err.Error(), "write HOST:PORT, or :PORT for all addresses")
		}
	}
	for _, file := range []struct{ flag, path string }{{"--record", f.record}, {"--snapshot", f.snapshot}} {
		if file.path == "" {
			continue
		}
		if err := canWrite(file.path); err != nil {
			return usage("cannot write "+file.path, file.flag, pathWhy(err), "")
		}
	}
	return nil
}

// canWrite says whether a file can be made at a path or take the place of the regular one that is there. A
// device or a directory is neither written to nor replaced.
func canWrite(path string) error {
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return errors.New("is a directory")
	case err == nil && !info.Mode().IsRegular():
		return errors.New("is no regular file")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	probe, err := os.CreateTemp(filepath.Dir(path), ".kvroute-*")
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no directory " + filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

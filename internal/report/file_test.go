package report_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/report"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.json")
	put := func(s string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			if _, werr := io.WriteString(w, s); werr != nil {
				return werr
			}
			if _, serr := os.Stat(path); serr == nil && content(t, path) == s {
				t.Error("visible before it was whole")
			}
			return err
		}
	}
	if err := report.WriteFile(path, put("one", nil)); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	if err := report.WriteFile(path, put(strings.Repeat("x", 1<<20), boom)); !errors.Is(err, boom) {
		t.Fatalf("error %v, want boom", err)
	}
	if got := content(t, path); got != "one" {
		t.Errorf("after an error the file has %d bytes, want the old ones", len(got))
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := report.WriteFile(path, put("two", nil)); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v (%v), want that of the file replaced", st.Mode(), err)
	}
	if got := content(t, path); got != "two" {
		t.Errorf("content %q", got)
	}
	if got := names(t, dir); got != "out.json" {
		t.Errorf("left behind: %s", got)
	}
}

func TestWriteFileThroughLink(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.WriteFile(real, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, link); err != nil {
		t.Skip(err)
	}
	if err := report.WriteFile(link, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }); err != nil {
		t.Fatal(err)
	}
	if got := content(t, real); got != "new" {
		t.Errorf("the link's target has %q", got)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
}

func TestWriteFileErrors(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ path, want string }{
		{dir, "is a directory"},
		{filepath.Join(dir, "no", "such", "out"), "no such file or directory"},
	} {
		err := report.WriteFile(c.path, func(io.Writer) error { t.Error("written to"); return nil })
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), c.path) != 1 {
			t.Errorf("%s: error %v, want %q and the path once", c.path, err, c.want)
		}
	}
	if _, err := os.Stat(os.DevNull); err == nil {
		if err := report.WriteFile(os.DevNull, func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }); err != nil {
			t.Errorf("a device: %v", err)
		}
	}
}

func TestFileCommitTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f, err := report.CreateFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := report.CreateFile(path) // two writers of one name do not mix
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(f, "a")
	_, _ = io.WriteString(other, "b")
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err == nil {
		t.Error("second Commit: no error")
	}
	other.Abort()
	if got := content(t, path); got != "a" {
		t.Errorf("content %q", got)
	}
}

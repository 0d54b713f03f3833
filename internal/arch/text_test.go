package arch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Limits on the length of source files: above the first a file should be split soon, above the second now.
const (
	softLines = 500
	hardLines = 600
)

// committed lists the project's files, those about to be committed included. Without git (a source
// archive) it walks the folder.
func committed(t *testing.T) (root string, files []string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	if out, err := cmd.Output(); err == nil {
		for _, f := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
			files = append(files, filepath.FromSlash(f))
		}
		return root, files
	}
	err = filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch rel {
			case ".git", "bin", "build", "man", "demo-out":
				return filepath.SkipDir
			}
			return nil
		}
		files = append(files, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return root, files
}

func TestFilesStayShort(t *testing.T) {
	root, files := committed(t)
	checked := 0
	for _, f := range files {
		if filepath.Ext(f) != ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			continue // deleted, not yet committed
		}
		checked++
		switch n := bytes.Count(text, []byte("\n")); {
		case n > hardLines:
			t.Errorf("%s has %d lines, more than %d: split it", f, n, hardLines)
		case n > softLines:
			t.Logf("%s has %d lines, more than %d: think of splitting it", f, n, softLines)
		}
	}
	if checked == 0 {
		t.Fatal("found no source files")
	}
}

// TestTextIsAboutTheProject keeps paths of somebody's machine and download hosts out of what is
// committed. The words are put together here so that this file does not contain them.
func TestTextIsAboutTheProject(t *testing.T) {
	forbidden := []struct {
		re      *regexp.Regexp
		because string
	}{
		{regexp.MustCompile(`(^|[\s"'` + "`" + `=(:])/wo` + `rk/`), "a path of one machine"},
		{regexp.MustCompile(`(^|[\s"'` + "`" + `=(:])/(ro` + `ot|ho` + `me)/\w`), "a path of one machine"},
		{regexp.MustCompile(`proxy\.gol` + `ang\.org|deb\.deb` + `ian\.org|files\.python` + `hosted\.org`), "where packages come from is the reader's affair"},
		{regexp.MustCompile(`(?i)\bissue #?\d+\b`), "the text must stand by itself; link public reports in full"},
	}
	root, files := committed(t)
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil || bytes.IndexByte(text, 0) >= 0 {
			continue // gone, or not text
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, w := range forbidden {
				if hit := w.re.FindString(line); hit != "" {
					t.Errorf("%s:%d: %q: %s", f, i+1, strings.TrimSpace(hit), w.because)
				}
			}
		}
	}
}

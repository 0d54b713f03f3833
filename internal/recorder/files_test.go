package recorder_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/score"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.jsonl")
	part := func(create func(int) (io.WriteCloser, error), n int, text string) {
		t.Helper()
		f, err := create(n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	names := func() []string {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	var told []string
	first := recorder.Files(path, 0, func(name string) { told = append(told, filepath.Base(name)) })
	part(first, 1, "one")
	part(first, 2, "two")
	if want := []string{"a.jsonl", "a.jsonl.0002"}; !slices.Equal(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
	second := recorder.Files(path, 2, nil) // the router starts again
	for n := 1; n <= 4; n++ {
		part(second, n, "again")
	}
	if want := []string{"a.jsonl", "a.jsonl-2.0003", "a.jsonl-2.0004", "a.jsonl.0002"}; !slices.Equal(names(), want) {
		t.Errorf("files %v, want %v", names(), want)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "one" {
		t.Errorf("the earlier recording is %q, %v", b, err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", st.Mode(), err)
	}
	if _, err := recorder.Files(filepath.Join(dir, "no", "a"), 0, nil)(1); err == nil {
		t.Error("a folder that is not there: no error")
	}
}

func TestRecorderRefusesToStart(t *testing.T) {
	if _, err := recorder.Start(recorder.Options{Header: header(score.Defaults())}); err == nil {
		t.Error("without files: no error")
	}
}

func TestPathFor(t *testing.T) {
	for _, tc := range []struct {
		path, model string
		several     bool
		want        string
	}{
		{"rec.jsonl", "m", false, "rec.jsonl"},
		{"d/rec.jsonl", "org/Model-7B:x", true, "d/rec.org_Model-7B_x.jsonl"},
		{"rec", "m", true, "rec.m"},
	} {
		if got := recorder.PathFor(tc.path, tc.model, tc.several); got != tc.want {
			t.Errorf("PathFor(%q, %q, %v) = %q, want %q", tc.path, tc.model, tc.several, got, tc.want)
		}
	}
}

package cli_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvroute/kvroute/internal/testtraces"
)

var update = flag.Bool("update", false, "rewrite golden files and scripts")

// binDir holds the program that scripts and examples run: built once, as users get it.
var binDir string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := withProgram(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withProgram(run func() int) (code int, err error) {
	binDir, err = os.MkdirTemp("", "kvroute-bin-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(binDir)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(binDir, "kvroute"), "../../cmd/kvroute")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return run(), nil
}

// cleanEnv is the environment of the program under test: nothing of ours but the path.
func cleanEnv(set func(key, val string)) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "KVROUTE_") || strings.HasPrefix(name, "INFERA_") {
			set(name, "")
		}
	}
	set("PATH", binDir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestScripts(t *testing.T) {
	root, err := filepath.Abs(testtraces.Root())
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update, ContinueOnError: true,
		Setup: func(env *testscript.Env) error {
			cleanEnv(env.Setenv)
			return os.Symlink(filepath.Join(root, "traces"), filepath.Join(env.WorkDir, "traces"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "field": cmdField, "gzip": cmdGzip, "truncate": cmdTruncate, "lines": cmdLines, "router": cmdRouter, "bytes": cmdBytes,
		},
	})
}

// cmdExits: exits CODE PROGRAM ARGS… runs a program and wants this exit code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program args…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d: %s\nstderr: %s", got, want, strings.Join(args[1:], " "), ts.ReadFile("stderr"))
	}
}

// cmdField: field FILE PATH VALUE wants the JSON value at PATH (keys and indices, joined by dots); a
// value of * wants it to be there, whatever it is.
func cmdField(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: field file path value")
	}
	var doc any
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	dec.UseNumber()
	ts.Check(dec.Decode(&doc))
	for _, key := range strings.Split(args[1], ".") {
		switch v := doc.(type) {
		case map[string]any:
			next, ok := v[key]
			if !ok {
				ts.Fatalf("%s: no field %q in %v", args[1], key, v)
			}
			doc = next
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(v) {
				ts.Fatalf("%s: no entry %q in a list of %d", args[1], key, len(v))
			}
			doc = v[i]
		default:
			ts.Fatalf("%s: %q is asked of %v", args[1], key, v)
		}
	}
	got := fmt.Sprint(doc)
	if same := got == args[2] || args[2] == "*"; same == neg {
		ts.Fatalf("%s is %q, want %q", args[1], got, args[2])
	}
}

// cmdGzip: gzip FILE OUT.
func cmdGzip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: gzip file out")
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(ts.ReadFile(args[0])))
	ts.Check(err)
	ts.Check(z.Close())
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b.Bytes(), 0o644))
}

// cmdBytes: bytes FILE TEXT writes TEXT, with escapes as in Go.
func cmdBytes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: bytes file text")
	}
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}

// cmdTruncate: truncate FILE N keeps the first N bytes, or all but the last -N.
func cmdTruncate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: truncate file bytes")
	}
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	if n < 0 {
		st, err := os.Stat(ts.MkAbs(args[0]))
		ts.Check(err)
		n += st.Size()
	}
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}

// cmdLines: lines FILE N wants N lines.
func cmdLines(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: lines file n")
	}
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	if got := strings.Count(ts.ReadFile(args[0]), "\n"); (got == want) == neg {
		ts.Fatalf("%s has %d lines, want %d", args[0], got, want)
	}
}

package cli_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/cli"
	"github.com/kvroute/kvroute/internal/testtraces"
)

// run executes a command line in this process.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(context.Background(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

var commandLine = regexp.MustCompile(`(?m)^  ([a-z]+) {2,}\S`)

// commands walks the help pages and returns the words of every command.
func commands(t *testing.T) [][]string {
	t.Helper()
	var all [][]string
	var walk func(words []string)
	walk = func(words []string) {
		code, page, stderr := run(t, append(append([]string{}, words...), "--help")...)
		if code != 0 {
			t.Fatalf("help of %q: exit code %d: %s", words, code, stderr)
		}
		all = append(all, words)
		_, list, ok := strings.Cut(page, "\nCommands:\n")
		if !ok {
			return
		}
		list, _, _ = strings.Cut(list, "\n\n")
		for _, m := range commandLine.FindAllStringSubmatch(list, -1) {
			walk(append(append([]string{}, words...), m[1]))
		}
	}
	walk(nil)
	if len(all) < 8 {
		t.Fatalf("found %d commands: %q", len(all), all)
	}
	return all
}

func fileName(words []string) string {
	return strings.Join(append([]string{"kvroute"}, words...), "-")
}

func TestHelpPages(t *testing.T) {
	for _, words := range commands(t) {
		name := fileName(words)
		t.Run(name, func(t *testing.T) {
			_, got, _ := run(t, append(append([]string{}, words...), "--help")...)
			golden(t, filepath.Join("testdata", "help", name+".txt"), got)
			first, _, _ := strings.Cut(got, "\n")
			if first == "" || strings.HasSuffix(first, ".") || strings.HasPrefix(first, "Usage") {
				t.Errorf("the first line should say what the command is for, got %q", first)
			}
			if !strings.Contains(got, "\nExamples:\n") {
				t.Error("no example")
			}
			if strings.Contains(got, "\nOther:") || strings.Contains(got, "\n:\n") {
				t.Error("a flag without a group")
			}
			for i, line := range strings.Split(got, "\n") {
				if n := len([]rune(line)); n > 80 && !strings.HasPrefix(line, "  kvroute ") && !strings.HasPrefix(line, "  KVROUTE_") {
					t.Errorf("line %d has %d columns: %s", i+1, n, line)
				}
			}
		})
	}
}

// TestEveryFlagIsInAGroup guards against flags that help would leave out.
func TestEveryFlagIsInAGroup(t *testing.T) {
	_, complete, _ := run(t, "__complete", "explain", "--")
	_, page, _ := run(t, "explain", "--help")
	seen := 0
	for _, line := range strings.Split(complete, "\n") {
		flag, _, _ := strings.Cut(line, "\t")
		if !strings.HasPrefix(flag, "--") {
			continue
		}
		seen++
		if !strings.Contains(page, flag) {
			t.Errorf("%s is not on the help page", flag)
		}
	}
	if seen < 10 {
		t.Fatalf("completion knows %d flags", seen)
	}
}

func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := run(t, "man", "--dir", dir); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, words := range commands(t) {
		name := fileName(words)
		page, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil {
			t.Error(err)
			continue
		}
		text := strings.ReplaceAll(string(page), `\-`, "-")
		_, help, _ := run(t, append(append([]string{}, words...), "--help")...)
		for _, m := range regexp.MustCompile(`(?m)^  (?:-\w, )?(--[a-z-]+)`).FindAllStringSubmatch(help, -1) {
			if !strings.Contains(text, m[1]) {
				t.Errorf("%s.1 lacks %s, which help has", name, m[1])
			}
		}
		for i, line := range strings.Split(string(page), "\n") {
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !regexp.MustCompile(`^\.(TH|SH|SS|TP|PP|nf|fi|B|BR)\b`).MatchString(line) {
				t.Errorf("%s.1:%d: not a request we mean: %s", name, i+1, line)
			}
		}
	}
	root, err := os.ReadFile(filepath.Join(dir, "kvroute.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"130", "interrupted", "condition holds"} {
		if !strings.Contains(string(root), want) {
			t.Errorf("kvroute.1 does not document exit codes: no %q", want)
		}
	}
}

// endless are commands that run until they are told to end, or need a router; of their examples only the flags are tried.
var endless = map[string]bool{"serve": true, "engine": true, "watch": true}

// TestExamples runs every example of every help page, as a shell would.
func TestExamples(t *testing.T) {
	ran := 0
	for _, words := range commands(t) {
		_, page, _ := run(t, append(append([]string{}, words...), "--help")...)
		_, rest, _ := strings.Cut(page, "\nExamples:\n")
		for _, line := range strings.Split(rest, "\n") {
			if line == "" {
				break
			}
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") {
				continue
			}
			ran++
			if len(words) > 0 && endless[words[0]] {
				line += " --help"
			}
			t.Run(fileName(words)+"/"+line, func(t *testing.T) { shell(t, line) })
		}
	}
	if ran < 8 {
		t.Fatalf("ran %d examples", ran)
	}
}

// leftOut begins the note about the bundled recording as a trace.
const leftOut = "kvroute: note: recording: requests left out"

// shell runs a documented command in a folder that has only the bundled traces, and returns what it
// prints. Success means exit code 0, a stderr that is quiet but for leftOut, and something printed or written.
func shell(t *testing.T, line string) string {
	t.Helper()
	traces, err := filepath.Abs(testtraces.Bundled("traces"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(traces, filepath.Join(dir, "traces")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir = dir
	env := map[string]string{"HOME": dir}
	cleanEnv(func(k, v string) { env[k] = v })
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && strings.Contains(stderr.String(), "without cgo") {
		t.Skipf("%s: %s", line, stderr.String())
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, stderr.String())
	}
	for said := range strings.Lines(stderr.String()) {
		if !strings.HasPrefix(said, leftOut) {
			t.Errorf("%s talks on stderr: %s", line, said)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 && len(files) < 2 {
		t.Errorf("%s neither printed nor wrote anything", line)
	}
	return string(out)
}

// golden compares with a file, or rewrites it with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run make golden)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); if it should, run make golden:\n%s", path, diff)
	}
}

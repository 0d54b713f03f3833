package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/testtraces"
)

// TestReadmeCommands runs the kvroute commands of README.md. In console blocks what follows a command
// is its output, to the byte.
func TestReadmeCommands(t *testing.T) {
	path := testtraces.Bundled("README.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 250 {
		t.Errorf("README.md has %d lines, more than 250", n)
	}
	ran, shown := documentCommands(t, path)
	if ran < 4 || shown < 2 {
		t.Fatalf("ran %d commands, %d with output", ran, shown)
	}
}

// TestFitDocument runs the commands of docs/fit.md, which goes from a log to the flags and into the simulator.
func TestFitDocument(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("numbers may differ in the last digit on " + runtime.GOARCH)
	}
	if _, shown := documentCommands(t, testtraces.Bundled("docs/fit.md")); shown < 2 {
		t.Fatalf("%d commands show their output", shown)
	}
}

// TestFitCodes holds docs/fit.md's table of reasons against those that there are.
func TestFitCodes(t *testing.T) {
	text, err := os.ReadFile(testtraces.Bundled("docs/fit.md"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\| (?:refuses|weakens|remark)").FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	if diff := cmp.Diff(fit.Codes(), got); diff != "" {
		t.Errorf("docs/fit.md has other codes of reasons (-fit +document):\n%s", diff)
	}
}

// documentCommands runs the kvroute commands of a document and returns how many there were. In console blocks what
// follows a command is its output, to the byte.
func documentCommands(t *testing.T, path string) (ran, shown int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	lines := strings.Split(string(text), "\n")
	for i := 0; i < len(lines); i++ {
		lang, fence := strings.CutPrefix(lines[i], "```")
		out = append(out, lines[i])
		if !fence || lang == "" {
			continue
		}
		end := i + 1
		for lines[end] != "```" {
			end++
		}
		for _, line := range lines[i+1 : end] {
			if command, ok := strings.CutPrefix(line, "$ "); ok && lang == "console" {
				got := shell(t, command)
				ran++
				shown++
				out = append(out, line)
				out = append(out, strings.Split(strings.TrimRight(got, "\n"), "\n")...)
				continue
			}
			if lang == "sh" {
				out = append(out, line)
				if strings.HasPrefix(line, "kvroute ") {
					shell(t, line)
					ran++
				}
			}
		}
		i = end - 1
	}
	got := strings.Join(out, "\n")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return ran, shown
	}
	if diff := cmp.Diff(string(text), got); diff != "" {
		t.Errorf("%s shows other output than its commands have (-document +got); make golden rewrites it:\n%s", path, diff)
	}
	return ran, shown
}

// TestReadmePicture draws the README's picture again.
func TestReadmePicture(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("coordinates may differ in the last digit on " + runtime.GOARCH)
	}
	file := filepath.Join(t.TempDir(), "demo.svg")
	shell(t, "kvroute sim --trace traces/mooncake/conversation_15min.jsonl.gz --workers 4 --capacity 5859 --engine batch"+
		" --router-policy kv-aware --sweep kv-overlap-weight=0,0.25,0.5,1,2,4,20 --repeat 5 --plot "+file)
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, testtraces.Bundled("docs/demo.svg"), string(got))
}

// TestDocumentLinks follows the relative links of all documents.
func TestDocumentLinks(t *testing.T) {
	root := testtraces.Root()
	var docs []string
	for _, pattern := range []string{"*.md", "docs/*.md", "traces/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, found...)
	}
	link := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	checked := 0
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(doc), m[1], err)
			}
		}
	}
	if checked == 0 {
		t.Fatal("found no links")
	}
}

// TestCommandsInDocuments checks that documents speak of commands and flags that exist.
func TestCommandsInDocuments(t *testing.T) {
	flags := map[string]bool{}
	names := map[string]bool{}
	flagWord := regexp.MustCompile(`--[a-z][a-z-]+`)
	for _, words := range commands(t) {
		names[strings.Join(words, " ")] = true
		_, page, _ := run(t, append(append([]string{}, words...), "--help")...)
		for _, f := range flagWord.FindAllString(page, -1) {
			flags[f] = true
		}
	}
	for _, f := range []string{"--decode-log-interval", "--log-level", "--disable-log-stats"} { // of engines
		flags[f] = true
	}
	for _, doc := range []string{"README.md", "CHANGELOG.md", "docs/cli-json.md", "docs/decision-quality.md", "docs/fit.md", "docs/trace-format.md"} {
		text, err := os.ReadFile(testtraces.Bundled(doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flagWord.FindAllString(string(text), -1) {
			if !flags[f] {
				t.Errorf("%s speaks of %s, which no command has", doc, f)
			}
		}
		for _, m := range regexp.MustCompile("`kvroute ([a-z]+)").FindAllStringSubmatch(string(text), -1) {
			if !names[m[1]] {
				t.Errorf("%s speaks of kvroute %s, which does not exist", doc, m[1])
			}
		}
	}
}

// TestReadmeFigures measures the README's table of policies again.
func TestReadmeFigures(t *testing.T) {
	path := testtraces.Path(t, "mooncake/conversation_trace.jsonl.gz")
	code, out, stderr := run(t, "sim", path, "--workers", "8", "--capacity", "5859", "--router-policy", "kv-aware",
		"--sweep", "kv-overlap-weight=0,0.25,0.5,1,2,4,20", "-o", "json")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var doc struct {
		Runs []struct {
			Policy  string         `json:"policy"`
			Flags   map[string]any `json:"flags"`
			HitRate float64        `json:"hit_rate"`
			Sim     struct {
				TTFT struct {
					Mean float64 `json:"mean"`
					P90  float64 `json:"p90"`
				} `json:"ttft_us"`
			} `json:"sim"`
		} `json:"runs"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(testtraces.Bundled("README.md"))
	if err != nil {
		t.Fatal(err)
	}
	thousands := func(ms float64) string {
		s := fmt.Sprintf("%.1f", ms)
		if len(s) > 5 {
			s = s[:len(s)-5] + "," + s[len(s)-5:]
		}
		return s
	}
	names := map[string]string{"round-robin": "round robin", "least-work": "**least-work, as it comes**"}
	best := 0
	for i, r := range doc.Runs {
		if r.Policy == "kv-aware" && r.Sim.TTFT.Mean < doc.Runs[best].Sim.TTFT.Mean {
			best = i
		}
	}
	for i, r := range doc.Runs {
		name := names[r.Policy]
		switch {
		case i == best:
			name = fmt.Sprintf("kv-aware, best of seven weights (%v)", r.Flags["kv-overlap-weight"])
		case r.Policy == "kv-aware" && r.Flags["kv-overlap-weight"] == 1.0:
			name = "kv-aware, weight 1"
		case r.Policy == "kv-aware":
			continue
		}
		bold := ""
		if r.Policy == "least-work" {
			bold = "**"
		}
		want := fmt.Sprintf("| %s | %s%s%s | %s%s%s | %s%.1f %%%s |", name,
			bold, thousands(r.Sim.TTFT.Mean/1000), bold, bold, thousands(r.Sim.TTFT.P90/1000), bold, bold, 100*r.HitRate, bold)
		if !strings.Contains(string(readme), want) {
			t.Errorf("README.md should have the line\n%s", want)
		}
	}
}

// TestPromisedFields holds docs/cli-json.md to what is printed: no field is missing there.
func TestPromisedFields(t *testing.T) {
	text, err := os.ReadFile(testtraces.Bundled("docs/cli-json.md"))
	if err != nil {
		t.Fatal(err)
	}
	serial := testtraces.Bundled("traces/golden/sessions80-serial.jsonl.gz")
	for _, args := range [][]string{
		{"sim", serial, "--workers", "2", "--sweep", "kv-recent-weight=0,1", "--router-policy", "kv-aware", "--repeat", "2"},
		{"replay", serial, "--workers", "2"},
		{"trace", "stats", serial, "--capacity", "10"},
		{"explain", "--request-blocks", "2", "--candidate", "W0"},
		{"version"},
		{"config", "show"},
	} {
		code, out, stderr := run(t, append(args, "-o", "json")...)
		if code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr)
		}
		var doc any
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		for _, key := range fieldNames(doc, nil) {
			if !regexp.MustCompile("[`{, .]"+regexp.QuoteMeta(key)+"[`}, .{\\[]").Match(text) && !strings.HasSuffix(key, "_2nd_half") {
				t.Errorf("%q prints the field %q, which docs/cli-json.md does not have", args, key)
			}
		}
	}
}

// fieldNames lists the keys in a document. Objects whose keys are flags or metrics are passed over.
func fieldNames(v any, names []string) []string {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			names = fieldNames(e, names)
		}
	case map[string]any:
		for key, e := range v {
			names = append(names, key)
			if key != "flags" && key != "intervals" {
				names = fieldNames(e, names)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

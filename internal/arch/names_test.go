package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitectureNamesTests holds the table of invariants to the tests that exist.
func TestArchitectureNamesTests(t *testing.T) {
	root, files := committed(t)
	have := make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range function.FindAllSubmatch(text, -1) {
			have[filepath.Base(filepath.Dir(f))+"."+string(m[1])] = true
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(\\w+\\.(?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 40 {
		t.Fatalf("ARCHITECTURE.md names %d tests; its table of invariants is not read right", len(named))
	}
	for _, m := range named {
		if !have[m[1]] {
			t.Errorf("ARCHITECTURE.md names %s, which does not exist", m[1])
		}
	}
}

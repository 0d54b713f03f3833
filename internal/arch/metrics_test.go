package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestMetricsAreDocumented holds the tables of docs/http.md to the metrics that the router has.
func TestMetricsAreDocumented(t *testing.T) {
	root, files := committed(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "http.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[a-z_]+`(?:, )?)+) \\|").FindAllStringSubmatch(string(page), -1) {
		for _, m := range regexp.MustCompile("`((?:infera|kvroute)_[a-z_]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[m[1]] = true
		}
	}
	metric := regexp.MustCompile(`^(infera|kvroute)_[a-z_]+$`)
	source := map[string]string{}
	for _, name := range files {
		dir := filepath.ToSlash(filepath.Dir(name))
		if !strings.HasPrefix(dir, "internal/") || dir == "internal/fakeengine" || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) { // deleted, and not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), `"github.com/prometheus/client_golang/prometheus"`) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				if v, err := strconv.Unquote(lit.Value); err == nil && metric.MatchString(v) {
					source[v] = name
				}
			}
			return true
		})
	}
	if len(source) < 60 {
		t.Fatalf("found %d metrics in the source: it is not read right", len(source))
	}
	for name, at := range source {
		if !documented[name] {
			t.Errorf("docs/http.md does not list %s of %s", name, at)
		}
	}
	for name := range documented {
		if source[name] == "" {
			t.Errorf("docs/http.md lists %s, which the source does not have", name)
		}
	}
}

package router

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

// TestDocumentNamesEverything holds docs/http.md to the metrics, error codes and outcomes in the source. What it lists and the source does
// not have is found by package arch.
func TestDocumentNamesEverything(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "http.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	metric := regexp.MustCompile(`^(infera|kvroute)_[a-z_]+$`)
	known := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if v, err := strconv.Unquote(n.Value); err == nil && metric.MatchString(v) {
					known[v] = true
				}
			case *ast.KeyValueExpr:
				if k, ok := n.Key.(*ast.Ident); ok && k.Name == "Code" {
					if lit, ok := n.Value.(*ast.BasicLit); ok {
						if v, err := strconv.Unquote(lit.Value); err == nil {
							known[v] = true
						}
					}
				}
			}
			return true
		})
	}
	if len(known) < 40 {
		t.Fatalf("found %d names in the source; it is not read right", len(known))
	}
	for name := range known {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/http.md does not name %s", name)
		}
	}
	for _, o := range outcomes {
		if !strings.Contains(text, string(o)) {
			t.Errorf("docs/http.md does not name the outcome %s", o)
		}
	}
}

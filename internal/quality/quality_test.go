package quality

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/testtraces"
)

var update = flag.Bool("update", false, "write docs/decision-quality.md")

// TestDecisionQuality measures every table of docs/decision-quality.md, holds it to the bounds stated
// there, and the document to what was measured.
func TestDecisionQuality(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of simulations")
	}
	for _, tr := range Traffics {
		for _, p := range tr.Paths {
			testtraces.Path(t, p)
		}
	}
	golden, err := MeasureGolden(t.Context(), testtraces.Dir())
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Measure(t.Context(), testtraces.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, miss := range Misses(golden, rows) {
		t.Error(miss)
	}
	var doc bytes.Buffer
	if err := WriteDocument(&doc, golden, rows); err != nil {
		t.Fatal(err)
	}
	path := testtraces.Bundled("docs/decision-quality.md")
	if *update {
		if err := os.WriteFile(path, doc.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	had, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(had), doc.String()); diff != "" {
		t.Errorf("docs/decision-quality.md differs from what was measured (-document +measured), make quality writes it:\n%s", diff)
	}
}

package sim_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestGolden pins whole reports of the published formula, plain, adverse and disaggregated, on both
// engines: a change of a model has to be meant.
func TestGolden(t *testing.T) {
	w := quarter(t)
	w.Requests = w.Requests[:1500]
	got := map[string]*report.Run{}
	for _, v := range variants() {
		if strings.Contains(v.name, score.KVAware) {
			got[v.name] = mustRun(t, w, v.cfg)
		}
	}
	data, err := json.MarshalIndent(got, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, '\n')
	path := filepath.Join("testdata", "reports.json")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, data) {
		t.Errorf("reports differ from %s (-want +got; -update rewrites it):\n%s", path, cmp.Diff(string(want), string(data)))
	}
}

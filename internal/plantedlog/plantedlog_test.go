package plantedlog_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/plantedlog"
)

var truth = plantedlog.Truth{A: 0.018, B: 0.0004, C: 4e-8, Noise: 0.05}

func TestSameArgumentsSameBytes(t *testing.T) {
	for _, form := range append(plantedlog.Forms(), plantedlog.Recording) {
		var logs [3]bytes.Buffer
		for i, seed := range []uint64{1, 1, 2} {
			if err := plantedlog.Write(&logs[i], form, truth, plantedlog.Design{Seconds: 60}, seed); err != nil {
				t.Fatalf("%s: %v", form, err)
			}
		}
		if !bytes.Equal(logs[0].Bytes(), logs[1].Bytes()) {
			t.Errorf("%s: two runs with one seed differ", form)
		}
		if bytes.Equal(logs[0].Bytes(), logs[2].Bytes()) {
			t.Errorf("%s: another seed makes the same log", form)
		}
		if n := strings.Count(logs[0].String(), "\n"); n < 6 {
			t.Errorf("%s: %d lines in a minute:\n%s", form, n, logs[0].String())
		}
	}
}

func TestFormsWithoutRanksRefuseRanks(t *testing.T) {
	two := truth
	two.Ranks = 2
	for _, form := range plantedlog.Forms() {
		err := plantedlog.Write(io.Discard, form, two, plantedlog.Design{Seconds: 20}, 1)
		if (err != nil) != form.OneRank() {
			t.Errorf("%s with two ranks: %v, want an error: %t", form, err, form.OneRank())
		}
	}
	if err := plantedlog.Write(io.Discard, "nonsense", truth, plantedlog.Design{}, 1); err == nil {
		t.Error("an unknown form was written")
	}
}

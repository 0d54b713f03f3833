package recorder_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/score"
)

// recordedDecisions reads the decisions of a recording, one JSON line each.
func recordedDecisions(tb testing.TB, files [][]byte) (lines []string) {
	tb.Helper()
	for _, b := range files {
		r, err := record.Open(bytes.NewReader(b), "f")
		var rec record.Record
		for err == nil {
			if err = r.Read(&rec); err == nil && rec.Kind == record.Decision {
				lines = append(lines, string(rec.JSON))
			}
		}
		if err != io.EOF {
			tb.Fatal(err)
		}
	}
	return lines
}

// The recorded configuration changes nothing and writes the recorded decisions.
func TestCompareWithItself(t *testing.T) {
	files := sample(t, 300, recorder.Options{MaxSize: 200 << 10})
	var out bytes.Buffer
	c, err := replay.Compare(context.Background(), opened(t, files), score.Defaults(), &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := recordedDecisions(t, files)
	if got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Error("the decisions are not the recorded ones")
	}
	ch := &c.Changes
	if ch.Changed != 0 || len(ch.Moves) != 0 || ch.Recorded != ch.Replayed || ch.Decisions != int64(len(want)) || !ch.Complete {
		t.Errorf("changes %+v, want none of %d", ch, len(want))
	}
	if a, b := c.Runs[0], c.Runs[1]; a.PicksDigest != b.PicksDigest || fmt.Sprint(a.RequestsPerWorker) != fmt.Sprint(b.RequestsPerWorker) {
		t.Errorf("runs differ: %+v, %+v", a, b)
	}
}

// What is counted about another policy is what adding up its decisions gives.
func TestCompareCounts(t *testing.T) {
	files := sample(t, 300, recorder.Options{})
	cfg := score.Defaults()
	cfg.Policy = score.RoundRobin
	var out bytes.Buffer
	c, err := replay.Compare(context.Background(), opened(t, files), cfg, &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	was := recordedDecisions(t, files)
	now := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(was) != len(now) || len(was) < 100 {
		t.Fatalf("%d decisions, %d recorded", len(now), len(was))
	}
	var changed, hits, tokens, misses, pending int64
	moves := map[string]int64{}
	for i := range was {
		a, err := score.ParseDecision([]byte(was[i]))
		if err != nil {
			t.Fatal(err)
		}
		b, err := score.ParseDecision([]byte(now[i]))
		if err != nil {
			t.Fatal(err)
		}
		from, to := a.PickedTerms(), b.PickedTerms()
		if from.Candidate.Key != to.Candidate.Key {
			changed++
			moves[from.Candidate.Key+" "+to.Candidate.Key]++
		}
		hits += to.Hits
		tokens += to.HitTokens
		misses += to.Blocks - to.Hits
		pending += to.Load.PendingTokens
	}
	ch := &c.Changes
	f := ch.Replayed
	if ch.Changed != changed || changed == 0 || f.HitBlocks != hits || f.HitTokens != tokens || f.MissBlocks != misses || f.PendingTokens != float64(pending)/float64(len(was)) {
		t.Errorf("changes %+v, want %d changed, %d hits of %d tokens, %d misses", ch, changed, hits, tokens, misses)
	}
	for i, m := range ch.Moves {
		if moves[m.From+" "+m.To] != m.Count || i > 0 && m.Count > ch.Moves[i-1].Count {
			t.Errorf("move %+v, want %d, most frequent first", m, moves[m.From+" "+m.To])
		}
	}
	if len(ch.Moves) != len(moves) {
		t.Errorf("%d moves, want %d", len(ch.Moves), len(moves))
	}
	sum := int64(0)
	for _, n := range c.Runs[1].RequestsPerWorker {
		sum += n
	}
	if sum != int64(len(was)) || len(ch.Workers) != c.Runs[1].Workers || c.Trace.Requests != sum {
		t.Errorf("run %+v, trace %+v; want %d decisions", c.Runs[1], c.Trace, len(was))
	}
}

// A cancelled replay stops.
func TestCancelled(t *testing.T) {
	files := sample(t, 300, recorder.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := replay.Verify(ctx, opened(t, files), nil); err != context.Canceled {
		t.Errorf("Verify = %v, want context.Canceled", err)
	}
}

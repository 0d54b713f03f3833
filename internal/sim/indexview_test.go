package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
)

// indexView is the index that live routers use, fed with the operations that engine events become, with
// the forest's node numbers as engine handles.
type indexView struct {
	*index.Index
	f       *trace.Forest
	handles []index.Handle
	hashes  []block.Hash
}

func newIndexView(w *trace.Workload, workers int) view {
	v := &indexView{Index: index.New(max(1, w.BlockSize), index.Options{}), f: w.Forest}
	for t := range workers {
		v.Join(target.ID(t))
	}
	return v
}

func (v *indexView) look(trace.NodeID) {}

func (v *indexView) store(worker int, nodes []trace.NodeID) error {
	v.hashes = v.hashes[:0]
	for _, n := range nodes {
		v.hashes = append(v.hashes, v.f.Hash[n])
	}
	op := index.Op{Kind: index.Store, Target: target.ID(worker), Hashes: v.hashes}
	if p := v.f.Parent[nodes[0]]; p != trace.NoNode {
		op.Parent, op.HasParent = index.Handle(p), true
	}
	return v.apply(op, nodes)
}

func (v *indexView) remove(worker int, nodes []trace.NodeID) error {
	return v.apply(index.Op{Kind: index.Remove, Target: target.ID(worker)}, nodes)
}

func (v *indexView) apply(op index.Op, nodes []trace.NodeID) error {
	v.handles = v.handles[:0]
	for _, n := range nodes {
		v.handles = append(v.handles, index.Handle(n))
	}
	op.Handles = v.handles
	res, err := v.Apply(op)
	if err == nil && res.Stored+res.Removed != len(nodes) {
		err = fmt.Errorf("the index did not take a change of %d blocks in full: %+v", len(nodes), res)
	}
	return err
}

func (v *indexView) forget(worker int)       { v.Forget(target.ID(worker)) }
func (v *indexView) blocks(worker int) int64 { return int64(v.Stats(target.ID(worker)).Blocks) }

// TestViewEqualsIndex: with the live index in its place, every decision has the same bytes.
func TestViewEqualsIndex(t *testing.T) {
	compare := func(t *testing.T, what string, w *trace.Workload, c Config) {
		t.Helper()
		var reports [2]*report.Run
		var decisions [2]bytes.Buffer
		for k, v := range []func(*trace.Workload, int) view{newIndexView, nil} {
			c.Decisions = &decisions[k]
			s, err := newRun(w, c, hooks{view: v})
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if reports[k], err = s.run(context.Background()); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if diff := cmp.Diff(reports[0], reports[1]); diff != "" {
			t.Fatalf("%s: index (-) and view (+) differ:\n%s", what, diff)
		}
		if !bytes.Equal(decisions[0].Bytes(), decisions[1].Bytes()) {
			t.Fatalf("%s: decisions differ", what)
		}
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 23))
		w, c := randomWorkload(r), randomConfig(r)
		compare(t, fmt.Sprintf("seed %d, %+v", seed, c), w, c)
	}
	w := loadPiece(t, 3000)
	for _, model := range []string{SerialEngine, BatchEngine} {
		for _, policy := range []string{score.LeastWork, score.KVAware, score.PrefixThreshold} {
			c := Config{
				Workers: 8, Engine: model, Serial: DefaultSerial(), Capacity: 1000, Score: score.Defaults(),
				EventDelay: 250 * time.Millisecond, Kill: []Kill{{3, 200 * time.Second}},
			}
			c.Profile, _ = engine.Lookup(engine.DefaultProfile)
			c.Score.Policy = policy
			compare(t, model+" "+policy, w, c)
		}
	}
}

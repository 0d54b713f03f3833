package recorder_test

import (
	"bytes"
	"flag"
	"io"
	"os"
	"testing"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/prefixcache"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

var update = flag.Bool("update", false, "write the bundled recording anew")

// bundled is the recording that examples use.
const bundled = "traces/golden/recording.jsonl.gz"

// TestBundledRecording makes the bundled recording again, and makes its decisions again: the form of
// recordings, and what the scorer decides, do not change unnoticed.
func TestBundledRecording(t *testing.T) {
	got := makeBundled(t)
	path := testtraces.Bundled(bundled)
	if *update {
		var b bytes.Buffer
		w, err := trace.Packed(&b, "gzip")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(got); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	src, err := trace.Unpack(f, bundled)
	if err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(src)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is another one than is made now (%d bytes, %d): go test ./internal/recorder -run Bundled -update", bundled, len(want), len(got))
	}
	if v := verified(t, [][]byte{want}); v.Decisions != 161 || !v.Ended || v.Missing() != "" {
		t.Errorf("verified %+v, want 161 decisions and an end", v)
	}
}

// makeBundled sends the first 160 requests of the made sessions through a pool of three workers, each a
// cache of 300 blocks: four in flight, a gap in the events of one worker, a failure that is sent elsewhere, and the
// end and return of a worker.
func makeBundled(t *testing.T) []byte {
	f, err := os.Open(testtraces.Bundled("traces/golden/sessions80-inter16.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := trace.Load([]trace.Source{{Name: "sessions", R: f}}, trace.Options{Limit: 160})
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{}
	cfg := score.Defaults()
	rec, err := recorder.Start(recorder.Options{
		Header: record.Header{Run: "b0b0b0b0b0b0b0b0", Program: "bundled", Model: "made", BlockSize: w.BlockSize, Config: cfg}, Create: d.create,
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pool.New(pool.Config{Score: cfg, BlockSize: w.BlockSize, Recorder: rec})
	if err != nil {
		t.Fatal(err)
	}
	fleet := &small{t: t, w: w, p: p, of: map[target.ID]*prefixcache.LRU{}}
	for _, name := range []string{"http://a:8000", "http://b:8000", "http://c:8000"} {
		fleet.join(name, 1)
	}
	type flight struct {
		h   load.Handle
		out int64
	}
	var flights []flight
	for i := range w.Requests {
		q := &w.Requests[i]
		at := q.Arrival * 1000
		req := &score.Request{
			ID: "request-" + string(rune('a'+i/26)) + string(rune('a'+i%26)), At: at, Blocks: w.Path(q.Leaf, nil), BlockSize: w.BlockSize,
			InputTokens: q.Input, TokensExact: true, N: 1, Session: w.Sessions[q.Session],
		}
		var dec score.Decision
		if err := p.Pick(req, nil, &dec, nil); err != nil {
			t.Fatal(err)
		}
		if i == 90 { // fails before the first byte
			bad := dec.PickedTerms().Candidate.Target
			p.Unbind(dec.Handle)
			p.Release(dec.Handle, at+1e6, -1)
			if err := p.Pick(req, func(c *score.Candidate) bool { return c.Target == bad }, &dec, nil); err != nil {
				t.Fatal(err)
			}
		}
		id := dec.PickedTerms().Candidate.Target
		if i == 60 {
			p.Note(at, id, "gap: 1 batch of events is missing")
			p.Update(id, func(c *score.Candidate) { c.Doubt = "gap in the events" })
		}
		fleet.serve(id, q.Leaf, i != 60)
		p.FirstToken(dec.Handle, at+int64(req.InputTokens-dec.PickedTerms().HitTokens)*50_000)
		out := q.Output
		if i%37 == 36 {
			out = -1 // the client left
		}
		if flights = append(flights, flight{dec.Handle, out}); len(flights) > 3 {
			p.Release(flights[0].h, at+900_000_000, flights[0].out)
			flights = flights[1:]
		}
		if i == 110 {
			p.Leave(id)
			fleet.join("http://d:8000", 1)
		}
	}
	for _, f := range flights {
		p.Release(f.h, 1e12, f.out)
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	return d.contents()[0]
}

// small is workers whose caches are known, and tell of every change.
type small struct {
	t  *testing.T
	w  *trace.Workload
	p  *pool.Pool
	of map[target.ID]*prefixcache.LRU
}

func (s *small) join(name string, life target.Incarnation) {
	key := target.Key{Worker: name, Rank: target.NoRank, Incarnation: life}
	id, err := s.p.Join(key, score.Candidate{BlockSize: s.w.BlockSize}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.of[id] = prefixcache.NewLRU(s.w.Forest, 300)
}

// serve puts a prompt into a worker's cache; told says whether the router hears of it.
func (s *small) serve(id target.ID, leaf trace.NodeID, told bool) {
	var in, out []trace.NodeID
	s.of[id].Touch(leaf, &in, &out)
	if !told {
		return
	}
	var ops []index.Op
	if len(in) > 0 {
		op := index.Op{Kind: index.Store}
		for _, n := range in {
			op.Handles, op.Hashes = append(op.Handles, index.Handle(n)), append(op.Hashes, s.w.Forest.Hash[n])
		}
		if p := s.w.Forest.Parent[in[0]]; p != trace.NoNode {
			op.Parent, op.HasParent = index.Handle(p), true
		}
		ops = append(ops, op)
	}
	if len(out) > 0 {
		op := index.Op{Kind: index.Remove}
		for _, n := range out {
			op.Handles = append(op.Handles, index.Handle(n))
		}
		ops = append(ops, op)
	}
	if _, err := s.p.Apply(id, ops); err != nil {
		s.t.Fatal(err)
	}
}

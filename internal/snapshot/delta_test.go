package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// step is a snapshot some time after s: workers come, change and go, decisions are made, warnings begin and end.
func step(rng *rand.Rand, s *Snapshot) *Snapshot {
	n := *s
	n.Seq++
	n.AtMS += 250
	n.Workers = nil
	for _, w := range s.Workers {
		switch rng.IntN(6) {
		case 0:
			continue
		case 1:
			w.BlockCount += rng.IntN(10)
			seq := rng.Uint64()
			w.Stream.Sequence = &seq
			w.History = append(append([]uint32{}, w.History...), rng.Uint32())
		}
		n.Workers = append(n.Workers, w)
	}
	for range rng.IntN(3) {
		w := Worker{WorkerID: fmt.Sprint("w", rng.IntN(30)), Model: fmt.Sprint("m", rng.IntN(2)), Role: "mixed"}
		w.RouteKey = fmt.Sprint(w.WorkerID, "#dp", rng.Uint64()%1000)
		n.Workers = append(n.Workers, w)
	}
	SortWorkers(n.Workers)
	n.Picks = append([]Pick{}, s.Picks...)
	for range rng.IntN(200) {
		n.Router.Kept++
		n.Picks = append(n.Picks, Pick{ID: n.Router.Kept * 3, RequestID: fmt.Sprint(rng.Uint32())})
	}
	n.Picks = n.Picks[max(0, len(n.Picks)-MaxPicks):]
	switch rng.IntN(4) {
	case 0:
		n.Warnings = append([]Warning{{ID: fmt.Sprint(rng.Uint32()), Text: "gap"}}, s.Warnings...)
	case 1:
		n.Warnings = nil
	}
	if rng.IntN(3) == 0 {
		n.Cache = Cache{Held: rng.Int64N(1000), Prefixes: []Prefix{{Hash: fmt.Sprint(rng.Uint32()), Holders: []Holder{{"w1", rng.IntN(9)}}}}}
	}
	return &n
}

// TestDeltas: whatever happens, the deltas applied to a snapshot make the later one, also by way of JSON, and what
// was handed out before stays as it was.
func TestDeltas(t *testing.T) {
	same := func(what string, got, want *Snapshot) {
		t.Helper()
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("%s (-want +got):\n%s", what, d)
		}
	}
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		truth := &Snapshot{Schema: Schema, Run: "r", Router: Router{Policy: "least-work"}}
		seen := truth
		for range 12 {
			next := step(rng, truth)
			before := clone(t, seen)
			d := Diff(truth, next)
			if d == nil {
				t.Fatalf("seed %d: no delta though the number of decisions or workers changed: %+v", seed, next)
			}
			data, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			read, err := DecodeDelta(data)
			if err != nil {
				t.Fatal(err)
			}
			after, err := seen.Apply(read)
			if err != nil {
				t.Fatal(err)
			}
			same("after the delta", after, next)
			same("the snapshot before", seen, before)
			truth, seen = next, after
		}
	}
}

func clone(t *testing.T, s *Snapshot) *Snapshot {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNothingChanged(t *testing.T) {
	s := &Snapshot{Schema: Schema, Run: "r", Workers: []Worker{{RouteKey: "a", History: []uint32{1}}}}
	n := clone(t, s)
	n.Seq, n.AtMS = 5, 7
	if d := Diff(s, n); d != nil {
		t.Errorf("got %+v, want nothing", d)
	}
}

func TestDeltaOfAnotherRun(t *testing.T) {
	s := &Snapshot{Run: "r", Seq: 4}
	for _, d := range []*Delta{{Run: "q", From: 4, Seq: 5}, {Run: "r", From: 3, Seq: 5}} {
		if _, err := s.Apply(d); !errors.Is(err, ErrGap) {
			t.Errorf("%+v: got %v, want %v", d, err, ErrGap)
		}
	}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct{ name, in, err string }{
		{"of this form", `{"schema":"kvroute.snapshot/v1","run":"r","future":{"x":1}}`, ""},
		{"of a later form", `{"schema":"kvroute.snapshot/v2","workers":7}`, `the router tells "kvroute.snapshot/v2", this program reads "kvroute.snapshot/v1": use a kvroute of the router's version`},
		{"something else", `{"object":"list"}`, "this is no snapshot of a router: it has no schema"},
		{"decisions out of order", `{"schema":"kvroute.snapshot/v1","picks":[{"id":2},{"id":2}]}`, "reading a snapshot: decision 2 comes after 2"},
		{"cut", `{"schema":"kvroute.snap`, "reading a snapshot: unexpected end of JSON input"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Decode([]byte(tt.in))
			if got := fmt.Sprint(err); got != tt.err && (tt.err != "" || err != nil) {
				t.Errorf("got %q, want %q", got, tt.err)
			}
		})
	}
}

func TestRouteKeysByNumber(t *testing.T) {
	var ws []Worker
	for _, k := range []string{"w10", "w2#dp11", "w2#dp2", "w2", "w02", "10.0.0.10:8000", "10.0.0.9:8000", "a"} {
		ws = append(ws, Worker{RouteKey: k})
	}
	SortWorkers(ws)
	var got []string
	for i := range ws {
		got = append(got, ws[i].RouteKey)
	}
	want := []string{"10.0.0.9:8000", "10.0.0.10:8000", "a", "w2", "w2#dp2", "w2#dp11", "w02", "w10"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"schema":"kvroute.snapshot/v1","run":"r","seq":1,"workers":[{"route_key":"a"}],"picks":[{"id":1}]}`), []byte(`{"run":"r","from":1,"seq":2,"gone":["a"]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		s, err := Decode(a)
		if err != nil {
			return
		}
		d, err := DecodeDelta(b)
		if err != nil {
			return
		}
		if n, err := s.Apply(d); err == nil && Diff(n, n) != nil {
			t.Error("a snapshot differs from itself")
		}
	})
}

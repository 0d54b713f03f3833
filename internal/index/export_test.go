package index

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

func exported(tb testing.TB, x *Index, t target.ID) []Record {
	tb.Helper()
	var out []Record
	if err := x.Export(t, func(r *Record) error {
		c := *r
		c.Hashes = slices.Clone(r.Hashes)
		out = append(out, c)
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return out
}

func sequence(recs []Record, end error) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for i := range recs {
			if !yield(&recs[i], nil) {
				return
			}
		}
		if end != nil {
			yield(nil, end)
		}
	}
}

// sameContent compares all that can be seen of two indexes, but totals and epochs.
func sameContent(t *testing.T, got, want *Index, targets int, when any) {
	t.Helper()
	if err := got.Check(); err != nil {
		t.Fatalf("%v: %v", when, err)
	}
	for id := range target.ID(targets) {
		g, w := got.Stats(id), want.Stats(id)
		g.Totals, w.Totals, g.Epoch, w.Epoch = Result{}, Result{}, 0, 0
		if g != w || got.ContentHash(id) != want.ContentHash(id) {
			t.Fatalf("%v: target %d is %+v, %x; want %+v, %x", when, id, g, got.ContentHash(id), w, want.ContentHash(id))
		}
	}
	var gm, wm Matches
	for v := range 16 {
		chain := block.AppendChain(nil, block.Hash(v/8*7), prompt(v%8), historyBlock)
		got.Match(chain, &gm)
		want.Match(chain, &wm)
		if !slices.Equal(gm.Hits, wm.Hits) || !slices.EqualFunc(gm.Lower[:], wm.Lower[:], slices.Equal) {
			t.Fatalf("%v: Match of prompt %d = %v lower %v, want %v lower %v", when, v, gm.Hits, gm.Lower, wm.Hits, wm.Lower)
		}
	}
}

// TestExportImport takes mirrors over into new indexes in the middle of histories. What can be seen must be
// the same then, and after every operation that follows.
func TestExportImport(t *testing.T) {
	t.Parallel()
	histories := 200
	if testing.Short() {
		histories = 30
	}
	var kinds struct{ pages, ghosts, bare, copies, firsts, handles int }
	for seed := range histories {
		rng := rand.New(rand.NewPCG(uint64(seed), 15))
		data := make([]byte, 1500)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		h := newHistory(data)
		h.sizes = []int{4, 4, 4, 8, 12}
		opt := h.fast.opt
		opt.OrphanLimit = -1 // what waits is not exported
		opt.Observer, opt.Yield = nil, nil
		x := New(historyBlock, opt)
		for id := range target.ID(h.targets) {
			x.Join(id)
		}
		for k := 0; h.at < len(data)/2; k++ {
			mustApply(t, x, h.op())
		}
		seen := &observed{}
		opt.Observer = seen
		y := New(historyBlock, opt)
		for id := range target.ID(h.targets) {
			y.Join(id)
		}
		for id := range target.ID(h.targets) {
			recs := exported(t, x, id)
			for _, r := range recs {
				switch {
				case len(r.Hashes) > 1:
					kinds.pages++
				case !r.HasHandle && r.Copies == [NumTiers]uint32{}:
					kinds.ghosts++
				case !r.HasHandle:
					kinds.bare++
				case max(r.Copies[GPU], r.Copies[CPU], r.Copies[Disk]) > 1:
					kinds.copies++
				default:
					kinds.handles++
				}
				if r.First {
					kinds.firsts++
				}
			}
			res, err := y.Import(id, sequence(recs, nil))
			if err != nil || res.Stored != x.Stats(id).Blocks || res.Refused+res.Conflict+res.Known+res.Rebound+res.Unknown != 0 {
				t.Fatalf("seed %d: Import to target %d: %+v, %v", seed, id, res, err)
			}
			if again := exported(t, y, id); len(again) != len(recs) {
				t.Fatalf("seed %d: target %d has %d records, exported again %d", seed, id, len(recs), len(again))
			}
		}
		sameContent(t, y, x, h.targets, fmt.Sprintf("seed %d, imported", seed))
		for !h.done() {
			op := h.op()
			got, gotErr := y.Apply(op)
			want, wantErr := x.Apply(op)
			if got != want || (gotErr == nil) != (wantErr == nil) {
				t.Fatalf("seed %d: Apply(%+v) = %+v, %v; on the original %+v, %v", seed, op, got, gotErr, want, wantErr)
			}
			sameContent(t, y, x, h.targets, op)
		}
		if len(seen.broken) > 0 {
			t.Fatalf("seed %d: the observer is told %v", seed, seen.broken)
		}
		for id := range target.ID(h.targets) {
			if got, want := len(seen.held[id]), y.Stats(id).Blocks; got != want {
				t.Fatalf("seed %d: the observer saw target %d hold %d blocks, want %d", seed, id, got, want)
			}
		}
	}
	if kinds.pages*kinds.ghosts*kinds.bare*kinds.copies*kinds.firsts*kinds.handles == 0 {
		t.Errorf("records of some kinds never came: %+v", kinds)
	}
}

// TestExportSaysWhat spells out the records of one mirror.
func TestExportSaysWhat(t *testing.T) {
	t.Parallel()
	x := New(4, Options{})
	x.Join(0)
	other := block.Next(7, tokens(1, 4))
	for _, op := range []Op{
		stored(tokens(1, 12), 101, 102, 103).counted(),
		stored(tokens(9, 12), 103).after(102).counted(),
		stored(tokens(9, 12), 103).after(102).in(CPU).counted(),
		{Kind: Store, Handles: []Handle{1}, Tokens: tokens(1, 4), Namespace: 7},
		stored(tokens(1, 4), 555),
		removed(102),
		stored(tokens(1, 8), 900).pages(8).in(Disk),
		stored(tokens(1, 8), 901), // does not fit
	} {
		mustApply(t, x, op)
	}
	one := [NumTiers]uint32{1}
	want := []Record{
		{Handle: 555, HasHandle: true, First: true, Hashes: []block.Hash{blockA}, Copies: one},
		{Handle: 101, HasHandle: true, First: true, Hashes: []block.Hash{blockA}, Copies: one},
		{First: true, Hashes: []block.Hash{blockA}, Copies: one},
		{Handle: 900, HasHandle: true, First: true, Hashes: []block.Hash{blockA, blockB}, Copies: [NumTiers]uint32{Disk: 1}},
		{Parent: blockA, Hashes: []block.Hash{blockB}, Copies: one},
		{Handle: 103, HasHandle: true, Parent: blockB, Hashes: []block.Hash{blockC}, Copies: [NumTiers]uint32{2, 1}},
		{Handle: 1, HasHandle: true, First: true, Parent: 7, Hashes: []block.Hash{other}, Copies: one},
	}
	if diff := cmp.Diff(want, exported(t, x, 0)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func TestExportRefuses(t *testing.T) {
	t.Parallel()
	x := New(4, Options{})
	x.Join(0)
	mustApply(t, x, stored(tokens(1, 8), 1, 2, 3, 4).pages(2))
	for id, want := range []string{"4 of its 4 handles", "has not joined"} {
		if err := x.Export(target.ID(id), func(*Record) error { return nil }); !errors.Is(err, ErrExport) || !strings.Contains(err.Error(), want) {
			t.Errorf("target %d: error %v, want %v with %q", id, err, ErrExport, want)
		}
	}
	mustApply(t, x, cleared)
	mustApply(t, x, stored(tokens(1, 8), 1, 2))
	stop := errors.New("disk full")
	calls := 0
	if err := x.Export(0, func(*Record) error { calls++; return stop }); err != stop || calls != 1 {
		t.Errorf("error %v after %d records, want %v after 1", err, calls, stop)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	one := [NumTiers]uint32{1}
	a := Record{Handle: 101, HasHandle: true, First: true, Hashes: []block.Hash{blockA}, Copies: one}
	b := Record{Handle: 102, HasHandle: true, Parent: blockA, Hashes: []block.Hash{blockB}, Copies: one}
	stop := errors.New("cut short")
	with := func(r Record, change func(*Record)) Record { change(&r); return r }
	for _, tc := range []struct {
		name string
		to   target.ID
		recs []Record
		end  error
		is   error
		want string
	}{
		{"not joined", 5, nil, nil, ErrOp, "has not joined"},
		{"not empty", 1, nil, nil, ErrOp, "not empty"},
		{"the sequence ends in an error", 0, []Record{a, b}, stop, stop, "cut short"},
		{"no block", 0, []Record{a, with(b, func(r *Record) { r.Hashes = nil })}, nil, ErrImport, "record 2"},
		{"blocks without a handle", 0, []Record{with(a, func(r *Record) { r.HasHandle, r.Hashes = false, abc() })}, nil, ErrImport, "3 blocks without"},
		{"in no tier", 0, []Record{a, with(b, func(r *Record) { r.Copies[GPU] = 0 })}, nil, ErrImport, "handle 66 is in no tier"},
		{"twice", 0, []Record{a, with(b, func(r *Record) { r.Handle = 101 })}, nil, ErrImport, "65 comes twice"},
		{"parent unknown", 0, []Record{a, with(b, func(r *Record) { r.Parent = 99 })}, nil, ErrImport, "0000000000000063"},
		{"other parent", 0, []Record{a, b, {Handle: 9, HasHandle: true, First: true, Hashes: []block.Hash{blockB}, Copies: one}}, nil, ErrImport, "known after another"},
		{"page of the same block", 0, []Record{{Handle: 9, HasHandle: true, First: true, Hashes: []block.Hash{blockA, blockA}, Copies: one}}, nil, ErrImport, "known after another"},
		{"bare of another parent", 0, []Record{a, {First: true, Hashes: []block.Hash{blockB}}, b}, nil, ErrImport, "known after another"},
	} {
		x := New(4, Options{})
		x.Join(0)
		x.Join(1)
		mustApply(t, x, stored(tokens(1, 12), 101, 102, 103).on(1))
		before := x.Size()
		if _, err := x.Import(tc.to, sequence(tc.recs, tc.end)); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %v with %q", tc.name, err, tc.is, tc.want)
		}
		if err := x.Check(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if got := x.Size(); got != before || x.Stats(1).Blocks != 3 {
			t.Errorf("%s: the index has %+v, before %+v", tc.name, got, before)
		}
	}
}

// TestImportAtTheLimits imports what has no room: refused and counted, never an error, never beyond.
func TestImportAtTheLimits(t *testing.T) {
	t.Parallel()
	x := New(4, Options{})
	x.Join(0)
	mustApply(t, x, stored(prompt(0), 1, 2, 3, 4, 5, 6))
	mustApply(t, x, stored(prompt(7), 13, 14, 15).pages(8))
	mustApply(t, x, stored(prompt(3)[:8], 7))
	recs := exported(t, x, 0)
	for limit := range 14 {
		for _, opt := range []Options{{Limit: max(limit, 1)}, {HandleLimit: max(limit, 1)}} {
			y := New(4, opt)
			y.Join(0)
			r, err := y.Import(0, sequence(recs, nil))
			if err != nil || (r.Refused > 0) != (y.Stats(0).Blocks < x.Stats(0).Blocks) {
				t.Errorf("%+v: %+v, %v with %+v", opt, r, err, y.Stats(0))
			}
			if err := y.Check(); err != nil {
				t.Errorf("%+v: %v", opt, err)
			}
		}
	}
}

func BenchmarkExport(b *testing.B) {
	for _, kind := range []string{"distinct", "shared-own-handles"} {
		seeds := sameSeed
		if kind == "shared-own-handles" {
			seeds = ownSeed
		}
		c := newChurn(b, New(16, Options{}), 8, 1e6, kind == "distinct", seeds)
		recs := exported(b, c.x, 3)
		b.Run("export/"+kind, func(b *testing.B) {
			for b.Loop() {
				if err := c.x.Export(3, func(*Record) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recs)), "ns/record")
		})
		b.Run("import/"+kind, func(b *testing.B) {
			for b.Loop() {
				y := New(16, Options{})
				y.Join(3)
				if _, err := y.Import(3, sequence(recs, nil)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recs)), "ns/record")
		})
	}
}

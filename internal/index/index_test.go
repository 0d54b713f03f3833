package index

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// The blocks of tokens 1 to 12, four each.
const (
	blockA block.Hash = 0x341839abbe30be0b
	blockB block.Hash = 0x37b6de0623bdb5ca
	blockC block.Hash = 0x7bdf311365468d44
)

func abc() []block.Hash { return []block.Hash{blockA, blockB, blockC} }

func tokens(first, last int) []block.Token {
	var out []block.Token
	for i := first; i <= last; i++ {
		out = append(out, block.Token(i))
	}
	return out
}

// Steps of a scenario, all about target 0 unless changed.

func stored(tok []block.Token, handles ...Handle) Op {
	return Op{Kind: Store, Handles: handles, Tokens: tok}
}

func (op Op) after(parent Handle) Op {
	op.HasParent, op.Parent = true, parent
	return op
}

func (op Op) pages(n int) Op { op.PageSize = n; return op }

func (op Op) counted() Op { op.Counted = true; return op }

func (op Op) in(t Tier) Op { op.Tier = t; return op }

func (op Op) on(t target.ID) Op { op.Target = t; return op }

func removed(handles ...Handle) Op { return Op{Kind: Remove, Handles: handles} }

var (
	cleared = Op{Kind: Clear}
	epoch   = Op{Kind: Epoch}
)

// mapping is where handles lead: the last complete block after the page of each, 0 for none.
type mapping map[Handle]block.Hash

// scenario is a list of operations and what target 0 must look like after them.
type scenario struct {
	name    string
	opt     Options
	ops     []Op
	view    []block.Hash
	handles mapping
	hits    uint32 // of blocks A, B, C
	lower   [NumTiers]uint32
	total   func(*Result) // what the sums over all results must hold beside Stored and Removed
	orphans int
	copies  int // beyond the first
}

func h(n int64) Handle { return Handle(n) }

func scenarios() []scenario {
	neg5, neg6 := h(-5), h(-6)
	bytesX, bytesY := Handle(0xfedcba9876543210), Handle(0x0123456789abcdef) // last eight bytes of digests
	e1 := []Op{stored(tokens(1, 8), 101, 102)}
	e2 := append(slices.Clone(e1), stored(tokens(9, 12), 103).after(102))
	with := func(ops []Op, more ...Op) []Op { return append(slices.Clone(ops), more...) }
	return []scenario{
		{
			name: "E1 two blocks", ops: e1,
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2,
		},
		{
			name: "E2 a child", ops: e2,
			view: abc(), handles: mapping{101: blockA, 102: blockB, 103: blockC}, hits: 3,
		},
		{
			name: "E3 a child alone waits for its parent", ops: []Op{stored(tokens(9, 12), 103).after(102)},
			orphans: 1, total: func(r *Result) { r.Orphaned = 1 },
		},
		{
			name: "E3 and then the parent comes", ops: with([]Op{stored(tokens(9, 12), 103).after(102)}, e1...),
			view: abc(), handles: mapping{101: blockA, 102: blockB, 103: blockC}, hits: 3,
			total: func(r *Result) { r.Orphaned, r.Adopted = 1, 1 },
		},
		{
			name: "E4 a removed middle block stops the run there", ops: with(e2, removed(102)),
			view: []block.Hash{blockA, blockC}, handles: mapping{101: blockA, 103: blockC}, hits: 1,
		},
		{
			name: "E4 and filled again restores it", ops: with(e2, removed(102), stored(tokens(5, 8), 102).after(101)),
			view: abc(), handles: mapping{101: blockA, 102: blockB, 103: blockC}, hits: 3,
		},
		{
			name: "E5 a child of a removed block waits", ops: with(e1, removed(102), stored(tokens(9, 12), 103).after(102)),
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1, orphans: 1,
			total: func(r *Result) { r.Orphaned = 1 },
		},
		{
			name: "E6 handles and tokens do not fit: content without handles", ops: []Op{stored(tokens(1, 8), 900)},
			view: []block.Hash{blockA, blockB}, hits: 2, total: func(r *Result) { r.ViewOnly = 2 },
		},
		{
			name: "E7 a child of such content waits",
			ops:  []Op{stored(tokens(1, 4), 101), stored(tokens(5, 12), 900).after(101), stored(tokens(13, 16), 901).after(900)},
			view: abc(), handles: mapping{101: blockA}, hits: 3, orphans: 1,
			total: func(r *Result) { r.ViewOnly, r.Orphaned = 2, 1 },
		},
		{
			name: "E8 the decoder filters groups: what is left", ops: []Op{stored(tokens(1, 4), 201)},
			view: []block.Hash{blockA}, handles: mapping{201: blockA}, hits: 1,
		},
		{
			name: "E9 cleared", ops: with(e1, cleared, stored(tokens(1, 4), 301)),
			view: []block.Hash{blockA}, handles: mapping{301: blockA}, hits: 1,
		},
		{
			name: "E10 the decoder reduces pairs: what is left", ops: e1,
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2,
		},
		{
			name: "E11 an alias still holds the block", ops: []Op{stored(tokens(1, 4), 101), stored(tokens(1, 4), 555), removed(101)},
			view: []block.Hash{blockA}, handles: mapping{555: blockA}, hits: 1,
		},
		{
			name: "E12 a page of two blocks", ops: []Op{stored(tokens(1, 8), 101).pages(8)},
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockB}, hits: 2,
		},
		{
			name: "E12 and its child", ops: []Op{stored(tokens(1, 8), 101).pages(8), stored(tokens(9, 12), 103).after(101)},
			view: abc(), handles: mapping{101: blockB, 103: blockC}, hits: 3,
		},
		{name: "E12 and removed", ops: []Op{stored(tokens(1, 8), 101).pages(8), removed(101)}},
		{
			name: "E13 pages of half a block", ops: []Op{stored(tokens(1, 8), 101, 102, 103, 104).pages(2)},
			view: []block.Hash{blockA, blockB}, handles: mapping{101: 0, 102: blockA, 103: blockA, 104: blockB}, hits: 2,
		},
		{
			name: "E13 any page taken away takes its block", ops: []Op{stored(tokens(1, 8), 101, 102, 103, 104).pages(2), removed(101)},
			view: []block.Hash{blockB}, handles: mapping{102: blockA, 103: blockA, 104: blockB},
		},
		{
			name: "E13 and stored again gives it back",
			ops:  []Op{stored(tokens(1, 8), 101, 102, 103, 104).pages(2), removed(101), stored(tokens(1, 2), 101).pages(2)},
			view: []block.Hash{blockA, blockB}, handles: mapping{101: 0, 102: blockA, 103: blockA, 104: blockB}, hits: 2,
		},
		{
			name: "E14 a partial tail is dropped", ops: []Op{stored(tokens(1, 6), 101)},
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1,
		},
		{
			name: "E15 negative handles", ops: []Op{stored(tokens(1, 4), neg5), stored(tokens(5, 8), neg6).after(neg5)},
			view: []block.Hash{blockA, blockB}, handles: mapping{neg5: blockA, neg6: blockB}, hits: 2,
		},
		{
			name: "E16 handles that were bytes", ops: []Op{stored(tokens(1, 4), bytesX), stored(tokens(5, 8), bytesY).after(bytesX)},
			view: []block.Hash{blockA, blockB}, handles: mapping{bytesX: blockA, bytesY: blockB}, hits: 2,
		},

		{
			name: "handle zero is a handle", ops: []Op{stored(tokens(1, 4), 0), stored(tokens(5, 8), 1).after(0), removed(1)},
			view: []block.Hash{blockA}, handles: mapping{0: blockA}, hits: 1,
		},
		{
			name: "announced again", ops: with(e2, e2...),
			view: abc(), handles: mapping{101: blockA, 102: blockB, 103: blockC}, hits: 3, total: func(r *Result) { r.Known = 3 },
		},
		{
			name: "announced again without its parent", ops: with(e2, removed(101), stored(tokens(5, 12), 102, 103).after(101)),
			view: []block.Hash{blockB, blockC}, handles: mapping{102: blockB, 103: blockC}, total: func(r *Result) { r.Known = 2 },
		},
		{
			name: "announced with other content: the newer holds", ops: with(e1, stored(tokens(9, 12), 101).after(102)),
			view: []block.Hash{blockB, blockC}, handles: mapping{102: blockB, 101: blockC}, total: func(r *Result) { r.Rebound = 1 },
		},
		{
			name: "two copies take two removals: one is left",
			ops:  []Op{stored(tokens(1, 8), 101, 102).counted(), stored(tokens(5, 8), 102).after(101).counted(), removed(102)},
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2, total: func(r *Result) { r.Known = 1 },
		},
		{
			name: "two copies take two removals: none is left",
			ops:  []Op{stored(tokens(1, 8), 101, 102).counted(), stored(tokens(5, 8), 102).after(101).counted(), removed(102, 102)},
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1, total: func(r *Result) { r.Known = 1 },
		},
		{
			name: "three copies, and one removal too many",
			ops:  []Op{stored(tokens(1, 4), 101).counted(), stored(tokens(1, 4), 101).counted(), stored(tokens(1, 4), 101).counted(), removed(101, 101, 101, 101)},
			view: nil, total: func(r *Result) { r.Known, r.Unknown = 2, 1 },
		},
		{
			name: "copies are counted in each tier by itself",
			ops:  []Op{stored(tokens(1, 4), 101).counted(), stored(tokens(1, 4), 101).in(CPU).counted(), stored(tokens(1, 4), 101).in(CPU).counted(), removed(101), removed(101).in(CPU)},
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1, lower: [NumTiers]uint32{CPU: 1}, total: func(r *Result) { r.Known = 1 },
		},
		{
			name: "copies of a page", ops: []Op{stored(tokens(1, 8), 101).pages(8).counted(), stored(tokens(1, 8), 101).pages(8).counted(), removed(101)},
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockB}, hits: 2, total: func(r *Result) { r.Known = 1 },
		},
		{
			name: "a clear ends the count",
			ops:  []Op{stored(tokens(1, 4), 101).counted(), stored(tokens(1, 4), 101).counted(), cleared, stored(tokens(1, 4), 101).counted(), removed(101)},
			view: nil, total: func(r *Result) { r.Known = 1 },
		},
		{
			name: "other content ends the count",
			ops:  []Op{stored(tokens(1, 4), 101).counted(), stored(tokens(1, 4), 101).counted(), stored(tokens(9, 12), 101).counted(), removed(101)},
			view: nil, total: func(r *Result) { r.Known, r.Rebound = 1, 1 },
		},
		{
			name: "a store that does not count leaves the count alone",
			ops:  []Op{stored(tokens(1, 4), 101).counted(), stored(tokens(1, 4), 101).counted(), stored(tokens(1, 4), 101), stored(tokens(1, 4), 101)},
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1, copies: 1, total: func(r *Result) { r.Known = 3 },
		},
		{
			name: "copies that wait for their parent",
			ops:  []Op{stored(tokens(5, 8), 102).after(101).counted(), stored(tokens(5, 8), 102).after(101).counted(), removed(102), stored(tokens(1, 4), 101)},
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2,
			total: func(r *Result) { r.Orphaned, r.Dropped, r.Adopted = 2, 1, 1 },
		},
		{
			name: "copies that wait go before the one that is held",
			ops: []Op{
				stored(tokens(1, 8), 101, 102).counted(), stored(tokens(9, 16), 103, 102).after(777).counted(), removed(102),
			},
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2, orphans: 1,
			total: func(r *Result) { r.Orphaned, r.Dropped = 2, 1 },
		},
		{
			name: "unknown handles to remove", ops: with(e1, removed(7, 102, 8)),
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1, total: func(r *Result) { r.Unknown = 2 },
		},
		{
			name: "a removal in another tier", ops: with(e1, removed(102).in(CPU)),
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2, total: func(r *Result) { r.Unknown = 1 },
		},
		{
			name: "orphans wait for orphans", ops: []Op{stored(tokens(9, 12), 103).after(102), stored(tokens(5, 8), 102).after(101), stored(tokens(1, 4), 101)},
			view: abc(), handles: mapping{101: blockA, 102: blockB, 103: blockC}, hits: 3,
			total: func(r *Result) { r.Orphaned, r.Adopted = 2, 2 },
		},
		{
			name: "an orphan removed before its parent came", ops: with([]Op{stored(tokens(9, 12), 103).after(102), removed(103)}, e1...),
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2,
			total: func(r *Result) { r.Orphaned, r.Dropped = 1, 1 },
		},
		{
			name: "an orphan removed in part", ops: []Op{stored(tokens(5, 12), 102, 103).after(101), removed(102), stored(tokens(1, 4), 101)},
			view: []block.Hash{blockA, blockC}, handles: mapping{101: blockA, 103: blockC}, hits: 1,
			total: func(r *Result) { r.Orphaned, r.Adopted, r.Dropped = 2, 1, 1 },
		},
		{
			name: "orphans do not outlive a new epoch", ops: with([]Op{stored(tokens(9, 12), 103).after(102), epoch}, e1...),
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2,
			total: func(r *Result) { r.Orphaned, r.Dropped = 1, 1 },
		},
		{
			name: "handles do not outlive a new epoch", ops: with(e1, epoch, stored(tokens(9, 12), 103).after(102)),
			orphans: 1, total: func(r *Result) { r.Orphaned = 1 },
		},
		{
			name: "the oldest orphan goes first", opt: Options{OrphanLimit: 1},
			ops:  with([]Op{stored(tokens(9, 12), 103).after(102), stored(tokens(9, 12), 104).after(101)}, e1...),
			view: append(abc()[:2:2], block.Next(blockA, tokens(9, 12))), handles: mapping{101: blockA, 102: blockB, 104: block.Next(blockA, tokens(9, 12))}, hits: 2,
			total: func(r *Result) { r.Orphaned, r.Dropped, r.Adopted = 2, 1, 1 },
		},
		{
			name: "refused at the limit with the rest of the event", opt: Options{Limit: 2},
			ops: []Op{stored(tokens(1, 12), 101, 102, 103), removed(102), stored(tokens(5, 8), 102).after(101)}, hits: 2,
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, total: func(r *Result) { r.Refused = 1 },
		},
		{
			name: "refused at the limit of handles", opt: Options{HandleLimit: 1},
			ops:  []Op{stored(tokens(1, 4), 101), stored(tokens(1, 4), 555)},
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1, total: func(r *Result) { r.Refused = 1 },
		},

		{
			name: "tiers of one block come and go", ops: []Op{
				stored(tokens(1, 4), 101), stored(tokens(1, 4), 101).in(CPU), removed(101), stored(tokens(1, 4), 101), removed(101).in(CPU),
			},
			view: []block.Hash{blockA}, handles: mapping{101: blockA}, hits: 1,
		},
		{
			name: "a removal from GPU leaves the copy in CPU", ops: with(e1, Op{Kind: Store, Tier: CPU, Handles: []Handle{101, 102, 9}}, removed(102)),
			view: []block.Hash{blockA, blockB}, handles: mapping{101: blockA, 102: blockB}, hits: 2, lower: [NumTiers]uint32{CPU: 1},
			total: func(r *Result) { r.Unknown = 1 },
		},
		{
			name: "each tier is counted where the block is nearest", ops: []Op{
				stored(tokens(1, 12), 101, 102, 103).in(Disk), stored(tokens(1, 8), 101, 102).in(CPU), stored(tokens(1, 4), 101),
			},
			view: abc(), handles: mapping{101: blockA, 102: blockB, 103: blockC}, hits: 3, lower: [NumTiers]uint32{CPU: 1, Disk: 1},
		},
		{
			name: "an alias in another tier", ops: []Op{stored(tokens(1, 4), 101), stored(tokens(1, 4), 555).in(CPU), removed(101)},
			view: []block.Hash{blockA}, handles: mapping{555: blockA}, hits: 1, lower: [NumTiers]uint32{CPU: 1},
		},
		{
			name: "a block made of pages is where its farthest page is", ops: []Op{
				stored(tokens(1, 4), 101, 102).pages(2), stored(tokens(1, 2), 101).pages(2).in(CPU), removed(101),
			},
			view: []block.Hash{blockA}, handles: mapping{101: 0, 102: blockA}, hits: 1, lower: [NumTiers]uint32{CPU: 1},
		},
	}
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, impl := range implementations {
		for _, tt := range scenarios() {
			t.Run(impl.name+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				x := impl.make(4, tt.opt)
				x.Join(0)
				x.Join(1) // a bystander
				other := stored(tokens(1, 12), 101, 102, 103).on(1)
				if tt.opt.Limit == 0 && tt.opt.HandleLimit == 0 {
					mustApply(t, x, other)
				}
				for _, op := range tt.ops {
					mustApply(t, x, op)
					if err := x.Check(); err != nil {
						t.Fatalf("after %+v: %v", op, err)
					}
				}
				tt.check(t, x)
			})
		}
	}
}

func (tt scenario) check(t *testing.T, x subject) {
	t.Helper()
	seen := append(abc(), block.Next(blockA, tokens(9, 12)), 0x131ca00ac4b4aea4)
	for _, b := range seen {
		if got, want := x.holds(0, b) != 0, slices.Contains(tt.view, b); got != want {
			t.Errorf("block %016x held: %v, want %v", b, got, want)
		}
	}
	for _, op := range tt.ops {
		for _, handle := range op.Handles {
			at, _, ok := x.resolve(0, handle)
			if want, known := tt.handles[handle]; ok != known || ok && at != want {
				t.Errorf("handle %d stands for %016x, known %v; want %016x, %v", handle, at, ok, want, known)
			}
		}
	}
	var m Matches
	x.Match(abc(), &m)
	if m.Hits[0] != tt.hits {
		t.Errorf("hits %d, want %d", m.Hits[0], tt.hits)
	}
	for _, tier := range []Tier{CPU, Disk} {
		got := uint32(0)
		if m.Lower[tier] != nil {
			got = m.Lower[tier][0]
		}
		if got != tt.lower[tier] {
			t.Errorf("hits in tier %d: %d, want %d", tier, got, tt.lower[tier])
		}
	}
	s := x.Stats(0)
	if s.Blocks != len(tt.view) || s.Handles != len(tt.handles) || s.Orphans != tt.orphans || s.Copies != tt.copies {
		t.Errorf("%d blocks, %d handles, %d orphans, %d copies; want %d, %d, %d, %d",
			s.Blocks, s.Handles, s.Orphans, s.Copies, len(tt.view), len(tt.handles), tt.orphans, tt.copies)
	}
	want := Result{Stored: s.Totals.Stored, Removed: s.Totals.Removed}
	if tt.total != nil {
		tt.total(&want)
	}
	if diff := cmp.Diff(want, s.Totals); diff != "" {
		t.Errorf("totals, -want +got:\n%s", diff)
	}
}

// TestPageSizes stores the same prompt in pages of all sizes: the overlap is that of blocks.
func TestPageSizes(t *testing.T) {
	t.Parallel()
	const size = 16
	prompt := tokens(1, 16*64)
	chain := block.AppendChain(nil, block.Root, prompt, size)
	for _, impl := range implementations {
		for _, page := range []int{1, 2, 3, 8, 16, 24, 64, 100, 256, 1024} {
			t.Run(fmt.Sprintf("%s/page=%d", impl.name, page), func(t *testing.T) {
				t.Parallel()
				x := impl.make(size, Options{})
				x.Join(0)
				pages := len(prompt) / page
				handles := make([]Handle, pages)
				for i := range handles {
					handles[i] = Handle(1000 + i)
				}
				for at := 0; at < pages; at += 5 { // five pages an event
					n := min(5, pages-at)
					op := Op{Kind: Store, Handles: handles[at : at+n], Tokens: prompt[at*page : (at+n)*page], PageSize: page}
					if at > 0 {
						op = op.after(handles[at-1])
					}
					mustApply(t, x, op)
				}
				want := uint32(pages * page / size)
				var m Matches
				if x.Match(chain, &m); m.Hits[0] != want {
					t.Errorf("%d pages of %d: hits %d, want %d", pages, page, m.Hits[0], want)
				}
				mustApply(t, x, removed(handles[pages/2]))
				if x.Match(chain, &m); m.Hits[0] != uint32(pages/2*page/size) {
					t.Errorf("without page %d of %d: hits %d, want %d", pages/2, page, m.Hits[0], pages/2*page/size)
				}
				if err := x.Check(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestHoleInTheMiddle is the case of a target that holds all but block 2 of a chain.
func TestHoleInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, impl := range implementations {
		x := impl.make(4, Options{})
		x.Join(0)
		x.Join(1)
		handles := []Handle{1, 2, 3, 4, 5, 6}
		prompt := tokens(1, 24)
		chain := block.AppendChain(nil, block.Root, prompt, 4)
		mustApply(t, x, stored(prompt, handles...))
		mustApply(t, x, stored(prompt, handles...).on(1))
		mustApply(t, x, removed(3))
		var m Matches
		if x.Match(chain, &m); m.Hits[0] != 2 || m.Hits[1] != 6 {
			t.Errorf("%s: hits %v, want [2 6]", impl.name, m.Hits)
		}
		if s := x.Stats(0); s.Holes != 1 || s.Blocks != 5 {
			t.Errorf("%s: %d holes in %d blocks, want 1 in 5", impl.name, s.Holes, s.Blocks)
		}
		mustApply(t, x, stored(prompt[8:12], 3).after(2))
		if x.Match(chain, &m); m.Hits[0] != 6 || x.Stats(0).Holes != 0 {
			t.Errorf("%s: hits %v after the hole was filled, want [6 6]", impl.name, m.Hits)
		}
	}
}

func TestContentHashIsOfContentOnly(t *testing.T) {
	t.Parallel()
	for _, impl := range implementations {
		x := impl.make(4, Options{})
		for id := range target.ID(4) {
			x.Join(id)
		}
		mustApply(t, x, stored(tokens(1, 12), 1, 2, 3).on(0))
		mustApply(t, x, stored(tokens(9, 12), 13).after(12).on(1)) // other handles, other order, a detour
		mustApply(t, x, stored(tokens(1, 8), 11, 12).on(1))
		mustApply(t, x, stored(tokens(5, 8), 99).after(13).on(1))
		mustApply(t, x, removed(99).on(1))
		mustApply(t, x, stored(tokens(1, 12), 1, 2, 3).in(CPU).on(2))
		if a, b := x.ContentHash(0), x.ContentHash(1); a != b || a == 0 {
			t.Errorf("%s: same content, hashes %x and %x", impl.name, a, b)
		}
		if a, c := x.ContentHash(0), x.ContentHash(2); a == c {
			t.Errorf("%s: another tier, same hash %x", impl.name, a)
		}
		if got := x.ContentHash(3); got != 0 {
			t.Errorf("%s: hash of nothing %x, want 0", impl.name, got)
		}
	}
}

func TestOneTargetLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	for _, impl := range implementations {
		x := impl.make(4, Options{})
		x.Join(0)
		x.Join(5)
		e2 := stored(tokens(1, 12), 101, 102, 103)
		mustApply(t, x, e2)
		mustApply(t, x, e2.on(5))
		before := x.ContentHash(5)
		mustApply(t, x, cleared)
		var m Matches
		if x.Match(abc(), &m); m.Hits[0] != 0 || m.Hits[5] != 3 || x.ContentHash(5) != before {
			t.Errorf("%s: hits %v after target 0 was cleared, want target 5 to keep 3", impl.name, m.Hits)
		}
		if s := x.Stats(0); s.Epoch != 1 || !s.Joined || s.Totals.Removed != 3 {
			t.Errorf("%s: %+v after a clear, want epoch 1 and 3 blocks removed", impl.name, s)
		}
		x.Forget(5)
		x.Join(5) // another worker at the same slot
		if x.Match(abc(), &m); m.Hits[5] != 0 || x.Stats(5) != (Stats{Joined: true}) {
			t.Errorf("%s: the slot of a forgotten target has hits %v and %+v", impl.name, m.Hits, x.Stats(5))
		}
		if err := x.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestApplyRefusesWhatIsNoOperation(t *testing.T) {
	t.Parallel()
	tests := map[string]Op{
		"no kind":            {},
		"unknown kind":       {Kind: Epoch + 1},
		"unknown tier":       {Kind: Store, Tier: NumTiers, Handles: []Handle{1}, Tokens: tokens(1, 4)},
		"negative page":      {Kind: Store, PageSize: -1, Handles: []Handle{1}, Tokens: tokens(1, 4)},
		"tokens and hashes":  {Kind: Store, Handles: []Handle{1}, Tokens: tokens(1, 4), Hashes: []block.Hash{1}},
		"unjoined target":    {Kind: Clear, Target: 3},
		"beyond all targets": {Kind: Clear, Target: target.MaxTargets},
	}
	for _, impl := range implementations {
		for name, op := range tests {
			x := impl.make(4, Options{})
			x.Join(0)
			x.Join(target.MaxTargets) // no target, and no panic
			if r, err := x.Apply(op); !errors.Is(err, ErrOp) || r != (Result{}) {
				t.Errorf("%s: %s: %+v, %v; want %v", impl.name, name, r, err, ErrOp)
			}
		}
	}
}

// TestContradictingHashes stores hashes that cannot be chains: they are refused, and nothing breaks.
func TestContradictingHashes(t *testing.T) {
	t.Parallel()
	x := New(4, Options{})
	x.Join(0)
	store := func(hashes []block.Hash, handles ...Handle) Op {
		return Op{Kind: Store, Handles: handles, Hashes: hashes}
	}
	for _, op := range []Op{
		store([]block.Hash{1, 2, 3}, 1, 2, 3),
		store([]block.Hash{2, 4}, 12, 14),
		store([]block.Hash{5, 5, 6}, 15, 25, 16),
		store([]block.Hash{3, 7}, 7, 8).after(1),
		store([]block.Hash{1}, 9).after(3),
		removed(2), removed(1),
		store([]block.Hash{1, 2, 3}, 1, 2, 3),
	} {
		mustApply(t, x, op)
		if err := x.Check(); err != nil {
			t.Fatalf("after %+v: %v", op, err)
		}
	}
	if got := x.Stats(0).Totals.Conflict; got != 7 {
		t.Errorf("%d handles in conflict, want 7", got)
	}
}

func TestNoAllocations(t *testing.T) {
	for _, hold := range []string{"all", "staggered", "none", "holes", "tiers"} {
		x, chain := matchCase(t, hold, 512, 96)
		var m Matches
		x.Match(chain, &m)
		if got := testing.AllocsPerRun(50, func() { x.Match(chain, &m) }); got != 0 {
			t.Errorf("Match where targets hold %s: %v allocations, want 0", hold, got)
		}
	}
	x, chain := matchCase(t, "all", 512, 96)
	handles := handlesOf(nil, chain, 1)
	out, in := Op{Kind: Remove, Target: 3, Handles: handles[496:]}, storeOp(3, chain, handles, 496, 16)
	if got := testing.AllocsPerRun(50, func() {
		mustApply(t, x, out)
		mustApply(t, x, in)
	}); got != 0 {
		t.Errorf("evicting and storing 16 blocks: %v allocations, want 0", got)
	}
}

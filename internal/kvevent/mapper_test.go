package kvevent

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
)

// feed maps and applies events of one batch.
func (m *mirror) feed(events ...Event) index.Result {
	m.t.Helper()
	var sum index.Result
	for _, op := range m.m.Map(&Batch{Events: events}) {
		r, err := m.x.Apply(op)
		if err != nil {
			m.t.Fatal(err)
		}
		sum.Stored += r.Stored
		sum.Removed += r.Removed
		sum.Unknown += r.Unknown
		sum.Orphaned += r.Orphaned
		sum.ViewOnly += r.ViewOnly
	}
	if err := m.x.Check(); err != nil {
		m.t.Fatal(err)
	}
	return sum
}

// hits is the length of the run of blocks of 4 that the mirror has of a prompt.
func (m *mirror) hits(prompt []block.Token, adapter, salt string) int {
	var found index.Matches
	m.x.Match(block.AppendChain(nil, block.Namespace(adapter, salt), prompt, 4), &found)
	return int(found.Hits[0])
}

func stored(handles []index.Handle, ts []block.Token) Event {
	return with(root(handles, ts), func(e *Event) {
		e.Incomplete = len(ts) != 4*len(handles)
	})
}

func removed(tier index.Tier, h ...index.Handle) Event {
	return Event{Kind: Removed, Handles: h, Tier: tier, Group: -1}
}

func after(parent index.Handle, e Event) Event {
	e.Parent, e.HasParent = parent, true
	return e
}

func salted(salt string, e Event) Event {
	e.Salt = salt
	return e
}

func extra(e Event, keys ...Extra) Event {
	e.Extra = keys
	return e
}

// TestNamespaces is the matrix of adapters, salts and images: equal ones hit, different ones never do.
func TestNamespaces(t *testing.T) {
	type who struct{ adapter, salt, image string }
	var all []who
	for _, a := range []string{"", "lora-a", "lora-b"} {
		for _, s := range []string{"", "x", "lora-a"} {
			for _, i := range []string{"", "img"} {
				all = append(all, who{a, s, i})
			}
		}
	}
	prompt := tokens(1, 12)
	for _, w := range all {
		t.Run(fmt.Sprintf("%+v", w), func(t *testing.T) {
			m := newMirror(t, 4, VLLM)
			e := stored(hs(1, 2, 3), prompt)
			e.Adapter = w.adapter
			// vLLM's keys: images of the block, adapter on every block, salt on the first.
			for b := range 3 {
				if b > 0 && w.image != "" {
					e.Extra = append(e.Extra, Extra{b, w.image})
				}
				if w.adapter != "" {
					e.Extra = append(e.Extra, Extra{b, w.adapter})
				}
				if b == 0 && w.salt != "" {
					e.Extra = append(e.Extra, Extra{b, w.salt})
				}
			}
			m.feed(e, after(3, with(stored(hs(4), tokens(13, 16)), func(e *Event) { e.Adapter = w.adapter })))
			for _, o := range all {
				want := 0
				if o.adapter == w.adapter && o.salt == w.salt {
					if want = 4; w.image != "" {
						want = 1 // text before the image only
					}
				}
				if got := m.hits(tokens(1, 16), o.adapter, o.salt); got != want {
					t.Errorf("prompt of adapter %q, salt %q: %d hits, want %d", o.adapter, o.salt, got, want)
				}
			}
			// Removing them all leaves nothing.
			m.feed(removed(index.GPU, 4), removed(index.GPU, 3), removed(index.GPU, 2), removed(index.GPU, 1))
			if s := m.x.Stats(0); s.Blocks != 0 || s.Handles != 0 {
				t.Errorf("%d blocks, %d handles left after all removals", s.Blocks, s.Handles)
			}
		})
	}
}

func TestImageAlone(t *testing.T) {
	m := newMirror(t, 4, VLLM)
	m.feed(extra(stored(hs(1), tokens(1, 4)), Extra{0, "img"}))
	if got := m.hits(tokens(1, 4), "", ""); got != 0 {
		t.Errorf("text has %d hits on an image's block, want 0", got)
	}
	// Two images with the same text around them are two blocks.
	m.feed(extra(stored(hs(5, 6), tokens(1, 8)), Extra{1, "img-1"}), extra(stored(hs(5, 7), tokens(1, 8)), Extra{1, "img-2"}))
	m.feed(removed(index.GPU, 6))
	if s := m.x.Stats(0); s.Blocks != 3 || m.hits(tokens(1, 8), "", "") != 1 {
		t.Errorf("%d blocks, %d hits of text, want 3 and 1", s.Blocks, m.hits(tokens(1, 8), "", ""))
	}
	// Keys of blocks that cannot be told apart: nothing is stored.
	m.feed(extra(stored(hs(8), tokens(20, 31)), Extra{0, "a"}, Extra{0, "b"}))
	m.feed(extra(with(stored(hs(8, 9), tokens(20, 29)), func(e *Event) { e.Incomplete = true }), Extra{1, "a"}))
	if got := m.m.Stats().Unplaced; got != 1 {
		t.Errorf("%d stores unplaced, want 1", got)
	}
}

// TestSaltsWithEqualHashes: SGLang leaves the salt out of its hashes.
func TestSaltsWithEqualHashes(t *testing.T) {
	m := newMirror(t, 4, SGLang)
	m.feed(
		stored(hs(7), tokens(1, 4)),
		salted("a", stored(hs(7), tokens(1, 4))), salted("b", stored(hs(7), tokens(1, 4))),
		after(7, salted("a", stored(hs(8), tokens(5, 8)))), after(7, stored(hs(9), tokens(5, 12))))
	check := func(what string, want ...int) {
		t.Helper()
		got := []int{m.hits(tokens(1, 12), "", ""), m.hits(tokens(1, 12), "", "a"), m.hits(tokens(1, 12), "", "b")}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: hits without salt, with a, with b (-want +got):\n%s", what, diff)
		}
	}
	// 9 has more tokens than its page and goes by what its tokens say.
	check("stored", 3, 2, 1)
	m.feed(salted("a", with(stored(hs(7), tokens(1, 4)), func(e *Event) { e.Tier = index.CPU })))
	m.feed(removed(index.GPU, 8))
	check("child of a removed", 3, 1, 1)
	m.feed(removed(index.GPU, 7))
	check("7 removed from GPU, whichever is meant", 0, 1, 0)
	m.feed(removed(index.CPU, 7))
	check("7 removed from everywhere", 0, 0, 0)
	if n := len(m.m.salted); n != 0 {
		t.Errorf("%d salted handles remembered, want 0", n)
	}
}

// TestReset: a batch is mapped before the restart that it shows is applied.
func TestReset(t *testing.T) {
	m := newMirror(t, 4, SGLang)
	m.feed(salted("a", stored(hs(6, 7), tokens(1, 8))), Event{Kind: Stored, Handles: hs(6), Tier: index.CPU, Salt: "a", Group: -1})
	ops := m.m.Map(&Batch{Events: []Event{salted("a", stored(hs(7), tokens(1, 4)))}})
	m.m.Reset()
	for _, op := range append([]index.Op{{Kind: index.Epoch}}, ops...) {
		if _, err := m.x.Apply(op); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.hits(tokens(1, 8), "", "a"); got != 1 || len(m.m.salted) != 1 {
		t.Errorf("%d hits, %d salted handles after the restart, want 1 and 1", got, len(m.m.salted))
	}
	m.feed(Event{Kind: Removed, Handles: hs(7), AnyTier: true, Group: -1})
	if got := m.hits(tokens(1, 8), "", "a"); got != 0 || len(m.m.salted) != 0 {
		t.Errorf("%d hits, %d salted handles after the removal, want none", got, len(m.m.salted))
	}
	m.m.Reset()
	if m.m.tiers != ([index.NumTiers]uint64{}) {
		t.Errorf("tiers in use after a restart: %v", m.m.tiers)
	}
}

func TestGroups(t *testing.T) {
	group := func(g int, spec string, e Event) Event {
		e.Group, e.Spec = g, spec
		return e
	}
	one := func() Event { return stored(hs(1), tokens(1, 4)) }
	tests := []struct {
		name   string
		events []Event
		hits   int
	}{
		{"no group", []Event{one()}, 1},
		{"group 0 without kind", []Event{group(0, "", one())}, 1},
		{"group 1 without kind", []Event{group(1, "", one())}, 0},
		{"full", []Event{group(1, "full_attention", one())}, 1},
		{"mla", []Event{group(0, "mla_attention", one())}, 1},
		{"sink", []Event{group(0, "sink_full_attention", one())}, 1},
		{"kind without group", []Event{group(-1, "full_attention", one())}, 1},
		{"window", []Event{group(0, "sliding_window", one())}, 0},
		{"mamba without group", []Event{group(-1, "mamba", one())}, 0},
		{"kind from later", []Event{group(0, "something_new", one())}, 0},
		{"removal of another group", []Event{group(0, "full_attention", one()), group(1, "mamba", one()), group(1, "", removed(index.GPU, 1))}, 1},
		{"removal of the group", []Event{group(1, "full_attention", one()), group(1, "", removed(index.GPU, 1))}, 0},
		{"removal of group 0, which is none", []Event{group(0, "mamba", one()), group(1, "full_attention", one()), group(0, "", removed(index.GPU, 1))}, 1},
		{"two full groups", []Event{group(0, "full_attention", one()), group(1, "full_attention", one()), group(1, "", removed(index.GPU, 1))}, 1},
	}
	for _, tt := range tests {
		m := newMirror(t, 4, SGLang)
		m.feed(tt.events...)
		if got := m.hits(tokens(1, 4), "", ""); got != tt.hits {
			t.Errorf("%s: %d hits, want %d", tt.name, got, tt.hits)
		}
	}
}

func TestTiers(t *testing.T) {
	at := func(tier index.Tier, e Event) Event { e.Tier = tier; return e }
	anyTier := func(e Event) Event { e.AnyTier = true; return e }
	two := func() Event { return stored(hs(1, 2), tokens(1, 8)) }
	alone := at(index.CPU, stored(hs(1, 2), nil))
	move := Event{Kind: Moved, Handles: hs(1, 2), From: index.GPU, Tier: index.CPU, Group: -1}
	clearAt := func(tier index.Tier) Event { return Event{Kind: Cleared, Tier: tier, Group: -1} }
	tests := []struct {
		name   string
		events []Event
		hits   int
		lower  int
	}{
		{"hashes alone, unknown", []Event{alone}, 0, 0},
		{"hashes alone, known, then gone from GPU", []Event{two(), alone, removed(index.GPU, 2, 1)}, 2, 2},
		{"order of HiCache", []Event{two(), at(index.CPU, two()), removed(index.GPU, 1, 2), two()}, 2, 0},
		{"moved", []Event{two(), move}, 2, 2},
		{"moved and removed", []Event{two(), move, removed(index.CPU, 1, 2)}, 0, 0},
		{"removal without medium", []Event{two(), alone, anyTier(removed(index.GPU, 1, 2))}, 0, 0},
		{"clear without medium", []Event{two(), alone, anyTier(clearAt(index.GPU))}, 0, 0},
		{"clear of the only tier", []Event{two(), clearAt(index.GPU)}, 0, 0},
		{"clear of a tier that was never used", []Event{two(), clearAt(index.CPU)}, 2, 0},
		{"clear of one of two tiers", []Event{two(), alone, clearAt(index.CPU)}, 0, 0},
		{"no handles", []Event{two(), removed(index.GPU), stored(nil, tokens(9, 12))}, 2, 0},
		{"the same handle twice in a removal", []Event{two(), removed(index.GPU, 2, 2)}, 1, 0},
	}
	for _, tt := range tests {
		m := newMirror(t, 4, ATOM)
		m.feed(tt.events...)
		var found index.Matches
		m.x.Match(block.AppendChain(nil, block.Root, tokens(1, 8), 4), &found)
		lower := 0
		if found.Lower[index.CPU] != nil {
			lower = int(found.Lower[index.CPU][0])
		}
		if int(found.Hits[0]) != tt.hits || lower != tt.lower {
			t.Errorf("%s: %d hits, %d of them in CPU, want %d and %d", tt.name, found.Hits[0], lower, tt.hits, tt.lower)
		}
	}
}

func TestPageSizes(t *testing.T) {
	tests := []struct {
		name         string
		handles, n   int
		stated, page int
		derived      bool
	}{
		{"as stated", 2, 8, 4, 4, false},
		{"not stated", 2, 8, 0, 4, false},
		{"hybrid: more than stated", 2, 1056, 16, 528, true},
		{"no multiple of the stated", 2, 12, 4, 4, false},
		{"uneven", 3, 8, 4, 4, false},
		{"page of one token", 8, 8, 1, 1, false},
	}
	for _, tt := range tests {
		m := newMirror(t, 4, SGLang)
		var handles []index.Handle
		for i := range tt.handles {
			handles = append(handles, index.Handle(i+1))
		}
		e := Event{Kind: Stored, Handles: handles, Tokens: tokens(1, uint32(tt.n)), PageSize: tt.stated, Group: -1}
		if reason := e.check(); reason != "" {
			t.Fatal(reason)
		}
		m.feed(e)
		if got := m.m.PageSize(); got != tt.page || m.m.Stats().DerivedPages > 0 != tt.derived {
			t.Errorf("%s: page size %d, %d derived, want %d", tt.name, got, m.m.Stats().DerivedPages, tt.page)
		}
		// The same prefix gives the same overlap, whatever the page.
		if got, want := m.hits(tokens(1, uint32(tt.n)), "", ""), tt.n/4; got != want {
			t.Errorf("%s: %d hits, want %d", tt.name, got, want)
		}
	}
}

// TestCopies: vLLM announces equal blocks each, and the end of each; others announce a block again when they like.
func TestCopies(t *testing.T) {
	tests := []struct {
		dialect Dialect
		copies  Copies
		left    int // hits after two stores and one removal
	}{
		{VLLM, CopiesByDialect, 1},
		{SGLang, CopiesByDialect, 0},
		{ATOM, CopiesByDialect, 0},
		{TRTLLM, CopiesByDialect, 0},
		{Unknown, CopiesByDialect, 0},
		{Unknown, CopiesCounted, 1},
		{VLLM, CopiesOne, 0},
	}
	for _, tt := range tests {
		m := newMirror(t, 4, tt.dialect)
		m.m = NewMapper(0, tt.dialect, tt.copies)
		m.feed(stored(hs(1), tokens(1, 4)), stored(hs(1), tokens(1, 4)), removed(index.GPU, 1))
		if got := m.hits(tokens(1, 4), "", ""); got != tt.left {
			t.Errorf("dialect %q, copies %d: %d hits after two stores and a removal, want %d", tt.dialect, tt.copies, got, tt.left)
		}
		m.feed(removed(index.GPU, 1), removed(index.GPU, 1))
		if got := m.hits(tokens(1, 4), "", ""); got != 0 {
			t.Errorf("dialect %q, copies %d: %d hits after more removals than stores", tt.dialect, tt.copies, got)
		}
	}
}

func TestOrphansAreAdopted(t *testing.T) {
	m := newMirror(t, 4, VLLM)
	if r := m.feed(after(1, stored(hs(2), tokens(5, 8)))); r.Orphaned != 1 || m.hits(tokens(5, 8), "", "") != 0 {
		t.Errorf("unknown parent: %+v, %d hits at depth 0, want one orphan and none", r, m.hits(tokens(5, 8), "", ""))
	}
	m.feed(stored(hs(1), tokens(1, 4)))
	if got := m.hits(tokens(1, 8), "", ""); got != 2 {
		t.Errorf("parent arrived: %d hits, want 2", got)
	}
}

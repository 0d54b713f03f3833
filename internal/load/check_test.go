package load

import (
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Check must see each kind of damage, or the property tests that call it prove nothing.
func TestCheckFindsDamage(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(l *Ledger)
		want   string
	}{
		{"none", func(*Ledger) {}, ""},
		{"held tokens", func(l *Ledger) { l.targets[0].load.HeldTokens++ }, "L1"},
		{"pending requests", func(l *Ledger) { l.targets[0].load.PendingRequests-- }, "L1"},
		{"active blocks", func(l *Ledger) { l.targets[0].load.ActiveBlocks = 99 }, "L1"},
		{"load after the end", func(l *Ledger) { l.targets[1].known = false; l.targets[1].load.HeldRequests = 1 }, "L1"},
		{"reservation on an unknown target", func(l *Ledger) { l.targets[0].known = false }, "L1"},
		{"slot neither live nor free", func(l *Ledger) { l.slots = append(l.slots, reservation{gen: 1}) }, "L4"},
		{"end on no list", func(l *Ledger) { l.slots[0].more = l.ends[l.slots[0].more].next }, "L5"},
		{"ends in a circle", func(l *Ledger) { e := l.slots[0].more; l.ends[e].next = e }, "L5"},
		{"reference too many", func(l *Ledger) { l.targets[0].active.nodes[0].refs++ }, "A1"},
		{"freed under a child", func(l *Ledger) { last := &l.targets[0].active; last.nodes[last.nodes[0].parent].refs = 0 }, "A2"},
		{"wrong depth", func(l *Ledger) { l.targets[0].active.nodes[0].depth++ }, "A2"},
		{"not found", func(l *Ledger) { clear(l.targets[0].active.slots) }, "A3"},
		{"wrong count", func(l *Ledger) { l.targets[0].active.live++; l.targets[0].load.ActiveBlocks++ }, "A4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := New()
			l.Join(0, 1)
			l.Join(target.ID(1), 1)
			l.Reserve(0, Demand{Blocks: []block.Hash{1, 2, 3}, More: [][]block.Hash{{1, 2, 4}, {1, 2}}, Tokens: 4, PrefillTokens: 2})
			l.Release(l.Reserve(0, Demand{Blocks: []block.Hash{1, 9}}))
			tc.damage(l)
			err := l.Check()
			if tc.want == "" {
				if err != nil {
					t.Fatalf("Check = %v, want nil", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Check = %v, want a breach of %s", err, tc.want)
			}
		})
	}
}

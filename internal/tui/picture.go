package tui

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// picture is a snapshot made ready to be drawn: filtered, sorted and grouped once when it comes, so that drawing
// costs what is visible. It is never changed after it was made.
type picture struct {
	snap     *snapshot.Snapshot
	workers  []row // groups and targets in the order shown
	targets  []int // into snap.Workers: workers without the groups' heads
	byKey    map[string]int
	warnings []int            // into snap.Warnings
	prefixes []int            // into snap.Cache.Prefixes, of the worker on the worker page, in the tree's order
	ownPicks []int            // into snap.Picks, newest first
	picks    []int            // into snap.Picks, newest first
	sortedMS int64            // when columns were sorted
	columns  []int            // into snap.Cache.Prefixes, hottest first
	depth    []int            // of each prefix in the tree
	holds    []map[string]int // of each prefix: blocks by route key
	top      uint32           // highest span in any target's history
}

// prefixName names a prefix: hashes are a model's own.
type prefixName struct{ model, hash string }

// row is a line of the table of targets: a group's head (worker -1) or a target.
type row struct {
	worker int // into snap.Workers
	sum    sum
}

// sum is what a group adds up to.
type sum struct {
	model, role                               string
	targets, doubtful                         int
	blocks, active, pending, held, heldTokens int64
	rate                                      float64
	gaps                                      uint64
}

// sortKey is what the table of targets is sorted by, within its groups.
type sortKey uint8

const (
	byName sortKey = iota
	byState
	byBlocks
	byFill
	byActive
	byPending
	byHeld
	byRate
	byHit
	byAge
	byGaps
	numSortKeys
)

var sortNames = [numSortKeys]string{"name", "state", "blocks", "pool", "active", "pending", "held", "requests/s", "hit share", "last event", "gaps"}

// order is a sort key and its direction: names from the first, everything else from the largest.
type order struct {
	by      sortKey
	reverse bool
}

// columnsRestMS is how long the cache map's columns keep their places: uses change with every request, and columns
// that dance can be neither read nor sent cheaply.
const columnsRestMS = 10_000

// draw makes a picture. Of the last one, old, the cache map's columns keep their order for a while.
func draw(s *snapshot.Snapshot, o order, lists *[numPanels]list, worker string, old *picture) *picture {
	p := &picture{snap: s, byKey: map[string]int{}}
	if s == nil {
		return p
	}
	for i := range s.Workers {
		p.byKey[s.Workers[i].RouteKey] = i
		for _, v := range s.Workers[i].History {
			p.top = max(p.top, v)
		}
	}
	p.group(o, parseFilter(lists[workersPanel].filter))
	f := parseFilter(lists[warningsPanel].filter)
	for i := range s.Warnings {
		if w := &s.Warnings[i]; f.match(w.Text, field{"worker", w.RouteKey}, field{"kind", w.Kind}) {
			p.warnings = append(p.warnings, i)
		}
	}
	p.tree(worker, parseFilter(lists[prefixesPanel].filter), parseFilter(lists[cachePanel].filter), old)
	p.feed(worker, parseFilter(lists[picksPanel].filter), parseFilter(lists[ownPicksPanel].filter))
	return p
}

// group sorts the targets into groups of a model and a role.
func (p *picture) group(o order, f filter) {
	ws := p.snap.Workers
	var idx []int
	for i := range ws {
		w := &ws[i]
		if f.match(w.URL, field{"worker", w.RouteKey}, field{"model", w.Model}, field{"role", w.Role},
			field{"state", stateWord(w)}, field{"engine", w.Engine}) {
			idx = append(idx, i)
		}
	}
	p.targets = idx
	slices.SortStableFunc(idx, func(a, b int) int {
		x, y := &ws[a], &ws[b]
		if c := cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.Role, y.Role)); c != 0 {
			return c
		}
		c := compareWorkers(x, y, o.by)
		if o.reverse {
			c = -c
		}
		return cmp.Or(c, natural(x.RouteKey, y.RouteKey))
	})
	at := -1
	for _, i := range idx {
		w := &ws[i]
		if at < 0 || p.workers[at].sum.model != w.Model || p.workers[at].sum.role != w.Role {
			at = len(p.workers)
			p.workers = append(p.workers, row{worker: -1, sum: sum{model: w.Model, role: w.Role}})
		}
		p.workers = append(p.workers, row{worker: i})
		g := &p.workers[at].sum
		g.targets++
		if gradeOf(w) != gradeGood {
			g.doubtful++
		}
		g.blocks += int64(w.BlockCount)
		g.active += w.ActiveBlocks
		g.pending += w.PendingTokens
		g.held += w.HeldRequests
		g.heldTokens += w.HeldTokens
		g.rate += w.RequestRate
		g.gaps += w.Stream.Gaps
	}
}

// compareWorkers compares by one key, what is larger or worse first; what is unknown comes last.
func compareWorkers(x, y *snapshot.Worker, by sortKey) int {
	switch by {
	case byState:
		return cmp.Or(cmp.Compare(gradeOf(y), gradeOf(x)), cmp.Compare(stateWord(x), stateWord(y)))
	case byBlocks:
		return cmp.Compare(y.BlockCount, x.BlockCount)
	case byFill:
		return comparePtr(y.Fill, x.Fill)
	case byActive:
		return cmp.Compare(y.ActiveBlocks, x.ActiveBlocks)
	case byPending:
		return cmp.Compare(y.PendingTokens, x.PendingTokens)
	case byHeld:
		return cmp.Compare(y.HeldRequests, x.HeldRequests)
	case byRate:
		return cmp.Compare(y.RequestRate, x.RequestRate)
	case byHit:
		return comparePtr(y.HitShare, x.HitShare)
	case byAge: // longest ago first
		return comparePtr(x.Stream.LastEventMS, y.Stream.LastEventMS)
	case byGaps:
		return cmp.Compare(y.Stream.Gaps, x.Stream.Gaps)
	}
	return 0
}

func comparePtr[T cmp.Ordered](a, b *T) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	}
	return cmp.Compare(*a, *b)
}

// natural compares names with the numbers in them as numbers: w2 before w10.
func natural(a, b string) int {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	number := func(s string) (string, string) {
		n := 0
		for n < len(s) && digit(s[n]) {
			n++
		}
		return strings.TrimLeft(s[:n], "0"), s[n:]
	}
	x, y := a, b
	for x != "" && y != "" {
		if digit(x[0]) && digit(y[0]) {
			var m, n string
			m, x = number(x)
			n, y = number(y)
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			continue
		}
		if x[0] != y[0] {
			return cmp.Compare(x[0], y[0])
		}
		x, y = x[1:], y[1:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

// tree orders the prefixes: those of the worker as a tree, all as columns of the cache map.
func (p *picture) tree(worker string, own, all filter, old *picture) {
	ps := p.snap.Cache.Prefixes
	p.depth = make([]int, len(ps))
	p.holds = make([]map[string]int, len(ps))
	depth := make(map[prefixName]int, len(ps))
	for i := range ps {
		x := &ps[i]
		if x.Parent != "" {
			if d, ok := depth[prefixName{x.Model, x.Parent}]; ok {
				p.depth[i] = d + 1
			}
		}
		depth[prefixName{x.Model, x.Hash}] = p.depth[i]
		p.holds[i] = make(map[string]int, len(x.Holders))
		for _, h := range x.Holders {
			p.holds[i][h.RouteKey] = h.Blocks
		}
		m := field{"model", x.Model}
		if _, ok := p.holds[i][worker]; ok && own.match(x.Hash+" "+x.Text, m) {
			p.prefixes = append(p.prefixes, i)
		}
		if all.match(x.Hash+" "+x.Text, m) {
			p.columns = append(p.columns, i)
		}
	}
	place := make(map[prefixName]int)
	p.sortedMS = p.snap.AtMS
	if old != nil && old.snap != nil && p.snap.AtMS >= old.sortedMS && p.snap.AtMS-old.sortedMS < columnsRestMS {
		p.sortedMS = old.sortedMS
		for c, i := range old.columns {
			x := &old.snap.Cache.Prefixes[i]
			place[prefixName{x.Model, x.Hash}] = c + 1
		}
	}
	at := func(x *snapshot.Prefix) int { // new ones come last
		if c := place[prefixName{x.Model, x.Hash}]; c > 0 {
			return c
		}
		return len(ps) + len(place) + 1
	}
	slices.SortStableFunc(p.columns, func(a, b int) int {
		x, y := &ps[a], &ps[b]
		return cmp.Or(cmp.Compare(at(x), at(y)), cmp.Compare(y.Uses, x.Uses), cmp.Compare(x.From, y.From), cmp.Compare(x.Hash, y.Hash))
	})
}

// feed picks the decisions that are shown, the newest first.
func (p *picture) feed(worker string, all, own filter) {
	for i := len(p.snap.Picks) - 1; i >= 0; i-- {
		x := &p.snap.Picks[i]
		fields := []field{
			{"worker", x.RouteKey},
			{"model", x.Model},
			{"basis", x.Basis},
			{"session", x.Session},
			{"role", x.Role},
			{"id", strconv.FormatUint(x.ID, 10)},
		}
		text := x.RequestID + " " + x.Reason + " " + x.RunnerUp
		if all.match(text, fields...) {
			p.picks = append(p.picks, i)
		}
		if x.RouteKey == worker && own.match(text, fields...) {
			p.ownPicks = append(p.ownPicks, i)
		}
	}
}

// length is how many rows a panel has.
func (p *picture) length(l panel) int {
	switch l {
	case workersPanel:
		return len(p.workers)
	case cachePanel:
		return len(p.targets)
	case warningsPanel:
		return len(p.warnings)
	case prefixesPanel:
		return len(p.prefixes)
	case ownPicksPanel:
		return len(p.ownPicks)
	case picksPanel:
		return len(p.picks)
	}
	return 0
}

// nameAt is what row i of a panel is selected by; "" for rows that cannot be selected.
func (p *picture) nameAt(l panel, i int) string {
	if i < 0 || i >= p.length(l) {
		return ""
	}
	switch l {
	case workersPanel:
		if w := p.workers[i].worker; w >= 0 {
			return p.snap.Workers[w].RouteKey
		}
	case cachePanel:
		return p.snap.Workers[p.targets[i]].RouteKey
	case warningsPanel:
		return p.snap.Warnings[p.warnings[i]].ID
	case prefixesPanel:
		x := &p.snap.Cache.Prefixes[p.prefixes[i]]
		return x.Model + "\x00" + x.Hash
	case ownPicksPanel:
		return strconv.FormatUint(p.snap.Picks[p.ownPicks[i]].ID, 10)
	case picksPanel:
		return strconv.FormatUint(p.snap.Picks[p.picks[i]].ID, 10)
	}
	return ""
}

// rowOf is where a panel's row of that name is; -1: it is not there.
func (p *picture) rowOf(l panel, name string) int {
	if name == "" {
		return -1
	}
	for i := range p.length(l) {
		if p.nameAt(l, i) == name {
			return i
		}
	}
	return -1
}

package vitals

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
)

const (
	chainsKept = 256  // requests that the tree is made of
	chainLimit = 8192 // blocks of one that are looked at
	// MaxPrefixes is how many nodes a tree has at most.
	MaxPrefixes = 64
)

// chain is a recent request's prompt.
type chain struct {
	ms     int64
	model  string
	blocks []block.Hash
	text   Text // nil: not to be shown
}

func (v *Vitals) sample(ms int64, req *score.Request, variant int, text Text) {
	blocks := req.Blocks
	if variant > 0 && variant <= len(req.Variants) {
		blocks = req.Variants[variant-1].Blocks
	}
	if len(blocks) == 0 || req.Multimodal {
		return
	}
	v.chains[v.chained%chainsKept] = chain{ms, req.Model, blocks[:min(len(blocks), chainLimit)], text}
	v.chained++
}

// Holders tells which targets of a model hold how many leading blocks of a chain.
type Holders func(model string, chain []block.Hash, each func(routeKey string, blocks int))

// Prefixes makes the tree of the prefixes that the sampled requests share: at most MaxPrefixes nodes, those that most
// requests go through, each after its parent. hold is called once for each node, without the lock.
//
// Hashes are chained, so two prompts that agree in one hash agree in all before it: where two part is found by
// halving.
func (v *Vitals) Prefixes(hold Holders) (nodes []snapshot.Prefix, sampled int) {
	v.mu.Lock()
	chains := slices.Clone(v.chains[:min(v.chained, chainsKept)])
	v.mu.Unlock()
	var all []node
	for _, g := range groups(chains, 0) {
		all = grow(all, g, -1, 0)
	}
	for _, i := range chosen(all) {
		n := &all[i]
		last, long := &n.through[0], &n.through[0]
		for k := range n.through {
			if n.through[k].ms >= last.ms {
				last = &n.through[k]
			}
			if len(n.through[k].blocks) > len(long.blocks) {
				long = &n.through[k]
			}
		}
		p := snapshot.Prefix{
			Hash: hexHash(long.blocks[n.to-1]), Model: last.model, From: n.from, Blocks: n.to - n.from, Uses: len(n.through), LastMS: last.ms,
			Holders: []snapshot.Holder{},
		}
		if long.text != nil { // its own: all that go through the node say the same there
			p.Text = long.text(n.from, n.to)
		}
		if n.parent >= 0 {
			p.Parent = hexHash(long.blocks[n.from-1])
		}
		hold(last.model, long.blocks[:n.to], func(key string, blocks int) {
			if blocks > n.from {
				p.Holders = append(p.Holders, snapshot.Holder{RouteKey: key, Blocks: min(blocks, n.to) - n.from})
			}
		})
		nodes = append(nodes, p)
	}
	return nodes, len(chains)
}

func hexHash(h block.Hash) string { return fmt.Sprintf("%016x", uint64(h)) }

// node is a run of blocks that all requests through it have.
type node struct {
	parent   int // index, -1 none
	from, to int
	through  []chain
}

// groups parts chains that agree before block i by their block i; those that end there are left out.
func groups(chains []chain, i int) [][]chain {
	type key struct {
		model string
		h     block.Hash
	}
	at := map[key]int{}
	var out [][]chain
	for _, c := range chains {
		if len(c.blocks) <= i {
			continue
		}
		k := key{c.model, c.blocks[i]}
		g, ok := at[k]
		if !ok {
			g = len(out)
			at[k] = g
			out = append(out, nil)
		}
		out[g] = append(out[g], c)
	}
	return out
}

// grow appends the subtree of chains that agree in block from, and in all before it. A node ends where chains part,
// not where one ends: the turns of a conversation are one node.
func grow(all []node, chains []chain, parent, from int) []node {
	long := 0
	for i := range chains {
		if len(chains[i].blocks) > len(chains[long].blocks) {
			long = i
		}
	}
	to := len(chains[long].blocks)
	for _, c := range chains {
		if n := agree(chains[long].blocks, c.blocks, from); n < len(c.blocks) {
			to = min(to, n)
		}
	}
	me := len(all)
	all = append(all, node{parent, from, to, chains})
	for _, g := range groups(chains, to) {
		all = grow(all, g, me, to)
	}
	return all
}

// agree is how many leading blocks two chains have in common, at least from+1.
func agree(a, b []block.Hash, from int) int {
	n := min(len(a), len(b))
	lo, hi := from+1, n // blocks before lo agree, hi and later do not
	for lo < hi {
		if mid := (lo + hi) / 2; a[mid] == b[mid] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// chosen picks the nodes that most requests go through, and returns them parents first, hottest first among siblings.
func chosen(all []node) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	latest := func(n *node) (ms int64) {
		for i := range n.through {
			ms = max(ms, n.through[i].ms)
		}
		return ms
	}
	// A parent has at least the uses of its children and came before them.
	hotter := func(a, b int) int {
		return cmp.Or(cmp.Compare(len(all[b].through), len(all[a].through)), cmp.Compare(latest(&all[b]), latest(&all[a])), cmp.Compare(a, b))
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(len(all[b].through), len(all[a].through)), cmp.Compare(a, b))
	})
	kids := map[int][]int{}
	for _, i := range order[:min(len(order), MaxPrefixes)] {
		kids[all[i].parent] = append(kids[all[i].parent], i)
	}
	var out []int
	var visit func(parent int)
	visit = func(parent int) {
		slices.SortFunc(kids[parent], hotter)
		for _, i := range kids[parent] {
			out = append(out, i)
			visit(i)
		}
	}
	visit(-1)
	return out
}

// Clip makes a text fit to be shown: one line, without control codes, of at most 160 runes.
func Clip(s string) string {
	const runes = 160
	var b strings.Builder
	n := 0
	for _, r := range s {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			r = ' '
		}
		if n++; n > runes {
			b.WriteRune('…')
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

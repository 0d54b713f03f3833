package fakeengine

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"slices"
)

// radix is a tree of pages, after SGLang's radix cache.
//
// A node holds a run of pages; the pages of a sequence enter the tree when a chunk of its prompt has
// been computed, and the rest when it ends, whole pages only. Nothing is stored twice: pages that are
// there already are freed. Memory is taken by evicting the least recently used leaf without lock, whole
// nodes, until there is enough; a match or an insertion touches the whole path. At least the last token
// of a prompt is computed.
//
// Invariants (check): lock of a node counts the sequences whose locked prefix ends at it or below;
// pages = free + pages in the tree + pages sequences hold beside it.
type radix struct {
	h      hasher
	size   int
	pages  int
	free   int
	root   *rnode
	clock  int64
	events []event
}

// rnode is a run of pages.
type rnode struct {
	parent   *rnode
	children map[string]*rnode // by the first page's tokens; those of the root by namespace too
	first    int               // position of its first page in the chain
	hashes   []digest
	tokens   []uint32
	sp       space
	lock     int
	last     int64 // when it was touched
}

func newRadix(c *Config, h hasher) *radix {
	r := &radix{h: h, size: c.BlockSize, pages: c.Capacity}
	r.wipe()
	return r
}

func (r *radix) wipe() {
	r.root = &rnode{children: map[string]*rnode{}}
	r.free = r.pages
	r.events = []event{{kind: cleared}} // sent at start, as number 0
}

// used counts what cannot be evicted.
func (r *radix) used() int { return r.pages - r.free - r.evictable() }

func (r *radix) evictable() int {
	n := 0
	r.walk(func(x *rnode) {
		if x.lock == 0 {
			n += len(x.hashes)
		}
	})
	return n
}

// walk visits every node, parents first, in a fixed order.
func (r *radix) walk(visit func(*rnode)) {
	var down func(*rnode)
	down = func(n *rnode) {
		keys := make([]string, 0, len(n.children))
		for k := range n.children {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			visit(n.children[k])
			down(n.children[k])
		}
	}
	down(r.root)
}

func (r *radix) take() []event {
	e := r.events
	r.events = nil
	return e
}

// key names a child by its first page.
func (r *radix) key(n *rnode, page []uint32, sp space) string {
	var b []byte
	if n == r.root && sp != (space{}) {
		b = append(b, sp.adapter+"\x00"+sp.salt+"\x00"...)
	}
	for _, t := range page {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return string(b)
}

// match follows the whole pages of tokens as far as they are in the tree, touches the path, splits the
// node in which it ends, and returns the node and how many tokens matched.
func (r *radix) match(tokens []uint32, sp space) (*rnode, int) {
	r.clock++
	n, at := r.root, 0
	for at+r.size <= len(tokens) {
		child := n.children[r.key(n, tokens[at:at+r.size], sp)]
		if child == nil {
			break
		}
		child.last = r.clock
		same := 0
		for same+r.size <= len(child.tokens) && at+same+r.size <= len(tokens) &&
			slices.Equal(child.tokens[same:same+r.size], tokens[at+same:at+same+r.size]) {
			same += r.size
		}
		at += same
		if same < len(child.tokens) {
			return r.split(child, same), at
		}
		n = child
	}
	return n, at
}

// split cuts a node before token at and returns the upper part.
func (r *radix) split(n *rnode, at int) *rnode {
	k := at / r.size
	up := &rnode{
		parent: n.parent, children: map[string]*rnode{}, first: n.first, hashes: n.hashes[:k:k],
		tokens: n.tokens[:at:at], sp: n.sp, lock: n.lock, last: n.last,
	}
	n.parent.children[r.key(n.parent, n.tokens[:r.size], n.sp)] = up
	n.parent, n.first, n.hashes, n.tokens = up, n.first+k, n.hashes[k:], n.tokens[at:]
	up.children[r.key(up, n.tokens[:r.size], n.sp)] = n
	return up
}

// insert puts the whole pages of the first n tokens of s into the tree and reports what is new. It
// returns the node at their end and how many tokens were there before.
func (r *radix) insert(s *seq, n int) (*rnode, int) {
	n -= n % r.size
	at, had := r.match(s.tokens[:n], s.sp)
	if had == n {
		return at, had
	}
	k := had / r.size
	x := &rnode{
		parent: at, children: map[string]*rnode{}, first: k, tokens: slices.Clone(s.tokens[had:n]), sp: s.sp, last: r.clock,
	}
	for i := k; i < n/r.size; i++ {
		x.hashes = append(x.hashes, s.digest(r.h, r.size, i))
	}
	at.children[r.key(at, x.tokens[:r.size], s.sp)] = x
	e := event{kind: stored, blocks: slices.Clone(x.hashes), first: k, tokens: x.tokens, sp: s.sp}
	if k > 0 {
		e.parent = s.digest(r.h, r.size, k-1)
	}
	r.events = append(r.events, e)
	return x, had
}

func (r *radix) relock(s *seq, to *rnode) {
	for n := to; n != nil && n != r.root; n = n.parent {
		n.lock++
	}
	for n := s.node; n != nil && n != r.root; n = n.parent {
		n.lock--
	}
	s.node = to
}

// leaves is a heap of evictable nodes, least recently used first.
type leaves []*rnode

func (l leaves) Len() int           { return len(l) }
func (l leaves) Less(i, j int) bool { return l[i].last < l[j].last }
func (l leaves) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *leaves) Push(x any)        { *l = append(*l, x.(*rnode)) }
func (l *leaves) Pop() any {
	x := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return x
}

// evict frees at least so many tokens if it can.
func (r *radix) evict(tokens int) {
	var l leaves
	r.walk(func(n *rnode) {
		if n.lock == 0 && len(n.children) == 0 {
			l = append(l, n)
		}
	})
	heap.Init(&l)
	var gone []digest
	for tokens > 0 && len(l) > 0 {
		n := heap.Pop(&l).(*rnode)
		delete(n.parent.children, r.key(n.parent, n.tokens[:r.size], n.sp))
		r.free += len(n.hashes)
		tokens -= len(n.tokens)
		gone = append(gone, n.hashes...)
		if p := n.parent; p != r.root && p.lock == 0 && len(p.children) == 0 {
			heap.Push(&l, p)
		}
	}
	if len(gone) > 0 {
		r.events = append(r.events, event{kind: removed, blocks: gone})
	}
}

func (r *radix) admit(s *seq, budget int) bool {
	most := (len(s.tokens) - 1) / r.size * r.size
	node, hit := r.match(s.tokens[:most], s.sp)
	// The prefix is locked before room is made, and what is locked cannot make room.
	r.relock(s, node)
	rest := len(s.tokens) - hit
	if rest+r.size+min(s.max, maxReserve) > (r.free+r.evictable())*r.size {
		r.relock(s, nil)
		return false
	}
	s.protected, s.computed = hit, hit
	s.grant = min(rest, budget)
	if s.grant < rest { // chunks end at a page
		if s.grant -= s.grant % r.size; s.grant == 0 {
			r.relock(s, nil)
			s.protected, s.computed = 0, 0
			return false
		}
	}
	return r.grow(s, hit+s.grant)
}

// maxReserve bounds what an admission wants free for the answer.
const maxReserve = 4096

// grow takes pages. A prefill wants a page more than it needs to be free, as the engine's allocator does.
func (r *radix) grow(s *seq, upto int) bool {
	need := (upto+r.size-1)/r.size - s.protected/r.size - s.own
	if need <= 0 {
		return true
	}
	want := need * r.size
	if n := upto - s.computed; n > 1 {
		want = max(want, n+r.size)
	}
	if short := want - r.free*r.size; short > 0 {
		r.evict(short)
	}
	if r.free < need {
		return false
	}
	r.free -= need
	s.own += need
	return true
}

// prefilled puts what was computed of a prompt into the tree; answers enter it when they end.
func (r *radix) prefilled(s *seq) { r.enter(s, s.computed) }

// enter makes the first n tokens of s part of the tree, and the lock go to their end.
func (r *radix) enter(s *seq, n int) {
	n -= n % r.size
	if n <= s.protected {
		return
	}
	node, had := r.insert(s, n)
	r.relock(s, node)
	s.own -= (n - s.protected) / r.size
	if dup := had - s.protected; dup > 0 {
		r.free += dup / r.size // somebody else was first
	}
	s.protected = n
}

func (r *radix) release(s *seq, keep bool) {
	if keep {
		r.enter(s, min(s.computed, len(s.tokens)))
	}
	r.free += s.own
	r.relock(s, nil)
	s.own, s.protected, s.computed, s.grant = 0, 0, 0, 0
}

func (r *radix) reset() bool {
	if r.used() > 0 {
		return false
	}
	r.wipe()
	return true
}

func (r *radix) contents() []Block {
	var out []Block
	r.walk(func(n *rnode) {
		for i, d := range n.hashes {
			b := Block{
				Handle: r.h.handle(d), HasParent: n.first+i > 0, Tokens: n.tokens[i*r.size : (i+1)*r.size],
				Adapter: n.sp.adapter, Salt: n.sp.salt, Copies: 1,
			}
			switch {
			case i > 0:
				b.Parent = r.h.handle(n.hashes[i-1])
			case n.first > 0:
				b.Parent = r.h.handle(n.parent.hashes[len(n.parent.hashes)-1])
			}
			out = append(out, b)
		}
	})
	return out
}

func (r *radix) check(running []*seq) error {
	locks := map[*rnode]int{}
	own := 0
	for _, s := range running {
		own += s.own
		for n := s.node; n != nil && n != r.root; n = n.parent {
			locks[n]++
		}
	}
	inTree := 0
	var err error
	r.walk(func(n *rnode) {
		inTree += len(n.hashes)
		if n.lock != locks[n] && err == nil {
			err = fmt.Errorf("node at page %d has lock %d, sequences lock it %d times", n.first, n.lock, locks[n])
		}
		if len(n.tokens) != len(n.hashes)*r.size && err == nil {
			err = fmt.Errorf("node at page %d: %d tokens, %d pages", n.first, len(n.tokens), len(n.hashes))
		}
	})
	if err == nil && r.free+inTree+own != r.pages {
		err = fmt.Errorf("%d free, %d in the tree and %d held are not %d pages", r.free, inTree, own, r.pages)
	}
	return err
}

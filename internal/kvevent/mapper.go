package kvevent

import (
	"slices"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
)

// Dialect is an engine's way of speaking; see Mapper.
type Dialect string

// The dialects. Unknown is told by what only one engine sends, as far as that goes.
const (
	Unknown Dialect = ""
	VLLM    Dialect = "vllm"
	SGLang  Dialect = "sglang"
	ATOM    Dialect = "atom"
	TRTLLM  Dialect = "trtllm"
)

// Copies says what a block announced again means.
type Copies uint8

// CopiesByDialect counts for vLLM, which announces each of several equal blocks and the end of each, and
// for nobody else. CopiesOne is for a vLLM that reports blocks it uses again as stored
// (kv_cache_report_mode full).
const (
	CopiesByDialect Copies = iota
	CopiesCounted
	CopiesOne
)

// MapStats counts what a Mapper did, since it was made.
type MapStats struct {
	Stores, Removals, Clears, Moves uint64 // events mapped
	OtherGroups                     uint64 // events of cache groups that are no prefix index
	Incomplete                      uint64 // stores whose tokens do not fit their handles
	NoContent                       uint64 // stores of hashes alone
	DerivedPages                    uint64 // incomplete stores whose tokens said another page size than the engine
	PageChanges                     uint64 // times the page size was another than before
	Images                          uint64 // blocks kept apart by image or other keys
	Salted                          uint64 // blocks whose handles were told apart by their salt
	Refused                         uint64 // salted blocks beyond maxSalted
	Unplaced                        uint64 // incomplete stores with image or other keys, left out
	WideClears                      uint64 // clears of one tier that had to empty all
}

// Mapper turns the batches of one stream into operations on one target. It is owned by one goroutine.
//
//   - Only one cache group is an index of prefixes: the first whose kind covers whole prefixes, or group 0
//     where kinds are not sent. Removals follow the same rule, as hashes of groups are alike.
//   - Adapter and salt make the namespace of a chain (block.Namespace); vLLM names them among the keys of a
//     block, the salt with the first block of a prompt only. Other keys (images) start a root of their own
//     at their block, which no text has: everything after it stays apart from text.
//   - Where an engine leaves the salt out of its hashes, equal hashes of two salts are told apart here.
//   - A store without tokens adds its tier to what is known.
type Mapper struct {
	target  target.ID
	dialect Dialect
	copies  Copies

	groups map[int]bool           // by group_idx: whether its kind covers whole prefixes
	main   int                    // the group that is indexed, -1: not known yet
	tiers  [index.NumTiers]uint64 // batch that last stored there, 0: none did
	page   int
	batch  uint64 // counts calls of Map
	stats  MapStats
	salted map[index.Handle][]salt

	ops     []index.Op
	handles []index.Handle
	keyTok  []block.Token
}

// salt is one of several blocks with the same hash.
type salt struct {
	as    index.Handle // the name the index knows it by
	tiers uint8
	batch uint64 // that last stored it
}

// maxSalted bounds the hashes that are told apart by salts.
const maxSalted = 1 << 20

// NewMapper makes a Mapper for the stream of one target.
func NewMapper(t target.ID, d Dialect, c Copies) *Mapper {
	return &Mapper{target: t, dialect: d, copies: c, groups: map[int]bool{}, main: -1, salted: map[index.Handle][]salt{}}
}

// PageSize is the number of tokens in one block of the engine's cache, as its stores show it; 0: not seen.
func (m *Mapper) PageSize() int { return m.page }

// Dialect is the one given, or what the events gave away.
func (m *Mapper) Dialect() Dialect { return m.dialect }

// Stats returns the counters.
func (m *Mapper) Stats() MapStats { return m.stats }

// Plain says that a new Mapper could take over from this one: no hash stands for blocks of several salts,
// and no other cache group than the indexed one was seen.
func (m *Mapper) Plain() bool { return len(m.salted) == 0 && len(m.groups) <= 1 }

// Reset forgets what was in the cache before the batch that was mapped last, which may be the one that showed
// a restart and be applied after it. Counters and what is known of the engine stay.
func (m *Mapper) Reset() {
	for h, all := range m.salted {
		all = slices.DeleteFunc(all, func(s salt) bool { return s.batch != m.batch })
		if len(all) == 0 {
			delete(m.salted, h)
		} else {
			m.salted[h] = all
		}
	}
	for t := range m.tiers {
		if m.tiers[t] != m.batch {
			m.tiers[t] = 0
		}
	}
}

// Map returns the operations a batch comes to, in order. They are valid until the next call, and as long
// as the batch is. It does not check the batch's rank.
func (m *Mapper) Map(b *Batch) []index.Op {
	m.ops, m.handles, m.keyTok = m.ops[:0], m.handles[:0], m.keyTok[:0]
	m.batch++
	m.detect(b)
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind == Cleared {
			m.clear(e)
			continue
		}
		if !m.indexed(e) {
			m.stats.OtherGroups++
			continue
		}
		switch e.Kind {
		case Stored:
			m.store(e)
		case Removed:
			m.stats.Removals++
			m.remove(e)
		case Moved:
			m.stats.Moves++
			m.move(e)
		}
	}
	return m.ops
}

// detect tells vLLM and SGLang by what the other never sends. ATOM's long form looks like vLLM's, so its
// dialect has to be given.
func (m *Mapper) detect(b *Batch) {
	switch {
	case m.dialect != Unknown:
	case b.Signed:
		m.dialect = SGLang
	case b.Grouped:
		m.dialect = VLLM
	}
}

func (m *Mapper) counted() bool {
	return m.copies == CopiesCounted || m.copies == CopiesByDialect && m.dialect == VLLM
}

// coversPrefix tells the kinds of cache groups that hold every token of a prefix.
func coversPrefix(kind string) bool {
	return kind == "full_attention" || kind == "mla_attention" || kind == "sink_full_attention"
}

// indexed tells whether an event is of the cache group that is indexed.
func (m *Mapper) indexed(e *Event) bool {
	if e.Spec != "" {
		full := coversPrefix(e.Spec)
		if e.Group < 0 {
			return full
		}
		if len(m.groups) < maxGroups {
			m.groups[e.Group] = full
		}
		if full && m.main < 0 {
			m.main = e.Group
		}
		return full && e.Group == m.main
	}
	if e.Group < 0 {
		return true
	}
	if full, known := m.groups[e.Group]; known {
		return full && e.Group == m.main
	}
	return e.Group == 0 && m.main <= 0
}

// maxGroups bounds the cache groups that are told apart.
const maxGroups = 256

func (m *Mapper) clear(e *Event) {
	m.stats.Clears++
	if !e.AnyTier {
		if m.tiers[e.Tier] == 0 {
			return // nothing of ours was ever there
		}
		for t, used := range m.tiers {
			if used != 0 && index.Tier(t) != e.Tier {
				// The index empties all tiers or none: better to know too little than too much.
				m.stats.WideClears++
				break
			}
		}
	}
	clear(m.salted)
	m.tiers = [index.NumTiers]uint64{}
	m.ops = append(m.ops, index.Op{Kind: index.Clear, Target: m.target})
}

func (m *Mapper) store(e *Event) {
	m.stats.Stores++
	m.tiers[e.Tier] = m.batch
	page := m.pageOf(e)
	op := index.Op{
		Kind: index.Store, Target: m.target, Tier: e.Tier, Handles: e.Handles, Parent: e.Parent,
		HasParent: e.HasParent, PageSize: page, Tokens: e.Tokens, Counted: m.counted(),
	}
	if len(e.Handles) == 0 {
		return // content that nothing could ever remove again
	}
	if len(e.Tokens) == 0 {
		m.stats.NoContent++
	}
	saltName := e.Salt
	if saltName == "" {
		saltName = rootSalt(e)
	}
	ns := block.Namespace(e.Adapter, saltName)
	op.Namespace = ns
	if ns != block.Root && (e.Salt != "" || m.dialect == SGLang) && !m.tellApart(&op, ns) {
		return
	}
	m.split(e, op, saltName)
}

// pageOf says how many tokens a handle of a store stands for. Hybrid models state one size and store
// another: where the tokens are a multiple of the stated size for each handle, they are right.
func (m *Mapper) pageOf(e *Event) int {
	page := e.PageSize
	if n, t := len(e.Handles), len(e.Tokens); n > 0 && t > 0 {
		if e.Incomplete {
			m.stats.Incomplete++
		}
		if q := t / n; q*n == t && q != page && (page == 0 || q%page == 0) {
			if page != 0 {
				m.stats.DerivedPages++
			}
			page = q
		}
		if m.page != 0 && page != m.page {
			m.stats.PageChanges++
		}
		m.page = page
	}
	return page
}

// rootSalt is the salt among the keys of a prompt's first block, "" if there is none. vLLM puts it behind
// images and adapter. An image there that is alone is taken for a salt, which keeps it from text as well.
func rootSalt(e *Event) string {
	if e.HasParent {
		return ""
	}
	last, adapter := "", e.Adapter
	for _, x := range e.Extra {
		switch {
		case x.Block != 0:
		case x.Key == adapter && adapter != "":
			adapter = "" // once: a salt may have the same name
		default:
			last = x.Key
		}
	}
	return last
}

// split appends a store as one operation for each run of blocks with the same keys.
func (m *Mapper) split(e *Event, op index.Op, saltName string) {
	if !m.anyForeign(e, saltName) {
		m.ops = append(m.ops, op)
		return
	}
	if op.PageSize == 0 || len(op.Tokens) != op.PageSize*len(op.Handles) {
		m.stats.Unplaced++ // whose keys they are cannot be told: better nothing than an image as text
		return
	}
	next := 0 // where in e.Extra the keys of block from begin
	for from := 0; from < len(op.Handles); {
		var keys []Extra
		keys, next = keysOf(e.Extra, from, next)
		to := from + 1
		for to < len(op.Handles) {
			k, n := keysOf(e.Extra, to, next)
			if !m.sameKeys(e, saltName, keys, k) {
				break
			}
			next, to = n, to+1
		}
		run := op
		run.Handles = op.Handles[from:to:to]
		run.Tokens = op.Tokens[from*op.PageSize : to*op.PageSize : to*op.PageSize]
		if from > 0 {
			run.Parent, run.HasParent = op.Handles[from-1], true
		}
		if root, ok := m.keyRoot(e, saltName, keys, run); ok {
			run.Namespace, run.HasParent, run.Parent = root, false, 0
			m.stats.Images += uint64(to - from)
		}
		m.ops = append(m.ops, run)
		from = to
	}
}

func (m *Mapper) anyForeign(e *Event, saltName string) bool {
	for _, x := range e.Extra {
		if m.foreign(e, x, saltName) {
			return true
		}
	}
	return false
}

// keysOf returns the keys of one block, from the i-th on, and where those of the next begin.
func keysOf(all []Extra, b, i int) ([]Extra, int) {
	for i < len(all) && all[i].Block < b {
		i++
	}
	from := i
	for i < len(all) && all[i].Block == b {
		i++
	}
	return all[from:i], i
}

// foreign tells keys that make a block another than its text: neither the adapter nor the salt.
func (m *Mapper) foreign(e *Event, x Extra, saltName string) bool {
	return x.Key != e.Adapter && !(x.Block == 0 && !e.HasParent && x.Key == saltName)
}

// sameKeys compares the foreign keys of two blocks.
func (m *Mapper) sameKeys(e *Event, saltName string, a, b []Extra) bool {
	for {
		for len(a) > 0 && !m.foreign(e, a[0], saltName) {
			a = a[1:]
		}
		for len(b) > 0 && !m.foreign(e, b[0], saltName) {
			b = b[1:]
		}
		if len(a) == 0 || len(b) == 0 {
			return len(a) == len(b)
		}
		if a[0].Key != b[0].Key {
			return false
		}
		a, b = a[1:], b[1:]
	}
}

// keyRoot is the root of the chain of blocks with foreign keys: a hash of the namespace, the block before,
// and the keys, in the form of a block so long that no text has it. Not ok: there are no such keys.
func (m *Mapper) keyRoot(e *Event, saltName string, keys []Extra, run index.Op) (root block.Hash, ok bool) {
	m.keyTok = append(m.keyTok[:0], block.Token(run.Parent), block.Token(run.Parent>>32))
	for _, x := range keys {
		if !m.foreign(e, x, saltName) {
			continue
		}
		ok = true
		m.keyTok = append(m.keyTok, block.Token(len(x.Key)))
		for i := 0; i < len(x.Key); i++ {
			m.keyTok = append(m.keyTok, block.Token(x.Key[i]))
		}
	}
	if !ok {
		return 0, false
	}
	// The namespace of a salt no request can have: salts of requests are valid UTF-8.
	return block.Next(block.Namespace(e.Adapter, saltName+"\xff\xfekeys"), m.keyTok), true
}

func (m *Mapper) remove(e *Event) {
	if len(e.Handles) == 0 {
		return
	}
	handles := m.expand(e.Handles, func(t uint8) uint8 {
		if e.AnyTier {
			return 0
		}
		return t &^ (1 << e.Tier)
	})
	for t := index.GPU; t < index.NumTiers; t++ {
		if t == e.Tier && !e.AnyTier || e.AnyTier && (m.tiers[t] != 0 || t == index.GPU) {
			m.ops = append(m.ops, index.Op{Kind: index.Remove, Target: m.target, Tier: t, Handles: handles})
		}
	}
}

// move stores in the new tier before it removes from the old: in between, the block is in both.
func (m *Mapper) move(e *Event) {
	if len(e.Handles) == 0 || e.Tier == e.From {
		return
	}
	m.tiers[e.Tier] = m.batch
	handles := m.expand(e.Handles, func(t uint8) uint8 {
		if t&(1<<e.From) == 0 {
			return t
		}
		return t&^(1<<e.From) | 1<<e.Tier
	})
	m.ops = append(m.ops,
		index.Op{Kind: index.Store, Target: m.target, Tier: e.Tier, Handles: handles, Counted: m.counted()},
		index.Op{Kind: index.Remove, Target: m.target, Tier: e.From, Handles: handles})
}

// tellApart gives the handles of a salted store, and its parent, names that hold the salt. It returns
// false if too many are told apart already.
func (m *Mapper) tellApart(op *index.Op, ns block.Hash) bool {
	if len(m.salted)+len(op.Handles) > maxSalted {
		m.stats.Refused += uint64(len(op.Handles))
		return false
	}
	from := len(m.handles)
	for _, h := range op.Handles {
		as := withSalt(h, ns)
		m.handles = append(m.handles, as)
		m.salted[h] = addSalt(m.salted[h], salt{as, 1 << op.Tier, m.batch})
	}
	m.stats.Salted += uint64(len(op.Handles))
	op.Handles = m.handles[from:len(m.handles):len(m.handles)]
	if op.HasParent {
		op.Parent = withSalt(op.Parent, ns)
	}
	return true
}

func addSalt(all []salt, s salt) []salt {
	for i := range all {
		if all[i].as == s.as {
			all[i].tiers |= s.tiers
			all[i].batch = s.batch
			return all
		}
	}
	return append(all, s)
}

// withSalt names a block by handle and namespace: a bijection of handles for each namespace.
func withSalt(h index.Handle, ns block.Hash) index.Handle {
	x := uint64(h) ^ uint64(ns)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return index.Handle(x ^ x>>31)
}

// expand returns the handles as the index may know them: as they are, and with every salt they were
// stored with, as the engine does not say which of them is meant. keep gives the tiers that remain.
func (m *Mapper) expand(hs []index.Handle, keep func(uint8) uint8) []index.Handle {
	if len(m.salted) == 0 {
		return hs
	}
	from := len(m.handles)
	for _, h := range hs {
		all := m.salted[h]
		if len(all) == 0 {
			m.handles = append(m.handles, h)
			continue
		}
		rest := all[:0]
		for _, s := range all {
			m.handles = append(m.handles, s.as)
			if s.tiers = keep(s.tiers); s.tiers != 0 {
				rest = append(rest, s)
			}
		}
		// The block may be there without a salt as well.
		m.handles = append(m.handles, h)
		if len(rest) == 0 {
			delete(m.salted, h)
		} else {
			m.salted[h] = rest
		}
	}
	return m.handles[from:len(m.handles):len(m.handles)]
}

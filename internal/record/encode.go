package record

import (
	"slices"
	"sort"
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// NoTarget in a Note means that it is about no target.
const NoTarget = target.ID(target.MaxTargets)

// Counts is what an Encoder has written.
type Counts struct {
	Decisions uint64
	Blocks    uint64 // of events: blocks that came or went
	Requests  uint64 // that ended with a known number of tokens
	Ended     uint64 // without one
	Unknown   uint64 // calls about reservations that no decision in the recording made
}

// Encoder turns what happens into lines. Every method appends whole lines, or nothing yet, to dst and
// returns it; nothing given is kept. It is owned by one goroutine.
//
// Blocks are numbered as they first stand in a request, since the last reset. A hash stands for its
// block and all before it, so that the numbered blocks are closed under prefixes, and how much of a
// chain is numbered is found by bisection. At most limit blocks are numbered at once, about 40 bytes
// each; then numbers start again. Requests in flight keep the numbering they were made in alive.
type Encoder struct {
	head    Header
	limit   int
	gen     *generation
	workers []score.Candidate // by target.ID, as last written; Key "" never
	run     run
	held    map[load.Handle]*held
	counts  Counts
	body    []byte   // of the line being made
	leaves  []uint32 // last blocks of the prompts of the request at hand
}

// generation is one numbering of blocks.
type generation struct {
	number map[block.Hash]uint32
	hash   []block.Hash
	parent []uint32
}

// noBlock is the number of no block: what first blocks hang on.
const noBlock = ^uint32(0)

func newGeneration() *generation { return &generation{number: map[block.Hash]uint32{}} }

// run is changes of one target that go on one line.
type run struct {
	on     bool
	target target.ID
	held   bool
	tier   index.Tier
	parent block.Hash
	blocks []block.Hash
}

// maxRun bounds the blocks of one line.
const maxRun = 4096

// held is a reservation not yet released.
type held struct {
	seq     uint64
	target  target.ID
	id, s   string
	at      int64
	exact   bool
	prefill bool
	gen     *generation
	prompts []prompt
}

// prompt is one prompt of a request: its last block and its tokens.
type prompt struct {
	leaf  uint32
	input int64
}

// maxTokens is the most that readers of traces take.
const maxTokens = 1 << 30

// defaultLimit of blocks numbered at once.
const defaultLimit = 1 << 20

// NewEncoder makes an encoder of one run. limit is the greatest number of blocks numbered at once; 0: 2^20.
func NewEncoder(h Header, limit int) *Encoder {
	if limit <= 0 {
		limit = defaultLimit
	}
	return &Encoder{head: h, limit: limit, gen: newGeneration(), held: map[load.Handle]*held{}}
}

// Counts returns what was written so far.
func (e *Encoder) Counts() Counts { return e.counts }

// Begin starts a file: its heading and the workers there are. Blocks are numbered anew. The error is about
// a configuration that JSON cannot say.
func (e *Encoder) Begin(dst []byte, part int) ([]byte, error) {
	dst = append(dst, `{"kvroute":"`+traceVersion+`","block_size":`...)
	dst = strconv.AppendInt(dst, int64(e.head.BlockSize), 10)
	dst = append(dst, `,"recording":`...)
	dst = strconv.AppendInt(dst, formVersion, 10)
	dst = textField(dst, "run", e.head.Run)
	dst = intField(dst, "part", int64(part))
	dst = textField(dst, "program", e.head.Program)
	dst = textField(dst, "model", e.head.Model)
	dst = append(dst, `,"config":`...)
	dst, err := appendConfig(dst, &e.head.Config)
	if err != nil {
		return nil, err
	}
	e.gen = newGeneration()
	dst = append(dst, '}', '\n')
	for i := range e.workers { // what a reader of this file alone has to know
		if c := &e.workers[i]; c.Key != "" {
			dst = e.worker(dst, Change, c)
		}
	}
	return dst, nil
}

// Flush writes what is held back to share a line with what may follow.
func (e *Encoder) Flush(dst []byte) []byte {
	r := &e.run
	if !r.on {
		return dst
	}
	r.on = false
	dst = append(dst, `{"type":"event"`...)
	dst = intField(dst, "w", int64(r.target))
	name := "gone"
	if r.held {
		name = "add"
		if r.tier != index.GPU {
			dst = intField(dst, "tier", int64(r.tier))
		}
		if r.parent != block.Root {
			dst = append(dst, `,"after":"`...)
			dst = append(appendHex(dst, uint64(r.parent)), '"')
		}
	}
	dst = appendHashes(append(dst, `,"`+name+`":"`...), r.blocks)
	return append(dst, '"', '}', '\n')
}

// Changed is index.Observer's.
func (e *Encoder) Changed(dst []byte, t target.ID, h, parent block.Hash, tier index.Tier, present bool) []byte {
	e.counts.Blocks++
	r := &e.run
	if r.on && r.target == t && r.held == present && len(r.blocks) < maxRun {
		if !present || r.tier == tier && parent == r.blocks[len(r.blocks)-1] {
			r.blocks = append(r.blocks, h)
			return dst
		}
	}
	dst = e.Flush(dst)
	*r = run{on: true, target: t, held: present, tier: tier, parent: parent, blocks: append(r.blocks[:0], h)}
	return dst
}

// Emptied is index.Observer's.
func (e *Encoder) Emptied(dst []byte, t target.ID) []byte {
	dst = e.Flush(dst)
	dst = append(dst, `{"type":"event"`...)
	dst = intField(dst, "w", int64(t))
	return append(dst, `,"clear":true}`+"\n"...)
}

// Join, Leave and Forget are pool.Recorder's.
func (e *Encoder) Join(dst []byte, id target.ID, c score.Candidate) []byte {
	c.Target = id
	return e.worker(dst, Join, &c)
}

// Leave is pool.Recorder's.
func (e *Encoder) Leave(dst []byte, id target.ID) []byte {
	return e.worker(dst, Leave, &score.Candidate{Target: id})
}

// Forget is pool.Recorder's.
func (e *Encoder) Forget(dst []byte, id target.ID) []byte {
	if int(id) < len(e.workers) {
		e.workers[id] = score.Candidate{}
	}
	for h, r := range e.held { // in no order that shows
		if r.target == id {
			delete(e.held, h)
		}
	}
	return e.worker(dst, Forget, &score.Candidate{Target: id})
}

func (e *Encoder) worker(dst []byte, op WorkerOp, c *score.Candidate) []byte {
	dst = e.Flush(dst)
	dst = append(dst, `{"type":"worker","op":"`...)
	dst = append(append(dst, op.String()...), '"')
	dst = intField(dst, "w", int64(c.Target))
	if op == Join || op == Change {
		for int(c.Target) >= len(e.workers) {
			e.workers = append(e.workers, score.Candidate{})
		}
		e.workers[c.Target] = *c
		dst = textField(dst, "key", c.Key)
		dst = textField(dst, "role", c.Role.String())
		dst = intField(dst, "block_size", int64(c.BlockSize))
		if c.PageSize != 0 {
			dst = intField(dst, "page", int64(c.PageSize))
		}
		if c.Variant != 0 {
			dst = intField(dst, "variant", int64(c.Variant))
		}
		if c.Doubt != "" {
			dst = textField(dst, "doubt", c.Doubt)
		}
	}
	return append(dst, '}', '\n')
}

// Pick is pool.Recorder's.
func (e *Encoder) Pick(dst []byte, req *score.Request, cands []score.Candidate, dec *score.Decision) []byte {
	dst = e.Flush(dst)
	for i := range cands {
		if c := &cands[i]; int(c.Target) >= len(e.workers) || e.workers[c.Target] != *c {
			dst = e.worker(dst, Change, c)
		}
	}
	e.counts.Decisions++
	if len(e.gen.hash) >= e.limit {
		e.gen = newGeneration()
		dst = append(dst, `{"type":"reset"}`+"\n"...)
	}
	// Blocks first: the decision's line can only name what is numbered.
	r := &held{
		seq: dec.Seq, target: dec.PickedTerms().Candidate.Target, id: req.ID, s: sessionKey(req.Session), at: req.At,
		exact: req.TokensExact, prefill: req.Role == score.Prefill, gen: e.gen,
	}
	b := append(e.body[:0], `{"type":"decision"`...)
	b = intField(b, "ns", req.At)
	b = textField(b, "id", req.ID)
	b = e.traits(b, req, r.s)
	b, dst = e.prompts(b, dst, &score.Variant{
		Blocks: req.Blocks, More: req.More, Lengths: req.Lengths, InputTokens: req.InputTokens,
		TokensExact: req.TokensExact, Unhashable: req.Unhashable,
	})
	r.share(e.leaves, req)
	if len(req.Variants) > 0 {
		b = append(b, `,"variants":[`...)
		for i := range req.Variants {
			if i > 0 {
				b = append(b, ',')
			}
			start := len(b)
			b, dst = e.prompts(b, dst, &req.Variants[i])
			b[start] = '{' // instead of the comma before its first field
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	b = append(b, `,"w":[`...)
	for i := range cands {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(cands[i].Target), 10)
	}
	b = append(b, `],"decision":`...)
	b = dec.AppendJSON(b)
	e.body = append(b, '}', '\n')
	e.held[dec.Handle] = r
	return append(dst, e.body...)
}

// traits appends what is particular about a request; most have little.
func (e *Encoder) traits(b []byte, req *score.Request, session string) []byte {
	if req.Role != score.Mixed {
		b = textField(b, "role", req.Role.String())
	}
	if req.BlockSize != e.head.BlockSize {
		b = intField(b, "size", int64(req.BlockSize))
	}
	if req.N != 1 {
		b = intField(b, "n", req.N)
	}
	if session != "" {
		b = textField(b, "s", session)
	}
	if req.Retention != score.NoHint {
		b = textField(b, "keep", req.Retention.String())
	}
	if req.Multimodal {
		b = append(b, `,"mm":true`...)
	}
	if len(req.Images) > 0 {
		b = append(b, `,"img":"`...)
		for _, k := range req.Images {
			b = appendHex(b, k)
		}
		b = append(b, '"')
	}
	if req.LastComputed {
		b = append(b, `,"last":true`...)
	}
	if req.Approximate != "" {
		b = textField(b, "approx", req.Approximate)
	}
	if req.BlockTokens != nil {
		b = appendList(append(b, `,"bt":`...), req.BlockTokens)
	}
	return b
}

// prompts appends the prompts of a request, or of one of its variants, to the line b, and the blocks
// that are new to dst. It leaves the last blocks in e.leaves.
func (e *Encoder) prompts(b, dst []byte, v *score.Variant) (line, out []byte) {
	b = intField(b, "in", v.InputTokens)
	if v.TokensExact {
		b = append(b, `,"exact":true`...)
	}
	if v.Unhashable != "" {
		b = textField(b, "why", v.Unhashable)
	}
	leaf, dst := e.path(dst, v.Blocks)
	e.leaves = append(e.leaves[:0], leaf)
	if leaf != noBlock {
		b = intField(b, "at", int64(leaf))
	}
	if len(v.More) > 0 {
		b = append(b, `,"more":[`...)
		for i, chain := range v.More {
			if i > 0 {
				b = append(b, ',')
			}
			leaf, dst = e.path(dst, chain)
			e.leaves = append(e.leaves, leaf)
			b = appendNumber(b, leaf)
		}
		b = append(b, ']')
	}
	if v.Lengths != nil {
		b = appendList(append(b, `,"lens":`...), v.Lengths)
	}
	return b, dst
}

// path numbers what is new in a chain and returns the number of its last block.
func (e *Encoder) path(dst []byte, chain []block.Hash) (leaf uint32, out []byte) {
	g := e.gen
	known := sort.Search(len(chain), func(i int) bool { _, ok := g.number[chain[i]]; return !ok })
	leaf = noBlock
	if known > 0 {
		leaf = g.number[chain[known-1]]
	}
	if known == len(chain) {
		return leaf, dst
	}
	dst = append(dst, `{"type":"blocks"`...)
	if leaf != noBlock {
		dst = intField(dst, "at", int64(leaf))
	}
	dst = append(dst, `,"new":"`...)
	dst = appendHashes(dst, chain[known:])
	for _, h := range chain[known:] {
		g.parent = append(g.parent, leaf)
		leaf = uint32(len(g.hash))
		g.hash = append(g.hash, h)
		g.number[h] = leaf
	}
	return leaf, append(dst, '"', '}', '\n')
}

// chain is the path to a block.
func (g *generation) chain(leaf uint32) []block.Hash {
	var path []block.Hash
	for ; leaf != noBlock; leaf = g.parent[leaf] {
		path = append(path, g.hash[leaf])
	}
	slices.Reverse(path)
	return path
}

// share divides a request into its prompts, each of which is a request to readers of traces. Where the
// lengths of prompts are not known, it stays one.
func (r *held) share(leaves []uint32, req *score.Request) {
	if len(req.Lengths) != len(leaves) {
		r.prompts = []prompt{{leaves[0], req.InputTokens}}
		return
	}
	for i, leaf := range leaves {
		r.prompts = append(r.prompts, prompt{leaf, req.Lengths[i]})
	}
}

// FirstToken is pool.Recorder's.
func (e *Encoder) FirstToken(dst []byte, h load.Handle, at int64) []byte {
	dst = e.Flush(dst)
	r, ok := e.held[h]
	if !ok {
		e.counts.Unknown++
		return dst
	}
	return append(intField(loadLine(dst, FirstToken, r), "ns", at), '}', '\n')
}

// Unbind is pool.Recorder's.
func (e *Encoder) Unbind(dst []byte, h load.Handle) []byte {
	dst = e.Flush(dst)
	r, ok := e.held[h]
	if !ok {
		e.counts.Unknown++
		return dst
	}
	return append(loadLine(dst, Unbind, r), '}', '\n')
}

// Release is pool.Recorder's. It ends with the request for readers of traces: of type request where the
// number of tokens of the answer is known, else of type unfinished, which they skip. A prefill's request is
// that of its decode.
func (e *Encoder) Release(dst []byte, h load.Handle, at, output int64) []byte {
	dst = e.Flush(dst)
	r, ok := e.held[h]
	if !ok {
		e.counts.Unknown++
		return dst
	}
	delete(e.held, h)
	dst = intField(loadLine(dst, Release, r), "ns", at)
	if output >= 0 {
		dst = intField(dst, "out", output)
	}
	dst = append(dst, '}', '\n')
	if r.prefill {
		return dst
	}
	if output < 0 {
		e.counts.Ended++
	} else {
		e.counts.Requests++
	}
	left := output
	for i, p := range r.prompts {
		if r.gen != e.gen && p.leaf != noBlock {
			p.leaf, dst = e.path(dst, r.gen.chain(p.leaf))
		}
		kind, out := "unfinished", int64(-1)
		if output >= 0 {
			kind, out = "request", left/int64(len(r.prompts)-i)
			left -= out
		}
		dst = append(dst, `{"type":"`+kind+`"`...)
		dst = intField(dst, "t", max(r.at, 0)/1000)
		dst = intField(dst, "in", min(max(p.input, 0), maxTokens))
		if !r.exact {
			dst = append(dst, `,"exact":false`...)
		}
		if out >= 0 {
			dst = intField(dst, "out", min(out, maxTokens))
		}
		if p.leaf != noBlock {
			dst = intField(dst, "at", int64(p.leaf))
		}
		if r.s != "" {
			dst = textField(dst, "s", r.s)
		}
		dst = textField(dst, "id", r.id)
		dst = append(dst, '}', '\n')
	}
	return dst
}

func loadLine(dst []byte, op LoadOp, r *held) []byte {
	dst = append(dst, `{"type":"load","op":"`...)
	dst = append(append(dst, op.String()...), `","d":`...)
	return strconv.AppendUint(dst, r.seq, 10)
}

// Note is pool.Recorder's.
func (e *Encoder) Note(dst []byte, at int64, id target.ID, text string) []byte {
	dst = e.Flush(dst)
	dst = intField(append(dst, `{"type":"note"`...), "ns", at)
	if id < target.MaxTargets {
		dst = intField(dst, "w", int64(id))
	}
	return append(textField(dst, "text", text), '}', '\n')
}

// End closes the recording. complete says that nothing is missing before it; else why does.
func (e *Encoder) End(dst []byte, complete bool, why string) []byte {
	dst = e.Flush(dst)
	dst = append(dst, `{"type":"end","complete":`...)
	dst = strconv.AppendBool(dst, complete)
	dst = append(dst, `,"decisions":`...)
	dst = strconv.AppendUint(dst, e.counts.Decisions, 10)
	if why != "" {
		dst = textField(dst, "why", why)
	}
	return append(dst, '}', '\n')
}

// sessionKey stands for a session id, which users type.
func sessionKey(session string) string {
	if session == "" {
		return ""
	}
	return string(appendHex(nil, xxh3.HashString(session)))
}

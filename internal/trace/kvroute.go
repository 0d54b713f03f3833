package trace

import (
	"fmt"
	"strings"

	"github.com/kvroute/kvroute/internal/block"
)

// version is the value of the field "kvroute" of our own format; its number changes when old readers
// can no longer read new files.
const version = "trace/v1"

// Types of records in our own format. Readers of traces take these and skip the rest, known or not: a
// recording of a router is also a trace.
const (
	typeRequest = "request" // also where no type is given
	typeBlocks  = "blocks"  // numbers a path that later records name
	typeReset   = "reset"   // block numbers start again at 0

	typeUnfinished = "unfinished" // a router's request without a known answer: counted, not read
)

// kvReader reads our own format: a heading, then one record a line. A request names the block its path
// hangs on by number and gives the hashes of the blocks that follow, which get the next numbers.
type kvReader struct {
	base
	size   int
	router bool // the file is a router's recording
	s      scan
	f      Forest // blocks by number since the last reset
	blocks []block.Hash
	tokens []uint32
	fresh  []block.Hash // of the current request
	counts []int64      // bt of the current request

	unfinished int // records of that type
}

// heading reads the first line.
func (r *kvReader) heading(asked int) error {
	line, err := r.next()
	if err != nil {
		return err
	}
	s := &r.s
	s.reset(line)
	if !s.open('{') {
		return r.failScan(s)
	}
	v, size := "", int64(0)
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			break
		}
		switch string(k) {
		case "kvroute":
			v, ok = s.name()
		case "block_size":
			size, ok = s.integer()
		case "recording":
			r.router = true
			ok = s.skip()
		default:
			ok = s.skip()
		}
		if !ok {
			return r.failScan(s)
		}
	}
	if !s.end() {
		return r.failScan(s)
	}
	switch {
	case v == "":
		return r.fail("", `the first line is not the heading {"kvroute":"%s",…}`, version)
	case v != version:
		hint := ""
		if strings.HasPrefix(v, "trace/v") {
			hint = "a newer version of this program wrote it"
		}
		return r.fail(hint, "the format is %q, known is %q", v, version)
	case size < 0 || size > maxTokens:
		return r.fail("", "block_size %d is out of range", size)
	case asked != 0 && size != 0 && int64(asked) != size:
		return r.fail("leave --block-size away", "block_size is %d, but %d was asked for", size, asked)
	}
	r.size = int(size)
	return nil
}

// Bits of the fields of a request in our own format.
const (
	kvType = 1 << iota
	kvTime
	kvIn
	kvOut
	kvAt
	kvNew
	kvTokens
	kvEven
	kvSession
	kvID
)

var kvFields = map[string]int{
	"type": kvType, "t": kvTime, "in": kvIn, "out": kvOut, "at": kvAt, "new": kvNew,
	"bt": kvTokens, "even": kvEven, "s": kvSession, "id": kvID,
}

func (r *kvReader) Read(rec *Record) error {
	for {
		line, err := r.next()
		if err != nil {
			return err
		}
		kind, err := r.record(rec, line)
		if err != nil {
			return err
		}
		switch kind {
		case typeRequest:
			r.read++
			return nil
		case typeReset:
			r.f = Forest{}
		case typeUnfinished:
			r.unfinished++
		}
	}
}

// kind returns the type of a record. Only requests and blocks are looked at any closer.
func (r *kvReader) kind(line []byte) (string, error) {
	s := &r.s
	s.reset(line)
	if !s.open('{') {
		return "", r.failLine(s)
	}
	kind := typeRequest
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			break
		}
		if string(k) == "type" {
			kind, ok = s.name()
		} else {
			ok = s.skip()
		}
		if !ok {
			return "", r.failLine(s)
		}
	}
	if !s.end() {
		return "", r.failLine(s)
	}
	return kind, nil
}

// failLine is failScan with what to do about a recording that was not closed.
func (r *kvReader) failLine(s *scan) *Error {
	e := r.failScan(s)
	if e.Damaged && r.router {
		e.Hint = "the router was killed, or still writes: leave the last line out, as head -n -1 does"
	}
	return e
}

// record reads one line into rec.
func (r *kvReader) record(rec *Record, line []byte) (string, error) {
	*rec = Record{Line: r.in.line}
	kind, err := r.kind(line)
	if err != nil || kind != typeRequest && kind != typeBlocks {
		return kind, err
	}
	s := &r.s
	s.reset(line)
	s.open('{')
	seen, at, even := 0, int64(noID), int64(0)
	r.fresh, r.counts = r.fresh[:0], r.counts[:0]
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			break
		}
		bit := kvFields[string(k)]
		if seen&bit != 0 {
			return "", r.fail("", errAgain, k)
		}
		seen |= bit
		switch bit {
		case kvTime:
			rec.Arrival, ok = s.integer()
		case kvIn:
			rec.Input, ok = s.integer()
		case kvOut:
			rec.Output, ok = s.integer()
		case kvAt:
			at, ok = s.integer()
		case kvNew:
			ok = r.hashes()
		case kvTokens:
			ok = r.newTokens()
		case kvEven:
			even, ok = s.integer()
		case kvSession:
			rec.Session, ok = s.name()
		case kvID:
			rec.ID, ok = s.name()
		default:
			ok = s.skip()
		}
		if !ok {
			e := r.failScan(s)
			e.Why = string(k) + ": " + e.Why
			return "", e
		}
	}
	if kind == typeBlocks { // a path and nothing else
		return kind, r.path(rec, at, 0, seen&^kvEven)
	}
	for _, f := range [...]string{"t", "in", "out"} {
		if seen&kvFields[f] == 0 {
			return "", r.fail("", "the field %q is missing", f)
		}
	}
	if err := r.checkCounts(rec); err != nil {
		return "", err
	}
	return kind, r.path(rec, at, even, seen)
}

// hashes reads new: 16 hexadecimal digits a block, without anything between.
func (r *kvReader) hashes() bool {
	t, ok := r.s.text()
	if !ok {
		return false
	}
	if len(t)%16 != 0 {
		return r.s.fail(fmt.Sprintf("%d digits are not 16 for each block", len(t)))
	}
	for ; len(t) > 0; t = t[16:] {
		h := uint64(0)
		for _, c := range t[:16] {
			switch {
			case c >= '0' && c <= '9':
				c -= '0'
			case c >= 'a' && c <= 'f':
				c -= 'a' - 10
			default:
				return r.s.fail(fmt.Sprintf("%q is not a lower-case hexadecimal digit", c))
			}
			h = h<<4 | uint64(c)
		}
		r.fresh = append(r.fresh, block.Hash(h))
	}
	return true
}

// newTokens reads bt.
func (r *kvReader) newTokens() bool {
	s := &r.s
	if !s.open('[') {
		return false
	}
	for first := true; s.item(']', &first); {
		v, ok := s.integer()
		if !ok {
			return false
		}
		if v < 0 || v > maxTokens {
			return s.fail(fmt.Sprintf("%d tokens in a block is out of range", v))
		}
		r.counts = append(r.counts, v)
	}
	return s.why == ""
}

// path numbers the new blocks and gives rec all of its path.
func (r *kvReader) path(rec *Record, at, even int64, seen int) error {
	f := &r.f
	parent := NoNode
	switch {
	case at < noID || at >= int64(f.Len()):
		return r.fail("", "at: block %d is not known here (%d are)", at, f.Len())
	case at >= 0:
		parent = NodeID(at)
	}
	if parent == NoNode && len(r.fresh) == 0 {
		return nil
	}
	switch {
	case r.size == 0:
		return r.fail("", "blocks, but the heading has no block_size")
	case even < 0 || even > maxTokens || seen&kvEven != 0 && even == 0:
		return r.fail("", "even: %d tokens is out of range", even)
	case seen&kvTokens != 0 && len(r.counts) != len(r.fresh):
		return r.fail("", "bt has %d counts for %d new blocks", len(r.counts), len(r.fresh))
	}
	if seen&kvTokens != 0 && f.CumTokens == nil {
		if f.Len() > 0 {
			return r.fail("", "bt must be on every request with new blocks or on none")
		}
		f.CumTokens = []uint32{}
	}
	if f.CumTokens != nil && seen&kvTokens == 0 && len(r.fresh) > 0 {
		return r.fail("", "bt must be on every request with new blocks or on none")
	}
	for i, h := range r.fresh {
		if err := r.number(parent, h, i); err != nil {
			return err
		}
		parent = NodeID(f.Len() - 1)
	}
	r.blocks = f.Path(parent, r.blocks[:0])
	rec.Blocks, rec.BlockSize = r.blocks, r.size
	if even != 0 {
		rec.Even, rec.BlockSize = true, int(even)
	} else if f.CumTokens != nil {
		r.tokens = f.tokens(parent, r.tokens)
		rec.BlockTokens = r.tokens
	}
	return nil
}

// number adds the i-th new block.
func (r *kvReader) number(parent NodeID, h block.Hash, i int) error {
	f := &r.f
	if f.Len() >= int(NoNode)-1 {
		return r.fail(`write a {"type":"reset"} record from time to time`, "more than 2^32 blocks")
	}
	n, depth, cum := NodeID(f.Len()), uint32(1), uint64(0)
	first := n
	if parent != NoNode {
		depth = f.Depth[parent] + 1
		if f.CumTokens != nil {
			cum = uint64(f.CumTokens[parent])
		}
		if parent == n-1 {
			first = f.run[parent]
		}
	}
	f.Hash, f.Parent, f.Depth, f.run = append(f.Hash, h), append(f.Parent, parent), append(f.Depth, depth), append(f.run, first)
	if f.CumTokens == nil {
		return nil
	}
	cum += uint64(r.counts[i])
	if cum > 1<<32-1 {
		return r.fail("", "the blocks hold more than 2^32 tokens")
	}
	f.CumTokens = append(f.CumTokens, uint32(cum))
	return nil
}

// tokens returns the tokens of each block of the path to leaf, in dst's memory.
func (f *Forest) tokens(leaf NodeID, dst []uint32) []uint32 {
	dst = dst[:0]
	if leaf == NoNode {
		return dst
	}
	n := int(f.Depth[leaf])
	for range n {
		dst = append(dst, 0)
	}
	for i := n - 1; i >= 0; i-- {
		p := f.Parent[leaf]
		dst[i] = f.CumTokens[leaf]
		if p != NoNode {
			dst[i] -= f.CumTokens[p]
		}
		leaf = p
	}
	return dst
}

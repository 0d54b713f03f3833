package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/zeebo/xxh3"
)

// Defaults of the claude-code form.
const (
	claudeBlock    = 64
	claudeStagger  = 20 * time.Second
	claudeGapCap   = 60 * time.Second
	maxSubAgents   = 8 // nesting of sub-agents
	maxSessionTime = 1 << 50
)

// claudeReader reads one session object a line. Ids mean something within their session only, its
// sub-agents included. Requests come in depth-first order, with the arrivals of the merged trace:
// session k starts at k times the stagger; inside, requests are ordered by time, the first is moved to
// 0, and gaps above the cap are cut to it.
//
// Memory is that of the longest line: ids are parsed when their request is read.
type claudeReader struct {
	base
	sh      *shared
	asked   int
	stagger int64 // ms
	gapCap  int64 // ms, -1: none
	s       scan
	line    []byte
	number  int // of the line
	session string
	size    int
	reqs    []claudeRequest
	next    int

	order  []int32
	prev   []byte // ids of the request read before, as text, in the same line
	ends   []int32
	blocks []block.Hash
	last   []int64 // ids of blocks
	root   block.Hash
}

// claudeRequest is a request of the current session.
type claudeRequest struct {
	at      int64 // ms since the session's start, later its arrival
	in, out int64
	ids     []byte // the list as text, brackets included
}

func newClaudeReader(b base, sh *shared, opt Options) *claudeReader {
	return &claudeReader{
		base: b, sh: sh, asked: opt.BlockSize,
		stagger: millis(opt.SessionStagger, claudeStagger, 0), gapCap: millis(opt.GapCap, claudeGapCap, -1),
	}
}

// millis resolves an option: 0 is the default, a negative value means none.
func millis(d, def time.Duration, none int64) int64 {
	switch {
	case d < 0:
		return none
	case d == 0:
		d = def
	}
	return int64(d / time.Millisecond)
}

func (r *claudeReader) Read(rec *Record) error {
	for r.next == len(r.reqs) {
		if err := r.readSession(); err != nil {
			*rec = Record{Line: r.in.line}
			return err
		}
	}
	q := &r.reqs[r.next]
	*rec = Record{Arrival: q.at * 1000, Input: q.in, Output: q.out, BlockSize: r.size, Session: r.session, Line: r.number}
	if err := r.parseIDs(q.ids); err != nil {
		return err
	}
	if err := r.checkCounts(rec); err != nil {
		return err
	}
	if err := r.checkBlocks(len(r.blocks), q.in, r.size); err != nil {
		return err
	}
	rec.Blocks = r.blocks
	r.next++
	r.read++
	return nil
}

// readSession reads the next line and places its requests.
func (r *claudeReader) readSession() error {
	line, err := r.base.next()
	if err != nil {
		return err
	}
	r.line, r.number = line, r.in.line
	r.reqs, r.next = r.reqs[:0], 0
	r.prev, r.ends, r.blocks, r.last = nil, r.ends[:0], r.blocks[:0], r.last[:0]
	k := r.sh.sessions
	r.sh.sessions++
	r.sh.ids.reset()
	r.session, r.size = "", 0
	if err := r.object(); err != nil {
		return err
	}
	if r.session == "" {
		r.session = fmt.Sprintf("session-%d", k)
	}
	for name, i := r.session, k; r.sh.names[r.session]; i++ { // the same session twice is two sessions
		r.session = fmt.Sprintf("%s#%d", name, i)
	}
	r.sh.names[r.session] = true
	r.root = sessionRoot(k)
	if r.size == 0 {
		r.size = claudeBlock
		if r.asked != 0 {
			r.size = r.asked
		}
	}
	return r.place(int64(k) * r.stagger)
}

// sessionRoot is the parent of the first blocks of the k-th session.
func sessionRoot(k int) block.Hash {
	var b [16]byte
	copy(b[:8], "session ")
	binary.LittleEndian.PutUint64(b[8:], uint64(k))
	return block.Hash(xxh3.Hash(b[:]))
}

// place orders the requests in time and gives them their arrivals.
func (r *claudeReader) place(start int64) error {
	r.order = r.order[:0]
	for i := range r.reqs {
		r.order = append(r.order, int32(i))
	}
	slices.SortStableFunc(r.order, func(a, b int32) int {
		switch x, y := r.reqs[a].at, r.reqs[b].at; {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	at, before := start, int64(0)
	for i, k := range r.order {
		q := &r.reqs[k]
		gap := q.at - before
		before = q.at
		if i > 0 {
			if r.gapCap >= 0 {
				gap = min(gap, r.gapCap)
			}
			at += gap
		}
		if at > maxArrival/1000 {
			return r.fail("", "session %s: the time is out of range", r.session)
		}
		q.at = at
	}
	return nil
}

// object reads the session's fields.
func (r *claudeReader) object() error {
	s := &r.s
	s.reset(r.line)
	if !s.open('{') {
		return r.failScan(s)
	}
	const (
		hasID = 1 << iota
		hasSize
		hasScope
		hasRequests
	)
	bitOf := map[string]int{"id": hasID, "block_size": hasSize, "hash_id_scope": hasScope, "requests": hasRequests}
	seen := 0
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			break
		}
		bit := bitOf[string(k)]
		if seen&bit != 0 {
			return r.fail("", errAgain, k)
		}
		seen |= bit
		switch bit {
		case hasID:
			r.session, ok = s.name()
		case hasSize:
			var v int64
			if v, ok = s.integer(); ok && (v < 1 || v > maxTokens) {
				return r.fail("", "block_size %d is out of range", v)
			} else if ok && r.asked != 0 && v != int64(r.asked) {
				return r.fail("leave --block-size away", "block_size is %d here, but %d was asked for", v, r.asked)
			}
			r.size = int(v)
		case hasScope:
			var t []byte
			if t, ok = s.text(); ok && string(t) != "local" {
				return r.fail("only ids local to a session are known", "hash_id_scope is %q", t)
			}
		case hasRequests:
			var err error
			if ok, err = r.requests(0); err != nil {
				return err
			}
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
	if seen&hasRequests == 0 {
		return r.fail("", "the field %q is missing", "requests")
	}
	return nil
}

// requests reads a list of requests and sub-agents.
func (r *claudeReader) requests(depth int) (bool, error) {
	s := &r.s
	if depth > maxSubAgents {
		return false, r.fail("", "sub-agents nested deeper than %d", maxSubAgents)
	}
	if !s.open('[') {
		return false, nil
	}
	for first := true; s.item(']', &first); {
		if ok, err := r.request(depth); !ok || err != nil {
			return false, err
		}
	}
	return s.why == "", nil
}

// Bits of the fields of an entry of requests.
const (
	hasT = 1 << iota
	hasType
	hasIn
	hasOut
	hasHashIDs
	hasDuration
	hasInner
)

var claudeFields = map[string]int{
	"t": hasT, "type": hasType, "in": hasIn, "out": hasOut,
	"hash_ids": hasHashIDs, "duration_ms": hasDuration, "requests": hasInner,
}

// request reads one entry: a request, or a sub-agent with requests of its own.
func (r *claudeReader) request(depth int) (bool, error) {
	s := &r.s
	if !s.open('{') {
		return false, nil
	}
	var q claudeRequest
	seen, duration, agent, inner := 0, int64(0), false, len(r.reqs)
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			break
		}
		bit := claudeFields[string(k)]
		if seen&bit != 0 {
			return false, r.fail("", errAgain, k)
		}
		seen |= bit
		var err error
		switch bit {
		case hasT:
			q.at, ok = s.decimal(3)
		case hasType:
			var t []byte
			t, ok = s.text()
			agent = string(t) == "subagent"
		case hasIn:
			q.in, ok = s.integer()
		case hasOut:
			q.out, ok = s.integer()
		case hasHashIDs:
			q.ids, ok = s.list()
		case hasDuration:
			if s.peek() != 'n' || !s.null() {
				duration, ok = s.decimal(0)
			}
		case hasInner:
			ok, err = r.requests(depth + 1)
		default:
			ok = s.skip()
		}
		if !ok {
			if err == nil && s.why != "" && !s.short && bit != hasInner && bit != 0 {
				s.why = string(k) + ": " + s.why
			}
			return false, err
		}
	}
	if s.why != "" {
		return false, nil
	}
	return true, r.entry(q, seen, agent, duration, inner)
}

// entry takes over an entry that was read: its own requests are r.reqs[inner:].
func (r *claudeReader) entry(q claudeRequest, seen int, agent bool, duration int64, inner int) error {
	need := []struct {
		bit  int
		name string
	}{{hasT, "t"}, {hasIn, "in"}, {hasOut, "out"}, {hasHashIDs, "hash_ids"}}
	if agent {
		need = append(need[:1:1], struct {
			bit  int
			name string
		}{hasInner, "requests"})
	} else if seen&hasInner != 0 {
		return r.fail(`sub-agents have the type "subagent"`, "a request with requests of its own")
	}
	for _, f := range need {
		if seen&f.bit == 0 {
			return r.fail("", "the field %q of a request is missing", f.name)
		}
	}
	if max(q.at, -q.at, duration, -duration) > maxSessionTime {
		return r.fail("", "the time of a request is out of range")
	}
	if !agent {
		r.reqs = append(r.reqs, q)
		return nil
	}
	// The marker's t is when the sub-agent ended; the inner t count from its start.
	for i := inner; i < len(r.reqs); i++ {
		r.reqs[i].at += q.at - duration
	}
	return nil
}

// list takes a list without lists or strings in it and returns its text, brackets included.
func (s *scan) list() ([]byte, bool) {
	if s.peek() != '[' {
		return nil, s.fail("not a list of ids")
	}
	start := s.i
	k := bytes.IndexByte(s.b[start:], ']')
	if k < 0 {
		s.i = len(s.b)
		return nil, s.fail("")
	}
	s.i += k + 1
	return s.b[start:s.i], true
}

// parseIDs turns the ids of a request into r.blocks. What its text has in common with the request
// before, up to the last comma, needs no second look.
func (r *claudeReader) parseIDs(text []byte) error {
	n := r.keep(commonPrefix(r.prev, text))
	r.prev = text
	r.blocks, r.last, r.ends = r.blocks[:n], r.last[:n], r.ends[:n]
	prev, parent := int64(noID), r.root
	s := scan{b: text, i: 1}
	if n > 0 {
		prev, parent, s.i = r.last[n-1], r.blocks[n-1], int(r.ends[n-1])
	}
	for first := n == 0; s.item(']', &first); {
		id, ok := s.integer()
		if !ok {
			break
		}
		if id < 0 {
			return r.fail("ids are numbers from 0", "session %s: hash_ids: the id %d is negative", r.session, id)
		}
		h, known, ok := r.sh.ids.add(id, prev, parent)
		if !ok {
			return r.contradict(id, prev, known)
		}
		r.blocks, r.last, r.ends = append(r.blocks, h), append(r.last, id), append(r.ends, int32(s.i))
		prev, parent = id, h
	}
	if s.end(); s.why != "" {
		return r.fail("", "session %s: hash_ids: %s", r.session, s.why)
	}
	return nil
}

// keep returns how many ids of the request before end within its first n bytes, their comma included.
func (r *claudeReader) keep(n int) int {
	k, _ := slices.BinarySearch(r.ends, int32(n)) // an id that ends at n itself may go on in the other text
	return k
}

// commonPrefix returns how many leading bytes a and b share.
func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

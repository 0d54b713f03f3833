package trace

import (
	"fmt"
	"unicode/utf8"

	"github.com/kvroute/kvroute/internal/block"
)

// mooncakeBlock is the block size of Mooncake's traces, which do not state it.
const mooncakeBlock = 512

// idReader reads Mooncake's form and its relatives: one object a line with timestamp (ms),
// input_length, output_length and hash_ids, optionally block_size, block_tokens and session_id. An id
// stands for its block and everything before it.
type idReader struct {
	base
	sh     *shared
	size   int // tokens of a block; 0 until known
	asked  int // Options.BlockSize
	s      scan
	blocks []block.Hash
	tokens []uint32
}

// Bits of the fields seen on a line.
const (
	hasTime = 1 << iota
	hasInput
	hasOutput
	hasIDs
	hasSize
	hasTokens
	hasSession
	hasID
)

// idFields names the fields of the form.
var idFields = map[string]int{
	"timestamp": hasTime, "input_length": hasInput, "output_length": hasOutput, "hash_ids": hasIDs,
	"block_size": hasSize, "block_tokens": hasTokens, "session_id": hasSession, "request_id": hasID,
}

func (r *idReader) Read(rec *Record) error {
	line, err := r.next()
	if err != nil {
		return err
	}
	r.s.reset(line)
	*rec = Record{Line: r.in.line}
	size, seen, err := r.object(rec)
	if err != nil {
		return err
	}
	if err := r.check(rec, size, seen); err != nil {
		return err
	}
	r.read++
	return nil
}

// object reads the line's fields.
func (r *idReader) object(rec *Record) (size int64, seen int, err error) {
	s := &r.s
	if !s.open('{') {
		return 0, 0, r.failScan(s)
	}
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			break
		}
		bit := idFields[string(k)]
		if seen&bit != 0 {
			return 0, 0, r.fail("", errAgain, k)
		}
		seen |= bit
		switch bit {
		case hasTime:
			rec.Arrival, ok = s.decimal(3)
		case hasInput:
			rec.Input, ok = s.integer()
		case hasOutput:
			rec.Output, ok = s.integer()
		case hasSize:
			size, ok = s.integer()
		case hasIDs:
			if ok, err = r.ids(); err != nil {
				return 0, 0, err
			}
		case hasTokens:
			ok = r.blockTokens()
		case hasSession:
			rec.Session, ok = s.name()
		case hasID:
			rec.ID, ok = s.name()
		default:
			ok = s.skip()
		}
		if !ok {
			return 0, 0, r.failField(string(k))
		}
	}
	if !s.end() {
		return 0, 0, r.failScan(s)
	}
	return size, seen, nil
}

// failField is failScan with the field named.
func (r *idReader) failField(k string) error {
	e := r.failScan(&r.s)
	if !e.Damaged {
		e.Why = k + ": " + e.Why
	}
	return e
}

// ids reads hash_ids into r.blocks.
func (r *idReader) ids() (bool, error) {
	s := &r.s
	r.blocks = r.blocks[:0]
	if !s.open('[') {
		return false, nil
	}
	prev, parent := int64(noID), block.Root
	for first := true; s.item(']', &first); {
		id, ok := s.integer()
		if !ok {
			return false, nil
		}
		if id < 0 {
			return false, r.fail("ids are numbers from 0", "hash_ids: the id %d is negative", id)
		}
		h, known, ok := r.sh.ids.add(id, prev, parent)
		if !ok {
			return false, r.contradict(id, prev, known)
		}
		r.blocks = append(r.blocks, h)
		prev, parent = id, h
	}
	return s.why == "", nil
}

// contradict makes the error for an id with two predecessors.
func (b *base) contradict(id, prev, known int64) error {
	after := func(p int64) string {
		if p == noID {
			return "opens a prompt"
		}
		return fmt.Sprintf("follows id %d", p)
	}
	return b.fail("an id stands for its block and everything before it; traces whose ids name pieces or belong to other files need their own format or --each",
		"hash_ids contradict each other: id %d %s here and %s before", id, after(prev), after(known))
}

// blockTokens reads block_tokens into r.tokens.
func (r *idReader) blockTokens() bool {
	s := &r.s
	if r.tokens = r.tokens[:0]; r.tokens == nil {
		r.tokens = []uint32{} // present, though it may be empty
	}
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
		r.tokens = append(r.tokens, uint32(v))
	}
	return s.why == ""
}

// name takes a string, an integer or null as a name.
func (s *scan) name() (string, bool) {
	switch c := s.peek(); {
	case c == '"':
		at := s.i
		t, ok := s.text()
		if ok && !utf8.Valid(t) {
			s.i = at
			return "", s.fail("not UTF-8")
		}
		return string(t), ok
	case c == 'n' && s.null():
		return "", true
	}
	start := s.i
	if _, ok := s.integer(); !ok {
		return "", false
	}
	return string(s.b[start:s.i]), true
}

// check holds the line against the rules of the form and completes rec.
func (r *idReader) check(rec *Record, size int64, seen int) error {
	for _, f := range [...]struct {
		bit  int
		name string
	}{{hasTime, "timestamp"}, {hasInput, "input_length"}, {hasOutput, "output_length"}, {hasIDs, "hash_ids"}} {
		if seen&f.bit == 0 {
			return r.fail("", "the field %q is missing", f.name)
		}
	}
	if err := r.checkCounts(rec); err != nil {
		return err
	}
	if seen&hasSize != 0 {
		switch {
		case size < 1 || size > maxTokens:
			return r.fail("", "block_size %d is out of range", size)
		case r.asked != 0 && size != int64(r.asked):
			return r.fail("leave --block-size away", "block_size is %d here, but %d was asked for", size, r.asked)
		case r.size != 0 && size != int64(r.size):
			return r.fail("blocks of one trace have one size", "block_size is %d here and %d before", size, r.size)
		}
		r.size = int(size)
	}
	if r.size == 0 {
		r.size = mooncakeBlock
	}
	rec.Blocks, rec.BlockSize = r.blocks, r.size
	has := 2
	if seen&hasTokens != 0 {
		has = 1
	}
	if r.sh.chained == 0 {
		r.sh.chained = has
	}
	if has != r.sh.chained {
		return r.fail("", "block_tokens must be on every line or on none")
	}
	if has == 1 {
		if len(r.tokens) != len(r.blocks) {
			return r.fail("", "%d block_tokens for %d hash_ids", len(r.tokens), len(r.blocks))
		}
		rec.BlockTokens = r.tokens
		return nil
	}
	return r.checkBlocks(len(r.blocks), rec.Input, r.size)
}

// checkBlocks holds the number of ids against the length of the prompt: its complete blocks, one more
// where the rest has an id too. A last block that is just complete may lack its id: lengths of
// derived traces are rounded up.
func (b *base) checkBlocks(n int, input int64, size int) error {
	least, most := max(input-1, 0)/int64(size), (input+int64(size)-1)/int64(size)
	if int64(n) < least || int64(n) > most {
		return b.fail("if blocks are of another size, name it with --block-size",
			"%d hash_ids do not fit a prompt of %d tokens in blocks of %d (want %d to %d)", n, input, size, least, most)
	}
	return nil
}

// checkCounts holds arrival and token counts against their bounds.
func (b *base) checkCounts(rec *Record) error {
	switch {
	case rec.Arrival < 0:
		return b.fail("", "the time is negative")
	case rec.Arrival > maxArrival:
		return b.fail("", "the time is out of range")
	case rec.Input < 0 || rec.Input > maxTokens:
		return b.fail("", "%d prompt tokens is out of range (0 to %d)", rec.Input, maxTokens)
	case rec.Output < 0 || rec.Output > maxTokens:
		return b.fail("", "%d answer tokens is out of range (0 to %d)", rec.Output, maxTokens)
	}
	return nil
}

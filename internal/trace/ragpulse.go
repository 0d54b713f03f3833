package trace

import (
	"bytes"
	"strings"

	"github.com/kvroute/kvroute/internal/block"
)

// pieceLists are the lists of ragpulse's hash_ids, in the order in which they make the prompt.
var pieceLists = [...]string{"sys_prompt", "passages_ids", "history", "web_search", "user_input"}

// ragReader reads RAGPulse's own form. An id names a piece of text wherever it stands, so blocks are
// the pieces, chained. Their sizes are in files of their own; where those were read first a block has
// its size, otherwise only an even split of the prompt is known: min(512, max(1, input/blocks)),
// rounded half up.
type ragReader struct {
	base
	sh     *shared
	s      scan
	lists  [len(pieceLists)][]int64
	blocks []block.Hash
	tokens []uint32
}

func (r *ragReader) Read(rec *Record) error {
	for {
		line, err := r.next()
		if err != nil {
			return err
		}
		r.s.reset(line)
		*rec = Record{Line: r.in.line}
		size, err := r.object(rec)
		if err != nil {
			return err
		}
		if size {
			continue
		}
		if err := r.finish(rec); err != nil {
			return err
		}
		r.read++
		return nil
	}
}

var ragFields = map[string]int{
	"timestamp": hasTime, "input_length": hasInput, "output_length": hasOutput,
	"hash_ids": hasIDs, "session_id": hasSession, "token_length": hasTokens,
}

// object reads a line: a request, or the size of a piece (then size is true).
func (r *ragReader) object(rec *Record) (size bool, err error) {
	s := &r.s
	if !s.open('{') {
		return false, r.failScan(s)
	}
	seen, piece, tokens := 0, int64(noID), int64(0)
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			break
		}
		bit := ragFields[string(k)]
		if seen&bit != 0 {
			return false, r.fail("", errAgain, k)
		}
		seen |= bit
		switch {
		case bit == hasTime:
			rec.Arrival, ok = s.seconds()
		case bit == hasInput:
			rec.Input, ok = s.integer()
		case bit == hasOutput:
			rec.Output, ok = s.integer()
		case bit == hasIDs:
			if ok, err = r.pieces(); err != nil {
				return false, err
			}
		case bit == hasSession:
			rec.Session, ok = s.name()
		case bit == hasTokens:
			tokens, ok = s.integer()
		case bytes.HasSuffix(k, []byte("_id")):
			piece, ok = s.integer()
		default:
			ok = s.skip()
		}
		if !ok {
			e := r.failScan(s)
			if !e.Damaged {
				e.Why = string(k) + ": " + e.Why
			}
			return false, e
		}
	}
	if !s.end() {
		return false, r.failScan(s)
	}
	if seen&hasTokens != 0 && seen&hasIDs == 0 {
		return true, r.setSize(piece, tokens)
	}
	for _, f := range [...]string{"timestamp", "input_length", "output_length", "hash_ids"} {
		if seen&ragFields[f] == 0 {
			return false, r.fail("", "the field %q is missing", f)
		}
	}
	return false, r.checkCounts(rec)
}

// setSize notes the tokens of a piece.
func (r *ragReader) setSize(piece, tokens int64) error {
	if piece < 0 {
		return r.fail("", "a size without the id of its piece")
	}
	if tokens < 0 || tokens > maxTokens {
		return r.fail("", "token_length %d is out of range", tokens)
	}
	if r.sh.pieces == nil {
		r.sh.pieces = map[int64]uint32{}
	}
	if t, ok := r.sh.pieces[piece]; ok && t != uint32(tokens) {
		return r.fail("", "piece %d has %d tokens here and %d before", piece, tokens, t)
	}
	r.sh.pieces[piece] = uint32(tokens)
	return nil
}

// seconds takes a time in seconds, as a number or as a string holding one, and returns µs.
func (s *scan) seconds() (int64, bool) {
	if s.peek() != '"' {
		return s.decimal(6)
	}
	at := s.i
	t, ok := s.text()
	if !ok {
		return 0, false
	}
	in := scan{b: t}
	v, ok := in.decimal(6)
	if !ok || !in.end() {
		s.i = at
		return 0, s.fail("not a number of seconds")
	}
	return v, true
}

// pieces reads hash_ids: an object of lists.
func (r *ragReader) pieces() (bool, error) {
	s := &r.s
	if !s.open('{') {
		return false, nil
	}
	for i := range r.lists {
		r.lists[i] = r.lists[i][:0]
	}
	seen := 0
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			return s.why == "", nil
		}
		list := -1
		for i, name := range pieceLists {
			if name == string(k) {
				list = i
			}
		}
		if list < 0 {
			return false, r.fail("known lists: "+strings.Join(pieceLists[:], ", "), "hash_ids: unknown list %q", k)
		}
		if seen&(1<<list) != 0 {
			return false, r.fail("", errAgain, k)
		}
		seen |= 1 << list
		if !s.open('[') {
			return false, nil
		}
		for first := true; s.item(']', &first); {
			id, ok := s.integer()
			if !ok {
				return false, nil
			}
			if id < 0 {
				return false, r.fail("ids are numbers from 0", "hash_ids: the id %d is negative", id)
			}
			r.lists[list] = append(r.lists[list], id)
		}
		if s.why != "" {
			return false, nil
		}
	}
}

// finish chains the pieces and gives them their sizes.
func (r *ragReader) finish(rec *Record) error {
	r.blocks, r.tokens = r.blocks[:0], r.tokens[:0]
	parent := block.Root
	for _, list := range r.lists {
		for _, id := range list {
			parent = chain(parent, uint64(id))
			r.blocks = append(r.blocks, parent)
			if r.sh.pieces == nil {
				continue
			}
			t, ok := r.sh.pieces[id]
			if !ok {
				return r.fail("give the size files of all five lists, or none", "the size of piece %d is not known", id)
			}
			r.tokens = append(r.tokens, t)
		}
	}
	rec.Blocks = r.blocks
	if r.sh.pieces != nil {
		if rec.BlockTokens, rec.BlockSize = r.tokens, evenBlock; r.tokens == nil {
			rec.BlockTokens = []uint32{}
		}
		return nil
	}
	rec.Even, rec.BlockSize = true, evenSplit(rec.Input, len(r.blocks))
	return nil
}

// evenSplit returns the tokens of each of n blocks of a prompt whose pieces have no known sizes. The
// rule is that of the hit counts published for RAGPulse by KVCache.AI.
func evenSplit(input int64, n int) int {
	if n == 0 {
		return evenBlock
	}
	return int(min(evenBlock, max(1, (2*input+int64(n))/(2*int64(n)))))
}

// evenBlock is the largest even split, and the nominal block size of such traces.
const evenBlock = 512

package kvevent

import (
	"encoding/binary"
	"errors"
	"math"
)

// Errors of payloads that are not msgpack, or not in bounds. They cost the batch.
var (
	errCut   = errors.New("the payload ends in the middle of a value")
	errDepth = errors.New("values are nested too deeply")
	errByte  = errors.New("a byte that begins no msgpack value")
)

// maxDepth bounds the nesting of values that are passed over. Events need five levels.
const maxDepth = 32

// reader reads msgpack. Every count is checked against the bytes that are left, at one byte an element,
// before anything is done with it. Methods that return ok = false leave pos anywhere: who goes on
// afterwards goes back to where the value began and passes it over.
type reader struct {
	buf []byte
	pos int
}

func (r *reader) left() int { return len(r.buf) - r.pos }

// peek returns the first byte of the next value, or 0xc1, which begins none.
func (r *reader) peek() byte {
	if r.pos < len(r.buf) {
		return r.buf[r.pos]
	}
	return 0xc1
}

// isNil passes over a null if one is next.
func (r *reader) isNil() bool {
	if r.peek() != 0xc0 {
		return false
	}
	r.pos++
	return true
}

func isArray(c byte) bool { return c&0xf0 == 0x90 || c == 0xdc || c == 0xdd }
func isMap(c byte) bool   { return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }

// big reads n <= 8 bytes, big-endian.
func (r *reader) big(n int) (uint64, bool) {
	if r.left() < n {
		return 0, false
	}
	b := r.buf[r.pos : r.pos+n]
	r.pos += n
	switch n {
	case 1:
		return uint64(b[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), true
	}
	return binary.BigEndian.Uint64(b), true
}

// length reads the header of an array (fix 0x90, 0xdc) or map (fix 0x80, 0xde) whose elements take at
// least size bytes each.
func (r *reader) length(fix, wide byte, size int) (int, bool) {
	c := r.peek()
	var n uint64
	ok := true
	switch {
	case c&0xf0 == fix:
		r.pos++
		n = uint64(c & 0x0f)
	case c == wide:
		r.pos++
		n, ok = r.big(2)
	case c == wide+1:
		r.pos++
		n, ok = r.big(4)
	default:
		return 0, false
	}
	if !ok || n > uint64(r.left()/size) {
		return 0, false
	}
	return int(n), true
}

func (r *reader) array() (int, bool)  { return r.length(0x90, 0xdc, 1) }
func (r *reader) object() (int, bool) { return r.length(0x80, 0xde, 2) }

// integer reads an integer of any width. A negative one comes as two's complement.
func (r *reader) integer() (v uint64, negative, ok bool) {
	c := r.peek()
	r.pos++
	switch {
	case c <= 0x7f:
		return uint64(c), false, true
	case c >= 0xe0:
		return uint64(int64(int8(c))), true, true
	case c >= 0xcc && c <= 0xcf:
		v, ok = r.big(1 << (c - 0xcc))
		return v, false, ok
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		v, ok = r.big(n)
		shift := 64 - 8*n
		v = uint64(int64(v<<shift) >> shift)
		return v, int64(v) < 0, ok
	}
	return 0, false, false
}

// natural reads an integer from 0 to limit.
func (r *reader) natural(limit int) (int, bool) {
	v, negative, ok := r.integer()
	if !ok || negative || v > uint64(limit) {
		return 0, false
	}
	return int(v), true
}

// number reads a float or an integer.
func (r *reader) number() (float64, bool) {
	switch r.peek() {
	case 0xca:
		r.pos++
		v, ok := r.big(4)
		return float64(math.Float32frombits(uint32(v))), ok
	case 0xcb:
		r.pos++
		v, ok := r.big(8)
		return math.Float64frombits(v), ok
	}
	v, negative, ok := r.integer()
	if negative {
		return float64(int64(v)), ok
	}
	return float64(v), ok
}

// bytes reads a string or binary. It aliases the payload.
func (r *reader) bytes() ([]byte, bool) {
	c := r.peek()
	r.pos++
	var n uint64
	ok := true
	switch {
	case c&0xe0 == 0xa0:
		n = uint64(c & 0x1f)
	case c >= 0xd9 && c <= 0xdb:
		n, ok = r.big(1 << (c - 0xd9))
	case c >= 0xc4 && c <= 0xc6:
		n, ok = r.big(1 << (c - 0xc4))
	default:
		return nil, false
	}
	if !ok || n > uint64(r.left()) {
		return nil, false
	}
	b := r.buf[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b, true
}

// handle reads an engine's name of a block: an integer, or the last eight bytes of binary.
func (r *reader) handle() (v uint64, negative, ok bool) {
	if c := r.peek(); c < 0xc4 || c > 0xc6 {
		return r.integer()
	}
	b, ok := r.bytes()
	if !ok || len(b) == 0 {
		return 0, false, false
	}
	for _, c := range b[max(0, len(b)-8):] {
		v = v<<8 | uint64(c)
	}
	return v, false, true
}

// skip passes over one value of any kind, in one pass over its bytes and without recursion.
func (r *reader) skip() error {
	var open [maxDepth]int // elements still to come, level by level
	open[0] = 1
	for d := 0; ; {
		for open[d] == 0 {
			if d == 0 {
				return nil
			}
			d--
		}
		open[d]--
		n, err := r.skipHead()
		if err != nil {
			return err
		}
		if n > 0 {
			if d++; d == maxDepth {
				return errDepth
			}
			open[d] = n
		}
	}
}

// skipHead passes over a scalar, or over the header of a container and says how many values follow.
func (r *reader) skipHead() (int, error) {
	if r.left() == 0 {
		return 0, errCut
	}
	c := r.buf[r.pos]
	n, ok := 0, true
	switch {
	case isArray(c):
		n, ok = r.array()
	case isMap(c):
		n, ok = r.object()
		n *= 2
	case c == 0xc1:
		return 0, errByte
	case c >= 0xa0 && c <= 0xbf, c >= 0xc4 && c <= 0xc6, c >= 0xd9 && c <= 0xdb:
		_, ok = r.bytes()
	default:
		r.pos++
		var size uint64
		if size, ok = r.scalarSize(c); ok {
			if size > uint64(r.left()) {
				return 0, errCut
			}
			r.pos += int(size)
		}
	}
	if !ok {
		return 0, errCut
	}
	return n, nil
}

// scalarSize is how many bytes follow the first byte of a number, a constant or an extension.
func (r *reader) scalarSize(c byte) (uint64, bool) {
	switch {
	case c == 0xca:
		return 4, true
	case c == 0xcb:
		return 8, true
	case c >= 0xcc && c <= 0xcf:
		return 1 << (c - 0xcc), true
	case c >= 0xd0 && c <= 0xd3:
		return 1 << (c - 0xd0), true
	case c >= 0xd4 && c <= 0xd8: // extensions of fixed size: type and body
		return 1 + 1<<(c-0xd4), true
	case c >= 0xc7 && c <= 0xc9:
		n, ok := r.big(1 << (c - 0xc7))
		return n + 1, ok
	}
	return 0, true // small integers, null, booleans
}

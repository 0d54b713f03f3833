package openai

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of values, as engines do by their parsers' recursion.
const maxDepth = 1000

// SyntaxError says where a body is not JSON. It never holds text of the body.
type SyntaxError struct {
	Offset int
	Why    string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.Why) }

// scanner reads JSON strictly (RFC 8259), without copying. It does not check UTF-8. Its methods do
// nothing once err is set, so callers look at it at the end.
type scanner struct {
	b     []byte
	i     int
	depth int
	err   *SyntaxError
}

func (s *scanner) fail(why string) {
	if s.err == nil {
		if s.i >= len(s.b) {
			why = "the text ends in the middle of a value"
		}
		s.err = &SyntaxError{Offset: min(s.i, len(s.b)), Why: why}
	}
}

// peek returns the next byte that is not white space, 0 at the end and after an error.
func (s *scanner) peek() byte {
	if s.err != nil {
		return 0
	}
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// text is a string of the body: the bytes between its quotes, escapes and all.
type text struct {
	raw     []byte
	escaped bool
}

// bytes returns the string's value. Without escapes it is a slice of the body.
func (t text) bytes() []byte {
	if !t.escaped {
		return t.raw
	}
	return appendUnescaped(make([]byte, 0, len(t.raw)), t.raw)
}

func (t text) String() string { return string(t.bytes()) }

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain returns how many leading bytes of b are neither quotes, backslashes nor control characters.
func plain(b []byte) int {
	i := 0
	for len(b)-i >= 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The lowest high bit that each term sets is right, those above it may not be.
		m := ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w) & highs
		if m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
		i += 8
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		i++
	}
	return i
}

// str takes a string.
func (s *scanner) str() text {
	if s.peek() != '"' {
		s.fail("a string is expected")
		return text{}
	}
	b, i, escaped := s.b, s.i+1, false
	start := i
	for {
		i += plain(b[i:])
		if i < len(b) && b[i] == '\\' {
			escaped = true
			if i+1 < len(b) && short[b[i+1]] {
				i += 2
				continue
			}
			s.i = i
			if !s.escape() {
				return text{}
			}
			i = s.i
			continue
		}
		s.i = i
		if i < len(b) && b[i] == '"' {
			s.i++
			return text{b[start:i], escaped}
		}
		s.fail("a control character in a string")
		return text{}
	}
}

// short are the characters that make an escape with a backslash alone.
var short = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escape takes a backslash and what belongs to it.
func (s *scanner) escape() bool {
	s.i++
	if s.i >= len(s.b) {
		s.fail("")
		return false
	}
	switch c := s.b[s.i]; {
	case short[c]:
		s.i++
		return true
	case c == 'u':
		s.i++
		for range 4 {
			if s.i >= len(s.b) || unhex(s.b[s.i]) < 0 {
				s.fail(`\u is not followed by four hexadecimal digits`)
				return false
			}
			s.i++
		}
		return true
	}
	s.fail("an unknown escape in a string")
	return false
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > start
}

// number takes a number and returns its text.
func (s *scanner) number() []byte {
	start := s.i
	if s.b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i < len(s.b) && s.b[s.i] == '0':
		s.i++
	case !s.digits():
		s.fail("a value is expected")
		return nil
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			s.fail("a digit is expected after the point")
			return nil
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			s.fail("a digit is expected in the exponent")
			return nil
		}
	}
	return s.b[start:s.i]
}

func (s *scanner) word(w string) {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		s.fail("a value is expected")
		return
	}
	s.i += len(w)
}

// open takes the bracket that begins an object or array.
func (s *scanner) open() {
	if s.depth++; s.depth > maxDepth {
		s.fail("values are nested too deeply")
		return
	}
	s.i++
}

// object takes an object; each is called for every key and must take the value.
func (s *scanner) object(each func(key []byte)) {
	if s.peek() != '{' {
		s.fail("an object is expected")
		return
	}
	s.open()
	if s.peek() == '}' {
		s.i++
		s.depth--
		return
	}
	for s.err == nil {
		key := s.str().bytes()
		if s.peek() != ':' {
			s.fail("a colon is expected after a key")
			return
		}
		s.i++
		each(key)
		if s.more('}') {
			return
		}
	}
}

// array takes an array; each is called for every element and must take it.
func (s *scanner) array(each func()) {
	if s.peek() != '[' {
		s.fail("an array is expected")
		return
	}
	s.open()
	if s.peek() == ']' {
		s.i++
		s.depth--
		return
	}
	for s.err == nil {
		each()
		if s.more(']') {
			return
		}
	}
}

// more takes a comma, or the closing bracket and reports that it was the end.
func (s *scanner) more(closing byte) (end bool) {
	switch s.peek() {
	case ',':
		s.i++
		return false
	case closing:
		s.i++
		s.depth--
		return true
	}
	s.fail("a comma or the closing bracket is expected")
	return true
}

// skip takes any value. It does not recurse, so that hostile nesting costs a bit a level.
func (s *scanner) skip() {
	var object [maxDepth/64 + 1]uint64 // whether the level is an object
	base := s.depth
	for s.err == nil {
		switch c := s.peek(); c {
		case '{', '[':
			s.open()
			if s.err != nil {
				return
			}
			at := s.depth
			if c == '[' {
				object[at/64] &^= 1 << (at % 64)
				if s.peek() == ']' {
					break
				}
				continue
			}
			object[at/64] |= 1 << (at % 64)
			if s.peek() == '}' {
				break
			}
			s.key()
			continue
		case '"':
			s.str()
		case 't':
			s.word("true")
		case 'f':
			s.word("false")
		case 'n':
			s.word("null")
		default:
			if s.i >= len(s.b) {
				s.fail("")
				return
			}
			s.number()
		}
		if s.closed(base, &object) {
			return
		}
	}
}

// closed takes what follows a value inside skip: closing brackets, or a comma and the next key. It
// reports whether the value that skip was called for is complete.
func (s *scanner) closed(base int, object *[maxDepth/64 + 1]uint64) bool {
	for s.err == nil && s.depth > base {
		isObject := object[s.depth/64]>>(s.depth%64)&1 == 1
		switch c := s.peek(); {
		case c == ',':
			s.i++
			if isObject {
				s.key()
			}
			return false
		case c == '}' && isObject, c == ']' && !isObject:
			s.i++
			s.depth--
		default:
			s.fail("a comma or the closing bracket is expected")
		}
	}
	return true
}

func (s *scanner) key() {
	s.str()
	if s.peek() != ':' {
		s.fail("a colon is expected after a key")
		return
	}
	s.i++
}

// raw takes any value and returns its text.
func (s *scanner) raw() []byte {
	s.peek()
	start := s.i
	s.skip()
	if s.err != nil {
		return nil
	}
	return s.b[start:s.i]
}

// end checks that nothing but white space is left.
func (s *scanner) end() {
	if s.peek(); s.err == nil && s.i < len(s.b) {
		s.fail("text after the end of the value")
	}
}

func unhex(c byte) int {
	switch {
	case c-'0' <= 9:
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// appendUnescaped appends the value of a string that str took. Half a pair of surrogates becomes U+FFFD.
func appendUnescaped(dst, raw []byte) []byte {
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			break
		}
		dst = append(dst, raw[:n]...)
		c := raw[n+1]
		raw = raw[n+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := unhex4(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					pair = utf16.DecodeRune(r, unhex4(raw[2:]))
				}
				if r = pair; r != utf8.RuneError {
					raw = raw[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return append(dst, raw...)
}

func unhex4(b []byte) rune {
	return rune(unhex(b[0])<<12 | unhex(b[1])<<8 | unhex(b[2])<<4 | unhex(b[3]))
}

package trace

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scan reads one line of JSON strictly, without allocating for what traces hold most. It stops at the
// first error: then why says what is wrong, at where, and short that the line ended too soon.
type scan struct {
	b     []byte
	i     int
	why   string
	at    int
	short bool
}

// maxDepth bounds the nesting of values.
const maxDepth = 64

func (s *scan) reset(b []byte) { *s = scan{b: b} }

// fail records the first error and returns false.
func (s *scan) fail(why string) bool {
	if s.why == "" {
		s.why, s.at, s.short = why, s.i, s.i >= len(s.b)
		if s.short {
			s.why = "the line ends in the middle of a value"
		}
	}
	return false
}

func (s *scan) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// peek returns the next byte that is not space, 0 at the end.
func (s *scan) peek() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// open takes '{' or '['.
func (s *scan) open(c byte) bool {
	if s.peek() != c {
		if c == '{' {
			return s.fail("not a JSON object")
		}
		return s.fail("not a JSON list")
	}
	s.i++
	return true
}

// item moves to the next element of a list or object that ends in close; first is true before the
// first element. It returns false at the end and on errors.
func (s *scan) item(close byte, first *bool) bool {
	c := s.peek()
	if c == close {
		s.i++
		return false
	}
	if !*first {
		if c != ',' {
			return s.fail("not JSON: expected a comma or " + string(close))
		}
		s.i++
		if s.peek() == close {
			return s.fail("not JSON: a comma before " + string(close))
		}
	}
	*first = false
	return true
}

// key moves to the next member of an object and returns its name; false at the end and on errors.
func (s *scan) key(first *bool) ([]byte, bool) {
	if !s.item('}', first) {
		return nil, false
	}
	k, ok := s.text()
	if !ok {
		return nil, false
	}
	if s.peek() != ':' {
		return nil, s.fail("not JSON: expected a colon after a name")
	}
	s.i++
	return k, true
}

// end checks that nothing but space follows.
func (s *scan) end() bool {
	if s.why != "" {
		return false
	}
	if s.space(); s.i < len(s.b) {
		return s.fail("not JSON: something follows the object")
	}
	return true
}

// digits takes an unsigned integer. It gives false where there is none, or one above int64.
func (s *scan) digits() (int64, bool) {
	start, v := s.i, int64(0)
	for s.i < len(s.b) {
		c := s.b[s.i] - '0'
		if c > 9 {
			break
		}
		if v > (math.MaxInt64-int64(c))/10 {
			return 0, s.fail("the number is out of range")
		}
		v = v*10 + int64(c)
		s.i++
	}
	if s.i == start {
		return 0, s.fail("not a number")
	}
	if s.b[start] == '0' && s.i > start+1 {
		s.i = start
		return 0, s.fail("not JSON: a number with a leading zero")
	}
	return v, true
}

// integer takes an integer: no fraction, no exponent.
func (s *scan) integer() (int64, bool) {
	neg := s.peek() == '-'
	if neg {
		s.i++
	}
	v, ok := s.digits()
	if !ok {
		return 0, false
	}
	if s.i >= len(s.b) {
		return 0, s.fail("")
	}
	switch s.b[s.i] {
	case '.', 'e', 'E':
		return 0, s.fail("not an integer")
	}
	if neg {
		v = -v
	}
	return v, true
}

// decimal takes a number and returns it times 10^scale, rounded half away from zero.
func (s *scan) decimal(scale int) (int64, bool) {
	s.space()
	start := s.i
	if !s.number() {
		return 0, false
	}
	v, ok := scaled(s.b[start:s.i], scale)
	if !ok {
		s.i = start
		return 0, s.fail("the number is out of range")
	}
	return v, true
}

// scaled returns the valid JSON number b times 10^scale, rounded half away from zero. Exact for plain
// decimals of up to 18 digits; with an exponent or more digits the nearest float is taken.
func scaled(b []byte, scale int) (int64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	d := b
	if neg {
		d = b[1:]
	}
	v, frac, point := int64(0), 0, false
	for _, c := range d {
		switch {
		case c == '.':
			point = true
			continue
		case c < '0' || c > '9' || len(d) > 19:
			return scaledFloat(b, scale)
		}
		if point {
			frac++
		}
		v = v*10 + int64(c-'0')
	}
	for ; frac < scale; frac++ {
		if v > math.MaxInt64/10 {
			return 0, false
		}
		v *= 10
	}
	if frac > scale {
		p := int64(1)
		for ; frac > scale; frac-- {
			p *= 10
		}
		q, r := v/p, v%p
		if r >= p-r {
			q++
		}
		v = q
	}
	if neg {
		v = -v
	}
	return v, true
}

func scaledFloat(b []byte, scale int) (int64, bool) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return 0, false
	}
	f = math.Round(float64(f * math.Pow10(scale)))
	if math.IsNaN(f) || math.Abs(f) >= 1<<62 {
		return 0, false
	}
	return int64(f), true
}

// number takes a number as JSON defines it.
func (s *scan) number() bool {
	if s.peek() == '-' {
		s.i++
	}
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !s.some() {
		return s.fail("not a number")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.some() {
			return s.fail("not JSON: no digit after the point")
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.some() {
			return s.fail("not JSON: no digit in the exponent")
		}
	}
	if s.i < len(s.b) {
		if c := s.b[s.i]; c >= '0' && c <= '9' {
			return s.fail("not JSON: a number with a leading zero")
		}
	}
	return true
}

// some takes one or more digits.
func (s *scan) some() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > start
}

// text takes a string. The slice points into the line unless the string has escapes.
func (s *scan) text() ([]byte, bool) {
	if s.peek() != '"' {
		return nil, s.fail("not a string")
	}
	s.i++
	start := s.i
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[start : s.i-1], true
		case c == '\\':
			return s.escaped(start)
		case c < 0x20:
			return nil, s.fail("not JSON: a control character in a string")
		}
		s.i++
	}
	return nil, s.fail("")
}

// escaped goes on with a string that has escapes, at the first of them.
func (s *scan) escaped(start int) ([]byte, bool) {
	out := append([]byte(nil), s.b[start:s.i]...)
	for s.i < len(s.b) {
		c := s.b[s.i]
		switch {
		case c == '"':
			s.i++
			return out, true
		case c < 0x20:
			return nil, s.fail("not JSON: a control character in a string")
		case c != '\\':
			out = append(out, c)
			s.i++
			continue
		}
		s.i++
		if s.i >= len(s.b) {
			break
		}
		c = s.b[s.i]
		if c == 'u' {
			r, ok := s.unicode()
			if !ok {
				return nil, false
			}
			out = utf8.AppendRune(out, r)
			continue
		}
		plain, ok := unescape[c]
		if !ok {
			return nil, s.fail("not JSON: an unknown escape in a string")
		}
		out = append(out, plain)
		s.i++
	}
	return nil, s.fail("")
}

var unescape = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unicode takes uXXXX, and the second half of a surrogate pair where one follows.
func (s *scan) unicode() (rune, bool) {
	r, ok := s.hex4()
	if !ok {
		return 0, false
	}
	if utf16.IsSurrogate(r) {
		if s.i+1 < len(s.b) && s.b[s.i] == '\\' && s.b[s.i+1] == 'u' {
			back := s.i
			s.i++
			low, ok := s.hex4()
			if !ok {
				return 0, false
			}
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, true
			}
			s.i = back
		}
		return utf8.RuneError, true
	}
	return r, true
}

func (s *scan) hex4() (rune, bool) {
	s.i++
	var r rune
	for range 4 {
		if s.i >= len(s.b) {
			return 0, s.fail("")
		}
		c := s.b[s.i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, s.fail("not JSON: a bad \\u escape")
		}
		r = r<<4 | rune(c)
		s.i++
	}
	return r, true
}

// null takes null if it is next.
func (s *scan) null() bool { s.space(); return s.word("null") }

func (s *scan) word(w string) bool {
	if len(s.b)-s.i >= len(w) && string(s.b[s.i:s.i+len(w)]) == w {
		s.i += len(w)
		return true
	}
	return false
}

// skip takes any value.
func (s *scan) skip() bool { return s.value(0) }

func (s *scan) value(depth int) bool {
	if depth > maxDepth {
		return s.fail("values nested too deeply")
	}
	switch c := s.peek(); {
	case c == '"':
		_, ok := s.text()
		return ok
	case c == '{':
		s.i++
		for first := true; ; {
			if _, ok := s.key(&first); !ok {
				return s.why == ""
			}
			if !s.value(depth + 1) {
				return false
			}
		}
	case c == '[':
		s.i++
		for first := true; s.item(']', &first); {
			if !s.value(depth + 1) {
				return false
			}
		}
		return s.why == ""
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}
	for _, w := range [...]string{"null", "true", "false"} {
		if s.word(w) {
			return true
		}
		if rest := s.b[s.i:]; len(rest) > 0 && len(rest) < len(w) && string(rest) == w[:len(rest)] {
			s.i = len(s.b)
		}
	}
	return s.fail("not JSON")
}

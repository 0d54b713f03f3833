package tokenize

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// kind is the JSON type of a value.
type kind uint8

const (
	kindNone kind = iota // the zero value: nothing there
	kindNull
	kindFalse
	kindTrue
	kindNumber
	kindString
	kindArray
	kindObject
)

// value is a JSON value that knows where it stands in the text. Keys keep their order, because templates
// print objects in the order they came in; duplicate keys are kept too, and the last one counts, as in
// Python. The text of a value is never copied.
type value struct {
	kind kind
	esc  bool   // a string with escapes
	own  bool   // key is memory of its own, not part of the text
	nums int    // in an array of nothing but numbers: how many; they have no kids, there may be 100,000
	raw  []byte // the value's text
	key  []byte // in an object: the member's name, decoded
	kids []value
}

// maxDepth is how deep values may nest. Python's parser gives up near 1,000.
const maxDepth = 500

var (
	errLoneSurrogate = errors.New("a string holds half a surrogate pair")
	errTooDeep       = fmt.Errorf("nested deeper than %d", maxDepth)
)

// syntaxError says where text is not JSON.
type syntaxError struct {
	at   int
	what string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("not JSON at byte %d: %s", e.at, e.what) }

type jsonParser struct {
	text  []byte
	at    int
	stack []value // finished values whose container is still open
}

// parseJSON reads one value. The text must be valid UTF-8 and must not change while the value is in use.
func parseJSON(text []byte) (value, error) {
	p := jsonParser{text: text}
	v, err := p.value(0)
	if err != nil {
		return value{}, err
	}
	if p.space(); p.at < len(text) {
		return value{}, p.bad("something after the value")
	}
	return v, nil
}

func (p *jsonParser) bad(what string) error { return &syntaxError{p.at, what} }

func (p *jsonParser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	p.space()
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *jsonParser) value(depth int) (value, error) {
	c := p.peek()
	start := p.at
	switch {
	case depth > maxDepth:
		return value{}, errTooDeep
	case c == '"':
		esc, err := p.str()
		return value{kind: kindString, esc: esc, raw: p.text[start:p.at]}, err
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '-' || c >= '0' && c <= '9':
		err := p.number()
		return value{kind: kindNumber, raw: p.text[start:p.at]}, err
	}
	for _, w := range []struct {
		text string
		kind kind
	}{{"null", kindNull}, {"true", kindTrue}, {"false", kindFalse}} {
		if bytes.HasPrefix(p.text[p.at:], []byte(w.text)) {
			p.at += len(w.text)
			return value{kind: w.kind, raw: p.text[start:p.at]}, nil
		}
	}
	if c == 0 && p.at >= len(p.text) {
		return value{}, p.bad("the text ends where a value should be")
	}
	return value{}, p.bad("no value begins like this")
}

// close takes the values above base off the stack, as the children of the container that ends here.
func (p *jsonParser) close(base int) []value {
	kids := append([]value(nil), p.stack[base:]...)
	p.stack = p.stack[:base]
	return kids
}

func (p *jsonParser) object(depth int) (value, error) {
	start, base := p.at, len(p.stack)
	p.at++
	for first := true; ; first = false {
		c := p.peek()
		if c == '}' && first {
			break
		}
		if c != '"' {
			return value{}, p.bad("want a member's name in quotes")
		}
		at := p.at
		esc, err := p.str()
		if err != nil {
			return value{}, err
		}
		key, err := value{kind: kindString, esc: esc, raw: p.text[at:p.at]}.str()
		if err != nil {
			return value{}, err
		}
		if p.peek() != ':' {
			return value{}, p.bad("want a colon after a member's name")
		}
		p.at++
		v, err := p.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		v.key, v.own = key, esc
		p.stack = append(p.stack, v)
		if c := p.peek(); c == '}' {
			break
		} else if c != ',' {
			return value{}, p.bad("want a comma or the end of the object")
		}
		p.at++
	}
	p.at++
	return value{kind: kindObject, raw: p.text[start:p.at], kids: p.close(base)}, nil
}

func (p *jsonParser) array(depth int) (value, error) {
	start, base := p.at, len(p.stack)
	p.at++
	if c := p.peek(); c == '-' || c >= '0' && c <= '9' {
		n, err := p.numbers()
		if err != nil {
			return value{}, err
		}
		if n > 0 {
			return value{kind: kindArray, nums: n, raw: p.text[start:p.at]}, nil
		}
		p.at = start + 1 // there is more than numbers in it
	}
	for first := true; ; first = false {
		if p.peek() == ']' && first {
			break
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		p.stack = append(p.stack, v)
		if c := p.peek(); c == ']' {
			break
		} else if c != ',' {
			return value{}, p.bad("want a comma or the end of the list")
		}
		p.at++
	}
	p.at++
	return value{kind: kindArray, raw: p.text[start:p.at], kids: p.close(base)}, nil
}

// numbers reads to the end of a list as long as there are only numbers, and returns how many; 0 if there
// is something else.
func (p *jsonParser) numbers() (int, error) {
	for n := 1; ; n++ {
		if c := p.peek(); c != '-' && (c < '0' || c > '9') {
			return 0, nil
		}
		if err := p.number(); err != nil {
			return 0, err
		}
		switch p.peek() {
		case ']':
			p.at++
			return n, nil
		case ',':
			p.at++
		default:
			return 0, p.bad("want a comma or the end of the list")
		}
	}
}

func (p *jsonParser) digits() bool {
	start := p.at
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		p.at++
	}
	return p.at > start
}

func (p *jsonParser) number() error {
	if p.text[p.at] == '-' {
		p.at++
	}
	zero := p.at < len(p.text) && p.text[p.at] == '0'
	start := p.at
	if !p.digits() || zero && p.at > start+1 {
		return p.bad("not a number")
	}
	if p.at < len(p.text) && p.text[p.at] == '.' {
		p.at++
		if !p.digits() {
			return p.bad("no digit after the point")
		}
	}
	if p.at < len(p.text) && p.text[p.at]|0x20 == 'e' {
		p.at++
		if p.at < len(p.text) && (p.text[p.at] == '+' || p.text[p.at] == '-') {
			p.at++
		}
		if !p.digits() {
			return p.bad("no digit in the exponent")
		}
	}
	return nil
}

// str passes over a string, whose opening quote is at p.at.
func (p *jsonParser) str() (esc bool, err error) {
	for p.at++; ; {
		p.at += plainRun(p.text[p.at:])
		if p.at >= len(p.text) {
			return esc, p.bad("a string does not end")
		}
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			return esc, nil
		case c != '\\':
			return esc, p.bad("a control character in a string")
		}
		esc = true
		if err := p.escape(); err != nil {
			return esc, err
		}
	}
}

func (p *jsonParser) escape() error {
	p.at++
	if p.at >= len(p.text) {
		return p.bad("a string does not end")
	}
	switch p.text[p.at] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		p.at++
		return nil
	case 'u':
		if _, ok := hex4(p.text[p.at+1:]); !ok {
			return p.bad("want four hex digits after \\u")
		}
		p.at += 5
		return nil
	}
	return p.bad("unknown escape")
}

// plainRun counts the bytes before the first quote, backslash or control character, eight at a time:
// strings are nearly all of a body.
func plainRun(s []byte) int {
	const low, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for len(s)-n >= 8 {
		w := binary.LittleEndian.Uint64(s[n:])
		quote, slash := w^(low*'"'), w^(low*'\\')
		// The lowest marked byte is right: borrows only reach the bytes above a hit.
		hit := ((w - low*0x20) &^ w) | ((quote - low) &^ quote) | ((slash - low) &^ slash)
		if hit &= high; hit != 0 {
			return n + bits.TrailingZeros64(hit)/8
		}
		n += 8
	}
	for n < len(s) && s[n] >= 0x20 && s[n] != '"' && s[n] != '\\' {
		n++
	}
	return n
}

func hex4(s []byte) (r rune, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	for _, c := range s[:4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// move makes a value stand in a copy of the text that it was read from. Where a slice begins in a text is
// told by their capacities, which end at the same byte.
func (v *value) move(from, to []byte) {
	in := func(s []byte) []byte {
		at := cap(from) - cap(s)
		return to[at : at+len(s)]
	}
	v.raw = in(v.raw)
	if v.key != nil && !v.own {
		v.key = in(v.key)
	}
	for i := range v.kids {
		v.kids[i].move(from, to)
	}
}

// get returns an object's member; its kind is kindNone where there is none.
func (v *value) get(key string) *value {
	for i := len(v.kids) - 1; i >= 0 && v.kind == kindObject; i-- {
		if string(v.kids[i].key) == key {
			return &v.kids[i]
		}
	}
	return &value{}
}

// has says whether the value is there and not null.
func (v *value) has() bool { return v.kind > kindNull }

// is says whether the value is this string.
func (v *value) is(s string) bool {
	if v.kind != kindString {
		return false
	}
	if !v.esc {
		return string(v.raw[1:len(v.raw)-1]) == s
	}
	t, err := v.str()
	return err == nil && string(t) == s
}

// str returns the text of a string. It is part of the input if there was nothing to decode.
func (v value) str() ([]byte, error) {
	if v.kind != kindString {
		return nil, errors.New("not a string")
	}
	s := v.raw[1 : len(v.raw)-1]
	if !v.esc {
		return s, nil
	}
	return v.appendStr(make([]byte, 0, len(s)))
}

// appendStr appends the text of a string.
func (v *value) appendStr(dst []byte) ([]byte, error) {
	s := v.raw[1 : len(v.raw)-1]
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...), nil
		}
		dst = append(dst, s[:i]...)
		c := s[i+1]
		s = s[i+2:]
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
			r, _ := hex4(s)
			s = s[4:]
			if utf16.IsSurrogate(r) {
				if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
					return dst, errLoneSurrogate
				}
				low, _ := hex4(s[2:])
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return dst, errLoneSurrogate
				}
				s = s[6:]
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
}

// appendQuoted appends text as a JSON string.
func appendQuoted(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for {
		n := plainRun(text)
		dst = append(dst, text[:n]...)
		if n == len(text) {
			return append(dst, '"')
		}
		switch c := text[n]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		text = text[n+1:]
	}
}

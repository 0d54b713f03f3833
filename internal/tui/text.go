package tui

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// maxText is how many bytes of a string from outside are looked at: names are short, and no name may cost more
// than a line.
const maxText = 4096

// clean makes a string from outside fit to be drawn: every name and text passes it, once. It takes out control
// codes and sequences, marks that turn the direction of writing, and runes without width (a combining mark, a
// joiner), whose width terminals disagree about; what is no UTF-8 becomes U+FFFD. White space becomes one space.
// With ascii, what is not ASCII becomes '?'.
func clean(s string, ascii bool) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	plain := true
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for _, r := range ansi.Strip(strings.ToValidUTF8(s, "\ufffd")) {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			b.WriteByte(' ')
		case r < 0x20 || r >= 0x7f && r < 0xa0:
		case r < 0x7f:
			b.WriteRune(r)
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Mc, unicode.Cf, unicode.Cs, unicode.Zl, unicode.Zp) || r >= 0x1f3fb && r <= 0x1f3ff:
		case ascii:
			b.WriteByte('?')
		case unicode.Is(unicode.Zs, r):
			b.WriteByte(' ')
		default:
			if w := ansi.StringWidth(string(r)); w == 1 || w == 2 {
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}

// width is how many cells clean text takes.
func width(s string) int {
	n := 0
	for _, r := range s {
		if r >= utf8.RuneSelf && !narrow(r) {
			return ansi.StringWidth(s)
		}
		n++
	}
	return n
}

// narrow says of the runes that most of the screen is drawn with that they take one cell.
func narrow(r rune) bool {
	return r >= 0x2500 && r <= 0x25a1 || r == '·' || r == '–' || r == '…' || r == '‖' || r >= 0x2190 && r <= 0x2193
}

// cut shortens clean text to w cells, saying so by its last one.
func (t *theme) cut(s string, w int) string {
	if w <= 0 {
		return ""
	}
	if width(s) <= w {
		return s
	}
	return ansi.Truncate(s, w, t.g.more)
}

// left is s in w cells, from the left.
func (t *theme) left(s string, w int) string {
	s = t.cut(s, w)
	return s + spaces(w-width(s))
}

// right is s in w cells, at the right. A number too long shows as marks, never as another number.
func (t *theme) right(s string, w int) string {
	n := width(s)
	if n > w {
		return strings.Repeat("#", max(0, w))
	}
	return spaces(w-n) + s
}

const blanks = "                                                                                                    "

func spaces(n int) string {
	switch {
	case n <= 0:
		return ""
	case n <= len(blanks):
		return blanks[:n]
	}
	return strings.Repeat(" ", n)
}

// count is a number in at most 5 cells: 9999, 12.3k, 1.24M.
func count(n int64) string {
	if n < 0 {
		if n == math.MinInt64 {
			n++
		}
		if -n < 1000 {
			return strconv.FormatInt(n, 10)
		}
		return "-" + strings.TrimPrefix(scaled(float64(-n), 2), " ")
	}
	if n < 10000 {
		return strconv.FormatInt(n, 10)
	}
	return scaled(float64(n), 3)
}

// scaled is v with digits digits and the letter of its thousands.
func scaled(v float64, digits int) string {
	const letters = "kMGTPE"
	i := -1
	for v >= 999.5 && i < len(letters)-1 {
		v /= 1000
		i++
	}
	prec := max(0, digits-1)
	for limit := 9.995; prec > 0 && v >= limit; limit *= 10 {
		prec--
	}
	s := strconv.FormatFloat(v, 'f', prec, 64)
	if i < 0 {
		return s
	}
	return s + letters[i:i+1]
}

// unsignedCount is count for counters.
func unsignedCount(n uint64) string {
	return count(int64(min(n, math.MaxInt64)))
}

// rate is a number a second in at most 5 cells.
func rate(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "?"
	case v < 0:
		return "<0"
	case v == 0:
		return "0"
	case v < 99.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v < 9999.5:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return scaled(v, 3)
}

// share is a part of one in per cent, in at most 4 cells, or the mark of the unknown.
func (t *theme) share(p *float64) string {
	if p == nil || math.IsNaN(*p) {
		return t.g.unknown
	}
	v := *p * 100
	switch {
	case v > 999:
		return ">999"
	case v < -99:
		return "<-99"
	case v > 0 && v < 0.5:
		return "<1%"
	case v > 99.5 && v < 100:
		return "99%"
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + "%"
}

// millis is a time in milliseconds with three digits, or the mark of the unknown.
func (t *theme) millis(p *float64) string {
	if p == nil || math.IsNaN(*p) || math.IsInf(*p, 0) {
		return t.g.unknown
	}
	switch v := *p; {
	case v < 0:
		return "<0"
	case v < 9.995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 99.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
}

// age is a length of time in its coarsest unit, in at most 4 cells, so that it changes seldom.
func age(ms int64) string {
	s := ms / 1000
	switch {
	case s < 2:
		return "now"
	case s < 60:
		return strconv.FormatInt(s, 10) + " s"
	case s < 3600:
		return strconv.FormatInt(s/60, 10) + " m"
	case s < 48*3600:
		return strconv.FormatInt(s/3600, 10) + " h"
	}
	if d := s / 86400; d < 100 {
		return strconv.FormatInt(d, 10) + " d"
	}
	return ">99d"
}

// lasting is an age of what goes on.
func lasting(ms int64) string { return age(max(ms, 2000)) }

// ago is an age in words.
func ago(ms int64) string {
	if ms < 2000 {
		return "just now"
	}
	return age(ms) + " ago"
}

// clock is a length of time as mm:ss or h:mm:ss.
func clock(ms int64) string {
	s := max(0, ms) / 1000
	two := func(n int64) string { return string([]byte{byte('0' + n/10), byte('0' + n%10)}) }
	if s >= 3600 {
		return strconv.FormatInt(s/3600, 10) + ":" + two(s/60%60) + ":" + two(s%60)
	}
	return two(s/60) + ":" + two(s%60)
}

// name is a worker's name in w cells. Names of many workers begin alike and differ at the end: a scheme is left
// out, and what is too long loses its beginning.
func (t *theme) name(s string, w int) string {
	s = t.text(s)
	for _, scheme := range []string{"http://", "https://"} {
		s = strings.TrimPrefix(s, scheme)
	}
	if n := width(s); n > w && w > 0 {
		s = ansi.TruncateLeft(s, n-w+1, t.g.more)
		// A wide rune cut in half leaves a cell over or one short.
		s = t.cut(s, w)
	}
	return t.left(s, w)
}

// hash is a hash cut to what one can tell apart at a glance.
func (t *theme) hash(s string) string {
	s = t.text(s)
	return t.cut(strings.TrimPrefix(s, "0x"), 8)
}

// text is clean with the theme's set of characters.
func (t *theme) text(s string) string { return clean(s, t.ascii) }

// spark draws counts as a line of w cells, the newest at the right, each as high as its part of top (or of the
// highest shown, if top is 0). Where counts were not told the cells stay empty.
func (t *theme) spark(h []uint32, w int, top uint32) string {
	if w <= 0 {
		return ""
	}
	if len(h) > w {
		h = h[len(h)-w:]
	}
	for _, v := range h {
		top = max(top, v)
	}
	var b strings.Builder
	b.WriteString(spaces(w - len(h)))
	n := len(t.g.spark) - 1
	for _, v := range h {
		i := 0
		if v > 0 {
			i = 1 + int(uint64(v)*uint64(n-1)/uint64(top))
			i = min(i, n)
		}
		b.WriteString(t.g.spark[i])
	}
	return b.String()
}

// bar draws a part of one as w cells.
func (t *theme) bar(part float64, w int) (full, rest string) {
	if math.IsNaN(part) {
		part = 0
	}
	n := int(math.Round(min(1, max(0, part)) * float64(w)))
	if part > 0 && n == 0 && w > 0 {
		n = 1
	}
	return strings.Repeat(t.g.barFull, n), strings.Repeat(t.g.barRest, w-n)
}

package tokenize

import (
	"bytes"
	"sort"
)

// minPiece is the least number of bytes of a piece that is cut off: shorter ones cost more to look up
// than to encode. Cuts are chosen from the left, so equal beginnings are cut alike.
const minPiece = 64

// splitter finds where a text may be cut so that its pieces, encoded alone without special tokens, give
// the tokens of the whole: right before an added token that the tokenizer recognises there.
//
// It repeats how a tokenizer finds added tokens: those that are not normalized, leftmost and longest,
// in the text as it is; then, in what is left, the normalized ones, which is the same text only where
// there is no normalizer. A cut before a token found that way is exact, because everything a tokenizer
// does afterwards stays between added tokens, if the token
//   - is special, and not normalized or there is no normalizer;
//   - does not take white space before it into itself, nor looks at its neighbours (lstrip, single_word),
//     and no neighbour that looks at it sees a letter (single_word of others);
//   - does not begin with what another added token ends with.
type splitter struct {
	raw, normalized matcher
}

// newSplitter makes the splitter of a tokenizer. Where nothing may be cut it cuts nowhere.
func newSplitter(added []AddedToken, normalizerEmpty bool) *splitter {
	s := &splitter{}
	single := false
	for i := range added {
		single = single || added[i].SingleWord
	}
	for i := range added {
		a := &added[i]
		if a.Content == "" {
			continue
		}
		cut := a.Special && !a.LStrip && !a.SingleWord && (!a.Normalized || normalizerEmpty) &&
			!(single && wordByte(a.Content[0])) && !overlapped(a.Content, added)
		if a.Normalized {
			s.normalized.add(a.Content, cut)
		} else {
			s.raw.add(a.Content, cut)
		}
	}
	if !normalizerEmpty {
		s.normalized = matcher{}
	}
	return s
}

func wordByte(c byte) bool {
	return c >= 0x80 || c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

// overlapped says whether another added token ends with a beginning of this one.
func overlapped(content string, added []AddedToken) bool {
	for i := range added {
		other := added[i].Content
		for n := 1; n < len(content) && n < len(other); n++ {
			if other[len(other)-n:] == content[:n] {
				return true
			}
		}
	}
	return false
}

// cuts appends the offsets at which text may be cut, ascending, none of them 0 or its end.
func (s *splitter) cuts(dst []int, text []byte) []int {
	last := 0
	at := func(pos int) {
		if pos-last >= minPiece {
			dst = append(dst, pos)
			last = pos
		}
	}
	if !s.normalized.any {
		s.raw.find(text, 0, func(start, _ int, cut bool) {
			if cut {
				at(start)
			}
		})
		return dst
	}
	from := 0
	gap := func(to int) {
		s.normalized.find(text[from:to], from, func(start, _ int, cut bool) {
			if cut {
				at(start)
			}
		})
	}
	s.raw.find(text, 0, func(start, end int, cut bool) {
		gap(start)
		from = end
		if cut {
			at(start)
		}
	})
	gap(len(text))
	return dst
}

// matcher finds words in text, leftmost and longest first, without overlaps.
type matcher struct {
	nodes []trieNode // [0] is the root
	any   bool       // one of the words may be cut before
	first [256]bool
	only  int // the one byte all words begin with; -1: several
}

type trieNode struct {
	bytes string // of the edges, sorted
	next  []int32
	word  bool
	cut   bool
}

func (m *matcher) add(word string, cut bool) {
	if len(m.nodes) == 0 {
		m.nodes = append(m.nodes, trieNode{})
		m.only = int(word[0])
	}
	if int(word[0]) != m.only {
		m.only = -1
	}
	m.first[word[0]] = true
	m.any = m.any || cut
	n := int32(0)
	for i := range len(word) {
		c := word[i]
		node := &m.nodes[n]
		k := sort.Search(len(node.bytes), func(j int) bool { return node.bytes[j] >= c })
		if k == len(node.bytes) || node.bytes[k] != c {
			node.bytes = node.bytes[:k] + string([]byte{c}) + node.bytes[k:]
			node.next = append(node.next, 0)
			copy(node.next[k+1:], node.next[k:])
			node.next[k] = int32(len(m.nodes))
			m.nodes = append(m.nodes, trieNode{})
			node = &m.nodes[n]
		}
		n = node.next[k]
	}
	m.nodes[n].word, m.nodes[n].cut = true, cut
}

// find reports the words in text; base is added to their offsets.
func (m *matcher) find(text []byte, base int, found func(start, end int, cut bool)) {
	if len(m.nodes) == 0 {
		return
	}
	for i := 0; i < len(text); {
		if m.only >= 0 {
			k := bytes.IndexByte(text[i:], byte(m.only))
			if k < 0 {
				return
			}
			i += k
		} else if !m.first[text[i]] {
			i++
			continue
		}
		end, cut := m.longest(text[i:])
		if end == 0 {
			i++
			continue
		}
		found(base+i, base+i+end, cut)
		i += end
	}
}

// longest returns the length of the longest word text begins with; 0 if there is none.
func (m *matcher) longest(text []byte) (end int, cut bool) {
	n := int32(0)
	for i, c := range text {
		node := &m.nodes[n]
		k := -1
		for j := range len(node.bytes) {
			if node.bytes[j] == c {
				k = j
				break
			}
		}
		if k < 0 {
			break
		}
		n = node.next[k]
		if m.nodes[n].word {
			end, cut = i+1, m.nodes[n].cut
		}
	}
	return end, cut
}

package openai

import (
	"bytes"
	"unicode"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// imageKey returns the key of an image reference, an http URL or a whole data: URI: XXH3-64 of the UTF-8
// text without surrounding white space. It reports false for references that are blank.
func imageKey(ref text) (key uint64, ok bool) {
	if !ref.escaped {
		v := bytes.TrimSpace(ref.raw)
		return xxh3.Hash(v), len(v) > 0
	}
	return escapedKey(ref.raw)
}

// escapedChunk is how much of a string with escapes is unescaped at once. Data URIs are megabytes, and
// printers that write / as \/ would otherwise cost a second copy of each.
const escapedChunk = 4096

// escapedKey is imageKey for a string with escapes, a piece at a time. White space at the end of a piece
// waits for what follows: it counts only inside.
func escapedKey(raw []byte) (key uint64, ok bool) {
	var (
		h       xxh3.Hasher
		pending []byte
		buf     = make([]byte, 0, escapedChunk)
	)
	for len(raw) > 0 {
		n := cutEscaped(raw, escapedChunk)
		buf = appendUnescaped(buf[:0], raw[:n])
		raw = raw[n:]
		piece := buf
		if !ok {
			piece = bytes.TrimLeftFunc(piece, unicode.IsSpace)
		}
		solid := bytes.TrimRightFunc(piece, unicode.IsSpace)
		if len(solid) > 0 {
			ok = true
			h.Write(pending) // a Hasher's Write cannot fail
			h.Write(solid)
			pending = pending[:0]
		}
		if ok {
			pending = append(pending, piece[len(solid):]...)
		}
	}
	return h.Sum64(), ok
}

// cutEscaped returns a length near limit at which raw can be cut without dividing an escape, a pair of
// surrogates or a character.
func cutEscaped(raw []byte, limit int) int {
	i := 0
	for i < len(raw) && i < limit {
		switch {
		case raw[i] == '\\' && raw[i+1] == 'u':
			i += 6
			if i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' && raw[i-4]|0x20 == 'd' {
				i += 6 // the other half, if there were two
			}
		case raw[i] == '\\':
			i += 2
		case raw[i] < utf8.RuneSelf:
			i++
		default:
			_, n := utf8.DecodeRune(raw[i:])
			i += n
		}
	}
	return i
}

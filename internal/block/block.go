// Package block turns token ids into chained block hashes.
//
// chain[i] = XXH3-64( LE64(chain[i-1]) || LE32(tok) ... ), unseeded, chain[-1] = the namespace root
// (Root, zero, where there is neither adapter nor salt). One hash therefore identifies the block and
// everything before it. Only complete blocks are hashed; a partial tail is dropped.
package block

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Hash identifies a block together with all blocks before it.
type Hash uint64

// Token is a token id. Ids above 2^32-1 are rejected at the edges.
type Token = uint32

// Root is the parent of a first block outside any namespace.
const Root Hash = 0

// DefaultSize is the number of tokens in a block unless a worker says otherwise.
const DefaultSize = 16

// Blocks are laid out in a buffer on the stack, which costs the time to clear it: a small one up to
// shortTokens (240 bytes, the longest input xxh3 hashes without its vector loop), a larger one up to
// longTokens, and beyond that the block is streamed.
const (
	shortTokens = 58
	longTokens  = 254
)

// Next hashes one block of any length after parent. It does not allocate.
func Next(parent Hash, tokens []Token) Hash {
	switch n := len(tokens); {
	case n > longTokens:
		return nextStream(parent, tokens)
	case n > shortTokens:
		return nextLong(parent, tokens)
	case n == DefaultSize:
		var buf [8 + 4*DefaultSize]byte
		return next(buf[:], parent, tokens)
	}
	var buf [8 + 4*shortTokens]byte
	return next(buf[:], parent, tokens)
}

func nextLong(parent Hash, tokens []Token) Hash {
	var buf [8 + 4*longTokens]byte
	return next(buf[:], parent, tokens)
}

// next lays the block out in buf, which it must fit, and hashes it.
func next(buf []byte, parent Hash, tokens []Token) Hash {
	buf = buf[:8+4*len(tokens)]
	binary.LittleEndian.PutUint64(buf, uint64(parent))
	putTokens(buf[8:], tokens)
	return Hash(xxh3.Hash(buf))
}

// nextStream streams a block through the hasher in pieces, so that no size of block allocates.
func nextStream(parent Hash, tokens []Token) Hash {
	var h xxh3.Hasher
	h.Reset()
	var buf [1024]byte
	binary.LittleEndian.PutUint64(buf[:8], uint64(parent))
	at := 8
	for len(tokens) > 0 {
		n := min(len(tokens), (len(buf)-at)/4)
		putTokens(buf[at:at+4*n], tokens[:n])
		h.Write(buf[:at+4*n]) //nolint:errcheck // a hasher never fails
		tokens, at = tokens[n:], 0
	}
	return Hash(h.Sum64())
}

// putTokens lays tokens out as 32-bit little-endian words, two at a time: half the stores of one at a
// time.
func putTokens(dst []byte, tokens []Token) {
	for len(tokens) >= 2 && len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, uint64(tokens[0])|uint64(tokens[1])<<32)
		dst, tokens = dst[8:], tokens[2:]
	}
	if len(tokens) > 0 {
		binary.LittleEndian.PutUint32(dst, tokens[0])
	}
}

// AppendChain appends to dst the hashes of the complete blocks of size tokens after parent. A partial
// tail is dropped; a size below 1 yields nothing. It allocates only to grow dst.
func AppendChain(dst []Hash, parent Hash, tokens []Token, size int) []Hash {
	if size < 1 {
		return dst
	}
	if size == DefaultSize && littleEndian {
		return appendDefault(dst, parent, tokens)
	}
	for ; len(tokens) >= size; tokens = tokens[size:] {
		parent = Next(parent, tokens[:size])
		dst = append(dst, parent)
	}
	return dst
}

// littleEndian tells whether tokens lie in memory as they are hashed.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// appendDefault is AppendChain for the usual size on little-endian machines: one buffer for the whole
// chain, into which the tokens of a block are copied as they lie. That takes a fifth less time than
// storing them two at a time.
func appendDefault(dst []Hash, parent Hash, tokens []Token) []Hash {
	n := len(tokens) / DefaultSize
	dst = slices.Grow(dst, n)
	out := dst[len(dst) : len(dst)+n]
	var buf [8 + 4*DefaultSize]byte
	for k := range out {
		t := (*[DefaultSize]Token)(tokens[k*DefaultSize:])
		binary.LittleEndian.PutUint64(buf[:], uint64(parent))
		*(*[4 * DefaultSize]byte)(buf[8:]) = *(*[4 * DefaultSize]byte)(unsafe.Pointer(t))
		parent = Hash(xxh3.Hash(buf[:]))
		out[k] = parent
	}
	return dst[:len(dst)+n]
}

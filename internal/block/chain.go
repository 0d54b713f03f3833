package block

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// Chain is the state of a chain that grows by pieces of any length: the hash of the last complete
// block and the tokens after it. However the same tokens are cut into pieces, the hashes are the same.
// It is owned by one goroutine; the zero value is not usable, see NewChain.
type Chain struct {
	size int
	last Hash
	rest []Token // len < size; cap = size
}

// NewChain starts a chain of blocks of size tokens after parent. Size must be at least 1.
func NewChain(parent Hash, size int) *Chain {
	if size < 1 {
		panic("block: chain of blocks without tokens")
	}
	return &Chain{size: size, last: parent, rest: make([]Token, 0, size)}
}

// Reset puts the chain after parent with rest as the tokens that follow it; rest is copied and may be
// of any length, its complete blocks are hashed.
func (c *Chain) Reset(parent Hash, rest []Token) {
	c.last = parent
	c.rest = c.rest[:0]
	for len(rest) >= c.size {
		c.last = Next(c.last, rest[:c.size])
		rest = rest[c.size:]
	}
	c.rest = append(c.rest, rest...)
}

// Append adds tokens and appends to dst the hashes of the blocks they complete. It allocates only to
// grow dst.
func (c *Chain) Append(dst []Hash, tokens []Token) []Hash {
	if len(c.rest) > 0 {
		n := min(len(tokens), c.size-len(c.rest))
		c.rest = append(c.rest, tokens[:n]...)
		if len(c.rest) < c.size {
			return dst
		}
		tokens = tokens[n:]
		c.last = Next(c.last, c.rest)
		c.rest = c.rest[:0]
		dst = append(dst, c.last)
	}
	before := len(dst)
	dst = AppendChain(dst, c.last, tokens, c.size)
	if len(dst) > before {
		c.last = dst[len(dst)-1]
	}
	c.rest = append(c.rest, tokens[(len(dst)-before)*c.size:]...)
	return dst
}

// Last is the hash of the last complete block, or the parent the chain started after.
func (c *Chain) Last() Hash { return c.last }

// Rest returns the tokens after the last complete block, fewer than a block. It is valid until the
// next call and must not be changed.
func (c *Chain) Rest() []Token { return slices.Clip(c.rest) }

// namespaceTag keeps the input of a namespace apart from that of any block.
const namespaceTag = "kvroute/namespace/1\x00"

// Namespace gives the root of the chains of one adapter and salt: XXH3-64 over a tag, the length of
// the adapter's name as 64 bits little-endian, the name, and the salt. Equal pairs give equal roots;
// the length in front keeps ("a", "bc") apart from ("ab", "c"). It is Root where both are empty, and
// Root only there.
func Namespace(adapter, salt string) Hash {
	if adapter == "" && salt == "" {
		return Root
	}
	var h xxh3.Hasher
	h.Reset()
	h.WriteString(namespaceTag) //nolint:errcheck // a hasher never fails
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(adapter)))
	h.Write(n[:])          //nolint:errcheck // a hasher never fails
	h.WriteString(adapter) //nolint:errcheck // a hasher never fails
	h.WriteString(salt)    //nolint:errcheck // a hasher never fails
	if sum := Hash(h.Sum64()); sum != Root {
		return sum
	}
	return Root + 1 // a namespace must not fall together with having none
}

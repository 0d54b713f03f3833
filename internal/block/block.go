// Package block turns token ids into chained block hashes.
//
// chain[i] = XXH3-64( LE64(chain[i-1]) || LE32(tok) ... ), unseeded, chain[-1] = the namespace root
// (Root, zero, where there is neither adapter nor salt). One hash therefore identifies the block and
// everything before it. Only complete blocks are hashed; a partial tail is dropped.
package block

// Hash identifies a block together with all blocks before it.
type Hash uint64

// Token is a token id. Ids above 2^32-1 are rejected at the edges.
type Token = uint32

// Root is the parent of a first block outside any namespace.
const Root Hash = 0

// DefaultSize is the number of tokens in a block unless a worker says otherwise.
const DefaultSize = 16

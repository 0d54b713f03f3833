package fakeengine

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/kvroute/kvroute/internal/block"
)

// digest is an engine's hash of a block and everything before it, as the engine keeps it. Engines with
// hashes of 64 bits use the first eight bytes.
type digest [32]byte

// space is what separates prompts of equal tokens: adapter and salt.
type space struct{ adapter, salt string }

// hasher is an engine's way of naming blocks.
type hasher interface {
	// next hashes block number i of a chain after parent, which is the result for i-1 or, for i = 0, zero.
	next(parent digest, i int, tokens []block.Token, sp space) digest
	// handle is what goes on the wire, as 64 bits.
	handle(d digest) uint64
	// extra is what events say was mixed into block i beside its tokens.
	extra(i int, sp space) []string
}

func newHasher(c *Config, w wire) hasher {
	switch c.Dialect {
	case SGLang:
		return sglangHash{salted: w.salted}
	case ATOM:
		return atomHash{}
	case TRTLLM:
		return trtHash{}
	}
	root := sha256.Sum256(appendCBORText(nil, c.HashSeed))
	return &vllmHash{root: root}
}

// vllmHash is vLLM's sha256_cbor: SHA-256 over canonical CBOR of [parent, [tokens], extra keys or
// null]; the parent of a first block is the hash of the seed text. On the wire: the last 8 bytes.
type vllmHash struct {
	root digest
	buf  []byte
}

func (h *vllmHash) next(parent digest, i int, tokens []block.Token, sp space) digest {
	if i == 0 {
		parent = h.root
	}
	b := append(h.buf[:0], 0x83)
	b = appendCBORHead(b, 2, uint64(len(parent)))
	b = append(b, parent[:]...)
	b = appendCBORHead(b, 4, uint64(len(tokens)))
	for _, t := range tokens {
		b = appendCBORHead(b, 0, uint64(t))
	}
	if extra := h.extra(i, sp); extra == nil {
		b = append(b, 0xf6)
	} else {
		b = appendCBORHead(b, 4, uint64(len(extra)))
		for _, e := range extra {
			b = appendCBORText(b, e)
		}
	}
	h.buf = b
	return sha256.Sum256(b)
}

func (*vllmHash) handle(d digest) uint64 { return binary.BigEndian.Uint64(d[24:]) }

// extra: the adapter in each block, the salt in the first.
func (*vllmHash) extra(i int, sp space) []string {
	var out []string
	if sp.adapter != "" {
		out = append(out, sp.adapter)
	}
	if sp.salt != "" && i == 0 {
		out = append(out, sp.salt)
	}
	return out
}

// appendCBORHead appends the shortest head of a major type with its argument.
func appendCBORHead(b []byte, major byte, n uint64) []byte {
	m := major << 5
	switch {
	case n < 24:
		return append(b, m|byte(n))
	case n < 1<<8:
		return append(b, m|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, m|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, m|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, m|27), n)
}

func appendCBORText(b []byte, s string) []byte {
	return append(appendCBORHead(b, 3, uint64(len(s))), s...)
}

// sglangHash is SGLang's: SHA-256 over the previous digest (nothing for a first page) and the tokens as
// 32 bits little-endian. Newer versions start a salted chain from a digest of the salt.
type sglangHash struct{ salted bool }

func (h sglangHash) next(parent digest, i int, tokens []block.Token, sp space) digest {
	s := sha256.New()
	switch {
	case i > 0:
		s.Write(parent[:])
	case h.salted && sp.salt != "":
		root := sha256.Sum256([]byte("sglang-cache-salt-v1\x00" + sp.salt))
		s.Write(root[:])
	}
	var b [4]byte
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(b[:], t)
		s.Write(b[:])
	}
	return digest(s.Sum(nil))
}

func (sglangHash) handle(d digest) uint64    { return binary.BigEndian.Uint64(d[:]) }
func (sglangHash) extra(int, space) []string { return nil }

// atomHash is ATOM's: XXH64 over the parent (8 bytes little-endian, left out for a root) and the tokens
// as 64 bits little-endian. How ATOM mixes in adapters and salts is not known; here they stand in front.
type atomHash struct{}

func (atomHash) next(parent digest, i int, tokens []block.Token, sp space) (d digest) {
	var h xxhash.Digest
	h.Reset()
	if i > 0 {
		h.Write(parent[:8]) //nolint:errcheck // a hasher never fails
	} else if sp != (space{}) {
		h.WriteString(sp.adapter + "\x00" + sp.salt) //nolint:errcheck // a hasher never fails
	}
	var b [8]byte
	for _, t := range tokens {
		binary.LittleEndian.PutUint64(b[:], uint64(t))
		h.Write(b[:]) //nolint:errcheck // a hasher never fails
	}
	binary.LittleEndian.PutUint64(d[:], h.Sum64())
	return d
}

func (atomHash) handle(d digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

func (atomHash) extra(i int, sp space) []string { return (*vllmHash)(nil).extra(i, sp) }

// trtHash stands for TensorRT-LLM's block keys, whose hash is internal to that engine: the first eight
// bytes of a SHA-256 over parent, tokens and names. They are opaque to everybody else.
type trtHash struct{}

func (trtHash) next(parent digest, i int, tokens []block.Token, sp space) digest {
	if i == 0 {
		parent = digest{}
	}
	s := sha256.New()
	s.Write(parent[:])
	var b [4]byte
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(b[:], t)
		s.Write(b[:])
	}
	s.Write([]byte(sp.adapter + "\x00" + sp.salt))
	return digest(s.Sum(nil))
}

func (trtHash) handle(d digest) uint64         { return binary.BigEndian.Uint64(d[:]) }
func (trtHash) extra(i int, sp space) []string { return (*vllmHash)(nil).extra(i, sp) }

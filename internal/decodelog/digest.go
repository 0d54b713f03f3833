package decodelog

import (
	"encoding/hex"
	"io"

	"github.com/zeebo/xxh3"
)

// Counter counts and hashes what is read through it.
type Counter struct {
	N int64 // bytes
	r io.Reader
	h *xxh3.Hasher
}

// NewCounter returns a Counter of r.
func NewCounter(r io.Reader) *Counter { return &Counter{r: r, h: xxh3.New()} }

// Read reads from the source.
func (c *Counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	_, _ = c.h.Write(p[:n]) // a hash takes everything
	c.N += int64(n)
	return n, err
}

func (c *Counter) sum() []byte {
	b := c.h.Sum128().Bytes()
	return b[:]
}

// Digest returns the XXH3-128 of what was read through a Counter, in hex; of several that of their digests in order.
func Digest(of ...*Counter) string {
	if len(of) == 1 {
		return hex.EncodeToString(of[0].sum())
	}
	h := xxh3.New()
	for _, c := range of {
		_, _ = h.Write(c.sum())
	}
	b := h.Sum128().Bytes()
	return hex.EncodeToString(b[:])
}

package report

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// maxLetter is the highest worker index whose letter 'A'+index fits a byte.
const maxLetter = 255 - 'A'

// Picks digests a sequence of picks: XXH3-64 of 'A'+index per request, one byte each. With more than
// 191 workers that byte would overflow; then each pick is 'A'+index in four bytes, little-endian.
// The zero value is not usable; start from NewPicks.
type Picks struct {
	h    *xxh3.Hasher
	wide bool
	buf  []byte
}

// NewPicks starts a digest for a fleet of that many workers.
func NewPicks(workers int) *Picks {
	return &Picks{h: xxh3.New(), wide: workers-1 > maxLetter, buf: make([]byte, 0, 1024)}
}

// Add appends the pick of the worker at index, from 0.
func (p *Picks) Add(index int) {
	if len(p.buf)+4 > cap(p.buf) {
		p.flush()
	}
	if p.wide {
		p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32('A'+index))
		return
	}
	p.buf = append(p.buf, byte('A'+index))
}

// Sum returns the digest so far as 16 hex digits. More picks may follow.
func (p *Picks) Sum() string {
	p.flush()
	return fmt.Sprintf("%016x", p.h.Sum64())
}

func (p *Picks) flush() {
	_, _ = p.h.Write(p.buf) // a hash takes everything
	p.buf = p.buf[:0]
}

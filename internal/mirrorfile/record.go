package mirrorfile

import (
	"encoding/binary"
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
)

// A record is
//
//	flags    u8
//	handle   u64, if flagHandle
//	parent   u64, unless flagFollows; the namespace if flagFirst
//	blocks   uvarint, if flagPage: their number, at least 2
//	hashes   u64 each
//	copies   uvarint for each tier, unless flagOnce
//
// Most are a flag, a handle and a hash: 17 bytes.
const (
	flagHandle  = 1 << iota // has a handle
	flagFirst               // has no block before it
	flagFollows             // its parent is the last block of the record before; of a first one: block.Root
	flagPage                // has several blocks
	flagOnce                // is once in GPU and nowhere else
	flagsAll    = 1<<iota - 1
)

// maxBlocks is the greatest number of blocks of a page, so that a record fits a frame many times over.
const maxBlocks = 1 << 12

// codec is what the form of a record depends on.
type codec struct {
	last block.Hash // of the record before
}

func (c *codec) append(dst []byte, r *index.Record) ([]byte, error) {
	if len(r.Hashes) == 0 || len(r.Hashes) > maxBlocks {
		return dst, fmt.Errorf("handle %x has %d blocks; must be from 1 to %d", r.Handle, len(r.Hashes), maxBlocks)
	}
	flags, parent := byte(0), c.last
	if r.First {
		flags, parent = flagFirst, block.Root
	}
	if r.HasHandle {
		flags |= flagHandle
	}
	if r.Parent == parent {
		flags |= flagFollows
	}
	if len(r.Hashes) > 1 {
		flags |= flagPage
	}
	if r.Copies == once {
		flags |= flagOnce
	}
	dst = append(dst, flags)
	if r.HasHandle {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Handle))
	}
	if flags&flagFollows == 0 {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Parent))
	}
	if flags&flagPage != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(r.Hashes)))
	}
	for _, h := range r.Hashes {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(h))
		c.last = h
	}
	if flags&flagOnce == 0 {
		for _, n := range r.Copies {
			dst = binary.AppendUvarint(dst, uint64(n))
		}
	}
	return dst, nil
}

var once = [index.NumTiers]uint32{index.GPU: 1}

// read takes a record off the front of src. It reports false if there is none.
func (c *codec) read(src []byte, r *index.Record) (rest []byte, ok bool) {
	if len(src) == 0 {
		return nil, false
	}
	d := decoder{src: src[1:], ok: true}
	flags := src[0]
	r.HasHandle, r.First, r.Copies = flags&flagHandle != 0, flags&flagFirst != 0, once
	r.Handle, r.Parent = 0, c.last
	if r.First {
		r.Parent = block.Root
	}
	if r.HasHandle {
		r.Handle = index.Handle(d.uint64())
	}
	if flags&flagFollows == 0 {
		r.Parent = block.Hash(d.uint64())
	}
	n := uint64(1)
	if flags&flagPage != 0 {
		n = d.uvarint()
		d.ok = d.ok && n > 1 && n <= maxBlocks
	}
	r.Hashes = r.Hashes[:0]
	for i := uint64(0); d.ok && i < n; i++ {
		c.last = block.Hash(d.uint64())
		r.Hashes = append(r.Hashes, c.last)
	}
	if flags&flagOnce == 0 {
		for t := range r.Copies {
			v := d.uvarint()
			r.Copies[t] = uint32(v)
			d.ok = d.ok && v>>32 == 0
		}
	}
	return d.src, d.ok && flags&^flagsAll == 0
}

// decoder reads numbers; after the first that is not there, ok is false and all are 0.
type decoder struct {
	src []byte
	ok  bool
}

func (d *decoder) uint64() uint64 {
	if !d.ok || len(d.src) < 8 {
		d.ok = false
		return 0
	}
	v := binary.LittleEndian.Uint64(d.src)
	d.src = d.src[8:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.src)
	if !d.ok || n <= 0 {
		d.ok = false
		return 0
	}
	d.src = d.src[n:]
	return v
}

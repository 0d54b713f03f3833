package mirrorfile

import (
	"bytes"
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// ReadForged reads a file with one frame after the description of a target, its checksum right whatever
// it holds.
func ReadForged(kind byte, payload []byte, f func(*Reader)) {
	out := binary.LittleEndian.AppendUint32([]byte(magic), Version)
	sum, hash := uint64(0), xxh3.New()
	add := func(kind byte, payload []byte) {
		head := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
		sum = chain(hash, sum, head, payload)
		out = binary.LittleEndian.AppendUint64(append(append(out, head...), payload...), sum)
	}
	add(kindTarget, []byte(`{"block_size":16}`))
	add(kind, payload)
	r, err := NewReader(bytes.NewReader(out))
	if err != nil {
		panic(err)
	}
	f(r)
}

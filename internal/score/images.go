package score

import (
	"strings"

	"github.com/zeebo/xxh3"
)

// imageCapacity is how many images are remembered per target (infera-router reference 4.2).
const imageCapacity = 256

// ImageKey returns the key of an image reference, an http URL or a whole data: URI: XXH3-64 of the
// UTF-8 text without surrounding white space. It reports false for references that are blank.
func ImageKey(ref string) (key uint64, ok bool) {
	ref = strings.TrimSpace(ref)
	if ref == "" {
		return 0, false
	}
	return xxh3.HashString(ref), true
}

// imageLRU remembers the images a target was sent last. A scan of 256 keys is 2 KiB of memory in
// sequence, and requests carry few images, so there is nothing to index. Oldest first.
type imageLRU struct {
	keys [imageCapacity]uint64
	n    int
}

func (l *imageLRU) find(key uint64) int {
	for i, k := range l.keys[:l.n] {
		if k == key {
			return i
		}
	}
	return -1
}

// touch makes key the most recent one; the oldest falls out of a full list.
func (l *imageLRU) touch(key uint64) {
	i := l.find(key)
	switch {
	case i >= 0:
	case l.n < imageCapacity:
		i = l.n
		l.n++
	default:
		i = 0
	}
	copy(l.keys[i:l.n-1], l.keys[i+1:l.n])
	l.keys[l.n-1] = key
}

// imageHits counts how many of the request's images target memory m holds. The same image twice in
// one request counts twice, as it costs twice.
func (m *memory) imageHits(images []uint64) int64 {
	if m.images == nil {
		return 0
	}
	var n int64
	for _, k := range images {
		if m.images.find(k) >= 0 {
			n++
		}
	}
	return n
}

func (m *memory) touchImages(images []uint64) {
	if len(images) == 0 {
		return
	}
	if m.images == nil {
		m.images = new(imageLRU)
	}
	for _, k := range images {
		m.images.touch(k)
	}
}

package score

import "math/bits"

// stream is a splitmix64 generator: one 64-bit state, the same numbers on every machine and in every
// release, which the standard library does not promise. Each purpose has its own stream of the seed.
type stream struct{ state uint64 }

// Purposes of streams. The values are arbitrary but must never change: decisions depend on them.
const (
	purposeRandom     = 0x72616e646f6d0001
	purposePowerOfTwo = 0x706f77326f660002
)

func newStream(seed, purpose uint64) stream {
	s := stream{state: seed ^ purpose}
	s.state = s.next() ^ seed // separates streams of neighbouring seeds
	return s
}

func (s *stream) next() uint64 {
	s.state += 0x9e3779b97f4a7c15
	z := s.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// intn returns a uniform number below n, n > 0: the high half of a product, rejecting the few values
// that would favour some results.
func (s *stream) intn(n int) int {
	bound := uint64(n)
	for {
		hi, lo := bits.Mul64(s.next(), bound)
		if lo >= bound || lo >= -bound%bound {
			return int(hi)
		}
	}
}

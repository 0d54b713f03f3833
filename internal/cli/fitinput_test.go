package cli

import (
	"testing"

	"github.com/kvroute/kvroute/internal/decodelog"
)

func TestBesidesHandsOverAllInOrder(t *testing.T) {
	for _, n := range []int64{0, 1, 511, 512, 513, 10_000} {
		var got []int64
		hand, done := besides(func(s *decodelog.Sample) { got = append(got, s.At) })
		for i := range n {
			if err := hand(&decodelog.Sample{At: i}); err != nil {
				t.Fatal(err)
			}
		}
		done()
		if int64(len(got)) != n {
			t.Errorf("%d samples handed over, want %d", len(got), n)
		}
		for i, at := range got {
			if at != int64(i) {
				t.Fatalf("sample %d of %d is number %d", i, n, at)
			}
		}
	}
}

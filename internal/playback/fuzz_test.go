package playback

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/testtraces"
)

// someLines are the first n lines of the bundled recording.
func someLines(t testing.TB, n int) [][]byte {
	t.Helper()
	file, err := os.Open(testtraces.Bundled(bundled))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	return lines[:min(n, len(lines))]
}

// FuzzTrack plays whatever a file may hold, and jumps in it: no panic, no play without end, and every error has its
// place.
func FuzzTrack(f *testing.F) {
	lines := someLines(f, 120)
	text := bytes.Join(lines, nil)
	f.Add(text, int64(0))
	f.Add(text[:len(text)-20], int64(1))
	f.Add(bytes.Join(append(append([][]byte{}, lines[:40]...), lines[60:]...), nil), int64(1<<62))
	f.Add(bytes.ReplaceAll(text, []byte(`"ns":1`), []byte(`"ns":9`)), int64(-1))
	f.Fuzz(func(t *testing.T, data []byte, ms int64) {
		check := func(err error) {
			var e *record.Error
			if !errors.Is(err, io.EOF) && (!errors.As(err, &e) || !strings.HasPrefix(err.Error(), "f:")) {
				t.Fatalf("got %#v, want where it is", err)
			}
		}
		track, err := Open("f", bytes.NewReader(data))
		if err != nil {
			check(err)
			return
		}
		from, to := track.Span()
		if from > to || from <= 0 {
			t.Fatalf("it goes from %d to %d", from, to)
		}
		last := int64(0)
		for n := 0; ; n++ {
			s, err := track.Next()
			if err != nil {
				check(err)
				break
			}
			if s.AtMS < last || s.AtMS > to {
				t.Fatalf("a snapshot of %d after one of %d, to %d", s.AtMS, last, to)
			}
			if last = s.AtMS; n > 400*(bytes.Count(data, []byte("\n"))+2) { // each line may be a lifetime behind the one before
				t.Fatalf("%d snapshots of %d lines", n, bytes.Count(data, []byte("\n")))
			}
		}
		for _, at := range []int64{ms, from, to} {
			if err := track.SeekTo(at); err != nil {
				check(err)
				continue
			}
			if _, err := track.Next(); err != nil {
				check(err)
			}
		}
	})
}

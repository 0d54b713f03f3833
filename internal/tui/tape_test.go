package tui

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// taped is a tape of n snapshots, a second apart: the first and those of every minute whole.
func taped(t testing.TB, n int) []byte {
	t.Helper()
	var file bytes.Buffer
	tape, err := NewTape(&file, "http://router", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	s := told("a", 1, 1000)
	for i := 1; i <= n; i++ {
		line := raw(t, s)
		if i > 1 {
			d := snapshot.Delta{Run: "a", From: s.Seq, Seq: s.Seq + 1, AtMS: s.AtMS + 1000}
			if s, err = s.Apply(&d); err != nil {
				t.Fatal(err)
			}
			line = raw(t, d)
		}
		if err := tape.Write(s, line); err != nil {
			t.Fatal(err)
		}
	}
	return file.Bytes()
}

// played plays a tape to its end and returns the numbers of its snapshots and what the end is.
func played(track Track) (seqs []uint64, end error) {
	for {
		s, err := track.Next()
		if err != nil {
			return seqs, err
		}
		seqs = append(seqs, s.Seq)
	}
}

// TestDamagedTapes: one line says what is wrong, in which line, and what can be done. What is before is played.
func TestDamagedTapes(t *testing.T) {
	whole := taped(t, 100)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	with := func(n int, text string) []byte {
		l := append([][]byte(nil), lines...)
		l[n-1] = []byte(text)
		return bytes.Join(l, nil)
	}
	for _, c := range []struct {
		name    string
		data    []byte
		opened  bool
		played  int
		want    string
		hint    string
		damaged bool
	}{
		{"empty", nil, false, 0, "f: the recording has no snapshot", "never answered", true},
		{"heading only", lines[0], false, 0, "f: the recording has no snapshot", "never answered", true},
		{"cut in the heading", lines[0][:10], false, 0, "f:1: not a recording of kvroute watch", "", false},
		{"something else", []byte("{}\n{}\n"), false, 0, "f:1: not a recording of kvroute watch", "", false},
		{"cut in the first snapshot", bytes.Join(lines[:2], nil)[:len(lines[0])+9], false, 0, "f: the recording has no snapshot", "broke off", true},
		{"cut in a line", whole[:len(whole)-5], true, 99, "f:101: the recording breaks off here", "is played", true},
		{"cut behind a line's text", whole[:len(whole)-1], true, 99, "f:101: the recording breaks off here", "is played", true},
		{"a line that is no JSON", with(50, "\x00\x01\n"), true, 48, "f:50: the recording is damaged here: ", "jumped to", true},
		{"an empty line", with(50, "\n"), true, 48, "f:50: the recording is damaged here: ", "jumped to", true},
		{"a line that is missing", with(50, ""), true, 48, "f:50: the recording is damaged here: ", "jumped to", true},
		{"another form", with(50, `{"schema":"kvroute.snapshot/v9"}`+"\n"), true, 48, "f:50: the recording is damaged here: ", "jumped to", true},
	} {
		track, err := OpenTape("f", bytes.NewReader(c.data))
		if (err == nil) != c.opened {
			t.Errorf("%s: opening: %v, want it opened: %v", c.name, err, c.opened)
			continue
		}
		if c.opened {
			var seqs []uint64
			if seqs, err = played(track); len(seqs) != c.played {
				t.Errorf("%s: %d snapshots, want %d", c.name, len(seqs), c.played)
			}
		}
		var e *TapeError
		if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), c.want) || !strings.Contains(e.Hint, c.hint) || (e.Hint == "") != (c.hint == "") || e.Damaged != c.damaged {
			t.Errorf("%s: got %#v, want %q, hint %q, damaged %v", c.name, err, c.want, c.hint, c.damaged)
		}
		if !c.opened || c.played != 48 {
			continue
		}
		if err := track.SeekTo(90_000); err != nil { // behind the whole one of line 62
			t.Errorf("%s: seeking past the damage: %v", c.name, err)
		}
		if s, err := track.Next(); err != nil || s.Seq != 90 {
			t.Errorf("%s: past the damage: %+v, %v, want number 90", c.name, s, err)
		}
	}
}

// TestTapeWhoseClockWasSetBack: it is played in its order, and times find the last that was.
func TestTapeWhoseClockWasSetBack(t *testing.T) {
	var file bytes.Buffer
	tape, err := NewTape(&file, "x", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for i, ms := range []int64{5000, 6000, 2000, 3000, 7000} {
		s := told("a", uint64(i+1), ms)
		if err := tape.Write(s, raw(t, s)); err != nil {
			t.Fatal(err)
		}
	}
	track, err := OpenTape("f", bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if from, to := track.Span(); from != 5000 || to != 7000 {
		t.Errorf("span %d to %d, want 5000 to 7000", from, to)
	}
	if seqs, err := played(track); len(seqs) != 5 || !errors.Is(err, io.EOF) {
		t.Errorf("played %v, %v, want all five", seqs, err)
	}
	for ms, want := range map[int64]uint64{2500: 3, 6500: 4, 9000: 5} {
		if err := track.SeekTo(ms); err != nil {
			t.Fatal(err)
		}
		if s, err := track.Next(); err != nil || s.Seq != want {
			t.Errorf("at %d ms: %+v, %v, want number %d", ms, s, err, want)
		}
	}
}

// failing is a disk that is full after some bytes.
type failing struct{ left int }

func (f *failing) Write(p []byte) (int, error) {
	if len(p) > f.left {
		return f.left, errors.New("no space left on device")
	}
	f.left -= len(p)
	return len(p), nil
}

// TestTapeOnAFullDisk: it is told once, and nothing more is written.
func TestTapeOnAFullDisk(t *testing.T) {
	disk := &failing{left: 500}
	tape, err := NewTape(disk, "x", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	told1, left := 0, 0
	for i := range 100 {
		s := told("a", uint64(i+1), 1000)
		if err := tape.Write(s, raw(t, s)); err != nil {
			told1++
			left = disk.left
			disk.left = 1 << 20 // room again: a tape with a hole in it is worse than a short one
			if !strings.Contains(err.Error(), "no space left") {
				t.Errorf("got %v, want why", err)
			}
		}
	}
	if told1 != 1 || tape.Err() == nil || left == 0 || disk.left != 1<<20 {
		t.Errorf("told %d times, error %v, %d bytes left then, %d now; want it told once and nothing written after", told1, tape.Err(), left, disk.left)
	}
}

// FuzzTape plays whatever a file may hold, and jumps in it: no panic, no endless play, and every error has its place.
func FuzzTape(f *testing.F) {
	whole := taped(f, 70)
	f.Add(whole, int64(3000))
	f.Add(whole[:len(whole)-7], int64(65_000))
	f.Add(bytes.Replace(whole, []byte(`"seq":9,`), []byte(`"seq":8,`), 1), int64(0))
	f.Add(bytes.Replace(whole, []byte(`"at_unix_ms":1000`), []byte(`"at_unix_ms":9223372036854775807`), 1), int64(-1))
	s := fleetScene(3, pd, 0)
	f.Add([]byte(`{"kvroute":"watch/v1","source":"x"}`+"\n"+string(raw(f, s))+"\n"+string(raw(f, snapshot.Diff(s, fleetScene(3, pd, 250))))+"\n"), int64(sceneStart))
	f.Fuzz(func(t *testing.T, data []byte, ms int64) {
		check := func(err error, place bool) {
			var e *TapeError
			if errors.Is(err, io.EOF) {
				return
			}
			if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), "f:") || place && e.Line < 1 || strings.ContainsAny(e.Hint, "\n") {
				t.Fatalf("got %#v, want where it is", err)
			}
		}
		track, err := OpenTape("f", bytes.NewReader(data))
		if err != nil {
			check(err, false)
			return
		}
		if !IsTape(data[:min(len(data), 4096)]) && bytes.IndexByte(data, '\n') < 4096 {
			t.Fatal("it is opened and not known as a tape")
		}
		seqs, err := played(track)
		check(err, true)
		if n := bytes.Count(data, []byte("\n")); len(seqs) > n {
			t.Fatalf("%d snapshots in %d lines", len(seqs), n)
		}
		from, to := track.Span()
		if from > to {
			t.Fatalf("it goes from %d to %d", from, to)
		}
		for _, at := range []int64{ms, from, to} {
			if err := track.SeekTo(at); err != nil {
				check(err, true)
				continue
			}
			if s, err := track.Next(); err != nil {
				check(err, true)
			} else {
				mustFit(t, at80(s), 80, 24)
			}
		}
	})
}

// at80 is the first page of a snapshot.
func at80(s *snapshot.Snapshot) string {
	m := at(80, 24, Options{}, live(s))
	return m.View().Content
}

package recorder_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// sample records a small run of one goroutine.
func sample(tb testing.TB, requests int, opt recorder.Options) [][]byte {
	tb.Helper()
	d := &disk{}
	cfg := score.Defaults()
	opt.Header, opt.Create = header(cfg), d.create
	rec, err := recorder.Start(opt)
	if err != nil {
		tb.Fatal(err)
	}
	run(newWorld(tb, cfg, rec, 4, rand.New(rand.NewPCG(5, 6))), 1, requests, 7)
	if err := rec.Close(); err != nil {
		tb.Fatal(err)
	}
	return d.contents()
}

// try verifies files that may be broken in any way: it must say so, whichever way.
func try(files ...[]byte) (*replay.Verification, error) {
	var names []string
	var readers []*record.Reader
	for i, b := range files {
		r, err := record.Open(bytes.NewReader(b), fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		names, readers = append(names, fmt.Sprint(i)), append(readers, r)
	}
	rec, err := replay.OrderRecording(names, readers)
	if err != nil {
		return nil, err
	}
	return replay.Verify(context.Background(), rec, nil)
}

// No byte of a decision can be another one without verification saying so.
func TestMutatedDecisionsAreFound(t *testing.T) {
	whole := bytes.Join(sample(t, 30, recorder.Options{}), nil)
	const mark = `,"decision":`
	var places []int
	for from := 0; ; {
		i := bytes.Index(whole[from:], []byte(mark))
		if i < 0 {
			break
		}
		start := from + i + len(mark)
		end := start + bytes.IndexByte(whole[start:], '\n')
		for p := start; p < end; p++ {
			places = append(places, p)
		}
		from = end
	}
	if len(places) < 5000 {
		t.Fatalf("%d bytes of decisions, want many", len(places))
	}
	if v, err := try(whole); err != nil || v.Difference != nil {
		t.Fatalf("unchanged: %+v, %v", v, err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 800 {
		p := places[rng.IntN(len(places))]
		old := whole[p]
		for whole[p] == old {
			whole[p] = byte(rng.IntN(256))
		}
		v, err := try(whole)
		if err == nil && v.Difference == nil {
			t.Fatalf("byte %d: %q for %q went unnoticed: %+v\n%s", p, whole[p], old, v, whole[max(0, p-60):p+60])
		}
		if err == nil && len(v.Difference.Terms) == 0 {
			t.Fatalf("byte %d: a difference without a term: %+v", p, v.Difference)
		}
		whole[p] = old
	}
}

// What is changed beside the decisions shows in a decision, or is damage, or decides nothing; it is
// never a panic.
func TestMutatedRecordsDoNotPanic(t *testing.T) {
	whole := bytes.Join(sample(t, 40, recorder.Options{}), nil)
	rng := rand.New(rand.NewPCG(2, 2))
	found := 0
	for range 800 {
		p := rng.IntN(len(whole))
		old := whole[p]
		whole[p] = byte(rng.IntN(256))
		if v, err := try(whole); err != nil || v.Difference != nil {
			found++
		}
		whole[p] = old
	}
	if found < 500 {
		t.Errorf("%d of 800 changes were found, want most", found)
	}
}

// A recording may end anywhere: what is there is verified, and that it ends is said.
func TestCutAnywhere(t *testing.T) {
	whole := bytes.Join(sample(t, 25, recorder.Options{}), nil)
	head := bytes.IndexByte(whole, '\n') + 1
	for cut := head; cut < len(whole); cut += 37 {
		v, err := try(whole[:cut])
		if err != nil || v.Difference != nil || v.Ended {
			t.Fatalf("cut at %d: %+v, %v; want no difference and no end", cut, v, err)
		}
		if atLine := whole[cut-1] == '\n'; !v.Cut && !atLine && whole[cut] != '\n' {
			t.Fatalf("cut at %d, in the middle of a line: not said: %+v", cut, v)
		}
	}
}

func TestPartsBelongTogether(t *testing.T) {
	parts := sample(t, 300, recorder.Options{MaxSize: 60 << 10})
	if len(parts) < 4 {
		t.Fatalf("%d parts, want several", len(parts))
	}
	other := bytes.Replace(bytes.Clone(parts[1]), []byte("00000000000000aa"), []byte("00000000000000ab"), 1)
	for _, tc := range []struct {
		name  string
		files [][]byte
		want  string // of the error; "": verified
	}{
		{"in order", parts, ""},
		{"in any order", [][]byte{parts[2], parts[0], parts[1]}, ""},
		{"the first is missing", parts[1:], "part 1 is not given"},
		{"one in the middle is missing", [][]byte{parts[0], parts[2]}, "part 2 is not given"},
		{"twice", [][]byte{parts[0], parts[1], parts[1]}, "part 2 of the run, as"},
		{"of another run", [][]byte{parts[0], other}, "another run"},
		{"a part cut in the middle", [][]byte{parts[0][:len(parts[0])-20], parts[1]}, "yet another part follows"},
		{"another configuration", [][]byte{parts[0], bytes.Replace(parts[1], []byte(`"prefix-threshold":0.5`), []byte(`"prefix-threshold":0.6`), 1)}, "another configuration"},
		{"not a recording", [][]byte{[]byte(`{"timestamp":1}`)}, "not a recording"},
		{"a trace", [][]byte{[]byte(`{"kvroute":"trace/v1"}`)}, "no decisions"},
		{"a later form", [][]byte{bytes.Replace(parts[0], []byte(`"recording":1`), []byte(`"recording":2`), 1)}, "recording 2; known is"},
		{"an unknown setting", [][]byte{bytes.Replace(parts[0], []byte(`"seed":0`), []byte(`"seed":0,"kv-moon-phase":3`), 1)}, `"kv-moon-phase" is a setting this program does not know`},
		{"a setting too few", [][]byte{bytes.Replace(parts[0], []byte(`,"seed":0`), nil, 1)}, "it has no seed"},
		{"an impossible setting", [][]byte{bytes.Replace(parts[0], []byte(`"kv-overlap-weight":1`), []byte(`"kv-overlap-weight":-1`), 1)}, "kv-overlap-weight"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, err := try(tc.files...)
			if tc.want == "" {
				if err != nil || v.Difference != nil {
					t.Fatalf("%+v, %v; want no difference", v, err)
				}
				return
			}
			var e *record.Error
			if err == nil || !errors.As(err, &e) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want a *record.Error with %q", err, tc.want)
			}
		})
	}
}

// slow is a disk on which nothing gets written until it is let go.
type slow struct {
	*disk
	gate chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	<-s.gate
	return s.files[0].Write(p)
}

func (s *slow) Close() error { return s.files[0].Close() }

// A disk that does not follow ends the recording; the calls go on at once, and what was taken verifies.
func TestDiskTooSlow(t *testing.T) {
	d := &slow{disk: &disk{}, gate: make(chan struct{}, 1)}
	if _, err := d.create(1); err != nil {
		t.Fatal(err)
	}
	d.gate <- struct{}{} // the heading
	var mu sync.Mutex
	var told []error
	cfg := score.Defaults()
	rec, err := recorder.Start(recorder.Options{
		Header: header(cfg), MaxPending: 64 << 10,
		Create: func(int) (io.WriteCloser, error) { return d, nil },
		OnStop: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, err)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, cfg, rec, 4, rand.New(rand.NewPCG(5, 6)))
	run(w, 1, 400, 7)
	if s := rec.Stats(); !errors.Is(s.Err, recorder.ErrBehind) {
		t.Fatalf("Stats.Err = %v, want ErrBehind", s.Err)
	}
	close(d.gate)
	if err := rec.Close(); !errors.Is(err, recorder.ErrBehind) {
		t.Errorf("Close = %v, want ErrBehind", err)
	}
	if len(told) != 1 || !errors.Is(told[0], recorder.ErrBehind) {
		t.Errorf("OnStop was told %v, want ErrBehind once", told)
	}
	v := verified(t, d.contents())
	if !v.Ended || !strings.Contains(v.Incomplete, "does not follow") || int64(v.Decisions) >= w.picks || v.Decisions == 0 {
		t.Errorf("verified %+v of %d decisions, want a part of them and the reason", v, w.picks)
	}
}

func TestDiskFails(t *testing.T) {
	d := &disk{}
	cfg := score.Defaults()
	stopped := make(chan error, 1)
	rec, err := recorder.Start(recorder.Options{Header: header(cfg), Create: d.create, OnStop: func(err error) { stopped <- err }})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, cfg, rec, 4, rand.New(rand.NewPCG(5, 6)))
	run(w, 1, 20, 7)
	full := errors.New("no space left on device")
	d.mu.Lock()
	d.fail = full
	d.mu.Unlock()
	run(w, 1, 20, 8)
	if err := <-stopped; !errors.Is(err, full) {
		t.Errorf("OnStop was told %v, want %v", err, full)
	}
	run(w, 1, 20, 9) // goes on without a recording
	if err := rec.Close(); !errors.Is(err, full) {
		t.Errorf("Close = %v, want %v", err, full)
	}
	if v := verified(t, d.contents()); v.Ended {
		t.Errorf("verified %+v, want no end", v)
	}
	if _, err := recorder.Start(recorder.Options{Header: header(cfg), Create: (&disk{fail: full}).create}); !errors.Is(err, full) {
		t.Errorf("Start on the full disk: %v", err)
	}
}

// Calls about reservations that nobody made are counted, and change nothing.
func TestUnknownReservations(t *testing.T) {
	d := &disk{}
	rec, err := recorder.Start(recorder.Options{Header: header(score.Defaults()), Create: d.create})
	if err != nil {
		t.Fatal(err)
	}
	rec.FirstToken(load.Handle{}, 1)
	rec.Unbind(load.Handle{})
	rec.Release(load.Handle{}, 1, 2)
	rec.Note(5, record.NoTarget, "tail")
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	rec.Leave(target.ID(1)) // after Close: nothing
	if got := rec.Stats().Unknown; got != 3 {
		t.Errorf("%d unknown reservations, want 3", got)
	}
	if v := verified(t, d.contents()); v.Records != 2 || v.Notes != 1 {
		t.Errorf("verified %+v, want the note and the end", v)
	}
}

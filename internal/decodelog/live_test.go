package decodelog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/plantedlog"
)

// growing is a file that is written to between reads.
type growing struct {
	parts [][]byte
	ready int // parts that are written
	at    int
}

func (g *growing) Read(p []byte) (int, error) {
	if g.at == len(g.parts) {
		return 0, io.EOF
	}
	if g.at == g.ready {
		return 0, nil
	}
	n := copy(p, g.parts[g.at])
	if g.parts[g.at] = g.parts[g.at][n:]; len(g.parts[g.at]) == 0 {
		g.at++
	}
	return n, nil
}

// Lines of growing files are handed over as they come: each time Idle is called, all that was written has been.
func TestFollow(t *testing.T) {
	lines := strings.SplitAfter(quoted(t, "3"), "\n")
	a := &growing{parts: [][]byte{[]byte(lines[0]), []byte(lines[1][:40]), []byte(lines[1][40:]), []byte(lines[2])}}
	b := &growing{parts: [][]byte{[]byte(lines[0]), []byte(lines[1]), []byte(lines[2]), []byte("noise\n")}}
	samples := 0
	var seen []int
	opt := Options{Idle: func(_ context.Context, soFar *Report) error {
		if soFar.Used != int64(samples) {
			t.Errorf("the report says %d samples, there were %d", soFar.Used, samples)
		}
		seen = append(seen, samples)
		a.ready++
		b.ready++
		return nil
	}}
	rep, err := Read(context.Background(), []Source{{"a", a}, {"b", b}}, opt, func(*Sample) error { samples++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []int{0, 2, 3, 5}
	for i, n := range want {
		if i >= len(seen) || seen[i] != n {
			t.Fatalf("samples at each pause %v, want %v and so on", seen, want)
		}
	}
	if rep.Used != 6 || rep.Lines != 7 {
		t.Errorf("report %+v, want 6 samples of 7 lines", rep)
	}
}

// A line of vLLM may be followed by one about its speculation. It waits for that once speculation was seen.
func TestFollowSpeculation(t *testing.T) {
	log := string(planted(t, plantedlog.VLLM, 20_000))
	g := &growing{}
	for _, l := range strings.SplitAfter(log, "\n") {
		g.parts = append(g.parts, []byte(l))
	}
	var live []Sample
	_, err := Read(context.Background(), []Source{{"log", g}}, Options{Idle: func(context.Context, *Report) error { g.ready = min(g.ready+16, len(g.parts)); return nil }},
		func(s *Sample) error { live = append(live, *s); return nil })
	if err != nil {
		t.Fatal(err)
	}
	whole, rep := must(t, Options{}, "log", log)
	if !rep.Accepting || len(live) != len(whole) {
		t.Fatalf("%d samples, the whole log has %d; speculation %t", len(live), len(whole), rep.Accepting)
	}
	for i := range live {
		if live[i].Accept < 1.5 {
			t.Errorf("sample %d has acceptance %v, want about 1.8", i, live[i].Accept)
		}
	}
}

func TestFollowEnds(t *testing.T) {
	stop := errors.New("stop")
	g := &growing{parts: [][]byte{[]byte("x\n")}}
	_, err := Read(context.Background(), []Source{{"log", g}}, Options{Idle: func(context.Context, *Report) error { return stop }}, func(*Sample) error { return nil })
	if !errors.Is(err, stop) {
		t.Errorf("Idle's error came back as %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Read(ctx, []Source{{"log", strings.NewReader("x\n")}}, Options{}, func(*Sample) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended came back as %v", err)
	}
}

// Lines cost no memory once slices have grown.
func TestLinesAllocateNothing(t *testing.T) {
	for _, form := range plantedlog.Forms() {
		if form == plantedlog.VLLMMetrics { // a scrape is not a line
			continue
		}
		lines := bytes.Split(bytes.TrimSpace(planted(t, form, 100_000)), []byte("\n"))
		s := &source{st: newState(Options{}), name: "log"}
		all := func() {
			s.entries, s.times.any = s.entries[:0], false
			for _, l := range lines {
				s.lr.line++
				if err := s.line(l); err != nil {
					t.Fatal(err)
				}
			}
		}
		all()
		if n := testing.AllocsPerRun(5, all); n != 0 {
			t.Errorf("%s: %v allocations for %d lines, want none", form, n, len(lines))
		}
	}
}

// Memory does not grow with the input: 256 MiB are read in less than 32.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 256 MiB")
	}
	log := planted(t, plantedlog.SGLangPD, 4<<20)
	most, n := uint64(0), 0
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	start := m.HeapAlloc
	_, err := Read(context.Background(), []Source{{"log", &repeated{data: log, n: 256 << 20 / len(log)}}}, Options{}, func(*Sample) error {
		if n++; n%50_000 == 0 {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc-min(start, m.HeapAlloc))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if most > 32<<20 {
		t.Errorf("%d MiB more of heap while reading", most>>20)
	}
}

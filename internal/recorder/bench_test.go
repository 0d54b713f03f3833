package recorder_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// nowhere takes files and forgets them.
type nowhere struct{ io.Writer }

func (nowhere) Close() error { return nil }

func toNowhere(int) (io.WriteCloser, error) { return nowhere{io.Discard}, nil }

// benchRequest is a conversation of which all blocks but eight are known.
func benchRequest(i, blocks int) *score.Request {
	tokens := make([]block.Token, blocks*16)
	for k := range tokens {
		tokens[k] = block.Token(k)
		if k >= (blocks-8)*16 {
			tokens[k] = block.Token(k + i<<16)
		}
	}
	return &score.Request{
		ID: "0123456789abcdef", BlockSize: 16, Blocks: block.AppendChain(nil, block.Root, tokens, 16), InputTokens: int64(len(tokens)), TokensExact: true, N: 1,
	}
}

// BenchmarkRequest is a request's life in the pool: picked, first token, released, eight blocks stored and
// eight removed. with=recorder adds the whole recording of it, the goroutine's share included (the
// benchmark waits for it), so the difference is the CPU that recording costs.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []struct{ blocks, workers int }{{64, 8}, {256, 8}, {4096, 32}} {
		for _, with := range []string{"nothing", "recorder"} {
			b.Run(fmt.Sprintf("blocks=%d/workers=%d/with=%s", size.blocks, size.workers, with), func(b *testing.B) {
				cfg := score.Defaults()
				h := record.Header{Run: "r", BlockSize: 16, Config: cfg}
				pc := pool.Config{Score: cfg, BlockSize: 16}
				var rec *recorder.Recorder
				if with == "recorder" {
					var err error
					if rec, err = recorder.Start(recorder.Options{Header: h, Create: toNowhere, MaxPending: 1 << 30}); err != nil {
						b.Fatal(err)
					}
					pc.Recorder = rec
				}
				p, err := pool.New(pc)
				if err != nil {
					b.Fatal(err)
				}
				for t := range size.workers {
					if _, err := p.Join(target.Key{Worker: fmt.Sprintf("http://10.0.0.%d:8000", t), Rank: target.NoRank}, score.Candidate{BlockSize: 16}, nil); err != nil {
						b.Fatal(err)
					}
				}
				var reqs []*score.Request
				for i := range 16 {
					reqs = append(reqs, benchRequest(i, size.blocks))
				}
				handles := make([]index.Handle, 8)
				var dec score.Decision
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					req := reqs[i%len(reqs)]
					req.At = int64(i) * 1e6
					if err := p.Pick(req, nil, &dec, nil); err != nil {
						b.Fatal(err)
					}
					t := dec.PickedTerms().Candidate.Target
					for k := range handles {
						handles[k] = index.Handle(i*8 + k)
					}
					ops := []index.Op{
						{Kind: index.Store, Handles: handles, Hashes: req.Blocks[:8], Namespace: block.Root},
						{Kind: index.Remove, Handles: handles},
					}
					if _, err := p.Apply(t, ops); err != nil {
						b.Fatal(err)
					}
					p.FirstToken(dec.Handle, req.At+1)
					p.Release(dec.Handle, req.At+2, 100)
				}
				if rec != nil {
					if err := rec.Close(); err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(rec.Stats().Bytes)/float64(b.N), "file-B/op")
				}
			})
		}
	}
}

// BenchmarkChanged is one block that comes or goes: what recording adds to applying an event, under the
// pool's lock (call) and in all (whole).
func BenchmarkChanged(b *testing.B) {
	rec, err := recorder.Start(recorder.Options{Header: record.Header{Run: "r", BlockSize: 16, Config: score.Defaults()}, Create: toNowhere, MaxPending: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	parent := block.Root
	for i := range b.N {
		h := block.Hash(i + 1)
		rec.Changed(1, h, parent, index.GPU, true)
		parent = h
	}
	if err := rec.Close(); err != nil {
		b.Fatal(err)
	}
}

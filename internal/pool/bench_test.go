package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// randomChain is a chain with hashes as real ones are: in no order.
func randomChain(rng *rand.Rand, n int) []block.Hash {
	c := make([]block.Hash, n)
	for i := range c {
		c[i] = block.Hash(rng.Uint64())
	}
	return c
}

// events stores and removes pages of 16 blocks on one target after the other, rate block operations a
// second, until stop; it returns how many it did.
func events(p *Pool, ids []target.ID, rate int, stop <-chan struct{}) (done int, err error) {
	rng := rand.New(rand.NewPCG(1, 2))
	const page, ring = 16, 1 << 12
	var hashes [ring][]block.Hash
	var names [ring][]index.Handle
	for i := range hashes {
		hashes[i] = randomChain(rng, page)
		names[i] = handles(hashes[i])
	}
	ops := make([]index.Op, 2)
	start := time.Now()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return done, nil
		default:
		}
		// What the same page stored one round earlier goes first, so that the mirrors stay as large.
		ops[0] = index.Op{Kind: index.Remove, Handles: names[n%ring]}
		ops[1] = index.Op{Kind: index.Store, Handles: names[n%ring], Hashes: hashes[n%ring]}
		if _, err := p.Apply(ids[n%len(ids)], ops); err != nil {
			return done, err
		}
		done += len(ops) * page
		if ahead := time.Duration(float64(done)/float64(rate)*1e9) - time.Since(start); ahead > time.Millisecond {
			time.Sleep(ahead)
		}
	}
}

// BenchmarkPickBesideEvents picks for prompts of 4,096 blocks among 32 targets while events are applied,
// and tells the latencies of the picks: how long events keep the lock from them.
func BenchmarkPickBesideEvents(b *testing.B) {
	const blocks, targets = 4096, 32
	for _, rate := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("events=%d", rate), func(b *testing.B) {
			p := newPool(b, Config{Score: score.Defaults()})
			rng := rand.New(rand.NewPCG(3, 4))
			whole := randomChain(rng, blocks)
			var ids []target.ID
			for t := range targets {
				id := join(b, p, fmt.Sprintf("w%02d", t), 1, nil)
				ids = append(ids, id)
				if _, err := p.Apply(id, []index.Op{store(whole[:blocks*(t+1)/targets])}); err != nil {
					b.Fatal(err)
				}
			}
			stop, ended := make(chan struct{}), make(chan int, 1)
			start := time.Now()
			go func() {
				done := 0
				if rate > 0 {
					var err error
					if done, err = events(p, ids, rate, stop); err != nil {
						b.Error(err)
					}
				}
				ended <- done
			}()
			req := request(whole)
			var dec score.Decision
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				from := time.Now()
				if err := p.Pick(req, nil, &dec, nil); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(from))
				p.Release(dec.Handle, 0, 0)
				time.Sleep(100 * time.Microsecond) // requests do not come back to back
			}
			close(stop)
			done := <-ended
			slices.Sort(took)
			b.ReportMetric(0, "ns/op") // it has the pauses in it
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
			b.ReportMetric(float64(done)/1e6/time.Since(start).Seconds(), "Mevents/s")
		})
	}
}

// BenchmarkGuess sends prompts of 4,096 blocks that differ at their end to a target without events: what a
// guessed mirror costs a request.
func BenchmarkGuess(b *testing.B) {
	const prompts, blocks = 16, 4096
	p := newPool(b, Config{Score: score.Defaults()})
	join(b, p, "a", 1, &Guess{Blocks: 1 << 17})
	rng := rand.New(rand.NewPCG(5, 6))
	reqs := make([]*score.Request, prompts)
	for i := range reqs {
		reqs[i] = request(randomChain(rng, blocks))
	}
	var dec score.Decision
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		req := reqs[i%prompts]
		req.Blocks[blocks-1] = block.Hash(rng.Uint64())
		if err := p.Pick(req, nil, &dec, nil); err != nil {
			b.Fatal(err)
		}
		p.Release(dec.Handle, 0, 0)
	}
}

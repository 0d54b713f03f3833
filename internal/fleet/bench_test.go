//go:build cgo

package fleet_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// BenchmarkPick is all that stands between the last byte of a body and the choice of its worker: scan,
// tokens, block hashes, score over eight workers, booking, watch and log line, and the end of the
// reservation. Each body is a conversation seen before, with an end of its own. By tokens and, without a
// tokenizer, by bytes. Its caches are guessed, so every pick also notes what it sends where.
func BenchmarkPick(b *testing.B) {
	for _, by := range []string{"tokens", "bytes"} {
		s := newStand(b, options{engines: make([]fakeengine.Config, 8), noEvent: true, fleet: func(c *fleet.Config) {
			c.HealthInterval = time.Hour
			if by == "bytes" {
				c.Tokenizer = func(string) tokenize.Tokenizer { return nil }
			}
		}})
		for _, size := range []int{1 << 10, 100 << 10, 400 << 10} {
			const mark = "000000000000"
			rng := rand.New(rand.NewPCG(1, uint64(size)))
			c := chat{Model: "tiny", MaxTokens: 8}
			for n := 0; n < size; n += len(c.Messages[len(c.Messages)-1].Content) {
				c.Messages = append(c.Messages, message{[]string{"user", "assistant"}[len(c.Messages)%2], text(rng, min(size/8, 2000)/8)})
			}
			c.Messages = append(c.Messages, message{"user", "and now " + mark})
			body, err := json.Marshal(c)
			if err != nil {
				b.Fatal(err)
			}
			at := bytes.LastIndex(body, []byte(mark))
			b.Run(fmt.Sprintf("%s/%dKB", by, size>>10), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(body)))
				for i := 0; b.Loop(); i++ {
					copy(body[at:], fmt.Sprintf("%0*d", len(mark), i))
					call, err := router.ScanCall("0123456789abcdef", tokenize.Chat, body, time.Now())
					if err != nil {
						b.Fatal(err)
					}
					ticket, err := s.fleet.Place(b.Context(), call)
					if err != nil {
						b.Fatal(err)
					}
					lease, err := ticket.Pick(func(string) bool { return false })
					if err != nil {
						b.Fatal(err)
					}
					if basis := string(lease.Decision().Basis); basis == "" || strings.Contains(basis, "load") {
						b.Fatalf("basis %q", basis)
					}
					lease.Release(router.Outcome{Status: 200, Delivered: true, PromptTokens: -1, CachedTokens: -1, CompletionTokens: 8})
				}
			})
		}
		s.close()
	}
}

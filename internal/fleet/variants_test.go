//go:build cgo

package fleet_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// TestEnginesOfTwoKindsWithoutTokenizer: without a tokenizer prompts are compared by their bytes, which are the
// same for engines of any kind.
func TestEnginesOfTwoKindsWithoutTokenizer(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500), sglang(500)}, fleet: func(c *fleet.Config) { c.Tokenizer = nil }})
	for _, c := range []any{conversation(rand.New(rand.NewPCG(7, 7))), conversation(rand.New(rand.NewPCG(8, 8)))} {
		for range 2 {
			if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
				t.Fatalf("status %d, %v: %s", status, err, body)
			}
		}
	}
	var cached uint64
	for _, e := range s.engines {
		cached += e.Stats().CachedTokens
	}
	if cached == 0 {
		t.Error("prompts that came twice hit nothing")
	}
}

// TestWorkerOfAnotherKindJoinsMeanwhile: a request is tokenized, then a worker joins that makes tokens in another way;
// the request is still placed.
func TestWorkerOfAnotherKindJoinsMeanwhile(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500), sglang(500)}})
	all := s.specs
	for _, order := range [][]discovery.Spec{{all[0]}, {all[1]}} {
		f := newStand(t, options{over: &stand{t: t, engines: s.engines, specs: order}})
		body, err := json.Marshal(conversation(rand.New(rand.NewPCG(9, 9))))
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := f.fleet.Place(context.Background(), &router.Call{ID: "r", Endpoint: tokenize.Chat, Body: body, At: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		f.fleet.Update(all)
		f.until("both have joined", func() bool { ok, _ := f.fleet.Ready(); return ok && f.fleet.ActiveWorkers() == 2 })
		lease, err := ticket.Pick(nil)
		if err != nil {
			t.Fatalf("the request could not be placed: %v", err)
		}
		lease.Release(router.Outcome{PromptTokens: -1, CachedTokens: -1, CompletionTokens: -1})
	}
}

//go:build cgo

package fleet_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/fakeengine"
)

// TestNullMeansNothingOnceReported: vLLM 0.23 says null where nothing was cached, which an engine that reports
// nothing at all says as well. Once it has reported some it is known to be the former.
func TestNullMeansNothingOnceReported(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{{Dialect: fakeengine.VLLM, Version: "0.23.0", Capacity: 4000}}})
	first := conversation(rand.New(rand.NewPCG(1, 1)))
	other := conversation(rand.New(rand.NewPCG(1, 1)))
	other.Messages[0].Content = "Something else from its first word on. " + other.Messages[0].Content
	for i, step := range []struct {
		what     string
		c        chat
		compared uint64
	}{
		{"nothing cached, and nothing known of the engine", first, 0},
		{"the same again, which is cached", first, 1},
		{"another one, with nothing cached", other, 2},
	} {
		s.settle()
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", step.c); err != nil || status != 200 {
			t.Fatalf("status %d, %v: %s", status, err, body)
		}
		// The request ends a moment after its answer.
		s.until(step.what, func() bool { return s.held() == 0 && s.fleet.States()[0].Predictions.Compared >= step.compared })
		if p := s.fleet.States()[0].Predictions; p.Compared != step.compared || p.Differing > 0 {
			t.Errorf("request %d, %s: %+v; want %d compared", i, step.what, p, step.compared)
		}
	}
}

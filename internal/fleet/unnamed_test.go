//go:build cgo

package fleet_test

import (
	"context"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/fakeengine"
)

// TestRequestWithoutModel: a request that names no model counts for the one that is served, in metrics and in
// the log.
func TestRequestWithoutModel(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}})
	body := map[string]any{"messages": []map[string]string{{"role": "user", "content": "Hello"}}, "max_tokens": 2}
	if status, answer, err := s.post(context.Background(), "/v1/chat/completions", body); err != nil || status != 200 {
		t.Fatalf("status %d, %v: %s", status, err, answer)
	}
	model := s.fleet.States()[0].Model
	for _, name := range []string{"infera_time_to_first_token_seconds_count{", "infera_prompt_tokens_total{", "infera_generation_tokens_total{"} {
		s.until(name+" counts", func() bool {
			lines := s.metric(name)
			return len(lines) == 1 && strings.Contains(lines[0], `model="`+model+`"`) && !strings.HasSuffix(lines[0], " 0")
		})
	}
	s.close()
	if !strings.Contains(s.log.String(), "msg=request ") || strings.Contains(s.log.String(), `model=""`) {
		t.Errorf("the request's line has no model:\n%s", s.log.String())
	}
}

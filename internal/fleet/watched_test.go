//go:build cgo

package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/admin"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/vitals"
)

// TestSnapshotOfARealFleet: what a snapshot says is what the engine did, and of the prompt it says nothing, unless it
// is to.
func TestSnapshotOfARealFleet(t *testing.T) {
	for _, text := range []bool{false, true} {
		v := vitals.New()
		s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}, fleet: func(c *fleet.Config) {
			c.Vitals, c.Text = v, text
			tok := newReadable(t)
			c.Tokenizer = func(string) tokenize.Tokenizer { return tok }
		}})
		hub := admin.NewHub(admin.HubConfig{Fleet: s.fleet, Vitals: v, Text: text})
		secret := "the launch code is seven " + strings.Repeat("and seven ", 60)
		c := map[string]any{"model": "", "max_tokens": 3, "messages": []any{map[string]any{"role": "user", "content": secret}}}
		for range 2 {
			if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
				t.Fatalf("status %d, %v: %s", status, err, body)
			}
			s.settle()
		}
		var snap *snapshot.Snapshot
		s.until("the second answer is accounted for", func() bool { // that is after the client has it
			snap = hub.Fresh()
			return snap.Router.SavedTokens > 0
		})
		data, err := json.Marshal(snap)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(data), "launch code"); got != text {
			t.Errorf("text %v: the prompt's beginning in the snapshot: %v", text, got)
		}
		if strings.Count(string(data), "and seven") > 40 {
			t.Error("the snapshot has more of the prompt than its beginning")
		}
		state := s.fleet.States()[0]
		w := snap.Workers[0]
		if w.BlockCount != state.Blocks || w.Tiers != [3]int{state.Blocks, 0, 0} || w.Requests != 2 || w.Stream.Stored != uint64(state.Blocks) || w.Fill == nil {
			t.Errorf("worker %+v, want %d blocks, 2 requests", w, state.Blocks)
		}
		if w.ReportedShare == nil || w.HitShare == nil || *w.ReportedShare < 0.4 || *w.ReportedShare > 0.5 || *w.HitShare < 0.4 || *w.HitShare > 0.5 {
			t.Errorf("hit shares %s predicted, %s reported; want nearly a half: the second request found what the first left", share(w.HitShare), share(w.ReportedShare))
		}
		if r := snap.Router; r.Requests != 2 || r.Kept != 2 || len(snap.Picks) != 2 || snap.Picks[1].Hits == 0 || snap.Picks[1].RouteKey != w.RouteKey {
			t.Errorf("router %+v, decisions %+v", r, snap.Picks)
		}
		prompt := int(snap.Picks[0].Blocks)
		want := []snapshot.Holder{{RouteKey: w.RouteKey, Blocks: prompt}}
		if p := snap.Cache.Prefixes; len(p) != 1 || p[0].Blocks != prompt || p[0].Uses != 2 || len(p[0].Holders) != 1 || p[0].Holders[0] != want[0] {
			t.Errorf("prefixes %+v, want one of %d blocks, used twice, held by %s", p, prompt, w.RouteKey)
		}
	}
}

func share(v *float64) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprint(*v)
}

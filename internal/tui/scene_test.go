package tui

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// scenes make snapshots for tests: the same ones for the same arguments.

const sceneStart = int64(1_700_000_000_000)

func ptr[T any](v T) *T { return &v }

// fleetScene is n workers of models and roles at a moment, ms after the start.
func fleetScene(n int, roles []string, ms int64) *snapshot.Snapshot {
	r := rand.New(rand.NewPCG(uint64(n), uint64(ms)))
	now := sceneStart + ms
	s := &snapshot.Snapshot{
		Schema: snapshot.Schema, Run: "run-1", Seq: uint64(1 + ms/250), AtMS: now,
		Router: snapshot.Router{
			Version: "v0.6.0", StartedMS: sceneStart - 8_000_000, Ready: true, Policy: "kv-aware",
			Flags: map[string]any{"overlap_weight": 1.0, "temperature": 0.0, "decode_demand": "off"}, BlockSize: 16,
			InFlight: int64(3 * n), Requests: uint64(100_000 + ms/2), RequestRate: 480 + 40*r.Float64(),
			InputTokens: 31_000_000 + ms, SavedTokens: 12_400_000 + ms/3,
			HitShare1m: ptr(0.43), HitShare15m: ptr(0.412), DispatchP50: ptr(0.31 + 0.02*r.Float64()), DispatchP99: ptr(0.82), Kept: 20_000, Watchers: 1,
		},
	}
	trusts := []string{"trusted", "trusted", "trusted", "trusted", "trusted", "gap", "trusted", "silent", "trusted", "warming", "trusted", "no-events"}
	reasons := map[string]string{
		"trusted": "every batch since the cache was empty was applied", "gap": "batches 812 to 815 are missing and could not be fetched",
		"silent": "412 requests were answered since its last event", "warming": "a replay of 1200 batches is being read", "no-events": "no event stream is configured",
	}
	for i := range n {
		role := roles[i%len(roles)]
		trust := trusts[i%len(trusts)]
		w := snapshot.Worker{
			WorkerID: fmt.Sprintf("w%d", i), RouteKey: fmt.Sprintf("w%d", i), URL: fmt.Sprintf("http://10.0.0.%d:8000", i%250), Model: "llama-3-70b", Role: role,
			Engine: "vllm", EngineVersion: "0.11.0", Health: "healthy", Breaker: "closed", Trust: trust, TrustReason: reasons[trust],
			TrustSinceMS: ptr(sceneStart - int64(i)*60_000), BlockCount: 4000 + r.IntN(40_000), Approximate: trust == "no-events",
			PoolBlocks: ptr(int64(65_536)), PageSize: ptr(16), ContentHash: fmt.Sprintf("%016x", r.Uint64()),
			ActiveBlocks: int64(r.IntN(3000)), PendingTokens: int64(r.IntN(30_000)), HeldRequests: int64(r.IntN(60)), HeldTokens: int64(r.IntN(400_000)),
			Requests: uint64(1000 + r.IntN(10_000)), RequestRate: 8 * r.Float64(), HitShare: ptr(r.Float64()), ReportedShare: ptr(r.Float64()),
			Stream: snapshot.Stream{
				Sequence: ptr(uint64(90_000 + ms/100)), LastEventMS: ptr(now - int64(r.IntN(1500))), Batches: 90_000, Stored: 400_000, Removed: 380_000, Clears: 1,
			},
			Parity:      []snapshot.Parity{{Case: "plain", Verdict: "confirmed"}, {Case: "chat", Verdict: "unknown", Detail: "the engine does not answer /tokenize"}},
			Predictions: snapshot.Prediction{Compared: 812, Differing: 3, Predicted: 812_000, Reported: 811_900},
		}
		w.Tiers = [3]int{w.BlockCount * 3 / 4, w.BlockCount / 5, w.BlockCount - w.BlockCount*3/4 - w.BlockCount/5}
		w.LowerBlocks = w.Tiers[1] + w.Tiers[2]
		w.Fill = ptr(float64(w.Tiers[0]) / 65_536)
		span := int(ms / snapshot.HistorySpanMS)
		for h := range snapshot.HistoryLength {
			w.History = append(w.History, uint32(8+7*((h+span+i)%5)))
			w.Stream.StoredHist = append(w.Stream.StoredHist, uint32(100*((h+span+i)%7)))
			w.Stream.RemovedHist = append(w.Stream.RemovedHist, uint32(90*((h+span+2*i)%6)))
		}
		switch trust {
		case "gap":
			w.Stream.Gaps, w.Stream.Missing = 2, 4
		case "silent":
			w.Stream.LastEventMS = ptr(now - 95_000)
		case "no-events":
			w.Stream.Sequence, w.Stream.LastEventMS, w.ReportedShare, w.Fill, w.PoolBlocks = nil, nil, nil, nil, nil
		}
		if i == 13 {
			w.Health, w.HealthReason, w.Breaker = "unhealthy", "connect: connection refused", "open"
			w.RequestRate, w.HeldRequests = 0, 0
		}
		s.Cache.Held += int64(w.BlockCount)
		s.Workers = append(s.Workers, w)
	}
	s.Cache.Distinct = s.Cache.Held * 7 / 10
	s.Cache.Sampled = 1000
	addPrefixes(s, ms)
	addPicks(s, ms)
	if n > 1 {
		s.Warnings = []snapshot.Warning{
			{ID: "gap/w5", AtMS: sceneStart - 12_000, Severity: "warning", Kind: "gap", RouteKey: "w5", Text: "4 batches of events are missing and could not be fetched: its mirror may lack blocks or hold some that are gone"},
			{ID: "silent/w7", AtMS: sceneStart - 95_000, Severity: "warning", Kind: "silent", RouteKey: "w7", Text: "it answers requests and sends no events; is its publisher running?"},
			{ID: "breaker/w13", AtMS: sceneStart - 400_000, Severity: "error", Kind: "breaker", RouteKey: "w13", Text: "breaker open: connection refused", OverMS: ptr(sceneStart - 100_000)},
		}
	}
	return s
}

// addPrefixes adds four trees of prefixes. Every second a tenth of what is held changes, and uses go up and down.
func addPrefixes(s *snapshot.Snapshot, ms int64) {
	if len(s.Workers) == 0 {
		return
	}
	r := rand.New(rand.NewPCG(uint64(len(s.Workers)), 3))
	sec := uint64(ms / 1000)
	var add func(parent string, from, depth int)
	add = func(parent string, from, depth int) {
		for c := range 3 - depth {
			n := uint64(len(s.Cache.Prefixes))
			now := rand.New(rand.NewPCG(n, sec))
			x := snapshot.Prefix{
				Hash: fmt.Sprintf("%016x", r.Uint64()), Parent: parent, Model: s.Workers[0].Model, From: from, Blocks: 8 << (depth + c),
				Uses: 400/(depth+1)/(c+1) + now.IntN(9), LastMS: s.AtMS - int64(now.IntN(40_000)),
			}
			for i := range s.Workers {
				cell := rand.New(rand.NewPCG(n<<32|uint64(i), (sec+n+uint64(i))/10))
				switch cell.IntN(4) {
				case 0:
					x.Holders = append(x.Holders, snapshot.Holder{RouteKey: s.Workers[i].RouteKey, Blocks: x.Blocks})
				case 1:
					x.Holders = append(x.Holders, snapshot.Holder{RouteKey: s.Workers[i].RouteKey, Blocks: 1 + cell.IntN(x.Blocks)})
				}
			}
			s.Cache.Prefixes = append(s.Cache.Prefixes, x)
			if depth < 2 {
				add(x.Hash, from+x.Blocks, depth+1)
			}
		}
	}
	for range 4 {
		add("", 0, 0)
	}
}

// addPicks adds the decisions kept until ms: 20 a second.
func addPicks(s *snapshot.Snapshot, ms int64) {
	if len(s.Workers) == 0 {
		return
	}
	last := 1000 + ms/50
	for id := last - 120; id <= last; id++ {
		r := rand.New(rand.NewPCG(uint64(id), 7))
		w := &s.Workers[r.IntN(len(s.Workers))]
		x := snapshot.Pick{
			ID: uint64(id), AtMS: sceneStart + (id-1000)*50, RequestID: fmt.Sprintf("req-%06d", id), Model: w.Model, Role: w.Role,
			Session: fmt.Sprintf("%016x", r.Uint64()), Basis: []string{"exact", "exact", "estimated", "load-only"}[r.IntN(4)], Tokens: int64(100 + r.IntN(9000)),
			RouteKey: w.RouteKey, Rule: "cost", Cost: r.Float64() * 500, Candidates: len(s.Workers),
		}
		x.Blocks = x.Tokens / 16
		x.Hits = int64(r.IntN(int(x.Blocks) + 1))
		if len(s.Workers) > 1 {
			x.RunnerUp = s.Workers[r.IntN(len(s.Workers))].RouteKey
			x.Margin = ptr(r.Float64() * 300)
		}
		s.Picks = append(s.Picks, x)
	}
}

// ranksScene is workers of several data-parallel ranks.
func ranksScene(workers, ranks int) *snapshot.Snapshot {
	s := fleetScene(workers*ranks, []string{"aggregated"}, 0)
	rename := map[string]string{}
	for i := range s.Workers {
		w := &s.Workers[i]
		old := w.RouteKey
		w.WorkerID = fmt.Sprintf("http://10.1.0.%d:30000", i/ranks)
		w.RouteKey = fmt.Sprintf("%s#dp%d", w.WorkerID, i%ranks)
		w.Model, w.Engine, w.EngineVersion = "DeepSeek-V3", "sglang", "0.5.4"
		rename[old] = w.RouteKey
	}
	for i := range s.Cache.Prefixes {
		s.Cache.Prefixes[i].Model = "DeepSeek-V3"
		for j := range s.Cache.Prefixes[i].Holders {
			h := &s.Cache.Prefixes[i].Holders[j]
			h.RouteKey = rename[h.RouteKey]
		}
	}
	for i := range s.Picks {
		s.Picks[i].RouteKey, s.Picks[i].RunnerUp, s.Picks[i].Model = rename[s.Picks[i].RouteKey], rename[s.Picks[i].RunnerUp], "DeepSeek-V3"
	}
	for i := range s.Warnings {
		s.Warnings[i].RouteKey = rename[s.Warnings[i].RouteKey]
	}
	return s
}

// hostile are names nobody should be able to hurt a screen with.
var hostile = []string{
	"\x1b[2J\x1b[31mred\x1b]0;title\x07", "a\rb\nc\td", "\u202eevil\u2066name", "zero\u200bwidth\u200d", "日本語ワーカー名前", "bad\xff\xfeutf8",
	"zalgo\u0301\u0302\u0303\u0304", "👩‍👩‍👧‍👦family👍🏽", "", "very-long-name-" + "0123456789012345678901234567890123456789012345678901234567890123456789", "\u0085\u009b31m", "ﷺ", "e\u0301", "🇩🇪", "\u2028line", "A|B`~#",
}

func hostileScene() *snapshot.Snapshot {
	s := fleetScene(len(hostile), []string{"aggregated"}, 0)
	for i, h := range hostile {
		w := &s.Workers[i]
		w.RouteKey, w.Model, w.Engine, w.TrustReason, w.URL, w.EngineVersion = h+fmt.Sprint(i), hostile[i%3], h, h, h, h
		if i%5 == 0 {
			w.Trust = h
		}
		if i < len(s.Picks) {
			p := &s.Picks[len(s.Picks)-1-i]
			p.RouteKey, p.RunnerUp, p.Model, p.Session, p.Basis, p.Rule, p.RequestID = w.RouteKey, h, h, h, h, h, h
		}
		if i < len(s.Cache.Prefixes) {
			x := &s.Cache.Prefixes[i]
			x.Hash, x.Model, x.Text = h, hostile[i%3], h
			x.Holders = append(x.Holders, snapshot.Holder{RouteKey: w.RouteKey, Blocks: i})
		}
		s.Warnings = append(s.Warnings, snapshot.Warning{ID: fmt.Sprint(i), AtMS: s.AtMS, Severity: h, Kind: h, RouteKey: h, Text: h})
	}
	s.Router.Policy, s.Router.Version = hostile[0], hostile[1]
	s.Router.Flags[hostile[2]] = hostile[0]
	s.Router.Text = true
	return s
}

// fakeSource tells what a test says, and explains what it is given.
type fakeSource struct {
	name    string
	updates chan Update
	explain map[uint64][]byte
}

func (f *fakeSource) Name() string { return f.name }

func (f *fakeSource) Run(ctx context.Context, send func(Update)) {
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-f.updates:
			send(u)
		}
	}
}

func (f *fakeSource) Explain(_ context.Context, pick uint64) ([]byte, error) {
	if b, ok := f.explain[pick]; ok {
		return b, nil
	}
	return nil, errors.New("the router does not keep this decision any more")
}

func newFake() *fakeSource {
	return &fakeSource{name: "http://127.0.0.1:9090", updates: make(chan Update)}
}

// at is a model of a size that was told updates.
func at(w, h int, o Options, us ...Update) Model {
	o.Width, o.Height = w, h
	m := New(newFake(), o)
	for _, u := range us {
		m = after(m, u)
	}
	return m
}

// after is a model after messages.
func after(m Model, msgs ...any) Model {
	for _, x := range msgs {
		next, _ := m.Update(x)
		m = next.(Model)
	}
	return m
}

// on is a model on another page.
func on(m Model, p page) Model {
	m.show(p)
	m.settle() // as every change of a model's state ends
	return m
}

func live(s *snapshot.Snapshot) Update { return Update{Snap: s, Link: Live} }

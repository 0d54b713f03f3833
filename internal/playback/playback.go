// Package playback turns a recording of serve back into the snapshots that a watcher would have seen. What a
// recording does not tell (health, engines, reported tokens) stays unknown.
package playback

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/vitals"
)

// step is the time between two snapshots, in ms.
const step = 250

// Track plays one file of a recording. It is owned by one goroutine. In memory it holds what the router's mirrors
// held at the time that is played.
type Track struct {
	name     string
	f        io.ReadSeeker
	from, to int64

	r     *record.Reader
	state *state
	due   int64 // time of the next snapshot
	seq   uint64
	ahead bool // a record is read and not folded yet, as it belongs to after due
	rec   record.Record
	end   error
}

// Open reads a recording once, to know its times. Damage is met when playing comes to it.
func Open(name string, f io.ReadSeeker) (*Track, error) {
	t := &Track{name: name, f: f}
	if err := t.rewind(); err != nil {
		return nil, err
	}
	var rec record.Record
	for {
		if err := t.r.Read(&rec); err != nil {
			break
		}
		if ms := timeOf(&rec); ms > 0 {
			if t.from == 0 {
				t.from = ms
			}
			t.to = max(t.to, ms)
		}
	}
	if t.from == 0 {
		return nil, &record.Error{File: name, Why: "the recording has no decisions to show", Hint: "the router served nothing while it was made, or it broke off at its beginning", Damaged: true}
	}
	return t, t.rewind()
}

// timeOf is when a record was made, in ms; 0 where it does not say.
func timeOf(r *record.Record) int64 {
	switch r.Kind {
	case record.Decision:
		return r.Req.At / 1e6
	case record.Load, record.Note:
		return r.At / 1e6
	}
	return 0
}

func (t *Track) rewind() error {
	if _, err := t.f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	r, err := record.Open(t.f, t.name)
	if err != nil {
		return err
	}
	t.r, t.state, t.due, t.end, t.ahead, t.seq = r, newState(r.Header()), t.from, nil, false, 0
	return nil
}

// Span is the time of the first and the last snapshot, in Unix ms.
func (t *Track) Span() (from, to int64) { return t.from, t.to }

// Next folds the recording up to the next snapshot's time and returns it; io.EOF at the end.
func (t *Track) Next() (*snapshot.Snapshot, error) {
	if t.end != nil {
		return nil, t.end
	}
	t.end = t.fold(t.due) // what led up to the end is shown first
	t.seq++
	s := t.state.snapshot(min(t.due, t.to), t.seq)
	t.due += t.pace()
	return s, nil
}

// pace is the time to the next snapshot. While nothing happens they become rarer, so that quiet nights, and times
// that are damaged, are not played in steps without number.
func (t *Track) pace() int64 {
	grown := (t.due - t.state.now) / 16
	if t.ahead {
		grown = min(grown, timeOf(&t.rec)-t.due)
	}
	return max(step, grown)
}

// fold takes records up to a time.
func (t *Track) fold(until int64) error {
	for {
		if !t.ahead {
			if err := t.r.Read(&t.rec); err != nil {
				if errors.Is(err, io.EOF) && t.r.Cut() {
					return &record.Error{
						File: t.name, Line: t.rec.Line + 1, Why: "the recording breaks off here", Damaged: true,
						Hint: "what was recorded before is played; the router was killed, or its disk was full",
					}
				}
				return err
			}
			t.ahead = true
		}
		if ms := timeOf(&t.rec); ms > until {
			return nil
		}
		t.ahead = false
		if err := t.state.take(&t.rec); err != nil {
			return err
		}
	}
}

// SeekTo makes Next return the snapshot of a time.
func (t *Track) SeekTo(ms int64) error {
	if ms < t.due-step || t.end != nil {
		if err := t.rewind(); err != nil {
			return err
		}
	}
	t.due = min(max(ms, t.from), t.to)
	return nil
}

// Explain returns the record of a decision that was shown lately.
func (t *Track) Explain(pick uint64) ([]byte, error) {
	record, ok := t.state.vitals.Explain(pick)
	if !ok {
		return nil, fmt.Errorf("decision %d is not among the last %d that were kept", pick, snapshot.MaxPicks)
	}
	return record, nil
}

// state is what the recording says of the router at one moment.
type state struct {
	head    record.Header
	now     int64 // ms; events have no time of their own and count for that of the record before
	began   int64
	vitals  *vitals.Vitals
	targets []*cache             // by target.ID; nil: nobody
	held    map[block.Hash]int32 // by how many targets
	pending map[uint64]booked
	flight  int64
}

// cache is one target.
type cache struct {
	key    string
	role   string
	page   int
	doubt  string
	blocks map[block.Hash]uint8 // nearest tier
	tiers  [index.NumTiers]int
	load   struct{ active, pending, requests, tokens int64 }
	trust  string
	reason string
	since  int64
	last   int64 // of the last event
}

// booked is a request that has not ended.
type booked struct {
	target    target.ID
	tokens    int64
	predicted int64
	prefill   int64 // tokens to compute before the first one
}

func newState(h record.Header) *state {
	return &state{head: h, vitals: vitals.New(), held: map[block.Hash]int32{}, pending: map[uint64]booked{}}
}

func (s *state) at(id target.ID) *cache {
	if int(id) < len(s.targets) {
		return s.targets[id]
	}
	return nil
}

func (s *state) take(r *record.Record) error {
	if ms := timeOf(r); ms > 0 {
		s.now = max(s.now, ms)
		if s.began == 0 {
			s.began = ms
		}
	}
	switch r.Kind {
	case record.Worker:
		s.worker(r)
	case record.Event:
		s.event(r)
	case record.Decision:
		return s.decision(r)
	case record.Load:
		s.load(r)
	case record.Note:
		if c := s.at(r.Target); c != nil {
			if trust, reason, ok := strings.Cut(strings.TrimPrefix(r.Text, "trust "), ":"); ok && strings.HasPrefix(r.Text, "trust ") {
				if trust != c.trust {
					c.since = s.now
				}
				c.trust, c.reason = trust, strings.TrimSpace(reason)
			}
		}
	}
	return nil
}

func (s *state) worker(r *record.Record) {
	for int(r.Target) >= len(s.targets) {
		s.targets = append(s.targets, nil)
	}
	switch r.Op {
	case record.Join:
		s.targets[r.Target] = &cache{
			key: r.Candidate.Key, role: r.Candidate.Role.String(), page: r.Candidate.PageSize, doubt: r.Candidate.Doubt,
			blocks: map[block.Hash]uint8{}, trust: "unknown",
		}
	case record.Change:
		if c := s.targets[r.Target]; c != nil {
			c.page, c.doubt = r.Candidate.PageSize, r.Candidate.Doubt
		}
	case record.Leave, record.Forget:
		if c := s.targets[r.Target]; c != nil {
			s.empty(c)
			s.vitals.Forget(c.key)
			s.targets[r.Target] = nil
		}
	}
}

func (s *state) empty(c *cache) {
	for h := range c.blocks {
		s.drop(h)
	}
	clear(c.blocks)
	c.tiers = [index.NumTiers]int{}
}

func (s *state) drop(h block.Hash) {
	if s.held[h]--; s.held[h] == 0 {
		delete(s.held, h)
	}
}

func (s *state) event(r *record.Record) {
	c := s.at(r.Target)
	if c == nil {
		return
	}
	var sum index.Result
	if r.Emptied {
		sum.Removed = len(c.blocks)
		s.empty(c)
	}
	for _, h := range r.Blocks {
		old, had := c.blocks[h]
		if had {
			c.tiers[old]--
		}
		switch {
		case r.Held:
			c.blocks[h] = r.Tier
			c.tiers[r.Tier]++
			if !had {
				s.held[h]++
				sum.Stored++
			}
		case had:
			delete(c.blocks, h)
			s.drop(h)
			sum.Removed++
		}
	}
	c.last = s.now
	s.vitals.Applied(s.now, c.key, &sum, r.Emptied)
}

func (s *state) decision(r *record.Record) error {
	d, err := score.ParseDecision(r.JSON)
	if err != nil {
		return &record.Error{File: r.File, Line: r.Line, Why: "the decision cannot be read: " + err.Error(), Damaged: true}
	}
	req := r.Req
	req.Model = s.head.Model
	req.Blocks = slices.Clone(req.Blocks)
	req.Variants = slices.Clone(req.Variants)
	for i := range req.Variants {
		req.Variants[i].Blocks = slices.Clone(req.Variants[i].Blocks)
	}
	s.vitals.Picked(s.now, &req, &d, nil)
	for i := range d.Terms {
		if c := s.at(d.Terms[i].Candidate.Target); c != nil {
			l := &d.Terms[i].Load
			c.load.active, c.load.pending, c.load.requests, c.load.tokens = l.ActiveBlocks, l.PendingTokens, l.HeldRequests, l.HeldTokens
		}
	}
	t := d.PickedTerms()
	b := booked{target: t.Candidate.Target, tokens: d.Tokens, predicted: t.HitTokens, prefill: max(d.Tokens-t.HitTokens, 0)}
	s.pending[d.Seq] = b
	s.flight++
	if c := s.at(b.target); c != nil {
		c.load.requests++
		c.load.tokens += b.tokens
		c.load.pending += b.prefill
	}
	return nil
}

func (s *state) load(r *record.Record) {
	b, ok := s.pending[r.Seq]
	if !ok {
		return
	}
	c := s.at(b.target)
	if r.Load == record.FirstToken || r.Load == record.Release {
		if c != nil {
			c.load.pending = max(c.load.pending-b.prefill, 0)
		}
		b.prefill = 0
		s.pending[r.Seq] = b
	}
	if r.Load != record.Release {
		return
	}
	delete(s.pending, r.Seq)
	s.flight--
	if c != nil {
		c.load.requests = max(c.load.requests-1, 0)
		c.load.tokens = max(c.load.tokens-b.tokens, 0)
		s.vitals.Ended(s.now, c.key, b.tokens, b.predicted, -1)
	}
}

// snapshot is the state at a time in ms.
func (s *state) snapshot(ms int64, seq uint64) *snapshot.Snapshot {
	out := &snapshot.Snapshot{
		Schema: snapshot.Schema, Run: s.head.Run, Seq: seq, AtMS: ms,
		Router: snapshot.Router{
			Version: s.head.Program, StartedMS: s.began, Ready: true, Policy: s.head.Config.Policy, Flags: map[string]any{},
			BlockSize: s.head.BlockSize, InFlight: s.flight,
		},
		Workers: []snapshot.Worker{},
	}
	for _, c := range s.targets {
		if c == nil {
			continue
		}
		id, _, _ := strings.Cut(c.key, "#dp")
		w := snapshot.Worker{
			WorkerID: id, RouteKey: c.key, Model: s.head.Model, Role: c.role, Health: "unknown", HealthReason: "a recording does not tell", Trust: c.trust, TrustReason: c.reason,
			Approximate: strings.HasPrefix(c.doubt, "approximate"), BlockCount: len(c.blocks), LowerBlocks: c.tiers[index.CPU] + c.tiers[index.Disk],
			Tiers: c.tiers, ActiveBlocks: c.load.active, PendingTokens: c.load.pending, HeldRequests: c.load.requests, HeldTokens: c.load.tokens,
			Parity: []snapshot.Parity{},
		}
		if c.page > 0 {
			w.PageSize = &c.page
		}
		if c.since > 0 {
			since := c.since
			w.TrustSinceMS = &since
		}
		if c.last > 0 {
			last := c.last
			w.Stream.LastEventMS = &last
		}
		out.Workers = append(out.Workers, w)
		out.Cache.Held += int64(len(c.blocks))
	}
	out.Cache.Distinct = int64(len(s.held))
	snapshot.SortWorkers(out.Workers)
	out.Cache.Prefixes, out.Cache.Sampled = s.vitals.Prefixes(s.holders)
	s.vitals.Fill(ms, out)
	s.vitals.Watch(out)
	return out
}

// holders implements vitals.Holders.
func (s *state) holders(_ string, chain []block.Hash, each func(string, int)) {
	for _, c := range s.targets {
		if c == nil {
			continue
		}
		n := 0
		for n < len(chain) {
			if _, ok := c.blocks[chain[n]]; !ok {
				break
			}
			n++
		}
		if n > 0 {
			each(c.key, n)
		}
	}
}

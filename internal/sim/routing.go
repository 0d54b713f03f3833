package sim

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// newRouters makes the routers and their candidates, one list for each leg of a request.
func (s *run) newRouters() error {
	n := max(1, s.cfg.Routers)
	for r := range n {
		led := load.New()
		for t := range s.cfg.fleetSize() {
			led.Join(target.ID(t), 1)
		}
		cfg := s.cfg.Score
		cfg.Seed += uint64(r) // random policies of several routers must not move in step
		scorer, err := score.New(cfg, s.mirror.view, led)
		if err != nil {
			return fmt.Errorf("making router %d: %w", r, err)
		}
		s.routers = append(s.routers, router{scorer, led})
	}
	s.truth = s.routers[0].led
	if n > 1 {
		s.truth = load.New()
		for t := range s.cfg.fleetSize() {
			s.truth.Join(target.ID(t), 1)
		}
	}
	// Keys have equal width, so that their order is that of the numbers.
	width := len(strconv.Itoa(s.cfg.fleetSize() - 1))
	for t := range s.cfg.fleetSize() {
		leg, role := 0, score.Mixed
		if s.cfg.disaggregated() {
			role = score.Prefill
			if t >= s.cfg.PrefillWorkers {
				leg, role = 1, score.Decode
			}
		}
		s.cands[leg] = append(s.cands[leg], score.Candidate{
			Target: target.ID(t), Key: fmt.Sprintf("w%0*d", width, t), Role: role, BlockSize: max(1, s.w.BlockSize),
		})
	}
	return nil
}

func (s *run) routerOf(i int32) *router { return &s.routers[int(i)%len(s.routers)] }

// pick chooses a worker for one leg of request i.
func (s *run) pick(i int32, leg int, role score.Role) error {
	st := &s.reqs[i]
	r := s.routerOf(i)
	if leg == 0 {
		s.mirror.hear(s.now)
		s.describe(i)
	}
	s.req.Role = role
	if err := r.scorer.Pick(&s.req, s.cands[leg], &s.dec); err != nil {
		return fmt.Errorf("routing request %d: %w", i, err)
	}
	t := s.dec.PickedTerms()
	id := t.Candidate.Target
	st.worker[leg], st.handle[leg] = int32(id), s.dec.Handle
	s.requests[id]++
	s.picks.Add(int(id))
	if leg == 0 && st.attempt == 0 {
		s.predicted += t.Hits
	}
	if len(s.routers) > 1 {
		st.truth[leg] = s.truth.Reserve(id, load.Demand{Blocks: s.path})
	}
	s.peak = max(s.peak, s.truth.Load(id).ActiveBlocks)
	if s.out != nil {
		return s.encode()
	}
	return nil
}

// describe fills s.req with what a router may know of request i. Its output length is not in it.
func (s *run) describe(i int32) {
	q := &s.w.Requests[i]
	s.path = s.w.Path(q.Leaf, s.path[:0])
	s.mirror.view.look(q.Leaf)
	s.req = score.Request{
		Model: "sim", At: s.nanos(), Blocks: s.path, BlockSize: max(1, s.w.BlockSize),
		InputTokens: q.Input, TokensExact: true, N: 1,
	}
	if q.Even != 0 {
		s.req.BlockSize = int(q.Even)
	} else if c := s.w.Forest.CumTokens; c != nil {
		s.tokens = s.w.Forest.PathTokens(q.Leaf, s.tokens[:0])
		s.req.BlockTokens = s.tokens
	}
	if q.Session >= 0 {
		s.req.Session = s.w.Sessions[q.Session]
	}
	if s.out != nil {
		if s.w.IDs != nil {
			s.req.ID = s.w.IDs[i]
		}
		if s.req.ID == "" {
			s.req.ID = strconv.Itoa(int(i))
		}
	}
}

// release ends the reservation of one leg; handles that have been released, or whose worker is gone,
// name nothing.
func (s *run) release(i int32, leg int) {
	st := &s.reqs[i]
	s.routerOf(i).scorer.Release(st.handle[leg], s.nanos())
	st.handle[leg] = load.Handle{}
	if len(s.routers) > 1 {
		s.truth.Release(st.truth[leg])
		st.truth[leg] = load.Handle{}
	}
}

func sortedKills(kills []Kill) []Kill {
	kills = slices.Clone(kills)
	slices.SortStableFunc(kills, func(a, b Kill) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
	return kills
}

// nextKill is the time of the next kill, as long as there is anything left to happen.
func (s *run) nextKill() int64 {
	if len(s.kills) == 0 || s.over() == len(s.reqs) {
		return engine.Forever
	}
	return s.ticks(s.kills[0].At)
}

// kill ends a worker. The routers learn of it at once; what it had in flight is sent again.
func (s *run) kill() error {
	worker := s.kills[0].Worker
	s.kills = s.kills[1:]
	s.fleet.kill(worker)
	s.mirror.forget(worker)
	for _, r := range s.routers {
		r.scorer.Forget(target.ID(worker))
	}
	if len(s.routers) > 1 {
		s.truth.Forget(target.ID(worker))
	}
	for leg := range s.cands {
		s.cands[leg] = slices.DeleteFunc(s.cands[leg], func(c score.Candidate) bool { return int(c.Target) == worker })
	}
	for i := range int32(s.routed) {
		if err := s.bereave(i, worker); err != nil {
			return err
		}
	}
	return nil
}

// bereave deals with one request after the death of a worker.
func (s *run) bereave(i int32, worker int) error {
	st := &s.reqs[i]
	first, second := int(st.worker[0]) == worker, s.cfg.disaggregated() && int(st.worker[1]) == worker
	switch {
	case st.phase == phaseAway:
		return nil
	case st.phase == phasePrefill && !first && second: // still in time to choose another decode worker
		s.release(i, 1)
		s.mirror.hear(s.now)
		s.describe(i)
		return s.pick(i, 1, score.Decode)
	case st.on(worker), st.phase == phaseTransfer && (first || second):
	default:
		return nil
	}
	s.release(i, 0)
	s.release(i, 1)
	st.phase = phaseAway
	st.attempt++ // what is still to come of the old one is void
	if st.attempt > 1 {
		s.lost++
		return nil
	}
	if st.start > s.now { // its prefill had been planned only
		st.start = -1
	}
	return s.send(i)
}

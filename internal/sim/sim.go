package sim

import (
	"bufio"
	"context"
	"fmt"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/trace"
)

// Phases of a request.
const (
	phaseAway     uint8 = iota // not arrived yet, or over
	phasePrefill               // on its first worker; in an aggregated fleet until its end
	phaseTransfer              // its KV is on the way to the decode worker
	phaseDecode                // on the decode worker
)

// reqState is what a run knows of one request. Times are ticks, -1 where the event has not happened.
type reqState struct {
	start, first int64 // first admission, first token
	from, until  int64 // serial: when the present answer began and will end
	done         int64 // answer tokens of former attempts, and in a batch fleet of the prefill leg
	handle       [2]load.Handle
	truth        [2]load.Handle
	worker       [2]int32 // prefill or aggregated worker; decode worker
	attempt      uint16
	phase        uint8
	counted      bool // its hits are in the report
}

// on tells whether the request occupies worker now.
func (st *reqState) on(worker int) bool {
	return (st.phase == phasePrefill && int(st.worker[0]) == worker) || (st.phase == phaseDecode && int(st.worker[1]) == worker)
}

// router is one instance of the program that serves live requests: a scorer with its own ledger.
type router struct {
	scorer *score.Scorer
	led    *load.Ledger
}

// run is one simulation under way.
//
// Everything that happens at one instant happens in this order: effects of engines (ends, first tokens,
// cache changes), kills, arrivals of transferred KV, arrivals of requests one after another, and then the
// engines take up new work.
type run struct {
	cfg    Config
	w      *trace.Workload
	tick   int64 // ticks in a microsecond
	now    int64
	routed int // requests that have arrived
	reqs   []reqState
	fleet  fleet
	mirror *mirror

	routers []router
	truth   *load.Ledger // what is in flight in the whole fleet; with one router, its ledger
	cands   [2][]score.Candidate
	req     score.Request
	dec     score.Decision
	path    []block.Hash
	tokens  []uint32
	out     *bufio.Writer // decisions; nil: not wanted
	line    []byte

	hooks
	kills     []Kill // in order of time
	transfers heap
	seq       uint64

	result
}

// hooks are what tests put in.
type hooks struct {
	stepwise bool                                      // batch engines simulate every step by itself
	view     func(w *trace.Workload, workers int) view // another mirror
	after    func() error                              // called after every event
}

// Run simulates the workload on the fleet. It returns the errors of Config.Validate, what the workload or
// writing decisions went wrong with, or ctx's error.
func Run(ctx context.Context, w *trace.Workload, cfg Config) (*report.Run, error) {
	s, err := newRun(w, cfg, hooks{})
	if err != nil {
		return nil, err
	}
	return s.run(ctx)
}

func (s *run) run(ctx context.Context) (*report.Run, error) {
	if err := s.loop(ctx); err != nil {
		return nil, err
	}
	if s.out != nil {
		if err := s.out.Flush(); err != nil {
			return nil, fmt.Errorf("writing decisions: %w", err)
		}
	}
	return s.report()
}

func newRun(w *trace.Workload, cfg Config, h hooks) (*run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.checkWorkload(w); err != nil {
		return nil, err
	}
	if w.Forest == nil {
		whole := *w
		whole.Forest = &trace.Forest{}
		w = &whole
	}
	if cfg.Seed != 0 {
		cfg.Score.Seed = cfg.Seed
	}
	s := &run{cfg: cfg, w: w, tick: 1, hooks: h, reqs: make([]reqState, len(w.Requests)), kills: sortedKills(cfg.Kill)}
	for i := range s.reqs {
		s.reqs[i].start, s.reqs[i].first = -1, -1
	}
	n := cfg.fleetSize()
	s.result = newResult(len(w.Requests), n)
	if cfg.Engine == SerialEngine {
		s.capacity = int64(cfg.Capacity)
		s.fleet = newSerialFleet(s)
	} else {
		s.tick = engine.TicksPerMicrosecond
		if err := s.batch(); err != nil {
			return nil, err
		}
	}
	var v view
	if h.view != nil {
		v = h.view(w, n)
	} else {
		v = newForestView(w.Forest, n)
	}
	s.mirror = newMirror(v, n, s.ticks(cfg.EventDelay))
	if err := s.newRouters(); err != nil {
		return nil, err
	}
	if cfg.Decisions != nil {
		s.out = bufio.NewWriterSize(cfg.Decisions, 1<<16)
	}
	return s, nil
}

// batch makes the batch fleet.
func (s *run) batch() error {
	if s.cfg.Profile == nil {
		p, ok := engine.Lookup(engine.DefaultProfile)
		if !ok {
			return fmt.Errorf("profile %s is not built in", engine.DefaultProfile)
		}
		s.cfg.Profile = p
	}
	p := s.cfg.Profile
	size := int64(s.w.BlockSize)
	if size == 0 {
		size = p.BlockSize
	}
	s.capacity = int64(s.cfg.Capacity)
	if s.capacity == 0 {
		s.capacity = max(1, p.KVTokens/size)
	}
	s.fleet = newBatchFleet(s, p, s.capacity, size)
	return nil
}

// ticks converts a duration that is not negative; beyond the clock it is never.
func (s *run) ticks(d time.Duration) int64 {
	if s.tick == 1 {
		return d.Microseconds()
	}
	perNano := s.tick / 1000
	if d.Nanoseconds() > engine.Forever/perNano {
		return engine.Forever
	}
	return d.Nanoseconds() * perNano
}

// later returns a time later by d, or never.
func later(now, d int64) int64 {
	if d > engine.Forever-now {
		return engine.Forever
	}
	return now + d
}

// nanos is the current time on the scorer's clock.
func (s *run) nanos() int64 {
	if s.tick == 1 {
		return min(s.now, engine.Forever/1000) * 1000
	}
	return s.now / (s.tick / 1000)
}

func (s *run) speed(worker int) float64 {
	for _, sl := range s.cfg.Slow {
		if sl.Worker == worker {
			return sl.Speed
		}
	}
	return 1
}

// loop is the event loop.
func (s *run) loop(ctx context.Context) error {
	pending := false // workers may have work to start
	for n := 0; ; n++ {
		if n&4095 == 0 {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("simulating trace %s: %w", s.w.Name, err)
			}
			if s.cfg.Progress != nil {
				s.cfg.Progress(s.routed, len(s.w.Requests))
			}
		}
		eng, kill, transfer, arrival := s.fleet.next(), s.nextKill(), s.nextTransfer(), s.nextArrival()
		at := min(eng, kill, transfer, arrival)
		if pending && at > s.now {
			s.fleet.start()
			pending = false
			continue
		}
		if at == engine.Forever {
			break
		}
		s.now = at
		pending = true
		switch at {
		case eng:
			s.fleet.finish()
		case kill:
			if err := s.kill(); err != nil {
				return err
			}
		case transfer:
			s.arriveTransfer()
		default:
			if err := s.arrive(); err != nil {
				return err
			}
		}
		if s.after != nil {
			if err := s.after(); err != nil {
				return err
			}
		}
		if s.mirror.err != nil {
			return fmt.Errorf("simulating trace %s: %w", s.w.Name, s.mirror.err)
		}
	}
	if s.cfg.Progress != nil {
		s.cfg.Progress(s.routed, len(s.w.Requests))
	}
	return nil
}

func (s *run) nextArrival() int64 {
	if s.routed == len(s.reqs) {
		return engine.Forever
	}
	return s.w.Requests[s.routed].Arrival * s.tick
}

func (s *run) nextTransfer() int64 {
	if len(s.transfers) == 0 {
		return engine.Forever
	}
	return s.transfers[0].at
}

func (s *run) arrive() error {
	i := int32(s.routed)
	s.routed++
	return s.send(i)
}

// send routes a request and hands it to its worker.
func (s *run) send(i int32) error {
	st := &s.reqs[i]
	role := score.Mixed
	if s.cfg.disaggregated() {
		role = score.Prefill
	}
	if err := s.pick(i, 0, role); err != nil {
		return err
	}
	if role == score.Prefill {
		if err := s.pick(i, 1, score.Decode); err != nil {
			return err
		}
	}
	st.phase = phasePrefill
	if !s.fleet.prefill(i) {
		s.reject(i)
	}
	return nil
}

// admitted: a worker has taken the request up, with hits leading blocks in its cache.
func (s *run) admitted(i int32, worker, hits int) {
	q, st := &s.w.Requests[i], &s.reqs[i]
	if st.start < 0 {
		st.start = s.now
	}
	s.misses[worker] += int64(s.w.BlocksOf(q) - hits)
	if !st.counted {
		st.counted = true
		s.hitBlocks += int64(hits)
		s.hitTokens += s.w.PrefixTokens(q, hits)
	}
}

// firstToken: the client gets the first token of this attempt.
func (s *run) firstToken(i int32) {
	st := &s.reqs[i]
	if st.first < 0 {
		st.first = s.now
	}
	leg := 0
	if s.cfg.disaggregated() {
		leg = 1
	}
	s.routerOf(i).scorer.FirstToken(st.handle[leg], s.nanos())
}

// prefilled: the prefill worker is done; the KV goes to the decode worker, or the request is over.
func (s *run) prefilled(i int32) {
	q, st := &s.w.Requests[i], &s.reqs[i]
	s.routerOf(i).scorer.FirstToken(st.handle[0], s.nanos())
	s.release(i, 0)
	if s.cfg.Engine == BatchEngine && st.done >= q.Output {
		s.firstToken(i)
		s.finished(i)
		return
	}
	st.phase = phaseTransfer
	at := s.now
	if p := s.cfg.Profile; p != nil {
		tokens := q.Input - s.w.PrefixTokens(q, s.fleet.hits(int(st.worker[1]), q.Leaf))
		at = later(at, p.Transfer(tokens)/(engine.TicksPerMicrosecond/s.tick))
	}
	s.seq++
	s.transfers.push(event{at: at, key: s.seq, req: i, attempt: st.attempt})
}

func (s *run) arriveTransfer() {
	e := s.transfers.pop()
	st := &s.reqs[e.req]
	if st.attempt != e.attempt || st.phase != phaseTransfer {
		return // sent again since
	}
	st.phase = phaseDecode
	if !s.fleet.decode(e.req) {
		s.reject(e.req)
	}
}

// finished: the last token is out.
func (s *run) finished(i int32) {
	s.release(i, 0)
	s.release(i, 1)
	s.reqs[i].phase = phaseAway
	s.complete(&s.w.Requests[i], &s.reqs[i], s.now, s.tick, s.cfg.Engine)
}

// reject: the request can never fit into its worker's pool.
func (s *run) reject(i int32) {
	s.release(i, 0)
	s.release(i, 1)
	s.reqs[i].phase = phaseAway
	s.rejected++
}

// encode writes the decision just made.
func (s *run) encode() error {
	s.line = append(s.dec.AppendJSON(s.line[:0]), '\n')
	if _, err := s.out.Write(s.line); err != nil {
		return fmt.Errorf("writing decisions: %w", err)
	}
	return nil
}

package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
)

// choices is where a history takes its decisions from: a random stream, or the bytes of a fuzz input.
type choices interface {
	n(n int) int // in [0, n)
	more() bool
}

type random struct {
	*rand.Rand
	left int
}

func (r *random) n(n int) int { return r.IntN(n) }
func (r *random) more() bool  { r.left--; return r.left >= 0 }

type fuzzed struct{ b []byte }

func (f *fuzzed) n(n int) int {
	if len(f.b) == 0 {
		return 0
	}
	c := f.b[0]
	f.b = f.b[1:]
	return int(c) % n
}
func (f *fuzzed) more() bool { return len(f.b) > 0 }

// modelEngine is an engine with a small cache, which numbers and keeps its batches.
type modelEngine struct {
	c    choices
	from uint64 // first number of a life
	keep int    // batches kept for replay
	// clearFirst makes number 0 a clear, as SGLang does.
	clearFirst bool
	life       uint64
	next       uint64
	uid        uint64
	cached     map[index.Handle]index.Handle // to its parent, 0 for a root
	buffer     []Message
	ops        map[string][]index.Op              // by payload
	after      map[Mark]map[index.Handle]struct{} // what was cached after each batch
	sums       map[Mark]uint64
	truth      *index.Index
	named      index.Handle
}

func newModelEngine(c choices, from uint64, keep int) *modelEngine {
	e := &modelEngine{
		c: c, from: from, next: from, keep: keep, cached: map[index.Handle]index.Handle{}, ops: map[string][]index.Op{},
		after: map[Mark]map[index.Handle]struct{}{}, sums: map[Mark]uint64{}, truth: index.New(1, index.Options{}),
	}
	e.truth.Join(0)
	return e
}

func (e *modelEngine) handles() []index.Handle { return slices.Sorted(maps.Keys(e.cached)) }

// step changes the cache and makes the batch that says so.
func (e *modelEngine) step() Message {
	var ops []index.Op
	if e.next == 0 && e.clearFirst {
		return e.publish([]index.Op{{Kind: index.Clear}})
	}
	for range 1 + e.c.n(3) {
		hs := e.handles()
		switch k := e.c.n(20); {
		case k == 0:
			ops = append(ops, index.Op{Kind: index.Clear})
			clear(e.cached)
		case k < 8 && len(hs) > 0:
			h := hs[e.c.n(len(hs))]
			ops = append(ops, index.Op{Kind: index.Remove, Handles: []index.Handle{h}})
			delete(e.cached, h)
		default:
			// A block's hash is its handle's: the same block may come back under the same name.
			op := index.Op{Kind: index.Store, PageSize: 1}
			if len(hs) > 0 && e.c.n(4) > 0 {
				op.Parent, op.HasParent = hs[e.c.n(len(hs))], true
			}
			e.named++
			h := e.named
			op.Handles, op.Hashes = []index.Handle{h}, []block.Hash{block.Hash(h) * 0x9e3779b97f4a7c15}
			e.cached[h] = op.Parent
			ops = append(ops, op)
		}
	}
	return e.publish(ops)
}

func (e *modelEngine) publish(ops []index.Op) Message {
	e.uid++
	payload := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, e.life), e.uid)
	m := Message{Seq: e.next, HasSeq: true, Payload: payload}
	e.next++
	e.ops[string(payload)] = ops
	for _, op := range ops {
		if _, err := e.truth.Apply(op); err != nil {
			panic(err)
		}
	}
	mark := markOf(&m)
	e.sums[mark] = e.truth.ContentHash(0)
	set := map[index.Handle]struct{}{}
	for h := range e.cached {
		set[h] = struct{}{}
	}
	e.after[mark] = set
	e.buffer = append(e.buffer, m)
	e.buffer = e.buffer[max(0, len(e.buffer)-e.keep):]
	return m
}

func (e *modelEngine) restart() {
	e.life++
	e.next = e.from
	clear(e.cached)
	e.buffer = nil
	if _, err := e.truth.Apply(index.Op{Kind: index.Epoch}); err != nil {
		panic(err)
	}
}

// rig is an engine, a network with faults, a Tracker and its mirror.
type rig struct {
	t      *testing.T
	c      choices
	e      *modelEngine
	k      *Tracker
	rules  Rules
	now    time.Time
	flight []Message // over the connection there is
	held   *Message
	mirror *index.Index
	claims map[index.Handle]struct{} // handles that the mirror was told of
	faulty bool                      // the network drops, copies and reorders; replays fail
	up     bool
	log    []string
	trusts [NumTrust]int
}

func newRig(t *testing.T, c choices) *rig {
	g := &rig{t: t, c: c, now: time.Unix(1_000_000, 0), mirror: index.New(1, index.Options{}), claims: map[index.Handle]struct{}{}}
	g.mirror.Join(0)
	g.rules = Rules{Replay: c.n(4) > 0, From1: c.n(2) == 0, Bind: c.n(4) == 0}
	from := uint64(0)
	if g.rules.From1 && c.n(2) == 0 {
		from = 1
	}
	g.e = newModelEngine(c, from, []int{2, 5, 20, 1 << 20}[c.n(4)])
	g.e.clearFirst = g.rules.From1
	g.rules.least = uint64(min(g.e.keep, 5))
	for range c.n(10) { // before anybody listens
		g.e.step()
	}
	g.k = NewTracker(g.rules, g.now)
	return g
}

func (g *rig) note(format string, args ...any) {
	g.log = append(g.log, fmt.Sprintf(format, args...))
	if len(g.log) > 100 {
		g.log = g.log[1:]
	}
}

func (g *rig) fatalf(format string, args ...any) {
	g.t.Helper()
	for _, l := range g.log {
		g.t.Log(l)
	}
	g.t.Fatalf(format, args...)
}

func (g *rig) clear(s Step) {
	if s.Clear {
		g.apply(index.Op{Kind: index.Epoch})
	}
}

func (g *rig) apply(op index.Op) index.Result {
	r, err := g.mirror.Apply(op)
	if err != nil {
		g.fatalf("applying: %v", err)
	}
	switch op.Kind {
	case index.Store:
		for _, h := range op.Handles {
			g.claims[h] = struct{}{}
		}
	case index.Remove:
		for _, h := range op.Handles {
			delete(g.claims, h)
		}
	default:
		clear(g.claims)
	}
	return r
}

func (g *rig) batch(m *Message, replayed bool) {
	o := Outcome{Replayed: replayed}
	for _, op := range g.e.ops[string(m.Payload)] {
		r := g.apply(op)
		o.Ops++
		o.Result.Stored += r.Stored
		o.Result.Removed += r.Removed
		o.Cleared = o.Cleared || op.Kind == index.Clear
	}
	g.k.Applied(g.now, o)
}

// offer gives a live message to the tracker.
func (g *rig) offer(m Message) {
	s := g.k.Live(g.now, markOf(&m), m.HasSeq)
	g.note("live %d of life %d: clear %v, verdict %d -> %v", m.Seq, m.Payload[7], s.Clear, s.Do, g.k.State().Trust)
	g.clear(s)
	g.held = nil
	switch s.Do {
	case Apply:
		g.batch(&m, false)
	case Wait:
		g.held = &m
	}
}

var errModel = errors.New("replay failed")

// replay does what Want says, once. It says whether there was anything to do.
func (g *rig) replay() bool {
	g.k.Tick(g.now)
	start, ok := g.k.Want(g.now)
	if !ok {
		return false
	}
	err := error(nil)
	fails := g.faulty && g.c.n(4) == 0
	sent := 0
	for _, m := range slices.Clone(g.e.buffer) {
		if m.Seq < start {
			continue
		}
		if fails && g.c.n(3) == 0 {
			err = errModel
			break
		}
		if sent++; g.faulty && sent > int(g.rules.least) && g.c.n(12) == 0 {
			continue // its queue was full
		}
		var s Step
		s, err = g.k.Replayed(g.now, markOf(&m))
		g.note("replayed %d: clear %v, verdict %d, %v", m.Seq, s.Clear, s.Do, err)
		g.clear(s)
		if s.Do == Apply {
			g.batch(&m, true)
		}
		g.check()
		if err != nil {
			break
		}
	}
	if fails && err == nil {
		err = errModel
	}
	s := g.k.Fetched(g.now, err)
	g.note("fetched from %d: %v -> %v %q", start, err, g.k.State().Trust, g.k.State().Reason)
	g.clear(s)
	g.check()
	return true
}

func (g *rig) connect() {
	if g.up {
		return
	}
	g.up = true
	s := g.k.Connected(g.now)
	g.note("connected: clear %v", s.Clear)
	g.clear(s)
}

func (g *rig) disconnect() {
	if g.up {
		g.up, g.flight, g.held = false, nil, nil
		if !g.rules.Bind {
			g.k.Disconnected(g.now, "lost")
		}
		g.note("disconnected")
	}
}

func (g *rig) deliver() {
	if len(g.flight) == 0 || g.held != nil || g.k.Blocked() {
		return
	}
	i := 0
	if g.faulty {
		switch g.c.n(12) {
		case 0: // lost
			g.flight = g.flight[1:]
			return
		case 1: // out of order
			i = g.c.n(min(len(g.flight), 4))
		case 2: // twice
			g.flight = slices.Insert(g.flight, 0, g.flight[g.c.n(min(len(g.flight), 3))])
		}
	}
	m := g.flight[i]
	g.flight = slices.Delete(g.flight, i, i+1)
	g.offer(m)
}

func (g *rig) random() {
	switch k := g.c.n(40); {
	case k < 14:
		m := g.e.step()
		if g.up {
			g.flight = append(g.flight, m)
		}
	case k < 30:
		g.deliver()
	case k < 36:
		g.replay()
		if g.held != nil && !g.k.Blocked() {
			g.offer(*g.held)
		}
	case k == 36:
		g.connect()
	case k == 37:
		g.disconnect()
	case k == 38 && g.c.n(3) == 0:
		// kill -9: the connection goes with the engine. Where engines dial, what is left of its batches
		// may still come after those of the next life.
		left := g.flight
		g.disconnect()
		if g.rules.Bind && g.c.n(2) == 0 {
			g.flight = left
		}
		g.e.restart()
		g.note("life %d", g.e.life)
	case k == 39 && g.c.n(8) == 0:
		g.clear(g.k.Restart(g.now, "because"))
	default:
		g.now = g.now.Add(time.Duration(g.c.n(5000)) * time.Millisecond)
	}
	g.check()
}

// check holds N3, and that a mirror said to lack blocks has none too many. Where engines dial, batches
// of two lives cannot always be told apart at once; there it is the end that counts.
func (g *rig) check() {
	g.t.Helper()
	st := g.k.State()
	g.trusts[st.Trust]++
	if g.rules.Bind {
		return
	}
	mark, ok := g.k.Mark()
	if st.Trust == Trusted {
		want := uint64(0)
		if ok {
			want = g.e.sums[mark.Last]
		}
		if got := g.mirror.ContentHash(0); got != want {
			g.fatalf("trusted at number %d, but the mirror is not what the engine held then", mark.Last.Seq)
		}
	}
	if ok && (st.Trust == Trusted || st.Trust == Warming && g.k.content == subset) {
		for h := range g.claims {
			if _, ok := g.e.after[mark.Last][h]; !ok {
				g.fatalf("%v at number %d, but the mirror has block %d which the engine had dropped", st.Trust, mark.Last.Seq, h)
			}
		}
	}
	if st.Trust != Trusted && st.Reason == "" && st.Trust != Connecting {
		g.fatalf("%v without a reason", st.Trust)
	}
}

// quiesce ends the faults, lets everything arrive and time pass.
func (g *rig) quiesce() {
	g.faulty = false
	g.connect()
	// Without replay nothing tells of a loss at the end but the next batch.
	g.flight = append(g.flight, g.e.step())
	for range 300 {
		g.now = g.now.Add(3 * time.Second)
		for g.replay() {
		}
		switch {
		case g.held != nil && !g.k.Blocked():
			g.offer(*g.held)
		case len(g.flight) > 0:
			g.deliver()
		}
		g.check()
	}
	if len(g.flight) > 0 || g.held != nil {
		g.fatalf("%d messages are left over, waiting %v", len(g.flight), g.held)
	}
	st := g.k.State()
	if st.Trust == Trusted && (g.rules.Replay || !g.rules.Bind) && g.mirror.ContentHash(0) != g.e.truth.ContentHash(0) {
		g.fatalf("trusted in the end, but the mirror is not what the engine holds")
	}
	if g.rules.Replay && g.e.keep > 1000 && st.Trust != Trusted {
		g.fatalf("got %v (%s) in the end, want trusted: the engine has all its batches", st.Trust, st.Reason)
	}
	if settled, why := g.k.Settled(); !settled {
		g.fatalf("not settled in the end: %s", why)
	}
}

func history(t *testing.T, c choices) *rig {
	g := newRig(t, c)
	g.faulty = true
	for c.more() {
		g.random()
	}
	g.quiesce()
	return g
}

func TestHistories(t *testing.T) {
	var trusts [NumTrust]int
	n := 2000
	if testing.Short() {
		n = 500
	}
	for seed := range n {
		g := history(t, &random{rand.New(rand.NewPCG(uint64(seed), 1)), 300})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		for i, n := range g.trusts {
			trusts[i] += n
		}
	}
	t.Log("steps by trust:", trusts)
	for _, s := range []Trust{Connecting, Warming, Trusted, Gap, Resync} {
		if trusts[s] == 0 {
			t.Errorf("no history was ever in state %d: the test does not test what it should", s)
		}
	}
}

func FuzzHistory(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { history(t, &fuzzed{b}) })
}

func TestMarkIsOfPayload(t *testing.T) {
	m := Message{Seq: 3, Payload: []byte("x")}
	if got, want := markOf(&m), (Mark{3, xxh3.HashString("x")}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

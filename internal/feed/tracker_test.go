package feed

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/index"
)

// script drives a Tracker by hand.
type script struct {
	t       *testing.T
	k       *Tracker
	now     time.Time
	cleared int
	life    uint64
}

func begin(t *testing.T, r Rules) *script {
	s := &script{t: t, now: time.Unix(1_000_000, 0)}
	s.k = NewTracker(r, s.now)
	return s
}

func (s *script) mark(seq uint64) Mark { return Mark{seq, s.life<<32 | seq} }

func (s *script) step(st Step) Step {
	if st.Clear {
		s.cleared++
	}
	return st
}

func (s *script) connect()             { s.step(s.k.Connected(s.now)) }
func (s *script) pass(d time.Duration) { s.now = s.now.Add(d); s.k.Tick(s.now) }

// outcome is that of a batch which stores two blocks and removes one.
func outcome() Outcome { return Outcome{Ops: 2, Result: index.Result{Stored: 2, Removed: 1}} }

// live gives numbers to the Tracker and applies what is to be applied.
func (s *script) live(want Verdict, seqs ...uint64) {
	s.t.Helper()
	for _, seq := range seqs {
		s.with(want, seq, outcome())
	}
}

func (s *script) with(want Verdict, seq uint64, o Outcome) {
	s.t.Helper()
	st := s.step(s.k.Live(s.now, s.mark(seq), true))
	if st.Do != want {
		s.t.Fatalf("number %d: got verdict %d, want %d", seq, st.Do, want)
	}
	if st.Do == Apply {
		s.k.Applied(s.now, o)
	}
}

// replay answers the replay that is due with the numbers of the present life, then end. It checks where
// the replay starts.
func (s *script) replay(start uint64, end error, seqs ...uint64) {
	s.t.Helper()
	got, ok := s.k.Want(s.now)
	if !ok || got != start {
		s.t.Fatalf("Want: got %d, %v, want %d: %s", got, ok, start, s.k.State().Reason)
	}
	for _, seq := range seqs {
		st, err := s.k.Replayed(s.now, s.mark(seq))
		s.step(st)
		if st.Do == Apply {
			o := outcome()
			o.Replayed = true
			s.k.Applied(s.now, o)
		}
		if err != nil {
			end = err
			break
		}
	}
	s.step(s.k.Fetched(s.now, end))
}

func (s *script) is(want Trust, reason string) {
	s.t.Helper()
	st := s.k.State()
	if st.Trust != want || !strings.Contains(st.Reason, reason) {
		s.t.Fatalf("got %v (%q), want %v with %q", st.Trust, st.Reason, want, reason)
	}
}

func (s *script) clears(want int) {
	s.t.Helper()
	if s.cleared != want {
		s.t.Fatalf("the mirror was emptied %d times, want %d", s.cleared, want)
	}
	s.cleared = 0
}

var errNoAnswer = errors.New("no answer")

func TestWithoutReplay(t *testing.T) {
	s := begin(t, Rules{})
	s.is(Connecting, "not connected")
	s.connect()
	s.is(Connecting, "nothing received")
	s.live(Apply, 0, 1, 2)
	s.is(Trusted, "")
	s.live(Drop, 1, 2) // copies
	s.is(Trusted, "")
	s.live(Apply, 4)
	s.is(Gap, "1 batches from number 3 on were lost: the engine has no replay")
	s.live(Drop, 3) // too late
	s.is(Gap, "")
	s.with(Apply, 5, Outcome{Ops: 1, Cleared: true})
	s.is(Trusted, "")
	s.clears(0)
	if st := s.k.State(); st.Gaps != 1 || st.Missing != 1 || st.Stale != 3 || st.Batches != 5 || st.Seq != 5 || !st.HasSeq {
		t.Errorf("got %+v", st)
	}
	s.life++
	s.live(Apply, 0)
	s.clears(1)
	s.is(Trusted, "")
	s.live(Apply, 1)
	s.life++
	s.live(Apply, 1) // another batch of the same number
	s.clears(1)
	s.is(Warming, "followed from number 1 on")
	if st := s.k.State(); st.Restarts != 2 {
		t.Errorf("got %d restarts, want 2", st.Restarts)
	}
	s.live(Apply, 2)
	s.k.Disconnected(s.now, "the cable")
	s.is(Resync, "the cable")
	s.connect()
	s.is(Gap, "cannot be asked")
	s.live(Apply, 3)
	s.is(Gap, "cannot be asked")
	if ok, _ := s.k.Settled(); !ok {
		t.Error("not settled, though there is nobody to ask")
	}
}

// TestNumbersLongForgotten holds that a new life is seen even where no mark is left to compare with.
func TestNumbersLongForgotten(t *testing.T) {
	s := begin(t, Rules{})
	s.connect()
	for seq := range uint64(2 * remembered) {
		s.live(Apply, seq)
	}
	s.life++
	s.connect()
	s.live(Apply, 5)
	s.clears(1)
	s.is(Warming, "from number 5 on")

	// With a replay it is asked first: here it is a copy, there a new life.
	s = begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil)
	for seq := range uint64(2 * remembered) {
		s.live(Apply, seq)
	}
	s.live(Wait, 5)
	s.replay(2*remembered-1, nil, 2*remembered-1)
	s.live(Drop, 5)
	s.clears(0)
	s.is(Trusted, "")
	s.life++
	s.live(Wait, 5)
	s.replay(2*remembered-1, nil)
	s.clears(1)
	s.replay(0, nil, 0, 1, 2, 3, 4, 5, 6)
	s.live(Drop, 5)
	s.is(Trusted, "")
}

func TestFirstNumber(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules Rules
		first uint64
		want  Trust
	}{
		{"vLLM from the start", Rules{}, 0, Trusted},
		{"vLLM, one missed", Rules{}, 1, Warming},
		{"SGLang, whose 0 nobody hears", Rules{From1: true}, 1, Trusted},
		{"SGLang, late", Rules{From1: true}, 2, Warming},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := begin(t, tt.rules)
			s.connect()
			s.live(Apply, tt.first)
			s.is(tt.want, "")
		})
	}
}

func TestWarmStart(t *testing.T) {
	many := make([]uint64, leastBuffer)
	for i := range many {
		many[i] = uint64(i) + 1
	}
	for _, tt := range []struct {
		name   string
		answer []uint64
		want   Trust
		reason string
	}{
		{"everything", []uint64{0, 1, 2}, Trusted, ""},
		{"nothing sent yet", nil, Trusted, ""},
		{"counting from 1", []uint64{1, 2}, Trusted, ""},
		{"number 0 evicted", many, Warming, "from number 1 on"},
		{"evicted", []uint64{5, 6}, Warming, "from number 5 on"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := begin(t, Rules{Replay: true})
			s.connect()
			s.is(Warming, "fetching")
			if ok, _ := s.k.Settled(); ok {
				t.Error("settled before the replay")
			}
			s.replay(0, nil, tt.answer...)
			s.is(tt.want, tt.reason)
			if ok, why := s.k.Settled(); !ok || why != s.k.State().Reason {
				t.Errorf("Settled: got %v, %q", ok, why)
			}
			s.clears(0)
		})
	}
}

func TestGapIsFilledFirst(t *testing.T) {
	s := begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil, 0, 1)
	s.live(Apply, 2)
	s.live(Wait, 5)
	s.is(Resync, "missing")
	s.replay(2, nil, 2, 3, 4, 5, 6)
	s.live(Drop, 5, 6) // replayed
	s.live(Apply, 7)
	s.is(Trusted, "")
	s.clears(0)
	if st := s.k.State(); st.Gaps != 1 || st.Missing != 0 || st.Replayed != 6 || st.Stale != 2 || st.Seq != 7 {
		t.Errorf("got %+v", st)
	}
}

func TestGapThatCannotBeFilled(t *testing.T) {
	s := begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	s.live(Apply, 10)
	s.live(Wait, 13)
	for range attempts {
		s.pass(2 * time.Second)
		s.replay(10, errNoAnswer)
	}
	s.live(Apply, 13, 14)
	s.is(Gap, "2 batches from number 11 on were lost: replay failed: no answer")
	s.clears(0) // little of it is outdated
	s.live(Apply, 16)
	s.is(Gap, "1 batches")
	if st := s.k.State(); st.Gaps != 2 || st.Missing != 3 {
		t.Errorf("got %+v", st)
	}
	// Later the engine answers, and has everything.
	s.pass(firstHeal)
	s.replay(0, nil, 0, 1, 2, 3)
	s.clears(1)
	s.is(Trusted, "")
}

func TestMirrorThatIsMostlyOutdated(t *testing.T) {
	s := begin(t, Rules{})
	s.connect()
	s.live(Apply, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9) // ten blocks, one removed a batch
	s.live(Apply, 14)
	s.clears(0)
	s.live(Apply, 40)
	s.clears(1)
	s.is(Warming, "most of the mirror was outdated")
}

func TestRestartWhileAway(t *testing.T) {
	for _, tt := range []struct {
		name   string
		verify []uint64 // of the new life, answering the question for number 3
		then   []uint64
		want   Trust
	}{
		{"fewer batches than before", nil, []uint64{0, 1}, Trusted},
		{"as many", []uint64{3}, []uint64{0, 1, 2, 3}, Trusted},
		{"more", []uint64{3, 4, 5}, []uint64{0, 1, 2, 3, 4, 5}, Trusted},
		{"more, partly evicted", []uint64{3, 4, 5}, []uint64{2, 3, 4, 5}, Warming},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := begin(t, Rules{Replay: true})
			s.connect()
			s.replay(0, nil, 0, 1, 2, 3)
			s.life++
			s.connect()
			s.is(Resync, "connected again")
			s.replay(3, nil, tt.verify...)
			s.clears(1)
			s.is(Resync, "restarted")
			s.replay(0, nil, tt.then...)
			s.clears(0)
			s.is(tt.want, "")
			if st := s.k.State(); st.Restarts != 1 {
				t.Errorf("got %d restarts, want 1", st.Restarts)
			}
		})
	}
}

func TestResume(t *testing.T) {
	resume := func(exact bool) *Resume { return &Resume{Last: Mark{3, 3}, Exact: exact} }
	t.Run("the same life", func(t *testing.T) {
		for _, exact := range []bool{true, false} {
			s := begin(t, Rules{Replay: true, Resume: resume(exact)})
			s.connect()
			s.is(Warming, "checking the snapshot")
			s.replay(3, nil, 3, 4, 5)
			s.live(Apply, 6)
			s.clears(0)
			s.is(map[bool]Trust{true: Trusted, false: Gap}[exact], "")
		}
	})
	t.Run("another life", func(t *testing.T) {
		s := begin(t, Rules{Replay: true, Resume: resume(true)})
		s.life++
		s.connect()
		s.replay(3, nil, 3, 4)
		s.clears(1)
		s.replay(0, nil, 0, 1, 2, 3, 4)
		s.is(Trusted, "")
	})
	t.Run("shorter life", func(t *testing.T) {
		s := begin(t, Rules{Replay: true, Resume: resume(true)})
		s.connect()
		s.replay(3, nil)
		s.clears(1)
		s.replay(0, nil)
		s.is(Trusted, "")
	})
	t.Run("evicted", func(t *testing.T) {
		s := begin(t, Rules{Replay: true, Resume: resume(true)})
		s.connect()
		s.replay(3, nil, 4, 5)
		s.clears(1)
		s.is(Warming, "from number 4 on")
	})
	t.Run("no replay", func(t *testing.T) {
		s := begin(t, Rules{Resume: resume(true)})
		s.connect()
		s.clears(1)
		s.live(Apply, 4)
		s.is(Warming, "from number 4 on")
	})
	t.Run("no answer", func(t *testing.T) {
		s := begin(t, Rules{Replay: true, Resume: resume(true)})
		s.connect()
		for range attempts {
			s.pass(2 * time.Second)
			s.replay(3, errNoAnswer)
		}
		s.clears(1)
		s.is(Warming, "no answer")
		if ok, why := s.k.Settled(); !ok || !strings.Contains(why, "no answer") {
			t.Errorf("Settled: got %v, %q", ok, why)
		}
	})
}

func TestUnnumbered(t *testing.T) {
	s := begin(t, Rules{})
	s.connect()
	for range 3 {
		if st := s.step(s.k.Live(s.now, Mark{}, false)); st.Do != Apply {
			t.Fatalf("got verdict %d, want it applied", st.Do)
		}
		s.k.Applied(s.now, outcome())
	}
	s.is(Unverifiable, "no sequence numbers")
	s.clears(0)
	s.k.Disconnected(s.now, "gone")
	s.connect()
	s.clears(1) // no clear would ever come
	s.is(Unverifiable, "")
}

func TestMalformed(t *testing.T) {
	s := begin(t, Rules{})
	s.connect()
	s.live(Apply, 0)
	bad := Outcome{Err: errors.New("no list")}
	s.with(Apply, 1, bad)
	s.is(Gap, "no list")
	s.with(Apply, 2, bad)
	s.with(Apply, 3, bad)
	s.is(Malformed, "no list")
	s.live(Apply, 4)
	s.is(Gap, "no list")
	s.with(Apply, 5, Outcome{Ops: 1, Cleared: true})
	s.is(Trusted, "")
	s.with(Apply, 6, Outcome{Ops: 1, Lost: 2})
	s.is(Gap, "2 events")
	s.k.Garbled(s.now, "nine frames")
	if st := s.k.State(); st.Bad != 4 || st.Seq != 6 {
		t.Errorf("got %+v", st)
	}
}

func TestSilent(t *testing.T) {
	s := begin(t, Rules{})
	s.connect()
	s.live(Apply, 0)
	s.k.Served(s.now, 15)
	s.pass(time.Minute)
	s.is(Trusted, "")
	s.live(Apply, 1)
	s.k.Served(s.now, 16)
	s.pass(silentFor - 1)
	s.is(Trusted, "")
	if got, want := s.k.Next(), s.now.Add(1); !got.Equal(want) {
		t.Errorf("Next: got %v, want %v", got, want)
	}
	s.pass(1)
	s.is(Silent, "sends no events")
	s.live(Apply, 2)
	s.is(Trusted, "")
}

func TestSilentBecauseOfTopic(t *testing.T) {
	s := begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil)
	s.k.Served(s.now, 16)
	s.pass(silentFor)
	s.is(Silent, "")
	s.replay(0, nil, 0, 1, 2)
	s.is(Silent, "topic")
}

func TestQuietStreamIsChecked(t *testing.T) {
	s := begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil, 0, 1)
	s.pass(recheck - 1)
	if _, ok := s.k.Want(s.now); ok {
		t.Fatal("asked too early")
	}
	s.pass(1)
	s.replay(1, nil, 1, 2) // published before the subscription arrived and after the replay
	s.pass(30 * time.Second)
	s.is(Trusted, "") // nothing waits for a check
	s.replay(2, errNoAnswer)
	s.is(Trusted, "")
	s.live(Apply, 3)
	if st := s.k.State(); st.Gaps != 1 || st.Missing != 0 {
		t.Errorf("got %+v", st)
	}
}

func TestDrift(t *testing.T) {
	s := begin(t, Rules{})
	s.connect()
	s.live(Apply, 0)
	s.k.Drift(s.now, "predicted 9 of 10, cached 1")
	s.is(Diverged, "predicted 9")
	s.step(s.k.Restart(s.now, "asked to"))
	s.clears(1)
	s.is(Warming, "asked to")
	s.k.Drift(s.now, "")
	s.with(Apply, 1, Outcome{Ops: 1, Cleared: true})
	s.is(Trusted, "")
}

func TestNoAllocationsInSteadyState(t *testing.T) {
	s := begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil)
	seq := uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		s.k.Tick(s.now)
		if st := s.k.Live(s.now, s.mark(seq), true); st.Do != Apply {
			t.Fatalf("number %d: got verdict %d", seq, st.Do)
		}
		s.k.Applied(s.now, outcome())
		_ = s.k.State()
		seq++
	}); n != 0 {
		t.Errorf("%v allocations a batch, want 0", n)
	}
}

var first20 = []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}

// Batches that the engine itself lost are given up once. A look for a replay that reaches back to the start
// followed at once, came to the same hole, and so for ever: hundreds of replays of everything in a second.
func TestALossInTheEngineIsGivenUpOnce(t *testing.T) {
	s := begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil, first20...)
	s.pass(recheck)
	s.replay(19, nil, 19)
	s.live(Apply, 20)
	s.live(Wait, 24)
	s.replay(20, nil, 20, 24) // 21, 22 and 23 are not there
	s.is(Resync, "missing in the replay")
	s.pass(time.Second)
	s.replay(20, nil, 20, 24)
	s.is(Gap, "3 batches from number 21 on were lost: they are missing in the engine's replay too")
	s.live(Drop, 24)
	for seq := uint64(25); seq < 500; seq++ {
		s.live(Apply, seq)
		s.pass(time.Second)
		if start, ok := s.k.Want(s.now); ok {
			t.Fatalf("after number %d a replay from %d on is wanted", seq, start)
		}
		s.is(Gap, "")
	}
	s.clears(0)
	if st := s.k.State(); st.Missing != 3 || st.Replayed != 21 {
		t.Errorf("got %+v", st)
	}
}

// While a replay of everything takes the place of a mirror in doubt, nothing is trusted, live batches wait,
// and a hole that was counted is not counted again.
func TestAMirrorThatIsMadeAnewIsNotTrusted(t *testing.T) {
	s := begin(t, Rules{Replay: true})
	s.connect()
	s.replay(0, nil, first20...)
	s.pass(recheck)
	s.replay(19, nil, 19)
	s.live(Wait, 22)
	for i := range attempts {
		s.replay(19, errNoAnswer)
		s.pass(firstRetry << (i + 1))
	}
	s.live(Apply, 22)
	s.is(Gap, "replay failed")
	s.pass(firstHeal)
	if start, ok := s.k.Want(s.now); !ok || start != 0 {
		t.Fatalf("Want: %d, %v, want a replay from 0 on", start, ok)
	}
	for seq := range uint64(2) {
		st, err := s.k.Replayed(s.now, s.mark(seq))
		if s.step(st); st.Do != Apply || err != nil {
			t.Fatalf("number %d: %v, %v", seq, st, err)
		}
		s.k.Applied(s.now, outcome())
		s.is(Resync, "fetched anew")
		s.live(Wait, 23)
	}
	for seq := uint64(2); seq < 23; seq++ {
		st, err := s.k.Replayed(s.now, s.mark(seq))
		if s.step(st); st.Do != Apply || err != nil {
			t.Fatalf("number %d: %v, %v", seq, st, err)
		}
		s.k.Applied(s.now, outcome())
	}
	s.step(s.k.Fetched(s.now, nil))
	s.is(Trusted, "")
	s.live(Apply, 23)
	s.clears(1)
	if st := s.k.State(); st.Missing != 2 || st.Gaps != 1 {
		t.Errorf("got %+v", st)
	}
}

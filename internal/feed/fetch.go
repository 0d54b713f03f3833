package feed

import (
	"errors"
	"fmt"
	"time"
)

// fetch is what a Tracker knows of replays, due, running and failed.
type fetch struct {
	due     due
	force   bool      // the mirror is to be made anew whatever comes
	at      time.Time // not before
	because string

	whole bool   // asked from 0, not from the last batch on
	first bool   // nothing came yet
	got   uint64 // batches applied
	guess bool   // it began with number 1, which the engine may or may not count from
	hole  uint64 // number that was missing inside the replay before; 0: none

	attempts int
	failed   string // why the last one failed; empty: it did not
	gaveUp   bool
	gap      bool // the gap that it was given up for is counted
	heal     bool // a later replay may know more than the mirror
	healAt   time.Time
	healIn   time.Duration
	again    bool      // to be made once more, soon after it succeeded
	lookAt   time.Time // next check; zero: Rules.Check after the last message
}

type due uint8

const (
	nothing due = iota
	check       // when it fits: whether anything was missed
	demand      // before anything else is applied
)

func (f *fetch) urgent() bool { return f.due == demand }

func (f *fetch) drop() { f.due, f.force, f.attempts = nothing, false, 0 }

func (f *fetch) reason() string {
	if f.failed != "" {
		return f.because + " (last attempt: " + f.failed + ")"
	}
	return f.because
}

// Errors that end a replay early, as it has told what it had to.
var (
	errRestarted = errors.New("the engine restarted")
	errNoBetter  = errors.New("the replay knows no more than the mirror")
	errHole      = errors.New("batches are missing in the replay")
	errBackwards = errors.New("the replay went back")
)

// usable says whether it is worth asking for a replay now.
func (t *Tracker) usable(now time.Time) bool {
	return t.rules.Replay && !(t.fetch.gaveUp && now.Before(t.fetch.healAt))
}

// demand asks for a replay before anything else is applied.
func (t *Tracker) demand(now time.Time, because string) {
	t.fetch.due, t.fetch.at, t.fetch.because = demand, now, because
}

// Restart empties the mirror and fetches all that the engine still has, because the owner says so.
func (t *Tracker) Restart(now time.Time, why string) (s Step) {
	if !t.rules.Replay || t.unnumbered {
		s.Clear = t.forget()
		t.content, t.why = subset, why
		t.settle(now)
		return s
	}
	t.fetch.force, t.fetch.gaveUp, t.fetch.attempts = true, false, 0
	t.demand(now, why)
	t.settle(now)
	return s
}

// Tick does what time brings about.
func (t *Tracker) Tick(now time.Time) {
	if !t.silent && t.served >= t.rules.SilentAfter && now.Sub(t.heard) >= silentFor {
		t.silent = true
		if t.rules.Replay && !t.unnumbered && t.fetch.due == nothing {
			t.fetch.due, t.fetch.at = check, now
		}
	}
	if t.checks() && t.fetch.due == nothing && !now.Before(t.checkAt()) {
		t.fetch.due, t.fetch.at = check, now
	}
	t.settle(now)
}

func (t *Tracker) checks() bool {
	return t.rules.Replay && t.up && !t.unnumbered
}

func (t *Tracker) checkAt() time.Time {
	at := t.lastMessage.Add(t.rules.Check)
	if t.fetch.heal && t.fetch.healAt.Before(at) {
		at = t.fetch.healAt
	}
	if !t.fetch.lookAt.IsZero() && t.fetch.lookAt.Before(at) {
		at = t.fetch.lookAt
	}
	return at
}

// Next is when Tick has something to do; zero: never.
func (t *Tracker) Next() (at time.Time) {
	sooner := func(u time.Time) {
		if at.IsZero() || u.Before(at) {
			at = u
		}
	}
	switch {
	case t.fetch.due != nothing:
		sooner(t.fetch.at)
	case t.checks():
		sooner(t.checkAt())
	}
	if !t.silent && t.served >= t.rules.SilentAfter {
		sooner(t.heard.Add(silentFor))
	}
	return at
}

// Blocked says that no message may be offered before a replay that is due, but not yet.
func (t *Tracker) Blocked() bool { return t.fetch.urgent() }

// Want says whether a replay is to be made now, and from which number on. After ok, the batches that come
// go to Replayed and the end, whatever it is, to Fetched.
func (t *Tracker) Want(now time.Time) (start uint64, ok bool) {
	f := &t.fetch
	if f.due == nothing || now.Before(f.at) {
		return 0, false
	}
	f.first, f.got, f.guess = true, 0, false
	f.lookAt = time.Time{}
	f.whole = !t.has || f.force || f.due == check && f.heal
	if f.whole {
		return 0, true
	}
	return t.last.Seq, true
}

// Replayed says what to do with a batch of a replay. With an error the replay is to be ended and the error
// handed to Fetched; the step is to be done nevertheless.
func (t *Tracker) Replayed(now time.Time, m Mark) (s Step, err error) {
	f := &t.fetch
	if f.first {
		s, err = t.firstReplayed(m)
	} else {
		s, err = t.nextReplayed(m)
	}
	if s.Do == Apply {
		t.note(m)
		t.empty = false
		f.got++
	}
	if err == nil && t.has {
		t.upTo, t.asked = t.last.Seq, true
	}
	t.settle(now)
	return s, err
}

func (t *Tracker) firstReplayed(m Mark) (s Step, err error) {
	f := &t.fetch
	if f.whole {
		complete := m.Seq <= 1 // of 1, Fetched has the last word
		better := complete || t.content == subset && m.Seq < t.base || t.content == unknown
		if t.has && !f.force && !better {
			return s, errNoBetter
		}
		f.first, f.force, f.hole = false, false, 0
		if f.due == check && t.has {
			// The mirror is about to be made anew: until that is done it is less than it was.
			t.demand(f.at, "the replay reaches further back than the mirror, which is being fetched anew")
		}
		s.Clear = t.forget()
		f.guess = m.Seq == 1 && !t.rules.From1
		t.begin(m.Seq, complete)
		s.Do = Apply
		return s, nil
	}
	switch {
	case m.Seq < t.last.Seq:
		return s, nil // more than was asked for
	case m == t.last:
		f.first, t.resumed = false, false
		return s, nil
	case m.Seq == t.last.Seq:
		s.Clear = t.restart()
		return s, errRestarted
	}
	// The last batch was evicted at the engine.
	f.first = false
	switch {
	case t.resumed:
		s.Clear = t.forget()
		t.begin(m.Seq, false)
	case m.Seq > t.last.Seq+1:
		s.Clear = t.lose(m.Seq, "the engine did not have them any more", true)
	case !t.hasLive:
		t.doubt("connected again, and the engine has dropped what would tell whether it is still the same")
	}
	s.Do = Apply
	return s, nil
}

func (t *Tracker) nextReplayed(m Mark) (s Step, err error) {
	f := &t.fetch
	switch {
	case m.Seq == t.last.Seq+1:
		s.Do = Apply
	case m.Seq <= t.last.Seq:
		if former, ok := t.recall(m.Seq); !ok || former != m {
			return s, fmt.Errorf("%w: number %d after %d", errBackwards, m.Seq, t.last.Seq)
		}
		t.state.Stale++
	case f.hole != t.last.Seq+1:
		// The queue of the replay socket may have been full: asked again, they may come.
		f.hole = t.last.Seq + 1
		return s, fmt.Errorf("%w: number %d after %d", errHole, m.Seq, t.last.Seq)
	default:
		s.Clear = t.lose(m.Seq, "they are missing in the engine's replay too", false)
		s.Do = Apply
	}
	return s, nil
}

// Fetched ends a replay: err is nil if its end marker came.
func (t *Tracker) Fetched(now time.Time, err error) (s Step) {
	f := &t.fetch
	t.lastMessage = now
	wasCheck := f.due == check
	if wasCheck && f.got > 0 {
		t.state.Gaps++
		if t.silent {
			t.tail += f.got
		}
	}
	if err != nil && f.whole && f.guess {
		t.begin(1, false) // how many there are would have told
		f.heal = true
	}
	switch {
	case err == nil:
		s = t.complete(now)
	case errors.Is(err, errNoBetter):
		f.heal, f.failed = false, ""
		f.drop()
		t.fetched = true
	case errors.Is(err, errRestarted):
		t.demand(now, "the engine restarted, fetching what it has published since")
	case errors.Is(err, errHole) && f.got > 0:
		t.demand(now, f.because)
	default:
		s = t.failed(now, err, wasCheck)
	}
	t.settle(now)
	return s
}

// complete handles a replay that came to its end.
func (t *Tracker) complete(now time.Time) (s Step) {
	f := &t.fetch
	f.failed, f.gaveUp, f.attempts, f.gap = "", false, 0, false
	if f.whole {
		f.heal, f.healIn = false, 0
	}
	t.fetched = true
	switch {
	case f.first && f.whole:
		// The engine has sent nothing: its cache is empty.
		s.Clear = t.forget()
		t.empty = true
		t.content, t.why = exact, ""
	case f.first:
		// It has sent less than is in the mirror: this is another life.
		s.Clear = t.restart()
		t.demand(now, "the engine restarted, fetching what it has published since")
		return s
	case f.whole && f.guess && f.got >= t.rules.least:
		t.begin(1, false)
	}
	if f.again {
		f.again, f.lookAt = false, now.Add(recheck)
	}
	f.hole = 0
	f.drop()
	return s
}

// failed handles a replay that did not come to its end.
func (t *Tracker) failed(now time.Time, err error, wasCheck bool) (s Step) {
	f := &t.fetch
	f.failed = err.Error()
	if f.got > 0 {
		f.attempts = 0
	}
	f.attempts++
	if wasCheck && f.got == 0 {
		f.drop()
		if f.heal {
			t.later(now)
		}
		return s
	}
	if f.attempts < attempts {
		f.due, f.at = demand, now.Add(firstRetry<<f.attempts)
		if f.because == "" {
			f.because = "batches are missing, fetching them"
		}
		return s
	}
	force := f.force
	t.giveUp(now, f.failed)
	f.gap = t.waits && t.has
	switch {
	case t.resumed || force:
		s.Clear = t.forget()
	case t.has && !t.hasLive:
		t.doubt("connected again, and the engine could not be asked whether it is still the same: " + f.failed)
	case t.has && !t.waits:
		t.doubt("what was missed could not be fetched: " + f.failed)
	}
	if !t.has {
		t.content, t.why = subset, "what the engine published so far could not be fetched: "+f.failed
	}
	return s
}

// giveUp goes on without replay, for some time.
func (t *Tracker) giveUp(now time.Time, why string) {
	f := &t.fetch
	f.drop()
	f.failed, f.gaveUp, f.heal = why, true, true
	t.later(now)
}

// later puts off the next attempt to learn more than the mirror knows.
func (t *Tracker) later(now time.Time) {
	f := &t.fetch
	f.healIn = min(max(2*f.healIn, firstHeal), lastHeal)
	f.healAt = now.Add(f.healIn)
}

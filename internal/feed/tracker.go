package feed

import (
	"fmt"
	"maps"
	"time"

	"github.com/kvroute/kvroute/internal/index"
)

// Mark names one batch: its number and the hash of its payload. Payloads carry the time they were made
// at, so that equal marks are the same batch of the same life of the engine.
type Mark struct {
	Seq  uint64
	Hash uint64
}

// Resume is what a snapshot says about a stream: the last batch that is in the mirror, and whether the
// mirror was all the engine held.
type Resume struct {
	Last  Mark
	Exact bool
}

// Verdict says what to do with a message.
type Verdict uint8

// The verdicts.
const (
	Drop  Verdict = iota // it was applied before, or belongs to a former life
	Apply                // decode it, fold it into the mirror, then call Applied
	Wait                 // do what Want says, then offer it again
)

// Step is what a Tracker asks for: first, with Clear, to empty the mirror; then to Do something with the
// message at hand.
type Step struct {
	Clear bool
	Do    Verdict
}

// Rules set up a Tracker. Zero means the default, which is stated for each.
type Rules struct {
	// Replay says that the engine can be asked for batches again.
	Replay bool
	// Bind says that engines dial: turns of connections then say nothing about this stream's own.
	Bind bool
	// From1 says that a stream which begins with number 1 is complete: SGLang (number 0 is a clear at
	// start that no subscriber hears) and llm-d's simulator (it counts from 1).
	From1 bool
	// SilentAfter is the number of requests, each with blocks to store, after which a stream without
	// events is Silent; default 16.
	SilentAfter int
	// Check is how long a stream may be quiet before the engine is asked whether it has sent anything
	// that did not come; default 30 s. Only with Replay.
	Check time.Duration
	// Resume: the mirror was loaded from a snapshot.
	Resume *Resume

	// least is less than any engine keeps for replay: a replay of fewer batches that begins with number
	// 1 had nothing evicted. Default leastBuffer.
	least uint64
}

func (r Rules) withDefaults() Rules {
	if r.SilentAfter <= 0 {
		r.SilentAfter = 16
	}
	if r.Check <= 0 {
		r.Check = 30 * time.Second
	}
	if r.least == 0 {
		r.least = leastBuffer
	}
	return r
}

const (
	// remembered is how many marks are kept to tell copies from a new life.
	remembered  = 64
	leastBuffer = 1000
	// malformedAfter is how many batches in a row that cannot be read make a stream Malformed.
	malformedAfter = 3
	// silentFor is how long a stream must be without events to be Silent, as events follow requests.
	silentFor = 2 * time.Second
	// recheck is when the first check comes after a connection stands: what was published just before
	// the subscription arrived and just after the replay was answered came neither way.
	recheck = time.Second
	// attempts is how often a replay is tried before the stream goes on without it.
	attempts   = 3
	firstRetry = 200 * time.Millisecond
	firstHeal  = 30 * time.Second
	lastHeal   = 10 * time.Minute
)

// content says how a mirror relates to the engine's cache.
type content uint8

const (
	unknown content = iota // nothing is known of the engine yet
	exact                  // they hold the same
	subset                 // the mirror may lack blocks, and holds none that the engine does not
	doubt                  // the mirror may hold blocks that the engine dropped
)

// Tracker decides what becomes of the messages of one stream, and what its mirror is worth. It does no
// I/O and has no clock: times are handed in and only compared with each other.
//
// It upholds:
//
//	N1  Batches of one life of the engine are applied in the order of their numbers, each at most once.
//	N2  Batches of two lives never meet in a mirror: it is emptied between them.
//	N3  The stream is Trusted only while every batch since the cache was empty has been applied, so the
//	    mirror is the engine's cache as it was at the last one.
//
// A hole is filled before what follows it is applied: later batches wait in the subscription's queue. If
// it cannot be filled, the mirror is kept and the stream is Gap: lost removals leave blocks in it that
// are gone, but emptying it would lose the roots of all prompts, which engines do not announce again,
// and every later block would be an orphan. Only if more than half of the mirror has likely been removed
// unseen is it emptied. A mirror of what came late lacks blocks and is Warming. Both end when the engine
// clears its cache, when a replay reaches back to its start, or when it restarts.
//
// Whether an engine is still the same is asked by its last known batch: a replay begins with that one,
// and it must be the same to the bit. Where there is no replay, a new connection leaves the mirror in doubt.
type Tracker struct {
	rules Rules

	last    Mark // last applied; meaningful if has
	has     bool
	recent  [remembered]Mark
	known   [remembered]bool
	live    uint64 // last number that came live over this connection; meaningful if hasLive
	hasLive bool
	upTo    uint64 // what the engine answered over this connection reaches up to here; meaningful if asked
	asked   bool
	hole    [2]uint64 // numbers that were given up last, from up to before
	counted [2]uint64 // the same, of this life; a replay of all comes to it again
	base    uint64    // first number of the run that the mirror is made of; for subset
	empty   bool      // the engine said that it has sent nothing yet
	dirty   bool      // the mirror may hold something
	resumed bool      // the mirror is from a snapshot and was not checked yet

	content    content
	why        string // of content
	unnumbered bool
	up         bool   // there is a connection
	met        bool   // there was one
	down       string // why there is none
	settled    bool

	fetch fetch

	waiting Mark // of the message that was told to Wait
	waits   bool
	fetched bool // since then a replay came to its end

	held, removed, applied int64 // blocks in the mirror; removals and batches since it was empty
	badRun                 int
	badWhy                 string
	served                 int
	silent                 bool
	tail                   uint64 // batches found by checks only, since the last that came live
	drift                  string

	lastMessage, lastEvent time.Time
	heard                  time.Time // last live operation, or when the counting of requests began

	state   State // counters; Trust, Reason and Since as last told; Skipped is replaced, never changed
	skipped map[string]uint64
	stale   bool // state.Skipped is behind skipped
}

// NewTracker makes a Tracker of a stream whose mirror is empty, or, with r.Resume, as the snapshot says.
func NewTracker(r Rules, now time.Time) *Tracker {
	t := &Tracker{rules: r.withDefaults(), skipped: map[string]uint64{}, down: "not connected yet", lastMessage: now, heard: now}
	if r.Resume != nil {
		t.has, t.dirty, t.resumed = true, true, true
		t.note(r.Resume.Last)
		t.content, t.why = doubt, "the mirror was in doubt when its snapshot was taken"
		if r.Resume.Exact {
			t.content, t.why = exact, ""
		}
	}
	t.state.Since = now
	t.settle(now)
	return t
}

// note makes m the last batch.
func (t *Tracker) note(m Mark) {
	t.last, t.has = m, true
	t.recent[m.Seq%remembered], t.known[m.Seq%remembered] = m, true
}

// recall finds the mark of a number that was applied lately.
func (t *Tracker) recall(seq uint64) (Mark, bool) {
	m := t.recent[seq%remembered]
	return m, t.known[seq%remembered] && m.Seq == seq
}

// forget starts over: the mirror is to be emptied if there is anything in it.
func (t *Tracker) forget() (clear bool) {
	clear = t.dirty
	t.last, t.has, t.known, t.hole = Mark{}, false, [remembered]bool{}, [2]uint64{}
	t.hasLive, t.asked = false, false
	t.empty, t.dirty, t.resumed = false, false, false
	t.content, t.why = unknown, ""
	t.held, t.removed, t.applied = 0, 0, 0
	return clear
}

// restart is forget for an engine that started anew.
func (t *Tracker) restart() (clear bool) {
	if !t.resumed { // what happened between a snapshot and now was not seen to happen
		t.state.Restarts++
	}
	t.counted = [2]uint64{}
	return t.forget()
}

// lose gives up the numbers from t.last up to before seq. look: a replay may yet reach back to the start,
// which one look tells; not so where it was a replay that lacked them.
func (t *Tracker) lose(seq uint64, because string, look bool) (clear bool) {
	n := seq - t.last.Seq - 1
	t.hole = [2]uint64{t.last.Seq + 1, seq}
	if t.hole != t.counted {
		t.state.Missing += n
		t.counted = t.hole
	}
	text := fmt.Sprintf("%d batches from number %d on were lost: %s", n, t.last.Seq+1, because)
	t.fetch.heal = t.rules.Replay && look
	gone := float64(n) * float64(t.removed) / float64(max(t.applied, 1))
	if gone < float64(t.held)/2 {
		t.content, t.why = doubt, text
		return false
	}
	if t.held > 0 {
		text += "; most of the mirror was outdated and it was emptied"
	}
	t.held, t.removed, t.applied = 0, 0, 0
	t.content, t.why, t.base = subset, text, seq
	return t.dirty // orphans go too
}

// begin says what a mirror is worth that starts, empty, with number seq.
func (t *Tracker) begin(seq uint64, complete bool) {
	t.base = seq
	if complete {
		t.content, t.why = exact, ""
		return
	}
	t.content, t.why = subset, fmt.Sprintf("followed from number %d on: what was stored before is not known", seq)
}

// Outcome is what became of a message that was to be applied.
type Outcome struct {
	Err      error        // it could not be read, and nothing of it was applied
	Ops      int          // operations applied
	Result   index.Result // of them, summed
	Cleared  bool         // the engine emptied its cache
	Lost     int          // events in it that could not be read
	PageSize int          // 0: not seen
	Skipped  map[string]int
	Replayed bool
}

// Applied must be called after every message whose verdict was Apply.
func (t *Tracker) Applied(now time.Time, o Outcome) {
	t.dirty = true
	t.state.Batches++
	if o.Replayed {
		t.state.Replayed++
	}
	for k, n := range o.Skipped {
		t.skip(k, n)
	}
	if o.Err != nil {
		t.bad("a batch could not be read: " + o.Err.Error())
		t.doubt(t.badWhy)
		t.settle(now)
		return
	}
	t.badRun, t.lastEvent = 0, now
	if o.PageSize > 0 {
		t.state.PageSize = o.PageSize
	}
	t.held += int64(o.Result.Stored) - int64(o.Result.Removed)
	t.applied++
	if o.Cleared {
		t.content, t.why, t.base = exact, "", t.last.Seq
		t.fetch.heal, t.fetch.guess = false, false
	} else {
		t.removed += int64(o.Result.Removed)
	}
	if o.Lost > 0 {
		t.doubt(fmt.Sprintf("%d events of a batch could not be read", o.Lost))
	}
	if o.Result.Refused > 0 && t.content == exact {
		t.content, t.why = subset, "the index is full and refused blocks"
	}
	if o.Ops > 0 && !o.Replayed {
		t.served, t.silent, t.heard, t.tail = 0, false, now, 0
	}
	t.settle(now)
}

func (t *Tracker) skip(reason string, n int) {
	t.skipped[reason] += uint64(n)
	t.stale = true
}

func (t *Tracker) bad(why string) {
	t.state.Bad++
	t.badRun++
	t.badWhy = why
}

func (t *Tracker) doubt(why string) {
	if t.content != doubt {
		t.content, t.why = doubt, why
	}
}

// Served says that n requests were answered that had blocks to store which the mirror did not hold.
func (t *Tracker) Served(now time.Time, n int) {
	if t.served == 0 {
		t.heard = now
	}
	t.served += n
	t.Tick(now)
}

// Drift says that predictions and what the engine reports drift apart, and why; empty: they agree.
func (t *Tracker) Drift(now time.Time, why string) {
	t.drift = why
	t.settle(now)
}

// Mark returns the last batch in the mirror and whether the mirror is all that the engine holds; not ok
// if there is none.
func (t *Tracker) Mark() (r Resume, ok bool) {
	return Resume{t.last, t.content == exact && !t.resumed}, t.has
}

// State is what is known of the stream.
func (t *Tracker) State() State {
	if t.stale {
		t.state.Skipped, t.stale = maps.Clone(t.skipped), false
	}
	s := t.state
	s.LastEvent, s.Seq, s.HasSeq = t.lastEvent, t.last.Seq, t.has
	return s
}

// settle brings Trust and Reason up to date.
func (t *Tracker) settle(now time.Time) {
	t.settled = t.settled || t.met && !t.fetch.urgent()
	trust, reason := t.trust()
	if trust != t.state.Trust {
		t.state.Trust, t.state.Since = trust, now
	}
	t.state.Reason = reason
}

func (t *Tracker) trust() (Trust, string) {
	switch {
	case t.badRun >= malformedAfter:
		return Malformed, t.badWhy
	case t.silent && t.tail > 0:
		return Silent, "the engine publishes, as its replay shows, but nothing comes: is the topic right?"
	case t.silent:
		return Silent, fmt.Sprintf("the worker answers requests and sends no events (%d or more since the last one)", t.rules.SilentAfter)
	case !t.up && !t.has && !t.unnumbered:
		return Connecting, t.down
	case t.unnumbered && !t.up:
		return Resync, t.down
	case t.unnumbered && t.drift != "":
		return Diverged, t.drift
	case t.unnumbered:
		return Unverifiable, "the engine sends no sequence numbers: losses cannot be seen"
	case t.fetch.urgent() && !t.settled:
		return Warming, t.fetch.reason()
	case t.fetch.urgent():
		return Resync, t.fetch.reason()
	case !t.up:
		return Resync, t.down
	}
	switch t.content {
	case exact:
		if t.drift != "" {
			return Diverged, t.drift
		}
		return Trusted, ""
	case subset:
		return Warming, t.why
	case doubt:
		return Gap, t.why
	}
	return Connecting, "connected, nothing received yet"
}

// Settled says whether all that could be learned of the engine's past is in the mirror, and if not, or if
// that is not all of it, why. It stays true.
func (t *Tracker) Settled() (bool, string) { return t.settled, t.state.Reason }

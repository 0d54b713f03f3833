package fakeengine

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
)

// Fault is what goes wrong, as POST /fault takes it. Counts are of batches or requests from now on and
// run down; a new command replaces only the fields it has.
type Fault struct {
	// Events. Rank says which publisher; absent: all of them.
	Rank            *int     `json:"rank,omitempty"`
	DropEvents      *int     `json:"drop_events,omitempty"`      // batches lost on the way; replay has them
	LoseEvents      *int     `json:"lose_events,omitempty"`      // batches lost in the engine: replay has them neither
	DuplicateEvents *int     `json:"duplicate_events,omitempty"` // batches sent twice
	ReorderEvents   *int     `json:"reorder_events,omitempty"`   // batches sent after the one that follows
	GarbleEvents    *int     `json:"garble_events,omitempty"`    // batches cut in the middle
	StallEvents     *Span    `json:"stall_events,omitempty"`     // batches wait that long, then come all at once
	Silent          *bool    `json:"silent,omitempty"`           // nothing is published, and nothing numbered
	BlockSize       *int     `json:"block_size,omitempty"`       // what /metrics and /server_info state; 0: the truth
	Errors          *Errors  `json:"errors,omitempty"`           // answers instead of work
	SlowFirstByte   *Delayed `json:"slow_first_byte,omitempty"`
	CutStream       *Cut     `json:"cut_stream,omitempty"`
	// Crash: connections are reset, nothing listens, what ran is lost, cache and numbers start over.
	Crash   *Crash `json:"crash,omitempty"`
	Restart *bool  `json:"restart,omitempty"` // the same without a pause in listening
	Exit    *bool  `json:"exit,omitempty"`    // the process ends at once
	Clear   bool   `json:"clear,omitempty"`   // forget all earlier commands first
}

// Errors says which requests fail without being worked on: the next Count, or each with probability
// Ratio.
type Errors struct {
	Status int     `json:"status"`
	Count  int     `json:"count,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"`
	After  Span    `json:"after,omitempty"` // time until the answer
}

// Delayed says which answers start late.
type Delayed struct {
	Delay Span `json:"delay"`
	Count int  `json:"count,omitempty"` // 0: all
}

// Cut says which answers break off: the connection is reset after so many tokens.
type Cut struct {
	After int `json:"after"`
	Count int `json:"count,omitempty"` // 0: all
}

// Crash says for how long the engine is away; 0: for good.
type Crash struct {
	For Span `json:"for,omitempty"`
}

// Span is a duration, in JSON a text like "2s".
type Span time.Duration

// UnmarshalText reads "1.5s".
func (s *Span) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration like 1.5s", b)
	}
	*s = Span(d)
	return nil
}

// MarshalText writes "1.5s".
func (s Span) MarshalText() ([]byte, error) { return []byte(time.Duration(s).String()), nil }

func (f *Fault) validate(ranks int) error {
	if f.Rank != nil && (*f.Rank < 0 || *f.Rank >= ranks) {
		return fmt.Errorf("rank %d: there are ranks 0 to %d", *f.Rank, ranks-1)
	}
	for _, n := range []struct {
		name string
		v    *int
	}{
		{"drop_events", f.DropEvents},
		{"lose_events", f.LoseEvents},
		{"duplicate_events", f.DuplicateEvents},
		{"reorder_events", f.ReorderEvents},
		{"garble_events", f.GarbleEvents},
		{"block_size", f.BlockSize},
	} {
		if n.v != nil && *n.v < 0 {
			return fmt.Errorf("%s: must not be negative, is %d", n.name, *n.v)
		}
	}
	if e := f.Errors; e != nil {
		if e.Status != 0 && (e.Status < 400 || e.Status > 599) {
			return fmt.Errorf("errors.status: must be 400 to 599, is %d", e.Status)
		}
		if !(e.Ratio >= 0 && e.Ratio <= 1) || e.Count < 0 {
			return fmt.Errorf("errors: ratio must be 0 to 1 and count not negative, are %v and %d", e.Ratio, e.Count)
		}
	}
	if c := f.CutStream; c != nil && (c.After < 0 || c.Count < 0) {
		return fmt.Errorf("cut_stream: after and count must not be negative, are %d and %d", c.After, c.Count)
	}
	if d := f.SlowFirstByte; d != nil && d.Count < 0 {
		return fmt.Errorf("slow_first_byte: count must not be negative, is %d", d.Count)
	}
	return nil
}

// faults is the state of all commands. It is safe for concurrent use.
type faults struct {
	mu    sync.Mutex
	ranks []eventFaults
	block int
	errs  Errors
	slow  Delayed
	cut   Cut
	drawn uint64 // requests that a ratio was drawn for
	seed  uint64
}

// eventFaults is what is left of the commands for one publisher.
type eventFaults struct {
	drop, lose, duplicate, reorder, garble int
	stalled, silent                        bool
}

// fate is what befalls one batch.
type fate struct{ silent, drop, lose, twice, hold, garble, stalled bool }

func newFaults(ranks int, seed uint64) *faults {
	return &faults{ranks: make([]eventFaults, ranks), seed: seed}
}

// apply takes a command over. What needs the engine as a whole is the caller's.
func (f *faults) apply(c *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Clear {
		clear(f.ranks)
		f.block, f.errs, f.slow, f.cut = 0, Errors{}, Delayed{}, Cut{}
	}
	for i := range f.ranks {
		if c.Rank != nil && *c.Rank != i {
			continue
		}
		r := &f.ranks[i]
		for _, n := range []struct{ to, v *int }{
			{&r.drop, c.DropEvents},
			{&r.lose, c.LoseEvents},
			{&r.duplicate, c.DuplicateEvents},
			{&r.reorder, c.ReorderEvents},
			{&r.garble, c.GarbleEvents},
		} {
			if n.v != nil {
				*n.to = *n.v
			}
		}
		if c.Silent != nil {
			r.silent = *c.Silent
		}
		if c.StallEvents != nil {
			r.stalled = *c.StallEvents > 0
		}
	}
	if c.BlockSize != nil {
		f.block = *c.BlockSize
	}
	if c.Errors != nil {
		f.errs = *c.Errors
	}
	if c.SlowFirstByte != nil {
		f.slow = *c.SlowFirstByte
		if f.slow.Count == 0 {
			f.slow.Count = math.MaxInt
		}
	}
	if c.CutStream != nil {
		f.cut = *c.CutStream
		if f.cut.Count == 0 {
			f.cut.Count = math.MaxInt
		}
	}
}

// unstall ends a stall.
func (f *faults) unstall(rank int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ranks[rank].stalled = false
}

func take(n *int) bool {
	if *n == 0 {
		return false
	}
	*n--
	return true
}

// batch says what befalls a rank's next batch.
func (f *faults) batch(rank int) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.ranks[rank]
	switch {
	case r.silent:
		return fate{silent: true}
	case take(&r.lose):
		return fate{lose: true}
	case take(&r.drop):
		return fate{drop: true}
	case r.stalled:
		return fate{hold: true, stalled: true}
	case take(&r.reorder):
		return fate{hold: true}
	}
	return fate{twice: take(&r.duplicate), garble: take(&r.garble)}
}

// request says what befalls the next request: an error to answer with (status 0: none), a delay before
// the first byte, and after how many tokens to cut (negative: never).
func (f *faults) request() (e Errors, slow time.Duration, cut int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cut = -1
	if f.errs.Status != 0 {
		hit := take(&f.errs.Count)
		if !hit && f.errs.Ratio > 0 {
			f.drawn++
			hit = float64(mix(f.seed, f.drawn)>>11)/(1<<53) < f.errs.Ratio
		}
		if hit {
			return f.errs, 0, cut
		}
	}
	if f.slow.Delay > 0 && take(&f.slow.Count) {
		slow = time.Duration(f.slow.Delay)
	}
	if f.cut.Count > 0 {
		f.cut.Count--
		cut = f.cut.After
	}
	return Errors{}, slow, cut
}

// blockSize is the block size to state.
func (f *faults) blockSize(truth int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.block > 0 {
		return f.block
	}
	return truth
}

// mix is a splitmix64 step over two numbers: cheap, and the same everywhere.
func mix(a, b uint64) uint64 {
	x := a + 0x9e3779b97f4a7c15*(b+1)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// ParseFault reads a fault as a flag says it: NAME=VALUE, as in drop-events=3, errors=500:0.1,
// errors=429x5, slow-first-byte=2s, cut-stream=10, crash=1s, block-size=32, silent=true.
func ParseFault(f *Fault, text string) error {
	name, v, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("a fault looks like drop-events=3")
	}
	num := func(to **int) error {
		n := new(int)
		if _, err := fmt.Sscanf(v, "%d", n); err != nil || fmt.Sprint(*n) != v || *n < 0 {
			return fmt.Errorf("%s: %q is not a count", name, v)
		}
		*to = n
		return nil
	}
	span := func(to *Span) error {
		if err := to.UnmarshalText([]byte(v)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	switch name {
	case "drop-events":
		return num(&f.DropEvents)
	case "lose-events":
		return num(&f.LoseEvents)
	case "duplicate-events":
		return num(&f.DuplicateEvents)
	case "reorder-events":
		return num(&f.ReorderEvents)
	case "garble-events":
		return num(&f.GarbleEvents)
	case "block-size":
		return num(&f.BlockSize)
	case "stall-events":
		f.StallEvents = new(Span)
		return span(f.StallEvents)
	case "slow-first-byte":
		f.SlowFirstByte = &Delayed{}
		return span(&f.SlowFirstByte.Delay)
	case "cut-stream":
		var n *int
		if err := num(&n); err != nil {
			return err
		}
		f.CutStream = &Cut{After: *n}
		return nil
	case "silent":
		if v != "true" && v != "false" {
			return fmt.Errorf("silent: %q is neither true nor false", v)
		}
		on := v == "true"
		f.Silent = &on
		return nil
	case "errors":
		return parseErrors(f, v)
	}
	return fmt.Errorf("unknown fault %q", name)
}

// FaultNames lists the names that ParseFault knows, for messages and completion.
func FaultNames() []string {
	return []string{
		"block-size", "cut-stream", "drop-events", "duplicate-events", "errors", "garble-events",
		"lose-events", "reorder-events", "silent", "slow-first-byte", "stall-events",
	}
}

// parseErrors reads STATUS:RATIO or STATUSxCOUNT.
func parseErrors(f *Fault, v string) error {
	e := &Errors{}
	var rest string
	if n, err := fmt.Sscanf(v, "%d:%g%s", &e.Status, &e.Ratio, &rest); n == 2 && err != nil {
		f.Errors = e
		return f.validate(1)
	}
	*e = Errors{}
	if n, err := fmt.Sscanf(v, "%dx%d%s", &e.Status, &e.Count, &rest); n == 2 && err != nil {
		f.Errors = e
		return f.validate(1)
	}
	return fmt.Errorf("errors: %q looks neither like 500:0.1 nor like 429x5", v)
}

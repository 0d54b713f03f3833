// Package decodelog reads what engines print about their decode steps: SGLang's decode lines, vLLM's periodic
// statistics and its scraped metrics. It turns them into Samples and says what it left out.
//
// Formats: docs/fit.md. It holds no more than a bounded window of any input, however long.
package decodelog

import (
	"context"
	"io"
	"strconv"
)

// Engine is whose log it is.
type Engine string

// The engines. Auto looks at the content.
const (
	Auto    Engine = "auto"
	SGLang  Engine = "sglang"
	VLLM    Engine = "vllm"
	ATOM    Engine = "atom"
	KVRoute Engine = "kvroute"
)

// NoRank is the rank of lines that name none.
const NoRank = -1

// Sample is one measurement of one data-parallel rank: the mean step since the measurement before, and what the
// rank held when it was printed (a line) or meanwhile (a request of a recording).
type Sample struct {
	At        int64   // ns since the Unix epoch as the log's own clock reads; clocks without date or zone are taken as the Report says
	Source    int32   // index of the input
	Rank      int32   // data-parallel rank, NoRank where the line names none
	Step      float64 // seconds of a decode step: running x accepted tokens a step / throughput
	Running   float64 // requests
	Held      float64 // tokens of context held for them: pre-allocated ones subtracted
	HeldError float64 // standard deviation of what rounding of shares adds to Held, tokens; 0: none that matters
	Accept    float64 // tokens accepted a step and request; 1 without speculation
	Graph     bool    // the step ran as a captured graph; meaningful if HasGraph
	HasGraph  bool
	Prefill   bool    // prefill is known to have run in the interval
	Weight    float64 // steps it is the mean of; 0: not known

	// How the values came to be, which decides what they say of the interval. False, as for engines' log lines: Step
	// was computed with Running, the value at the end.
	Measured  bool // Step was measured itself
	Meanwhile bool // Running and Held are means over the interval, not the values at its end
}

// Source is one input. Several of one engine (ranks, rotated files) are merged by time. A file that goes on where
// another one of the same name (but for numbers, dates and packing) ended is taken as one source with it.
type Source struct {
	Name string
	R    io.Reader // plain, gzip or zstd
}

// Options set up Read.
type Options struct {
	Engine     Engine  // default Auto
	PoolTokens int64   // KV pool of a rank in tokens, where the log does not say; 0: not given
	MinStep    float64 // s; default 0.005
	MaxStep    float64 // s; default 0.25
	// Year of dates without one; 0: they are taken as of one run.
	Year int
	// Idle, if set, says that inputs may grow: a Read of a Source that returns 0 bytes and no error has nothing for
	// now. Samples are then handed over as lines come, without waiting for later ones, and once no source has
	// anything Idle is called, on Read's own goroutine, with the report so far. It waits, and Read goes on; an error
	// ends Read. A source ends with io.EOF, as always.
	Idle func(ctx context.Context, soFar *Report) error
}

// Error is the one kind of error that Read makes; those of each and Idle are returned as they are.
type Error struct {
	Place
	Why  string
	Hint string // "" none
	Err  error  // of the source, which cannot be read or is damaged; nil: it is not what is wanted
}

// Error returns "file:line: why".
func (e *Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s += ":" + strconv.FormatInt(e.Line, 10)
	}
	if s == "" {
		return e.Why
	}
	return s + ": " + e.Why
}

// Unwrap gives the error of the source.
func (e *Error) Unwrap() error { return e.Err }

// Limit is how many steps came near MinStep or MaxStep, and beyond. Intervals in which prefill ran do not count.
type Limit struct {
	Step   float64 // s
	Near   int64   // used, and within a fifth of it
	Beyond int64   // left out
}

// Place is where in the input something was.
type Place struct {
	File string
	Line int64
}

// Count is how often something happened, and where first.
type Count struct {
	N     int64
	First Place
	Text  string // excerpt of the first line, control codes removed, bounded
}

// Report says what Read found and what it left out. It is complete when Read has returned; Follow fills it as it goes.
type Report struct {
	Engine     Engine
	Inputs     []string // names, by Sample.Source
	Bytes      int64    // as stored, packed or not
	Lines      int64
	Used       int64            // lines or requests that became Samples
	Left       map[string]Count // left out, by reason, in words
	Other      map[string]Count // lines of other kinds that were recognised: prefill, access, start-up, ...
	Ranks      []int32          // seen, sorted
	PoolTokens map[int32]int64  // KV pool of a rank, where stated or given
	PoolFrom   string           // "the start-up line", "--pool-tokens", "tokens / usage (1 % exact)", ...
	Accepting  bool             // speculation was seen
	HasHeld    bool             // tokens were told: else only requests are known
	Notes      []string         // estimates and assumptions, each in words
	// Steps at the limits of Options. Where lines are left out as beyond one and others are near it, the limit cuts
	// decode steps off, not only pauses.
	Shortest, Longest Limit
	Digest            string // XXH3-128 of the input as stored, in hex; of several the digest of their digests
}

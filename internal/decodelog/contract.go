// Package decodelog reads what engines print about their decode steps: SGLang's decode lines, vLLM's periodic
// statistics and scraped metrics, and kvroute's own recordings. It turns them into Samples and says what it left out.
//
// Formats: docs/fit.md. It holds no more than a bounded window of any input, however long.
package decodelog

import "io"

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
	At       int64   // ns since the Unix epoch as the log's own clock reads; clocks without date or zone are taken as the Report says
	Source   int32   // index of the input
	Rank     int32   // data-parallel rank, NoRank where the line names none
	Step     float64 // seconds of a decode step: running x accepted tokens a step / throughput
	Running  float64 // requests
	Held     float64 // tokens of context held for them: pre-allocated ones subtracted
	Accept   float64 // tokens accepted a step and request; 1 without speculation
	Graph    bool    // the step ran as a captured graph; meaningful if HasGraph
	HasGraph bool
	Prefill  bool    // prefill is known to have run in the interval
	Weight   float64 // steps it is the mean of; 0: not known
}

// Source is one input. Several of one engine (ranks, rotated files) are merged by time.
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
	Bytes      int64
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
	Digest     string           // XXH3-128 of all input as read, in hex
}

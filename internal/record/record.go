// Package record is the form of a router's recording: everything its decisions depended on and the
// decisions, in the order in which they took effect, as hashes and counts.
//
// An Encoder turns the calls of a pool.Recorder into lines, a Reader turns lines back into Records. The
// form is that of our own traces with more types of records, so a recording is also a trace;
// docs/recording.md describes it. Files, queues and goroutines are package recorder's.
package record

import (
	"fmt"
	"strconv"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// traceVersion is the value of "kvroute" in the heading: a recording is a trace of that version.
const traceVersion = "trace/v1"

// formVersion is the value of "recording" in the heading. It changes when old readers would misread.
const formVersion = 1

// Header is the first line of a file.
type Header struct {
	Run       string // names the run: all files of one run have the same, different runs different ones
	Part      int    // from 1: number of the file within its run
	Program   string // version of the program that wrote it
	Model     string
	BlockSize int // tokens of a block
	Config    score.Config
}

// Kind is the type of a record.
type Kind uint8

// The kinds. Requests are there for readers of traces, and Blocks are resolved by the Reader: neither
// comes out of it.
const (
	Worker   Kind = iota + 1 // a target joins, changes, leaves, is forgotten
	Event                    // a change of what a target holds
	Decision                 // a decision with what went into it
	Load                     // a first token, an unbinding, a release
	Request                  // a request that ended, for readers of traces
	Note                     // a remark that decides nothing
	End                      // the recording ends here, and why
	Other                    // a type this program does not know
)

// WorkerOp says what a Worker record tells.
type WorkerOp uint8

// The operations. Change tells of a candidate whose page size, variant or doubt is another from now on.
const (
	Join WorkerOp = iota + 1
	Change
	Leave
	Forget
)

// LoadOp says what a Load record tells.
type LoadOp uint8

// The operations.
const (
	FirstToken LoadOp = iota + 1
	Unbind
	Release
)

// Record is one line as a Reader gives it. Only the fields of its Kind are set; slices are valid until
// the next Read.
type Record struct {
	Kind Kind
	File string
	Line int

	Target target.ID // Worker, Event, Note (target.NoTarget: about none)

	Op        WorkerOp        // Worker
	Candidate score.Candidate // Worker: Join, Change

	Held    bool         // Event: the blocks are there now, else gone
	Emptied bool         // Event: the target holds nothing now
	Tier    uint8        // Event, Held: nearest tier
	Parent  block.Hash   // Event, Held: what the first block hangs on; each other one hangs on the one before
	Blocks  []block.Hash // Event

	Req        score.Request     // Decision
	Candidates []score.Candidate // Decision
	JSON       []byte            // Decision: canonical bytes

	Load   LoadOp // Load
	Seq    uint64 // Load: of the decision that made the reservation
	At     int64  // Load, Note: ns
	Output int64  // Load, Release: tokens of the answer, -1 unknown

	Text     string // Note, End: why; Other: the type
	Complete bool   // End: nothing is missing before it
}

// Error is what a Reader says about a file.
type Error struct {
	File    string
	Line    int // 0: the whole file
	Why     string
	Hint    string
	Damaged bool // a recording, but not whole or not sound; else no recording
}

// Error returns "file:line: why".
func (e *Error) Error() string {
	s := e.File
	if s == "" {
		s = "recording"
	}
	if e.Line > 0 {
		s += ":" + strconv.Itoa(e.Line)
	}
	return s + ": " + e.Why
}

// Place names a line of a file.
func (r *Record) Place() string { return fmt.Sprintf("%s:%d", r.File, r.Line) }

var workerOps = []string{"", "join", "change", "leave", "forget"}

// String returns what files say.
func (o WorkerOp) String() string { return workerOps[o] }

var loadOps = []string{"", "first", "unbind", "release"}

// String returns what files say.
func (o LoadOp) String() string { return loadOps[o] }

// lookup returns the place of a name in a list, 0 for none.
func lookup(names []string, name string) uint8 {
	for i, n := range names {
		if n == name && n != "" {
			return uint8(i)
		}
	}
	return 0
}

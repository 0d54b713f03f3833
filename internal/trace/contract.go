// Package trace reads and writes recorded traffic and holds it in memory for replays and simulations.
//
// A Reader turns one source of any known format into Records, whose blocks are chained hashes: a hash
// stands for its block and for everything before it. Load reads sources into a Workload: requests
// sorted by arrival over a Forest of distinct blocks. Formats and their rules are in docs/trace-format.md.
package trace

import (
	"io"
	"time"

	"github.com/kvroute/kvroute/internal/block"
)

// Record is one request as it stands in a file, after its format's own rules were applied.
type Record struct {
	Arrival     int64        // µs on the clock of the file; Load moves the earliest request to 0
	Input       int64        // prompt tokens
	Output      int64        // answer tokens
	Blocks      []block.Hash // chained: a hash stands for its block and everything before it
	BlockTokens []uint32     // tokens of each block where they differ; nil: BlockSize each
	BlockSize   int          // tokens of a block; 0: the format has no blocks
	Even        bool         // BlockSize is an even split of this request alone, not a property of the blocks
	Session     string       // "" none
	ID          string       // "" none
	Line        int          // line in the file, from 1
}

// Reader yields the records of one source, in file order. Read returns io.EOF at the end, otherwise
// an *Error. The slices of rec are valid until the next call.
type Reader interface {
	Read(rec *Record) error
}

// Source is one stream to load; Name is used in messages.
type Source struct {
	Name string
	R    io.Reader
}

// Options says how to read. The zero value reads every format by its own rules.
type Options struct {
	Name           string        // of the source in messages (Open) or of the trace (Load; default: the first source's)
	Format         string        // for Load: one of Formats, "" or "auto" looks at the content
	BlockSize      int           // tokens of a block where the file does not say; 0: the format's default
	SessionStagger time.Duration // claude-code: start of one session after the other; 0: 20 s, negative: none
	GapCap         time.Duration // claude-code: longest pause inside a session; 0: 60 s, negative: no cap
	Speedup        float64       // Load divides arrivals by it; 0: 1
	Limit          int           // Load keeps the first requests by arrival only; 0: all
	MaxLine        int           // longest line in bytes; 0: 256 MiB
}

// Meta says what Open found.
type Meta struct {
	Format    string
	BlockSize int // 0: none, or not known before the first record
}

// NodeID names a block in a Forest.
type NodeID uint32

// NoNode is the parent of first blocks and the leaf of requests without blocks.
const NoNode = ^NodeID(0)

// Forest is the distinct blocks of a workload: each node is a block with everything before it. Parents
// come before their children.
type Forest struct {
	Hash      []block.Hash
	Parent    []NodeID
	Depth     []uint32 // blocks from the root, the node included: 1 for first blocks
	CumTokens []uint32 // tokens up to and including the node; nil: Depth*BlockSize

	// run[n] is the first node of the longest sequence run[n], run[n]+1, …, n in which each is the
	// parent of the next. A set closed under prefixes holds a leading part of such a sequence, which
	// a binary search finds. nil: not known (forests made by hand).
	run []NodeID
}

// Request is one request of a workload, 48 bytes or less.
type Request struct {
	Arrival int64 // µs since the start
	Input   int64
	Output  int64
	Leaf    NodeID // deepest block, NoNode if none
	Session int32  // index into Workload.Sessions, -1 none
	Even    uint32 // tokens of each of its blocks where only an even split is known; 0: the forest says
}

// Workload is a trace in memory, sorted by arrival, stably. It is read-only once loaded.
type Workload struct {
	Name      string
	Format    string
	BlockSize int // 0: no blocks
	Forest    *Forest
	Requests  []Request
	Sessions  []string // numbered by their first request
	IDs       []string // of the requests; nil: none has one

	// Unfinished is how many requests Load left out, because a router's recording does not know the length
	// of their answers.
	Unfinished int
}

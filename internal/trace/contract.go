// Package trace reads and writes recorded traffic and holds it in memory for replays and simulations.
package trace

import (
	"github.com/kvroute/kvroute/internal/block"
)

// Record is one request as it stands in a file, after its format's own rules were applied.
type Record struct {
	Arrival     int64        // µs since the start of the trace (or of its session, where Relative)
	Input       int64        // prompt tokens
	Output      int64        // answer tokens
	Blocks      []block.Hash // chained: a hash stands for its block and everything before it
	BlockTokens []uint32     // tokens of each block where they differ; nil: BlockSize each
	BlockSize   int          // 0: the format has no blocks
	Session     string       // "" none
	ID          string       // "" none
	Line        int          // line in the file, from 1
}

// Reader yields the records of one source, in file order. Read returns io.EOF at the end. The slices
// of rec are valid until the next call.
type Reader interface {
	Read(rec *Record) error
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
}

// Request is one request of a workload, 48 bytes or less.
type Request struct {
	Arrival int64 // µs since the start
	Input   int64
	Output  int64
	Leaf    NodeID // deepest block, NoNode if none
	Session int32  // index into Workload.Sessions, -1 none
}

// Workload is a trace in memory, sorted by arrival, stably. It is read-only once loaded.
type Workload struct {
	Name      string
	Format    string
	BlockSize int // 0: no blocks
	Forest    *Forest
	Requests  []Request
	Sessions  []string
}

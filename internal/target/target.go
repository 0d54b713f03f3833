// Package target names the places a request can be sent to: one KV cache each.
//
// A target is one data-parallel rank of one life (incarnation) of a worker. The core packages
// count and score per target and know targets only by their dense ID; drivers hand out IDs.
package target

import (
	"strconv"
)

// ID is the dense slot of a target, 0 <= ID < MaxTargets. A slot is reused only after the target
// that held it has been removed from every structure that is indexed by it.
type ID uint32

// MaxTargets bounds the number of targets alive at once.
const MaxTargets = 1 << 14

// NoRank marks a worker that is not rank-multiplexed.
const NoRank = -1

// Incarnation counts the lives of a worker at one address; a restart or a changed record makes a new one.
type Incarnation uint32

// Key is the identity of a target across the program.
type Key struct {
	Worker      string
	Rank        int // NoRank where the worker has a single cache
	Incarnation Incarnation
}

// RouteKey is the string form used in logs, headers and ordering: the worker, or worker#dp<rank>.
func (k Key) RouteKey() string {
	if k.Rank == NoRank {
		return k.Worker
	}
	return k.Worker + "#dp" + strconv.Itoa(k.Rank)
}

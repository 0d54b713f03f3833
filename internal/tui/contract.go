// Package tui draws a router's snapshots in a terminal. It has three parts: a model (state and keys, no I/O), a
// view (a pure function of the model and the size) and sources (all I/O; they hand over snapshots and reconnect).
// It knows the router only by package snapshot.
package tui

import (
	"context"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// Link is how a Source stands with what it reads from.
type Link uint8

// The states of a link.
const (
	Connecting Link = iota // nothing has come yet
	Live                   // snapshots come
	Lost                   // they came and do not now; the last one stands
	Ended                  // a played file is over
)

// Update is what a Source tells: a new snapshot, or a turn of the link.
type Update struct {
	Snap   *snapshot.Snapshot // never changed after it was handed over; nil: as before
	Link   Link
	Reason string // why it is not Live, in words; with a hint where there is one
	AgeMS  int64  // how long ago Snap was made, where Link is not Live
	Play   *Play  // nil: not a played file
	Notice string // what the user must know besides, for as long as it is sent; "" nothing
}

// Play is where a played file stands.
type Play struct {
	AtMS, FromMS, ToMS int64 // Unix ms as in the snapshots
	Speed              float64
	Paused             bool
}

// Source is where snapshots come from: a router, a file, or a test.
type Source interface {
	// Run sends updates until ctx is done, from one goroutine, and returns when it has cleaned up. It never ends
	// by itself because a router does not answer. send may block while the screen is busy: a Source keeps the
	// latest and drops what is older.
	Run(ctx context.Context, send func(Update))
	// Name is what is watched, for the header: a URL, a file.
	Name() string
	// Explain fetches the full record of a decision, JSON as in package score.
	Explain(ctx context.Context, pick uint64) ([]byte, error)
}

// Player is a Source whose time can be steered.
type Player interface {
	Source
	Pause(paused bool)
	SetSpeed(x float64)
	Skip(byMS int64) // relative; not Seek, which readers have
}

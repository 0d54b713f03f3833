// Package feed follows the event streams of workers: it subscribes, keeps order, finds gaps, asks for
// replay, notices restarts and silence, and says how far the mirror that results may be believed.
// Transports are behind an interface; package zmq has the real one.
package feed

import (
	"context"
	"time"

	"github.com/kvroute/kvroute/internal/index"
)

// Trust says how far a target's mirror may be believed.
type Trust uint8

// The trust states. Only Trusted is without doubt.
const (
	Connecting   Trust = iota // nothing received yet
	Warming                   // events come, what was before them is being fetched or is unknown
	Trusted                   // every batch since the cache was empty, or since a verified state, was applied
	Gap                       // batches are missing and could not be fetched
	Silent                    // the worker serves requests and sends no events
	Malformed                 // payloads cannot be read
	Unverifiable              // the engine sends no sequence numbers: losses cannot be seen
	Resync                    // missing batches are being fetched
	Diverged                  // predictions and the engine's reported cached tokens drift apart
	NoEvents                  // no event stream is configured: the mirror is approximate, made of what was sent where
	NumTrust
)

// Message is one multipart message of a stream, payload last.
type Message struct {
	Topic   string
	Seq     uint64
	HasSeq  bool
	Payload []byte // valid until the next call
}

// Subscription is an open stream of live messages.
type Subscription interface {
	// Receive waits for the next message. It returns ctx.Err() once ctx is done.
	Receive(ctx context.Context) (Message, error)
	Close() error
}

// Transport opens streams. Endpoints are as engines give them ("tcp://host:5557").
type Transport interface {
	Subscribe(ctx context.Context, endpoint, topic string, bind bool) (Subscription, error)
	// Replay asks for every buffered batch from start on and calls each for them in order. It returns
	// nil once the end marker came; a silence of quiet is an error.
	Replay(ctx context.Context, endpoint string, start uint64, quiet time.Duration, each func(Message) error) error
}

// State is what is known of one stream.
type State struct {
	Trust     Trust
	Reason    string // in words, for people
	Since     time.Time
	LastEvent time.Time // zero: none
	Seq       uint64    // last applied
	HasSeq    bool
	Batches   uint64
	Gaps      uint64 // times that numbers were missing
	Missing   uint64 // batches that were never received
	Replayed  uint64
	Restarts  uint64
	Stale     uint64 // batches received twice
	Bad       uint64 // batches that could not be read
	Skipped   map[string]uint64
	PageSize  int // tokens per engine block as the events show; 0: not seen
}

// Sink is where a stream's content goes. Calls of one stream come one after the other.
type Sink interface {
	// Apply folds operations into the mirror of the stream's target, in order.
	Apply(ops []index.Op) index.Result
	// State says that the stream's state has changed.
	State(State)
}

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

// Event says what a Message is.
type Event uint8

// The events of a stream.
const (
	Batch        Event = iota // a batch of the engine
	Connected                 // a connection to the publisher stands and the subscription is on its way
	Disconnected              // there is none (any more): what is published now is missed
	Garbled                   // a message came whose frames are no batch
)

// Message is one multipart message of a stream, payload last, or a turn of its connection.
type Message struct {
	Event   Event
	Reason  string // of Disconnected and Garbled, in words
	Topic   string
	Seq     uint64
	HasSeq  bool
	Payload []byte // valid until the next call
}

// Subscription is an open stream of live messages. It is used by one goroutine at a time.
//
// It reports Connected before the first batch, and again before the first batch that came over another
// connection, so that nobody takes the batches of a restarted engine for a continuation. A binding
// subscription is Connected once it is bound, and again whenever a publisher dials; as it cannot tell
// publishers apart it is never Disconnected.
type Subscription interface {
	// Receive waits for the next message. It returns ctx.Err() once ctx is done. Lost connections are
	// not errors: it reports them and tries again by itself, for as long as it is called.
	Receive(ctx context.Context) (Message, error)
	Close() error
}

// Transport opens streams. Endpoints are as engines give them ("tcp://host:5557").
type Transport interface {
	Subscribe(ctx context.Context, endpoint, topic string, bind bool) (Subscription, error)
	// Replay asks for every buffered batch from start on and calls each for them in order. It returns
	// nil once the end marker came; a silence of quiet is an error, and so is what each returns.
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
	// Apply folds operations into the mirror of the stream's target, in order. An index.Epoch alone comes
	// from the stream itself: the mirror is void, and so is what a Decode remembers of the cache.
	Apply(ops []index.Op) index.Result
	// State says that the stream's state has changed.
	State(State)
}

// Package router serves the OpenAI API in front of a fleet: it scans a request, has the fleet choose a
// worker, passes bytes both ways untouched, and fails over, limits, drains and accounts on the way.
package router

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Call is one request as the scan of its body found it. Body is shared, not copied, and must not change;
// it must not be touched once the call's last lease has been released.
type Call struct {
	ID         string
	Endpoint   tokenize.Endpoint
	Body       []byte
	Model      string
	Stream     bool
	N          int64  // samples asked for; invalid counts as 1
	Salt       string // cache_salt
	Session    string
	Retention  score.Retention
	Multimodal bool
	Images     []uint64
	// Tools, Messages and Prompt are the values of these fields, slices of Body; nil where there is none.
	Tools, Messages, Prompt []byte
	At                      time.Time
}

// ErrNoWorker says that no worker is left to choose from.
var ErrNoWorker = errors.New("no worker")

// Fleet knows the workers and chooses between them. It is safe for concurrent use.
type Fleet interface {
	// Place tokenizes a call. It returns ErrUnknownModel where no worker serves the model. A call that names no
	// model gets the name of the one that was found for it.
	Place(ctx context.Context, c *Call) (Ticket, error)
	// Models are the entries of /v1/models as the workers give them, merged by id.
	Models() []json.RawMessage
	// Ready says whether requests can be served, and if not, why, worker by worker.
	Ready() (ok bool, why []string)
}

// ErrUnknownModel says that no worker serves the model.
var ErrUnknownModel = errors.New("unknown model")

// Ticket is a placed call: tokenized once, picked for as often as there are attempts. It is owned by one goroutine.
type Ticket interface {
	// Pick chooses a worker among those skip does not name and reserves on it, in one step.
	// It returns ErrNoWorker where none is left.
	Pick(skip func(worker string) bool) (Lease, error)
}

// Target is where a call is sent.
type Target struct {
	Worker   string // worker id, what breakers and limits are kept by
	RouteKey string // worker, or worker#dp<rank>: never an address
	URL      *url.URL
	Rank     int // data-parallel rank to ask for; target.NoRank: none
	Engine   string
}

// Lease is a reservation on a target. Release must be called exactly once; the rest is optional.
// It may be used from any goroutine, by one at a time.
type Lease interface {
	Target() Target
	Decision() *score.Decision // valid until Release
	FirstToken()               // the first byte of the answer's content came
	Unbind()                   // the target failed: its session may go elsewhere
	Release(Outcome)
}

// Outcome is what is known of a call at its end; numbers are -1 where unknown.
type Outcome struct {
	Status           int   // of the worker's answer; 0: none came
	Delivered        bool  // the answer reached the client to its end
	Aborted          bool  // the client left
	PromptTokens     int64 // usage as the engine reported it
	CachedTokens     int64
	CompletionTokens int64
}

// Forwarder carries one attempt to a worker and its answer back. HTTP is the one there is; others (a
// message bus) fit behind it.
type Forwarder interface {
	Do(r *http.Request) (*http.Response, error)
}

// Package admin answers the read-only admin API: what the router knows of its workers and how it would
// place a request. Who may ask is the router's affair.
package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/openai"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Config is what the API shows beside the fleet.
type Config struct {
	Fleet   *fleet.Fleet
	Data    func(worker string) router.WorkerState // nil: not known
	Version string
	Flags   map[string]any // effective flags of the scorer
	MaxBody int64          // of a request to explain
}

// New returns the handler of everything under /v1/admin/.
func New(cfg Config) http.Handler {
	a := &api{cfg}
	mux := http.NewServeMux()
	for _, e := range []struct {
		method, path string
		handle       http.HandlerFunc
	}{
		{"GET", "/v1/admin/workers", a.workers},
		{"GET", "/v1/admin/cache-view/{worker...}", a.cacheView},
		{"POST", "/v1/admin/explain", a.explain},
	} {
		mux.HandleFunc(e.method+" "+e.path, e.handle)
		mux.HandleFunc(e.path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", e.method)
			fail(w, http.StatusMethodNotAllowed, "method_not_allowed", "this path takes "+e.method)
		})
	}
	nothing := func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "not_found", "the admin API has nothing at "+r.URL.Path)
	}
	mux.HandleFunc("/", nothing)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path.Clean(r.URL.Path) != r.URL.Path {
			nothing(w, r) // the mux would redirect
			return
		}
		mux.ServeHTTP(w, r)
	})
}

type api struct{ Config }

// Worker is one entry of /v1/admin/workers: a target, that is, a worker or one of its ranks. Fields that
// are not known are null or left out.
type Worker struct {
	WorkerID      string     `json:"worker_id"`
	RouteKey      string     `json:"route_key"`
	URL           string     `json:"url"`
	Model         string     `json:"model"`
	Role          string     `json:"role"`
	Engine        string     `json:"engine"`
	EngineVersion string     `json:"engine_version,omitempty"`
	Health        string     `json:"health"`
	HealthReason  string     `json:"health_reason,omitempty"`
	Breaker       string     `json:"breaker,omitempty"`
	Busy          bool       `json:"busy"`
	Trust         string     `json:"trust"`
	TrustReason   string     `json:"trust_reason"`
	Approximate   bool       `json:"approximate"`
	BlockCount    int        `json:"block_count"`
	LowerBlocks   int        `json:"lower_tier_block_count"`
	PoolBlocks    *int64     `json:"engine_pool_blocks"`
	PageSize      *int       `json:"engine_block_size"`
	ContentHash   string     `json:"content_hash"`
	Orphans       int        `json:"orphans"`
	Holes         int        `json:"holes"`
	ActiveBlocks  int64      `json:"active_blocks"`
	PendingTokens int64      `json:"pending_tokens"`
	HeldRequests  int64      `json:"held_requests"`
	HeldTokens    int64      `json:"held_tokens"`
	Stream        Stream     `json:"stream"`
	Parity        []Parity   `json:"parity"`
	Predictions   Prediction `json:"predictions"`
}

// Stream is the event stream of a target.
type Stream struct {
	Sequence  *uint64           `json:"sequence"`
	LastEvent *time.Time        `json:"last_event"`
	Batches   uint64            `json:"batches"`
	Replayed  uint64            `json:"replayed"`
	Gaps      uint64            `json:"gaps"`
	Missing   uint64            `json:"missing"`
	Restarts  uint64            `json:"restarts"`
	Bad       uint64            `json:"bad"`
	Skipped   map[string]uint64 `json:"skipped_events,omitempty"`
}

// Parity is one comparison of our tokens with the engine's.
type Parity struct {
	Case    string `json:"case"`
	Verdict string `json:"verdict"`
	Detail  string `json:"detail,omitempty"`
}

// Prediction compares predicted cached tokens with those the engine reported.
type Prediction struct {
	Compared     uint64 `json:"compared"`
	Differing    uint64 `json:"differing"`
	Overtaken    uint64 `json:"overtaken"`
	Incomparable uint64 `json:"incomparable"`
	Predicted    int64  `json:"predicted_tokens"`
	Reported     int64  `json:"reported_tokens"`
	Diverged     bool   `json:"diverged"`
}

// optional is nil for what is not known.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func (a *api) entry(s *fleet.TargetState) Worker {
	w := Worker{
		WorkerID: s.WorkerID, RouteKey: s.RouteKey, URL: s.URL, Model: s.Model, Role: s.Role, Engine: s.Engine, EngineVersion: s.Version,
		Health: s.Health.String(), HealthReason: s.HealthReason, Trust: s.Stream.Trust.String(), TrustReason: s.Stream.Reason,
		Approximate: s.Approximate, BlockCount: s.Blocks, LowerBlocks: s.LowerBlocks, PoolBlocks: optional(s.PoolBlocks), PageSize: optional(s.PageSize),
		ContentHash: fmt.Sprintf("%016x", s.ContentHash), Orphans: s.Orphans, Holes: s.Holes,
		ActiveBlocks: s.ActiveBlocks, PendingTokens: s.PendingTokens, HeldRequests: s.HeldRequests, HeldTokens: s.HeldTokens,
		Stream: Stream{
			Batches: s.Stream.Batches, Replayed: s.Stream.Replayed, Gaps: s.Stream.Gaps, Missing: s.Stream.Missing,
			Restarts: s.Stream.Restarts, Bad: s.Stream.Bad, Skipped: s.Stream.Skipped,
		},
		Parity:      []Parity{},
		Predictions: Prediction(s.Predictions),
	}
	if s.Stream.HasSeq {
		w.Stream.Sequence = &s.Stream.Seq
	}
	if !s.Stream.LastEvent.IsZero() {
		w.Stream.LastEvent = &s.Stream.LastEvent
	}
	for _, p := range s.Parity {
		w.Parity = append(w.Parity, Parity{p.Name, p.Verdict, p.Detail})
	}
	if a.Data != nil {
		d := a.Data(s.WorkerID)
		w.Breaker, w.Busy = d.Breaker, d.Busy
	}
	return w
}

func (a *api) workers(w http.ResponseWriter, _ *http.Request) {
	states := a.Fleet.States()
	list := make([]Worker, len(states))
	for i := range states {
		list[i] = a.entry(&states[i])
	}
	reply(w, struct {
		Schema  string   `json:"schema"`
		Workers []Worker `json:"workers"`
	}{"kvroute.workers/v1", list})
}

// cacheView says how many blocks the mirror of one worker holds: of all its ranks, or of the one asked for.
func (a *api) cacheView(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("worker")
	rank := target.NoRank
	if v := r.URL.Query().Get("dp_rank"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			fail(w, http.StatusBadRequest, "invalid_rank", fmt.Sprintf("dp_rank %q is not a rank", v))
			return
		}
		rank = n
	}
	view := struct {
		WorkerID    string `json:"worker_id"`
		DPRank      *int   `json:"dp_rank,omitempty"`
		BlockCount  int    `json:"block_count"`
		BlockSize   int    `json:"block_size"`
		Trust       string `json:"trust"`
		TrustReason string `json:"trust_reason,omitempty"`
		Approximate bool   `json:"approximate"`
	}{WorkerID: id, BlockSize: a.Fleet.BlockSize()}
	if rank != target.NoRank {
		view.DPRank = &rank
	}
	found := false
	var near []string
	for _, s := range a.Fleet.States() {
		near = append(near, s.RouteKey)
		wanted := s.RouteKey == id && rank <= 0 || s.WorkerID == id && (rank == target.NoRank || s.RouteKey == fmt.Sprintf("%s#dp%d", id, rank))
		if !wanted {
			continue
		}
		view.BlockCount += s.Blocks
		if !found || s.Stream.Trust.String() != "trusted" {
			view.Trust, view.TrustReason, view.Approximate = s.Stream.Trust.String(), s.Stream.Reason, s.Approximate
		}
		found = true
	}
	if !found {
		fail(w, http.StatusNotFound, "unknown_worker", fmt.Sprintf("there is no worker %q; there are: %s", id, strings.Join(near, ", ")))
		return
	}
	reply(w, view)
}

// explain decides about a request without sending it anywhere.
func (a *api) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		fail(w, http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("the body is larger than the limit of %d bytes", a.MaxBody))
		return
	case err != nil:
		fail(w, http.StatusBadRequest, "incomplete_body", "the body could not be read to its end: "+err.Error())
		return
	}
	call, err := router.ScanCall(r.Header.Get("X-Request-Id"), tokenize.Chat, body, time.Now())
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_json", "the body is not a request: "+err.Error())
		return
	}
	if call.Prompt != nil && call.Messages == nil {
		call.Endpoint = tokenize.Completions
	}
	head, err := json.Marshal(struct {
		Schema  string         `json:"schema"`
		Version string         `json:"version"`
		Flags   map[string]any `json:"flags"`
	}{"kvroute.explain/v1", a.Version, a.Flags})
	if err != nil {
		fail(w, http.StatusInternalServerError, "internal", err.Error())
		return
	}
	dec, err := a.Fleet.Explain(r.Context(), call)
	switch {
	case errors.Is(err, router.ErrUnknownModel):
		fail(w, http.StatusNotFound, "model_not_found", err.Error())
		return
	case errors.Is(err, router.ErrNoWorker):
		fail(w, http.StatusServiceUnavailable, "no_worker", err.Error())
		return
	case err != nil:
		fail(w, http.StatusInternalServerError, "internal", err.Error())
		return
	}
	send(w, append(append(append(head[:len(head)-1], ','), dec[1:]...), '\n'))
}

func fail(w http.ResponseWriter, status int, code, message string) {
	e := openai.Error{Status: status, Message: message, Type: openai.TypeInvalid, Code: code}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(e.Body(), '\n')) //nolint:errcheck // the client has gone
}

func reply(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		fail(w, http.StatusInternalServerError, "internal", err.Error())
		return
	}
	send(w, append(body, '\n'))
}

func send(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Write(body) //nolint:errcheck // the client has gone
}

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
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Config is what the API shows beside the fleet.
type Config struct {
	Fleet   *fleet.Fleet
	Hub     *Hub
	Version string
	Flags   map[string]any // effective flags of the scorer
	MaxBody int64          // of a request to explain

	stuckFor time.Duration // of a stream; 0: the default
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
		{"GET", "/v1/admin/snapshot", a.snapshot},
		{"GET", "/v1/admin/stream", a.stream},
		{"GET", "/v1/admin/decisions/{id}", a.decision},
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

func (a *api) workers(w http.ResponseWriter, _ *http.Request) {
	reply(w, struct {
		Schema  string            `json:"schema"`
		Workers []snapshot.Worker `json:"workers"`
	}{"kvroute.workers/v1", a.Hub.Fresh().Workers})
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

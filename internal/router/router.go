package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvroute/kvroute/internal/openai"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Router is the HTTP front of a fleet. It is an http.Handler; Serve, Drain and Close run it on listeners.
type Router struct {
	cfg     Config
	fleet   Fleet
	m       *metrics
	health  *health
	budget  *budget
	forward []string
	metrics http.Handler

	inFlight atomic.Int64
	bodies   room
	draining atomic.Bool
	troubles troubles

	base context.Context // of all requests; ends with errStopped
	stop context.CancelCauseFunc

	mu      sync.Mutex
	servers []*http.Server
	saidAll time.Time // when it was last said that all workers are doubtful
}

// New returns a router in front of a fleet.
func New(cfg Config, fleet Fleet) (*Router, error) {
	if fleet == nil {
		return nil, errors.New("making a router: no fleet")
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &Router{cfg: cfg, fleet: fleet, m: newMetrics(cfg.Registry), budget: newBudget(cfg.Retry, cfg.Now())}
	r.health = newHealth(cfg.Breaker, cfg.MaxPerWorker, func(id string, s breakerState, tripped bool) {
		r.m.breaker.WithLabelValues(id).Set(float64(s))
		trips := r.m.trips.WithLabelValues(id)
		if tripped {
			trips.Inc()
		}
		if s == open && cfg.OnBreaker != nil {
			cfg.OnBreaker(id)
		}
	})
	for _, h := range append(append([]string{}, DefaultForwardHeaders...), cfg.ForwardHeaders...) {
		r.forward = append(r.forward, http.CanonicalHeaderKey(h))
	}
	r.metrics = promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{ErrorLog: promLog{cfg.Log}})
	r.bodies.most = cfg.MaxBodies
	r.base, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

// Forget drops what the router knows of a worker that has left: a worker of the same name that comes
// later starts anew, and metrics do not keep its series.
func (r *Router) Forget(worker string) {
	r.health.forget(worker)
	r.m.forget(worker)
}

// Draining says whether the router has begun to end.
func (r *Router) Draining() bool { return r.draining.Load() }

// InFlight is the number of requests whose answer has not ended.
func (r *Router) InFlight() int64 { return r.inFlight.Load() }

// Troubles counts what goes wrong with requests, for those who watch.
type Troubles struct {
	Failed      uint64 // by workers: not answered, or not to the end
	NoWorker    uint64 // there was nobody to ask
	Doubtful    uint64 // sent to a worker in doubt because there was no other
	Rejected    uint64 // turned away for want of room
	RetryBudget uint64 // not tried elsewhere because too many were
	Own         uint64 // ended by a fault of the router's own
}

// Troubles returns what has gone wrong since the router began.
func (r *Router) Troubles() Troubles {
	return Troubles{
		Failed: r.troubles.failed.Load(), NoWorker: r.troubles.noWorker.Load(), Doubtful: r.troubles.doubtful.Load(),
		Rejected: r.troubles.rejected.Load(), RetryBudget: r.troubles.retryBudget.Load(), Own: r.troubles.own.Load(),
	}
}

// troubles are the counters behind Troubles.
type troubles struct{ failed, noWorker, doubtful, rejected, retryBudget, own atomic.Uint64 }

// WorkerState is what the data plane knows of a worker, for the admin API.
type WorkerState struct {
	Breaker  string // closed, half-open, open
	Busy     bool
	InFlight int
}

// WorkerState returns what is known of a worker.
func (r *Router) WorkerState(id string) WorkerState {
	now := r.cfg.Now()
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	w := r.health.workers[id]
	if w == nil {
		return WorkerState{Breaker: closed.String()}
	}
	return WorkerState{Breaker: w.state.String(), Busy: now.Before(w.busy), InFlight: w.inFlight}
}

// ServeHTTP answers one request.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				panic(v)
			}
			r.m.panics.Inc()
			r.troubles.own.Add(1)
			r.cfg.Log.Error("a fault of the router's own ended a request", "path", req.URL.Path, "fault", fmt.Sprint(v), "stack", string(debug.Stack()))
			panic(http.ErrAbortHandler)
		}
	}()
	if d := r.cfg.BodyTimeout; d > 0 && req.ContentLength != 0 {
		// Bodies are also read, and thrown away, where a request is refused at once.
		r.deadline(http.NewResponseController(w).SetReadDeadline, time.Now().Add(d))
	}
	switch path := req.URL.Path; {
	case path == "/v1/chat/completions":
		r.complete(w, req, tokenize.Chat)
	case path == "/v1/completions":
		r.complete(w, req, tokenize.Completions)
	case path == "/v1/models", strings.HasPrefix(path, "/v1/models/"):
		r.read(w, req, r.models)
	case path == "/health":
		r.read(w, req, r.healthz)
	case path == "/ready":
		r.read(w, req, r.ready)
	case path == "/metrics":
		r.read(w, req, r.metrics.ServeHTTP)
	case strings.HasPrefix(path, adminPrefix) && r.cfg.Admin != nil && !r.cfg.AdminElsewhere:
		r.admin(w, req)
	default:
		r.refuse(w, req, &openai.Error{Status: 404, Message: "there is nothing at this path", Type: openai.TypeInvalid, Code: "not_found"})
		r.linger(w, req)
	}
}

// deadline sets a deadline of a connection; some writers, as those of tests, have none.
func (r *Router) deadline(set func(time.Time) error, t time.Time) {
	if err := set(t); err != nil && !errors.Is(err, http.ErrNotSupported) {
		r.cfg.Log.Debug("setting a deadline", "err", err)
	}
}

// read serves a path that is only read.
func (r *Router) read(w http.ResponseWriter, req *http.Request, h http.HandlerFunc) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		r.wrongMethod(w, req, "GET, HEAD")
		return
	}
	if strings.HasPrefix(req.URL.Path, "/v1/") && !r.allowed(req) {
		r.unauthorized(w, req)
		return
	}
	h(w, req)
}

func (r *Router) allowed(req *http.Request) bool {
	if r.cfg.Keys == nil {
		return true
	}
	key, ok := bearer(req)
	return ok && r.cfg.Keys.Has(key)
}

func (r *Router) unauthorized(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	r.refuse(w, req, errUnauthorized)
}

var errUnauthorized = &openai.Error{Status: 401, Message: "a valid API key is needed: Authorization: Bearer KEY", Type: openai.TypeAuth, Code: "invalid_api_key"}

func (r *Router) wrongMethod(w http.ResponseWriter, req *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	r.refuse(w, req, &openai.Error{Status: 405, Message: "this path takes " + allow, Type: openai.TypeInvalid, Code: "method_not_allowed"})
}

// refuse answers with an error, outside of completions.
func (r *Router) refuse(w http.ResponseWriter, req *http.Request, e *openai.Error) {
	id := requestID(req)
	w.Header().Set(requestIDHeader, id)
	r.m.unusable.WithLabelValues(e.Code).Inc()
	if _, err := writeError(w, e); err != nil {
		r.cfg.Log.Debug("writing an error", "request_id", id, "err", err)
	}
}

func writeError(w http.ResponseWriter, e *openai.Error) (int, error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	return w.Write(append(e.Body(), '\n'))
}

func (r *Router) writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		r.cfg.Log.Error("printing an answer", "err", err)
		http.Error(w, `{"error":{"message":"the answer cannot be printed","type":"server_error","param":null,"code":null}}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(body, '\n')); err != nil {
		r.cfg.Log.Debug("writing an answer", "err", err)
	}
}

// models answers /v1/models with the workers' own entries, and /v1/models/{id} with one of them.
func (r *Router) models(w http.ResponseWriter, req *http.Request) {
	all := r.fleet.Models()
	id := strings.TrimPrefix(strings.TrimPrefix(req.URL.Path, "/v1/models"), "/")
	if id == "" {
		if all == nil {
			all = []json.RawMessage{}
		}
		r.writeJSON(w, http.StatusOK, struct {
			Object string            `json:"object"`
			Data   []json.RawMessage `json:"data"`
		}{"list", all})
		return
	}
	for _, raw := range all {
		var m struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(raw, &m); err == nil && m.ID == id {
			r.writeJSON(w, http.StatusOK, raw)
			return
		}
	}
	r.refuse(w, req, unknownModel(id))
}

func unknownModel(name string) *openai.Error {
	const most = 200
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	msg := fmt.Sprintf("the model %q does not exist here", name)
	if name == "" {
		msg = "the request names no model, which it may only where exactly one is served"
	}
	return &openai.Error{Status: 404, Message: msg, Type: openai.TypeInvalid, Param: "model", Code: "model_not_found"}
}

// Counter is a fleet that can count its active workers.
type Counter interface{ ActiveWorkers() int }

// healthz says that the process answers. Whether requests can be served is for /ready.
func (r *Router) healthz(w http.ResponseWriter, _ *http.Request) {
	var active *int
	if c, ok := r.fleet.(Counter); ok {
		n := c.ActiveWorkers()
		active = &n
	}
	r.writeJSON(w, http.StatusOK, struct {
		Status        string `json:"status"`
		ActiveWorkers *int   `json:"active_workers,omitempty"`
		Draining      bool   `json:"draining"`
	}{"ok", active, r.draining.Load()})
}

func (r *Router) ready(w http.ResponseWriter, _ *http.Request) {
	ok, why := r.fleet.Ready()
	if r.draining.Load() {
		ok, why = false, append([]string{"the router is draining"}, why...)
	}
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	if why == nil {
		why = []string{}
	}
	r.writeJSON(w, status, struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons"`
	}{ok, why})
}

const adminPrefix = "/v1/admin/"

// AdminHandler serves the admin API on a listener of its own, behind the same guard.
func (r *Router) AdminHandler() http.Handler { return http.HandlerFunc(r.admin) }

// admin lets loopback clients and those with a token through.
func (r *Router) admin(w http.ResponseWriter, req *http.Request) {
	if r.cfg.Admin == nil || !strings.HasPrefix(req.URL.Path, adminPrefix) {
		r.refuse(w, req, &openai.Error{Status: 404, Message: "there is nothing at this path", Type: openai.TypeInvalid, Code: "not_found"})
		return
	}
	token, given := bearer(req)
	switch {
	case given && r.cfg.AdminTokens != nil:
		if !r.cfg.AdminTokens.Has(token) {
			r.refuse(w, req, &openai.Error{Status: 401, Message: "the admin token is not valid", Type: openai.TypeAuth, Code: "invalid_admin_token"})
			return
		}
	case !local(req):
		w.Header().Set("WWW-Authenticate", "Bearer")
		r.refuse(w, req, &openai.Error{Status: 401, Message: "the admin API is for clients on the router's machine, or with an admin token", Type: openai.TypeAuth, Code: "admin_token_required"})
		return
	}
	r.cfg.Admin.ServeHTTP(w, req)
}

package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/kvroute/kvroute/internal/openai"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Why requests and attempts are cancelled, besides the client's leaving.
var (
	errTotal     = errors.New("the request took longer than the router allows")
	errAsked     = errors.New("the request took longer than " + timeoutHeader + " allows")
	errFirstByte = errors.New("the worker sent nothing in time")
	errIdle      = errors.New("the worker stopped sending")
	errClient    = errors.New("the client takes no more")
)

// exchange is one request of a client and what became of it. It belongs to the handler's goroutine.
type exchange struct {
	r        *Router
	w        http.ResponseWriter
	rc       *http.ResponseController
	req      *http.Request
	endpoint tokenize.Endpoint
	id       string
	start    time.Time
	ctx      context.Context
	cancel   context.CancelCauseFunc
	limit    *time.Timer // on the whole request

	body     *sharedBody
	bytesIn  int
	broken   bool // reading the body failed
	received time.Time
	scanned  openai.Request
	call     Call
	added    []openai.Splice // what is put into the body

	known    bool // the model is one that workers serve
	tried    map[string]bool
	attempts int
	last     *answer // the last answer of a worker that is not final

	outcome    outcome
	status     int
	began      bool // the answer's head has been written
	cut        bool // the connection has to be cut for the client to notice
	worker     string
	routeKey   string
	firstToken time.Time
	usage      openai.Usage
	out        int64 // bytes of the answer
	writeBy    time.Time
	err        error // for the log
}

// complete carries one completion.
func (r *Router) complete(w http.ResponseWriter, req *http.Request, ep tokenize.Endpoint) {
	x := &exchange{r: r, w: w, rc: http.NewResponseController(w), req: req, endpoint: ep, id: requestID(req), start: r.cfg.Now(), usage: openai.NoUsage}
	r.inFlight.Add(1)
	r.m.inFlight.WithLabelValues(routerLabel).Inc()
	x.ctx, x.cancel = context.WithCancelCause(req.Context())
	w.Header().Set(requestIDHeader, x.id)
	if req.Header.Get(altIDHeader) != "" {
		w.Header().Set(altIDHeader, x.id)
	}
	func() {
		defer x.finish()
		x.run()
	}()
	if x.cut {
		panic(http.ErrAbortHandler)
	}
	if x.body == nil && !x.broken {
		r.linger(w, req)
	}
}

// run takes a request through its stages. Each either goes on or has answered.
func (x *exchange) run() {
	switch {
	case x.req.Method != http.MethodPost:
		x.w.Header().Set("Allow", "POST")
		x.refuse(outcomeClientError, &openai.Error{Status: 405, Message: "this path takes POST", Type: openai.TypeInvalid, Code: "method_not_allowed"})
		return
	case !x.r.allowed(x.req):
		x.w.Header().Set("WWW-Authenticate", "Bearer")
		x.refuse(outcomeUnauthd, errUnauthorized)
		return
	case x.r.cfg.MaxInFlight > 0 && x.r.inFlight.Load() > int64(x.r.cfg.MaxInFlight):
		x.full("total", "the router has as many requests in flight as it may have")
		return
	}
	if !x.limitTime() || !x.receive() {
		return
	}
	ticket, ok := x.place()
	if !ok {
		return
	}
	if x.r.cfg.StreamUsage && x.call.Stream {
		if s, ok := openai.AskForUsage(x.call.Body, &x.scanned); ok {
			x.added = append(x.added, s)
		}
	}
	x.r.budget.request()
	x.dispatch(ticket)
}

// limitTime arms the limit on the whole request; finish stops it.
func (x *exchange) limitTime() bool {
	d, err := asked(x.req)
	if err != nil {
		x.refuse(outcomeClientError, &openai.Error{Status: 400, Message: err.Error(), Type: openai.TypeInvalid, Code: "invalid_timeout"})
		return false
	}
	limit, cause := x.r.cfg.TotalTimeout, errTotal
	if d > 0 && (limit <= 0 || d < limit) {
		limit, cause = d, errAsked
	}
	if limit > 0 {
		x.limit = time.AfterFunc(limit, func() { x.cancel(cause) })
	}
	return true
}

func (x *exchange) place() (Ticket, bool) {
	ticket, err := x.r.fleet.Place(x.ctx, &x.call)
	switch {
	case err == nil:
		x.known = true
		return ticket, true
	case errors.Is(err, ErrUnknownModel):
		x.err = ErrUnknownModel // err may hold what the client wrote
		x.refuse(outcomeClientError, unknownModel(x.call.Model))
	case errors.Is(err, ErrNoWorker):
		x.noWorker(err)
	case x.ctx.Err() != nil:
		x.ended()
	default:
		x.err = fmt.Errorf("placing the request: %w", err)
		x.refuse(outcomeInternal, &openai.Error{Status: 500, Message: "the router could not place the request", Type: openai.TypeServer, Code: "placement_failed"})
	}
	return nil, false
}

func (x *exchange) noWorker(err error) {
	x.err = err
	x.w.Header().Set("Retry-After", "1")
	x.refuse(outcomeNoWorker, &openai.Error{Status: 503, Message: "no worker is available for this request", Type: openai.TypeUnavailable, Code: "no_worker"})
}

// full turns the request away for want of room.
func (x *exchange) full(scope, msg string) {
	x.r.m.rejected.WithLabelValues(scope).Inc()
	x.w.Header().Set("Retry-After", "1")
	x.refuse(outcomeRejected, &openai.Error{Status: 429, Message: msg, Type: openai.TypeRateLimit, Code: "too_many_requests"})
}

// ended answers a request whose context has ended before any byte of an answer.
func (x *exchange) ended() {
	cause := context.Cause(x.ctx)
	x.err = cause
	switch {
	case errors.Is(cause, errStopped):
		x.refuse(outcomeStopped, &openai.Error{Status: 503, Message: errStopped.Error(), Type: openai.TypeUnavailable, Code: "shutting_down"})
	case errors.Is(cause, errTotal), errors.Is(cause, errAsked):
		x.refuse(outcomeTimeout, timeoutError(cause))
	default:
		x.gone()
	}
}

func timeoutError(cause error) *openai.Error {
	return &openai.Error{Status: 504, Message: cause.Error(), Type: openai.TypeTimeout, Code: "timeout"}
}

// clientClosed is the status that logs give a request whose client left before an answer.
const clientClosed = 499

func (x *exchange) gone() {
	x.outcome = outcomeAborted
	if x.status == 0 {
		x.status = clientClosed
	}
	if x.err == nil {
		x.err = errors.New("the client left")
	}
	x.cut = true // or the server would answer 200 with nothing to a client that only stopped sending
}

// refuse answers with an error of the router's own, before any byte of another answer.
func (x *exchange) refuse(o outcome, e *openai.Error) {
	x.outcome, x.status, x.began = o, e.Status, true
	if o == outcomeClientError || o == outcomeUnauthd {
		x.r.m.unusable.WithLabelValues(e.Code).Inc()
	}
	if x.err == nil {
		x.err = errors.New(e.Message)
	}
	x.extendWrite()
	n, err := writeError(x.w, e)
	x.out += int64(n)
	if err != nil {
		x.err = errors.Join(x.err, fmt.Errorf("writing the error: %w", err))
	}
}

// extendWrite gives the client ClientTimeout for what is written next. Deadlines are moved at most once
// a second: they cost more than a small write does.
func (x *exchange) extendWrite() {
	d := x.r.cfg.ClientTimeout
	if d <= 0 {
		return
	}
	now := time.Now()
	if x.writeBy.Sub(now) >= d {
		return
	}
	x.writeBy = now.Add(d + min(time.Second, d/2))
	x.r.deadline(x.rc.SetWriteDeadline, x.writeBy)
}

// finish accounts for the request, whatever happened.
func (x *exchange) finish() {
	r, now := x.r, x.r.cfg.Now()
	stopTimer(x.limit)
	x.cancel(nil)
	if x.body != nil {
		x.body.release()
	}
	if !x.writeBy.IsZero() {
		x.r.deadline(x.rc.SetWriteDeadline, time.Time{})
	}
	switch t := &r.troubles; x.outcome {
	case outcomeUpstream, outcomeMidStream, outcomeTimeout:
		t.failed.Add(1)
	case outcomeNoWorker:
		t.noWorker.Add(1)
	case outcomeRejected:
		t.rejected.Add(1)
	case outcomeInternal:
		t.own.Add(1)
	}
	if x.outcome == "" { // a panic is on its way, and is counted where it ends
		x.outcome, x.err = outcomeInternal, errors.New("a fault of the router's own")
	}
	r.inFlight.Add(-1)
	r.m.inFlight.WithLabelValues(routerLabel).Dec()
	r.m.requests.WithLabelValues(routerLabel, string(x.outcome)).Inc()
	r.m.duration.WithLabelValues(routerLabel, string(x.outcome)).Observe(now.Sub(x.start).Seconds())
	if x.known && x.call.Model != "" {
		x.countTokens(x.call.Model)
	}
	x.log(now)
}

func (x *exchange) countTokens(model string) {
	m := x.r.m
	if n := x.usage.PromptTokens; n >= 0 {
		m.inTokens.WithLabelValues(routerLabel, model).Observe(float64(n))
		m.prompt.WithLabelValues(routerLabel, model).Add(float64(n))
	}
	if n := x.usage.CompletionTokens; n >= 0 {
		m.outTokens.WithLabelValues(routerLabel, model).Observe(float64(n))
		m.generation.WithLabelValues(routerLabel, model).Add(float64(n))
	}
}

// log writes the request's line. It never holds text of the request: a model that nobody serves may be
// anything, so it is left out.
func (x *exchange) log(now time.Time) {
	level := slog.LevelInfo
	switch x.outcome {
	case outcomeUpstream, outcomeMidStream, outcomeNoWorker, outcomeTimeout, outcomeStopped:
		level = slog.LevelWarn
	case outcomeInternal:
		level = slog.LevelError
	}
	if !x.r.cfg.Log.Enabled(context.Background(), level) {
		return
	}
	ms := func(t time.Time) slog.Attr {
		return slog.Float64("ttft_ms", float64(t.Sub(x.start).Microseconds())/1000)
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs, slog.String("request_id", x.id), slog.String("path", x.req.URL.Path))
	if x.known {
		attrs = append(attrs, slog.String("model", x.call.Model))
	}
	attrs = append(attrs, slog.String("worker", x.routeKey), slog.Int("status", x.status), slog.String("outcome", string(x.outcome)),
		slog.Bool("stream", x.call.Stream), slog.Int("attempts", x.attempts))
	if !x.firstToken.IsZero() {
		attrs = append(attrs, ms(x.firstToken))
	}
	attrs = append(attrs, slog.Float64("duration_ms", float64(now.Sub(x.start).Microseconds())/1000))
	if x.body != nil {
		attrs = append(attrs, slog.Int("bytes_in", x.bytesIn))
	}
	attrs = append(attrs, slog.Int64("bytes_out", x.out))
	for _, t := range []struct {
		name string
		n    int64
	}{{"prompt_tokens", x.usage.PromptTokens}, {"cached_tokens", x.usage.CachedTokens}, {"completion_tokens", x.usage.CompletionTokens}} {
		if t.n >= 0 {
			attrs = append(attrs, slog.Int64(t.name, t.n))
		}
	}
	if x.err != nil {
		attrs = append(attrs, slog.String("err", x.err.Error()))
	}
	x.r.cfg.Log.LogAttrs(context.Background(), level, "request", attrs...)
}

// explain puts the decision into the answer's headers where the client asked and may.
func (x *exchange) explain(l Lease) {
	if !x.r.cfg.Explain || x.req.Header.Get(explainHeader) != "1" {
		return
	}
	d := l.Decision()
	if d == nil || len(d.Terms) == 0 {
		return
	}
	writeDecision(x.w.Header(), l.Target().RouteKey, d)
}

func writeDecision(h http.Header, routeKey string, d *score.Decision) {
	t := d.PickedTerms()
	h.Set("X-Kvroute-Worker", routeKey)
	h.Set("X-Kvroute-Basis", string(d.Basis))
	h.Set("X-Kvroute-Hits", fmt.Sprint(t.Hits))
	h.Set("X-Kvroute-Blocks", fmt.Sprint(t.Blocks))
}

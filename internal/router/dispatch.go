package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/openai"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/tokenize"
)

var paths = map[tokenize.Endpoint]string{tokenize.Chat: "/v1/chat/completions", tokenize.Completions: "/v1/completions"}

// Why no worker was found, besides ErrNoWorker.
var (
	errFull      = errors.New("all workers have as many requests as they may have")
	errExhausted = errors.New("every worker has been tried")
)

// answer is a worker's answer kept for the client in case no other worker does better.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// maxKept bounds the body of an answer that is kept.
const maxKept = 64 << 10

// dispatch sends the request to one worker after the other until one answers for good.
func (x *exchange) dispatch(t Ticket) {
	x.tried = make(map[string]bool, 2)
	reason := ""
	for {
		l, c, err := x.pick(t)
		if err != nil {
			x.failed(err)
			return
		}
		if reason != "" {
			x.r.m.retries.WithLabelValues(reason).Inc()
			x.r.cfg.Log.Info("trying another worker", "request_id", x.id, "worker", l.Target().RouteKey, "instead_of", x.routeKey, "reason", reason, "err", x.err)
		}
		if x.attempts++; x.attempts == 1 {
			own := x.r.cfg.Now().Sub(x.received)
			x.r.m.firstChunk.Observe(own.Seconds())
			if x.r.cfg.OnDispatch != nil {
				x.r.cfg.OnDispatch(own)
			}
		}
		a := attempt{x: x, lease: l, claim: c, target: l.Target(), out: Outcome{PromptTokens: -1, CachedTokens: -1, CompletionTokens: -1}}
		x.tried[a.target.Worker] = true
		x.worker, x.routeKey = a.target.Worker, a.target.RouteKey
		if reason = a.run(); reason == "" {
			return
		}
		if x.ctx.Err() != nil {
			x.ended()
			return
		}
		if why := x.mayRetry(); why != "" {
			x.r.m.noRetry.WithLabelValues(why).Inc()
			if why == "budget" {
				x.r.troubles.retryBudget.Add(1)
			}
			x.giveUp()
			return
		}
	}
}

// mayRetry returns why the request may not move on, "" if it may.
func (x *exchange) mayRetry() string {
	now := x.r.cfg.Now()
	switch {
	case x.attempts >= x.r.cfg.Retry.Attempts:
		return "attempts"
	case x.r.cfg.Retry.Within > 0 && now.Sub(x.start) > x.r.cfg.Retry.Within:
		return "late"
	case !x.r.budget.take(now):
		return "budget"
	}
	return ""
}

// pick chooses a worker and takes it. Workers in doubt are passed over while there are others.
func (x *exchange) pick(t Ticket) (Lease, *claim, error) {
	h := x.r.health
	var sawDoubtful, sawFull bool
	for _, force := range []bool{false, true} {
		for range 2 + 2*target.MaxTargets { // another request may take a probe or the last place each time
			sawDoubtful, sawFull = false, false
			now := x.r.cfg.Now()
			l, err := t.Pick(func(id string) bool {
				if x.tried[id] {
					return true
				}
				switch h.standing(id, now) {
				case full:
					sawFull = true
					return true
				case doubtful:
					sawDoubtful = true
					return !force
				}
				return false
			})
			if errors.Is(err, ErrNoWorker) {
				if force || !sawDoubtful {
					return nil, nil, x.nobody(err, sawFull)
				}
				break
			}
			if err != nil {
				return nil, nil, fmt.Errorf("choosing a worker: %w", err)
			}
			id := l.Target().Worker
			doubt := force && h.standing(id, now) == doubtful
			if c := h.claim(id, now, force); c != nil {
				if doubt {
					x.sayForced(id, now)
				}
				return l, c, nil
			}
			l.Release(Outcome{PromptTokens: -1, CachedTokens: -1, CompletionTokens: -1})
		}
	}
	return nil, nil, errFull
}

func (x *exchange) nobody(err error, sawFull bool) error {
	switch {
	case sawFull:
		return errFull
	case len(x.tried) > 0:
		return errExhausted
	}
	return err
}

// sayForced says, once in a while, that requests go to workers in doubt.
func (x *exchange) sayForced(worker string, now time.Time) {
	r := x.r
	r.m.forced.Inc()
	r.troubles.doubtful.Add(1)
	r.mu.Lock()
	say := now.Sub(r.saidAll) > 10*time.Second
	if say {
		r.saidAll = now
	}
	r.mu.Unlock()
	if say {
		r.cfg.Log.Warn("all workers left have failed lately or are busy; trying one all the same", "request_id", x.id, "worker", worker)
	}
}

// failed answers a request for which no (further) worker was found.
func (x *exchange) failed(err error) {
	if x.attempts > 0 {
		x.r.m.noRetry.WithLabelValues("nobody").Inc()
		x.giveUp()
		return
	}
	switch {
	case errors.Is(err, errFull):
		x.full("worker", errFull.Error())
	case errors.Is(err, ErrNoWorker):
		x.noWorker(err)
	case x.ctx.Err() != nil:
		x.ended()
	default:
		x.err = err
		x.refuse(outcomeInternal, &openai.Error{Status: 500, Message: "the router could not choose a worker", Type: openai.TypeServer, Code: "choice_failed"})
	}
}

// giveUp answers with the last worker's own answer, or says that none came.
func (x *exchange) giveUp() {
	a := x.last
	switch {
	case a == nil && (errors.Is(x.err, errFirstByte) || errors.Is(x.err, errIdle)):
		x.refuse(outcomeTimeout, timeoutError(errFirstByte))
	case a == nil:
		x.refuse(outcomeUpstream, &openai.Error{Status: 502, Message: fmt.Sprintf("no worker answered, %d tried", x.attempts), Type: openai.TypeServer, Code: "worker_unreachable"})
	default:
		x.outcome, x.status, x.began = outcomeUpstream, a.status, true
		if a.status == http.StatusTooManyRequests {
			x.outcome = outcomeRejected
		}
		copyHeader(x.w.Header(), a.header)
		x.extendWrite()
		x.w.WriteHeader(a.status)
		n, err := x.w.Write(a.body)
		x.out += int64(n)
		if err != nil {
			x.err = errors.Join(x.err, fmt.Errorf("writing the worker's answer: %w", err))
		}
	}
}

// attempt is one worker's part in an exchange.
type attempt struct {
	x      *exchange
	lease  Lease
	claim  *claim
	target Target
	out    Outcome
	says   verdict
	result string // label of kvroute_attempts_total
	ctx    context.Context
	cancel context.CancelCauseFunc
	first  *time.Timer // ends the attempt when the worker does not begin in time
	idle   *time.Timer // ends it when the worker stops for too long; made when it is first needed
}

// run sends the request and delivers the answer. It returns why the request should move on, "" if it has
// been answered. Whatever happens, lease and claim are returned once.
func (a *attempt) run() (retry string) {
	x := a.x
	a.ctx, a.cancel = context.WithCancelCause(x.ctx)
	a.says, a.result = failure, "failed" // if it panics
	x.usage = openai.NoUsage
	defer func() {
		a.cancel(nil)
		stopTimer(a.first)
		stopTimer(a.idle)
		if !a.claim.gone() {
			x.r.m.attempts.WithLabelValues(a.target.Worker, a.result).Inc()
		}
		a.claim.end(x.r.cfg.Now(), a.says)
		if a.says == failure {
			a.lease.Unbind()
		}
		a.lease.Release(a.out)
	}()
	req := a.request()
	a.first = a.after(x.r.cfg.FirstByteTimeout, errFirstByte)
	resp, err := x.r.cfg.Forwarder.Do(req)
	if err != nil {
		return a.broken("no_connection", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 {
		return a.broken("no_connection", fmt.Errorf("an answer with status %d", resp.StatusCode))
	}
	a.out.Status = resp.StatusCode
	after, busy := busyAnswer(resp)
	switch {
	case busy:
		a.claim.busy(x.r.cfg.Now(), after)
		a.says, a.result = neutral, "busy"
		a.keep(resp)
		return "busy"
	case resp.StatusCode >= 500:
		a.keep(resp)
		return "status"
	}
	return a.deliver(resp)
}

// after ends the attempt with cause, d from now.
func (a *attempt) after(d time.Duration, cause error) *time.Timer {
	if d <= 0 {
		return nil
	}
	return time.AfterFunc(d, func() { a.cancel(cause) })
}

func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

// broken judges an attempt that ended without an answer the client could be given.
func (a *attempt) broken(result string, err error) (retry string) {
	x := a.x
	if x.ctx.Err() != nil { // not the worker's doing
		a.says, a.result = neutral, "cancelled"
		a.out.Aborted = a.clientLeft()
		return result
	}
	if cause := context.Cause(a.ctx); cause != nil {
		result, err = "timeout", cause
	}
	a.says, a.result = failure, result
	x.err = fmt.Errorf("asking %s: %w", a.target.RouteKey, withoutURL(err))
	return result
}

// withoutURL takes the address off a transport's error; workers are named, not dialled, in our texts.
func withoutURL(err error) error {
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

func (a *attempt) clientLeft() bool {
	cause := context.Cause(a.x.ctx)
	return cause != nil && !errors.Is(cause, errStopped) && !errors.Is(cause, errTotal) && !errors.Is(cause, errAsked)
}

// keepTime bounds the reading of an answer that is only kept.
const keepTime = 2 * time.Second

// keep stores a worker's refusal for the case that nobody else does better.
func (a *attempt) keep(resp *http.Response) {
	x := a.x
	x.err = fmt.Errorf("%s answered %s", a.target.RouteKey, resp.Status)
	stopTimer(a.first)
	a.idle = a.after(keepTime, errIdle)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKept+1))
	if err != nil || len(body) > maxKept {
		x.err = fmt.Errorf("%w, with a body that was not kept (%d bytes read, error %v)", x.err, len(body), err)
		e := openai.Error{Message: "the worker failed", Type: openai.TypeServer, Code: "worker_failed"}
		body = append(e.Body(), '\n')
		x.last = &answer{status: resp.StatusCode, header: http.Header{"Content-Type": {"application/json"}}, body: body}
		return
	}
	x.last = &answer{status: resp.StatusCode, header: resp.Header.Clone(), body: body}
}

// busyAnswer reports whether a worker turned a request away for want of room, which is no fault, and when
// it wants to be asked again.
func busyAnswer(resp *http.Response) (after time.Duration, busy bool) {
	v := resp.Header.Get("Retry-After")
	switch resp.StatusCode {
	case http.StatusTooManyRequests:
	case http.StatusServiceUnavailable:
		if v == "" {
			return 0, false
		}
	default:
		return 0, false
	}
	if s, err := strconv.Atoi(strings.TrimSpace(v)); err == nil && s > 0 {
		after = time.Duration(min(s, 3600)) * time.Second
	}
	return after, true
}

// request makes the request to the worker.
func (a *attempt) request() *http.Request {
	x := a.x
	u := *a.target.URL
	u.Path = strings.TrimRight(u.Path, "/") + paths[x.endpoint]
	u.RawPath = ""
	u.RawQuery = x.req.URL.RawQuery
	header := make(http.Header, len(x.r.forward)+4)
	for _, h := range x.r.forward {
		if v := x.req.Header[h]; len(v) > 0 {
			header[h] = v
		}
	}
	header["User-Agent"] = nil // not ours to tell, nor Go's
	header.Set(requestIDHeader, x.id)
	if a.target.Rank != target.NoRank {
		header.Set(rankHeader, strconv.Itoa(a.target.Rank))
	}
	req := (&http.Request{
		Method: http.MethodPost, URL: &u, Host: u.Host, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: openai.Spliced(x.call.Body, x.added...),
		Body:          x.body.reader(x.added...),
		GetBody:       func() (io.ReadCloser, error) { return x.body.reader(x.added...), nil },
	}).WithContext(a.ctx)
	return req
}

// hopByHop are headers of one connection (RFC 9110, 7.6.1), and what the server side sets itself.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// copyHeader copies the end-to-end headers of a worker's answer. The request's id is already there.
func copyHeader(dst, src http.Header) {
	var named []string
	for _, v := range src["Connection"] {
		for _, h := range strings.Split(v, ",") {
			named = append(named, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(h)))
		}
	}
	for k, v := range src {
		if slices.Contains(hopByHop, k) || slices.Contains(named, k) || k == requestIDHeader {
			continue
		}
		dst[k] = v
	}
	if _, ok := src["Content-Type"]; !ok {
		dst["Content-Type"] = nil // or the server would guess one
	}
}

package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/openai"
	"github.com/kvroute/kvroute/internal/sse"
)

// chunkSize is how much of an answer is read at once.
const chunkSize = 32 << 10

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

const (
	maxRecord = 1 << 20  // of a stream's record, to be read for usage and errors
	maxHeld   = 64 << 10 // of a record whose end has not come, to be held back
)

// delivery passes one answer on. An event stream is passed on in whole records, so that an error record
// put behind them can be read; anything else passes as it comes.
type delivery struct {
	a      *attempt
	resp   *http.Response
	stream bool
	ok     bool // status 2xx

	split   *sse.Splitter
	held    []byte // beginning of a record
	torn    bool   // part of a record has been passed on
	strip   bool   // the usage record was not asked for by the client
	records int    // in the piece being split
	drop    bool   // its only record is the one to take out

	usage   openai.UsageReader
	done    bool // [DONE] came
	failed  bool // an error record came
	content time.Time
	itl     prometheus.Observer
}

// deliver passes the answer on. Until the first byte of its body has come nothing is written, and the
// request can still move on.
func (a *attempt) deliver(resp *http.Response) (retry string) {
	x := a.x
	ct, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	d := &delivery{a: a, resp: resp, ok: resp.StatusCode/100 == 2}
	d.stream = strings.EqualFold(strings.TrimSpace(ct), "text/event-stream") && resp.Header.Get("Content-Encoding") == ""
	if d.stream {
		d.split = sse.New(maxRecord, d.record)
		d.strip = len(x.added) > 0
	}
	a.says, a.result = neutral, "refused"
	if d.ok {
		a.says, a.result = success, "answered"
	}
	buf := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(buf)
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			stopTimer(a.idle) // waiting for the client is not waiting for the worker
			if werr := d.pass(buf[:n]); werr != nil {
				d.clientFailed(werr)
				return ""
			}
			if err == nil {
				d.watch()
			}
		}
		switch {
		case err == nil:
		case err == io.EOF:
			return d.end()
		case !x.began:
			return a.broken("cut", err)
		default:
			d.cutOff(err)
			return ""
		}
	}
}

// watch begins to wait for the worker's next piece. Until the answer has begun the first byte's time runs on.
func (d *delivery) watch() {
	a := d.a
	limit := a.x.r.cfg.IdleTimeout
	switch {
	case limit <= 0 || !a.x.began:
	case a.idle == nil:
		a.idle = a.after(limit, errIdle)
	default:
		a.idle.Reset(limit)
	}
}

// begin writes the answer's head.
func (d *delivery) begin() {
	a, x := d.a, d.a.x
	if x.began {
		return
	}
	x.began, x.status = true, d.resp.StatusCode
	stopTimer(a.first)
	h := x.w.Header()
	copyHeader(h, d.resp.Header)
	if d.strip {
		h.Del("Content-Length")
	}
	x.explain(a.lease)
	if d.ok {
		a.claim.alive()
	}
	x.extendWrite()
	x.w.WriteHeader(d.resp.StatusCode)
}

// pass passes on a piece of the body.
func (d *delivery) pass(p []byte) error {
	if !d.stream {
		d.begin()
		if d.ok {
			d.generated()
		}
		d.usage.Write(p) // takes everything
		return d.write(p, d.resp.ContentLength < 0)
	}
	var err error
	if d.strip {
		err = d.passStripped(p)
	} else {
		err = d.passWhole(p, d.split.Feed(p))
	}
	if err == nil && len(d.held) > maxHeld {
		d.begin()
		err = d.write(d.held, true)
		d.held, d.torn = d.held[:0], true
	}
	return err
}

// passWhole passes on what belongs to whole records, the first n bytes of p and what was held, and holds
// the rest.
func (d *delivery) passWhole(p []byte, n int) error {
	if n > 0 {
		d.begin()
		if len(d.held) > 0 {
			d.held = append(d.held, p[:n]...)
			if err := d.write(d.held, true); err != nil {
				return err
			}
			d.held = d.held[:0]
		} else if err := d.write(p[:n], true); err != nil {
			return err
		}
		d.torn = false
	}
	d.held = append(d.held, p[n:]...)
	return nil
}

// passStripped is passWhole line by line, without the record that brings a usage nobody asked for.
func (d *delivery) passStripped(p []byte) error {
	for line := range bytes.Lines(p) {
		d.records, d.drop = 0, false
		n := d.split.Feed(line)
		if n == len(line) && d.records == 1 && d.drop && !d.torn {
			d.held = d.held[:0]
			continue
		}
		if err := d.passWhole(line, n); err != nil {
			return err
		}
	}
	return nil
}

func (d *delivery) write(p []byte, flush bool) error {
	x := d.a.x
	x.extendWrite()
	n, err := x.w.Write(p)
	x.out += int64(n)
	if err == nil && flush {
		err = x.rc.Flush()
		if errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	return err
}

// record looks at a record of the stream.
func (d *delivery) record(rec sse.Record) {
	d.records++
	if rec.TooLong {
		d.generated()
		return
	}
	if openai.IsDone(rec.Data) {
		d.done = true
		return
	}
	// Most records bring one token and nothing else to know.
	if !d.content.IsZero() && !bytes.Contains(rec.Data, []byte(`"usage"`)) && !bytes.Contains(rec.Data, []byte(`"error"`)) {
		d.generated()
		return
	}
	r, ok := openai.ScanRecord(rec.Data)
	if r.Usage.Known() {
		d.a.x.usage = r.Usage
		d.drop = r.Choices == 0 && !r.Error
	}
	switch {
	case r.Error:
		d.failed = true
		if r.Code == 0 || r.Code >= 500 {
			d.a.says, d.a.result = failure, "failed"
		} else {
			d.a.says = neutral
		}
	case !ok, r.Content, r.Final:
		d.generated()
	}
}

// generated notes that something generated has come.
func (d *delivery) generated() {
	if !d.ok {
		return
	}
	a, x := d.a, d.a.x
	now := x.r.cfg.Now()
	if d.content.IsZero() {
		x.firstToken = now
		a.lease.FirstToken()
		if x.call.Model != "" && !a.claim.gone() {
			x.r.m.ttft.WithLabelValues(routerLabel, x.call.Model, a.target.Worker).Observe(now.Sub(x.start).Seconds())
			if d.stream {
				d.itl = x.r.m.itl.WithLabelValues(routerLabel, x.call.Model, a.target.Worker)
			}
		}
	} else if d.itl != nil {
		d.itl.Observe(now.Sub(d.content).Seconds())
	}
	d.content = now
}

// end completes an answer whose body has come to its end.
func (d *delivery) end() (retry string) {
	a, x := d.a, d.a.x
	if d.stream && d.ok && !x.began && len(d.held) == 0 {
		return a.broken("cut", errors.New("an event stream without an event"))
	}
	if d.unfinished() {
		if !x.began {
			return a.broken("cut", io.ErrUnexpectedEOF)
		}
		d.cutOff(io.ErrUnexpectedEOF)
		return ""
	}
	d.begin()
	if len(d.held) > 0 {
		if err := d.write(d.held, true); err != nil {
			d.clientFailed(err)
			return ""
		}
	}
	for k, v := range d.resp.Trailer {
		x.w.Header()[http.TrailerPrefix+k] = v
	}
	if err := x.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		d.clientFailed(err)
		return ""
	}
	if !d.stream {
		x.usage = d.usage.Usage()
	}
	a.out.Delivered = true
	d.account()
	switch {
	case d.failed:
		x.outcome, x.err = outcomeUpstream, fmt.Errorf("%s ended the stream with an error record", a.target.RouteKey)
	case d.ok || d.resp.StatusCode/100 == 3:
		x.outcome = outcomeOK
	default:
		x.outcome, x.err = outcomeClientError, fmt.Errorf("%s answered %s", a.target.RouteKey, d.resp.Status)
	}
	return ""
}

// unfinished reports whether a stream that only the end of its connection ends has ended before it said so:
// the worker died, or was cut off.
func (d *delivery) unfinished() bool {
	framed := d.resp.ContentLength >= 0 || len(d.resp.TransferEncoding) > 0 || d.resp.ProtoMajor > 1
	return d.stream && d.ok && !framed && !d.done && !d.failed
}

func (d *delivery) account() {
	u := d.a.x.usage
	d.a.out.PromptTokens, d.a.out.CachedTokens, d.a.out.CompletionTokens = u.PromptTokens, u.CachedTokens, u.CompletionTokens
}

// clientFailed ends an answer that the client no longer takes. The worker is told at once by the end of
// the attempt's context.
func (d *delivery) clientFailed(err error) {
	a, x := d.a, d.a.x
	if cause := context.Cause(x.ctx); cause != nil && !a.clientLeft() {
		d.cutOff(cause)
		return
	}
	a.cancel(errClient)
	a.says, a.result, a.out.Aborted = neutral, "cancelled", true
	d.account()
	x.err = fmt.Errorf("writing to the client: %w", err)
	if x.cut = true; errors.Is(err, os.ErrDeadlineExceeded) {
		x.outcome = outcomeStalled
		return
	}
	x.outcome = outcomeAborted
}

// cutOff ends an answer that has begun and cannot be completed: an event stream with an error record in
// place of the record that did not come whole, anything else by cutting the connection.
func (d *delivery) cutOff(err error) {
	a, x := d.a, d.a.x
	e := openai.Error{Type: openai.TypeServer, Code: "worker_failed", Message: "the worker failed in the middle of the stream"}
	x.outcome, a.says, a.result = outcomeMidStream, failure, "cut"
	x.err = fmt.Errorf("reading from %s: %w", a.target.RouteKey, err)
	cause := context.Cause(a.ctx)
	switch {
	case cause == nil:
	case errors.Is(cause, errIdle):
		e = openai.Error{Type: openai.TypeTimeout, Code: "timeout", Message: "the worker stopped sending in the middle of the stream"}
		x.outcome, a.result, x.err = outcomeTimeout, "timeout", cause
	case errors.Is(cause, errTotal), errors.Is(cause, errAsked):
		e = openai.Error{Type: openai.TypeTimeout, Code: "timeout", Message: cause.Error()}
		x.outcome, a.says, a.result, x.err = outcomeTimeout, neutral, "cancelled", cause
	case errors.Is(cause, errStopped):
		e = openai.Error{Type: openai.TypeUnavailable, Code: "shutting_down", Message: errStopped.Error()}
		x.outcome, a.says, a.result, x.err = outcomeStopped, neutral, "cancelled", cause
	default: // the client left
		a.says, a.result, a.out.Aborted = neutral, "cancelled", true
		x.outcome, x.err, x.cut = outcomeAborted, errors.New("the client left in the middle of the answer"), true
		d.account()
		return
	}
	d.account()
	if d.done { // the stream was complete but for the end of its connection
		x.outcome, a.says, a.result, a.out.Delivered = outcomeOK, success, "answered", true
		return
	}
	if !d.stream || d.resp.ContentLength >= 0 && !d.strip {
		x.cut = true // there is no room for a word of ours
		return
	}
	rec := e.Record()
	if d.torn {
		rec = append([]byte("\n\n"), rec...)
	}
	if werr := d.write(rec, true); werr != nil {
		x.err = errors.Join(x.err, fmt.Errorf("writing the error record: %w", werr))
	}
}

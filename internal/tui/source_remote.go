package tui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/sse"
)

const (
	firstWait = 250 * time.Millisecond // before another attempt; doubles up to lastWait
	lastWait  = 5 * time.Second
	// silence is how long a stream may send nothing, not even a heartbeat, before it counts as lost.
	silence = 15 * time.Second
	// answerIn bounds the wait for the beginning of an answer.
	answerIn = 10 * time.Second
	// pollLeast is the least time between snapshots of a router that has no stream.
	pollLeast = time.Second
)

// Remote is a router, watched over its admin API. It outlives the router's restarts: the last picture stays.
type Remote struct {
	base     url.URL
	interval time.Duration
	token    string
	client   *http.Client
	tape     *Tape // nil: nothing is recorded
	plain    bool  // the router takes nothing but an interval

	last   *snapshot.Snapshot
	lastAt time.Time // when it came
}

// RemoteConfig is how a router is watched.
type RemoteConfig struct {
	URL      *url.URL // without a path, or with the one before /v1
	Interval time.Duration
	Token    string       // "" none
	Client   *http.Client // nil: the default one
	Tape     *Tape        // takes everything that comes; nil: nothing is recorded
}

// NewRemote makes a Remote. Nothing is asked before Run or Fetch.
func NewRemote(c RemoteConfig) *Remote {
	r := &Remote{base: *c.URL, interval: c.Interval, token: c.Token, client: c.Client, tape: c.Tape}
	r.base.Path = strings.TrimSuffix(r.base.Path, "/")
	if r.client == nil {
		r.client = http.DefaultClient
	}
	return r
}

// Name implements Source.
func (r *Remote) Name() string { return r.base.Redacted() }

// Refusal is an answer other than 200. Its text says what the router said, and what to do about it.
type Refusal struct {
	Status int
	Text   string
}

// Error implements error.
func (e *Refusal) Error() string { return e.Text }

// get asks for a path of the admin API.
func (r *Remote) get(ctx context.Context, path, query string) (*http.Response, error) {
	u := r.base
	u.Path += path
	u.RawQuery = query
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close() // only read from
	return nil, refusal(resp, path)
}

func refusal(resp *http.Response, path string) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text := resp.Status
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && json.Unmarshal(data, &body) == nil && body.Error.Message != "" {
		text += ": " + body.Error.Message
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += " (hint: --token-file names a token of the router's --admin-token-file)"
	case http.StatusNotFound:
		text += fmt.Sprintf(" (hint: is %s a kvroute router? Older ones, and listeners beside --admin-listen, have no %s)", resp.Request.URL.Host, path)
	}
	return &Refusal{resp.StatusCode, text}
}

// Fetch returns one snapshot.
func (r *Remote) Fetch(ctx context.Context) (*snapshot.Snapshot, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	resp, err := r.get(ctx, "/v1/admin/snapshot", "")
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close() // only read from
	data, err := io.ReadAll(io.LimitReader(resp.Body, snapshot.MaxBytes+1))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the router's answer: %w", err)
	}
	s, err := snapshot.Decode(data)
	return s, data, err
}

// Explain implements Source.
func (r *Remote) Explain(ctx context.Context, pick uint64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	resp, err := r.get(ctx, fmt.Sprintf("/v1/admin/decisions/%d", pick), "")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() // only read from
	return io.ReadAll(io.LimitReader(resp.Body, snapshot.MaxBytes))
}

// Run implements Source.
func (r *Remote) Run(ctx context.Context, send func(Update)) {
	send(Update{Link: Connecting, Reason: "asking " + r.Name()})
	wait := firstWait
	for ctx.Err() == nil {
		began := r.lastAt
		err := r.follow(ctx, send)
		if ctx.Err() != nil {
			return
		}
		if r.lastAt != began { // something came: start patiently again
			wait = firstWait
		}
		if errors.Is(err, snapshot.ErrGap) { // a whole snapshot mends that
			wait = firstWait
		}
		r.pause(ctx, send, err, wait/2+rand.N(wait/2))
		wait = min(2*wait, lastWait)
	}
}

// pause waits before another attempt and tells meanwhile how old the last picture is.
func (r *Remote) pause(ctx context.Context, send func(Update), why error, wait time.Duration) {
	end := time.NewTimer(wait)
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		u := Update{Snap: r.last, Link: Connecting, Reason: why.Error() + "; trying again"}
		if r.last != nil {
			u.Link, u.AgeMS = Lost, time.Since(r.lastAt).Milliseconds()
		}
		send(u)
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}

// errQuiet says that a stream stands and nothing comes.
var errQuiet = fmt.Errorf("nothing came for %v", silence)

// follow reads one stream to its end, which is always an error.
func (r *Remote) follow(ctx context.Context, send func(Update)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alarm := time.AfterFunc(answerIn, func() { cancel(errors.New("no answer")) })
	defer alarm.Stop()
	query := "interval=" + url.QueryEscape(r.interval.String())
	if r.tape == nil && !r.plain { // a tape has all there is, in whole entries, which every version plays
		query += "&changes=1&calm=" + beat.String()
	}
	resp, err := r.get(ctx, "/v1/admin/stream", query)
	var refused *Refusal
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return r.poll(ctx, send, alarm)
	}
	if refused != nil && refused.Status == http.StatusBadRequest && !r.plain {
		r.plain = true // an older router may refuse what it does not know
		return err
	}
	if err != nil {
		return causeOf(ctx, err)
	}
	defer resp.Body.Close() // only read from
	var failed error
	events := sse.New(snapshot.MaxBytes, func(e sse.Record) {
		if failed == nil {
			failed = r.take(e, send)
		}
	})
	buf := make([]byte, 64<<10)
	for {
		alarm.Reset(silence)
		n, err := resp.Body.Read(buf)
		alarm.Stop() // drawing may take its time
		if n > 0 {
			events.Feed(buf[:n])
		}
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, io.EOF):
			return errors.New("the router has ended the stream")
		case err != nil:
			return causeOf(ctx, fmt.Errorf("the connection was lost: %w", err))
		}
	}
}

// causeOf is why ctx ended, or err.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			return cause
		}
		return errQuiet
	}
	return err
}

// take takes one event of the stream.
func (r *Remote) take(e sse.Record, send func(Update)) error {
	if e.TooLong {
		return fmt.Errorf("the router sends more than %d bytes at once", snapshot.MaxBytes)
	}
	s, err := next(r.last, e.Data)
	if err != nil {
		return fmt.Errorf("what comes is no stream of a router: %w", err)
	}
	r.show(s, e.Data, send)
	return nil
}

// next is the snapshot that data is, or that it leads to from last.
func next(last *snapshot.Snapshot, data []byte) (*snapshot.Snapshot, error) {
	if !bytes.HasPrefix(data, []byte(`{"run":`)) { // as deltas begin
		return snapshot.Decode(data)
	}
	if last == nil {
		return nil, errors.New("it begins with a delta")
	}
	return snapshot.Follow(last, data)
}

func (r *Remote) show(s *snapshot.Snapshot, raw []byte, send func(Update)) {
	r.last, r.lastAt = s, time.Now()
	u := Update{Snap: s, Link: Live}
	if err := r.tape.Write(s, raw); err != nil {
		u.Reason, r.tape = "the recording ended: "+err.Error(), nil
	}
	send(u)
}

// poll asks a router that has no stream for one snapshot after the other.
func (r *Remote) poll(ctx context.Context, send func(Update), alarm *time.Timer) error {
	tick := time.NewTicker(max(r.interval, pollLeast))
	defer tick.Stop()
	for {
		alarm.Stop()
		s, raw, err := r.Fetch(ctx)
		if err != nil {
			return err
		}
		r.show(s, raw, send)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Poll is the Transport of TensorRT-LLM's pull interface: POST /kv_cache_events hands out what happened
// since the last call, to one consumer only. Every event becomes a batch of one, a JSON array with its
// event_id as number. With attention DP, ids count over all ranks: such events have no number and the
// topic "rank <n>", for a Demux to tell them apart.
type Poll struct {
	Client  *http.Client  // nil: http.DefaultClient
	Every   time.Duration // between two calls; default 250 ms
	Timeout time.Duration // of one call; default 10 s
}

const (
	defaultEvery   = 250 * time.Millisecond
	defaultTimeout = 10 * time.Second
	maxPoll        = 256 << 20 // bytes of one answer
	// patience is how long calls may fail before the engine counts as gone: what it keeps in that time is
	// not lost.
	patience = 5 * time.Second
)

// ErrNoReplay says that an engine hands out every event once.
var ErrNoReplay = errors.New("the pull interface has no replay")

// Replay returns ErrNoReplay.
func (*Poll) Replay(context.Context, string, uint64, time.Duration, func(Message) error) error {
	return ErrNoReplay
}

// Subscribe starts to poll the engine at endpoint, an http or https URL without the path.
func (p *Poll) Subscribe(_ context.Context, endpoint, _ string, bind bool) (Subscription, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return nil, fmt.Errorf("events endpoint to poll: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("events endpoint %q to poll: want http://host:port", endpoint)
	case bind:
		return nil, fmt.Errorf("events endpoint %q: an engine that is polled cannot dial", endpoint)
	}
	s := &polled{p: *p, url: u.JoinPath("kv_cache_events").String(), answers: make(chan answer)}
	if s.p.Client == nil {
		s.p.Client = http.DefaultClient
	}
	if s.p.Every <= 0 {
		s.p.Every = defaultEvery
	}
	if s.p.Timeout <= 0 {
		s.p.Timeout = defaultTimeout
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.ended = make(chan struct{})
	go s.run(ctx)
	return s, nil
}

type answer struct {
	events []json.RawMessage
	err    error
	lost   bool // the answer came and could not be read: its events are gone
}

// polled polls in a goroutine of its own: a call that was cut off halfway would lose what the engine had
// handed out already.
type polled struct {
	p       Poll
	url     string
	stop    context.CancelFunc
	ended   chan struct{}
	answers chan answer

	queue   []Message
	up      bool
	failing time.Time // since when; zero: not
	told    string
}

func (s *polled) run(ctx context.Context) {
	defer close(s.ended)
	tick := time.NewTicker(s.p.Every)
	defer tick.Stop()
	for {
		a := s.call(ctx)
		select {
		case <-ctx.Done():
			return
		case s.answers <- a:
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *polled) call(ctx context.Context) answer {
	ctx, cancel := context.WithTimeout(ctx, s.p.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, http.NoBody)
	if err != nil {
		return answer{err: err}
	}
	res, err := s.p.Client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return answer{err: fmt.Errorf("POST %s: status %s", s.url, res.Status)}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxPoll+1))
	if err == nil && len(body) > maxPoll {
		err = fmt.Errorf("more than %d bytes", maxPoll)
	}
	var events []json.RawMessage
	if err == nil && len(bytes.TrimSpace(body)) > 0 {
		err = json.Unmarshal(body, &events)
	}
	if err != nil {
		return answer{err: fmt.Errorf("POST %s: reading the events: %w", s.url, err), lost: true}
	}
	return answer{events: events}
}

// Receive implements Subscription.
func (s *polled) Receive(ctx context.Context) (Message, error) {
	for {
		if len(s.queue) > 0 {
			m := s.queue[0]
			s.queue = s.queue[1:]
			return m, nil
		}
		select {
		case <-ctx.Done():
			return Message{}, ctx.Err()
		case a := <-s.answers:
			s.take(a)
		}
	}
}

// take queues what an answer comes to.
func (s *polled) take(a answer) {
	now := time.Now()
	if a.lost {
		s.queue = append(s.queue, Message{Event: Garbled, Reason: a.err.Error()})
		return
	}
	if a.err != nil {
		if s.failing.IsZero() {
			s.failing = now
		}
		if reason := a.err.Error(); reason != s.told && (!s.up || now.Sub(s.failing) >= patience) {
			s.up, s.told = false, reason
			s.queue = append(s.queue, Message{Event: Disconnected, Reason: reason})
		}
		return
	}
	s.failing = time.Time{}
	if !s.up {
		s.up, s.told = true, ""
		s.queue = append(s.queue, Message{Event: Connected})
	}
	for _, raw := range a.events {
		s.queue = append(s.queue, event(raw))
	}
}

// event makes a batch of one event.
func event(raw json.RawMessage) Message {
	var head struct {
		ID   *uint64 `json:"event_id"`
		Rank *int    `json:"attention_dp_rank"`
	}
	m := Message{Payload: append(append([]byte{'['}, raw...), ']')}
	if err := json.Unmarshal(raw, &head); err != nil {
		return Message{Event: Garbled, Reason: "reading an event: " + err.Error()}
	}
	switch {
	case head.Rank != nil:
		m.Topic = fmt.Sprintf("rank %d", *head.Rank)
	case head.ID != nil:
		m.Seq, m.HasSeq = *head.ID, true
	}
	return m
}

// Close implements Subscription.
func (s *polled) Close() error {
	s.stop()
	<-s.ended
	return nil
}

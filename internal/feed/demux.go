package feed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// demuxQueue is the number of batches one stream of a Demux keeps while it is busy.
const demuxQueue = 16_384

// Demux shares one subscription between several streams: engines that dial a common endpoint, told apart
// by topic ("kv@ip:port@model"), or ranks that publish on one port, told apart by their batches.
//
// It is the Transport of its streams by way of Route, and reads in Run whatever they do, as publishers
// that dial are given the subscription only while somebody reads. Where engines dial and have no
// replay, a new life is known by its numbers only.
type Demux struct {
	via             Transport
	endpoint, topic string
	bind            bool

	mu        sync.Mutex
	routes    []*route // in order of Route
	up        bool
	down      string
	unclaimed uint64
	stranger  string
}

// NewDemux makes a Demux over the subscription that via opens with these arguments.
func NewDemux(via Transport, endpoint, topic string, bind bool) *Demux {
	return &Demux{via: via, endpoint: endpoint, topic: topic, bind: bind, down: "not connected yet"}
}

// Run reads and hands out messages until ctx is done, which is no error.
func (d *Demux) Run(ctx context.Context) (err error) {
	sub, err := d.via.Subscribe(ctx, d.endpoint, d.topic, d.bind)
	if err != nil {
		return fmt.Errorf("following %s: %w", d.endpoint, err)
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	for {
		m, err := sub.Receive(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("following %s: %w", d.endpoint, err)
		}
		d.hand(m)
	}
}

// hand puts a message into the queue of the first stream that claims it, or of all if it is not a batch.
func (d *Demux) hand(m Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch m.Event {
	case Batch:
		for _, r := range d.routes {
			if r.open && r.claims(&m) {
				m.Payload = bytes.Clone(m.Payload) // it is valid until the next call only
				r.put(m)
				return
			}
		}
		d.unclaimed++
		d.stranger = m.Topic
		return
	case Connected:
		d.up, d.down = true, ""
	case Disconnected:
		d.up, d.down = false, m.Reason
	}
	for _, r := range d.routes {
		if r.open {
			r.put(m)
		}
	}
}

// Unclaimed returns how many batches no stream claimed, and the topic of the last one.
func (d *Demux) Unclaimed() (n uint64, topic string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unclaimed, d.stranger
}

// Route makes the Transport of one stream, whose batches are those that claims says yes to. claims must
// not keep the message and not call the Demux. Forget it with Drop.
func (d *Demux) Route(claims func(*Message) bool) Transport {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &route{d: d, claims: claims, signal: make(chan struct{}, 1)}
	d.routes = append(d.routes, r)
	return r
}

// Drop forgets the stream that t is the Transport of.
func (d *Demux) Drop(t Transport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, r := range d.routes {
		if Transport(r) == t {
			d.routes = append(d.routes[:i:i], d.routes[i+1:]...)
			return
		}
	}
}

// route is one stream's share. Its fields are guarded by d.mu.
type route struct {
	d      *Demux
	claims func(*Message) bool
	open   bool
	queue  []Message
	signal chan struct{} // holds one if the queue may not be empty
}

// put appends a message. Batches beyond the bound are lost, which their numbers show.
func (r *route) put(m Message) {
	if m.Event == Batch && len(r.queue) >= demuxQueue {
		return
	}
	if n := len(r.queue); m.Event != Batch && n > 0 && r.queue[n-1].Event == m.Event {
		return
	}
	r.queue = append(r.queue, m)
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// Subscribe implements Transport; what to subscribe to was said to the Demux.
func (r *route) Subscribe(context.Context, string, string, bool) (Subscription, error) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if r.open {
		return nil, errors.New("a stream of a demultiplexer is followed twice")
	}
	r.open, r.queue = true, nil
	if r.d.up {
		r.put(Message{Event: Connected})
	} else {
		r.put(Message{Event: Disconnected, Reason: r.d.down})
	}
	return r, nil
}

// Replay implements Transport.
func (r *route) Replay(ctx context.Context, endpoint string, start uint64, quiet time.Duration, each func(Message) error) error {
	return r.d.via.Replay(ctx, endpoint, start, quiet, each)
}

// Receive implements Subscription.
func (r *route) Receive(ctx context.Context) (Message, error) {
	for {
		if m, ok := r.take(); ok {
			return m, nil
		}
		select {
		case <-ctx.Done():
			return Message{}, ctx.Err()
		case <-r.signal:
		}
	}
}

func (r *route) take() (m Message, ok bool) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if len(r.queue) == 0 {
		return Message{}, false
	}
	m, r.queue = r.queue[0], r.queue[1:]
	return m, true
}

// Close implements Subscription.
func (r *route) Close() error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.open, r.queue = false, nil
	return nil
}

package fakeengine

import (
	"sync"
	"time"
)

// socket sends the frames of one rank and answers requests for replay.
type socket interface {
	// send publishes one message. It must not block.
	send(parts [][]byte) error
	// endpoints are the addresses really bound, "" where there is none.
	endpoints() (events, replay string)
	close() error
}

// numbered is one published batch.
type numbered struct {
	seq     uint64
	payload []byte
}

// publisher numbers a rank's batches, keeps the last ones for replay, and lets faults befall them.
type publisher struct {
	mu     sync.Mutex
	enc    encoder
	topic  string
	keep   int
	sock   socket // nil while the engine is down
	faults *faults
	now    func() time.Time

	next   uint64
	buffer []numbered // the last batches, oldest first
	held   []numbered // kept back by a fault
	stats  EventStats
}

// EventStats counts what a publisher did.
type EventStats struct {
	Batches uint64 // made and numbered
	Sent    uint64
	Dropped uint64 // not sent, because of a fault
	Failed  uint64 // the socket refused
}

func newPublisher(enc encoder, topic string, keep int, f *faults) *publisher {
	return &publisher{enc: enc, topic: topic, keep: keep, faults: f, now: time.Now}
}

// publish encodes, numbers, keeps and sends one batch.
func (p *publisher) publish(events []event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fate := p.faults.batch(p.enc.rank)
	if fate.silent {
		return
	}
	payload := p.enc.batch(float64(p.now().UnixNano())/1e9, events)
	b := numbered{p.next, payload}
	p.next++
	p.stats.Batches++
	if fate.lose {
		p.stats.Dropped++
		return
	}
	p.buffer = append(p.buffer, b)
	if over := len(p.buffer) - p.keep; over > 0 {
		p.buffer = append(p.buffer[:0:0], p.buffer[over:]...)
	}
	switch {
	case fate.drop:
		p.stats.Dropped++
		return
	case fate.hold:
		p.held = append(p.held, b)
		return
	case fate.garble:
		b.payload = b.payload[:len(b.payload)/2]
	}
	p.send(b)
	if fate.twice {
		p.send(b)
	}
	if !fate.stalled {
		p.release()
	}
}

// release sends what was held back.
func (p *publisher) release() {
	for _, b := range p.held {
		p.send(b)
	}
	p.held = nil
}

// resume sends what a stall held back.
func (p *publisher) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

func (p *publisher) send(b numbered) {
	if p.sock == nil {
		p.stats.Dropped++
		return
	}
	if err := p.sock.send(p.message(b)); err != nil {
		p.stats.Failed++
		return
	}
	p.stats.Sent++
}

// message is the frames of a live batch.
func (p *publisher) message(b numbered) [][]byte {
	if !p.enc.numbers {
		if p.topic == "" {
			return [][]byte{b.payload}
		}
		return [][]byte{[]byte(p.topic), b.payload}
	}
	return [][]byte{[]byte(p.topic), number(b.seq), b.payload}
}

// replay is the answers to a request for every batch from start on, the end marker last. Frames come
// after the client's identity.
func (p *publisher) replay(start uint64) [][][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out [][][]byte
	answer := func(topic string, seq uint64, payload []byte) {
		if p.enc.replayTopic {
			out = append(out, [][]byte{{}, []byte(topic), number(seq), payload})
		} else {
			out = append(out, [][]byte{{}, number(seq), payload})
		}
	}
	for _, b := range p.buffer {
		if b.seq >= start {
			answer(p.topic, b.seq, b.payload)
		}
	}
	answer("", ^uint64(0), []byte{})
	return out
}

// restart forgets everything: the process died.
func (p *publisher) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.buffer, p.held = 0, nil, nil
}

// attach gives the publisher its socket, nil for none, and returns the one before.
func (p *publisher) attach(s socket) socket {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.sock
	p.sock = s
	return old
}

func (p *publisher) snapshot() EventStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

func number(n uint64) []byte {
	return []byte{byte(n >> 56), byte(n >> 48), byte(n >> 40), byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

//go:build cgo

package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	zmq4 "github.com/pebbe/zmq4"
	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds what should happen soon; tests that pass never wait for it.
const limit = 20 * time.Second

func newTransport(t *testing.T, opt Options) *Transport {
	t.Helper()
	tr, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func subscribe(t *testing.T, tr *Transport, endpoint, topic string, bind bool) feed.Subscription {
	t.Helper()
	s, err := tr.Subscribe(t.Context(), endpoint, topic, bind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// publisher is a real PUB socket with a context of its own, as another process would have.
type publisher struct {
	t    *testing.T
	zctx *zmq4.Context
	pub  *zmq4.Socket
	at   string
}

func publish(t *testing.T, endpoint string, dial bool) *publisher {
	t.Helper()
	p := &publisher{t: t}
	var err error
	if p.zctx, err = zmq4.NewContext(); err != nil {
		t.Fatal(err)
	}
	p.zctx.SetRetryAfterEINTR(true)
	if p.pub, err = p.zctx.NewSocket(zmq4.PUB); err != nil {
		t.Fatal(err)
	}
	open := p.pub.Bind
	if dial {
		open = p.pub.Connect
	}
	if err := errors.Join(p.pub.SetIpv6(true), p.pub.SetLinger(0), p.pub.SetSndhwm(100_000), open(endpoint)); err != nil {
		t.Fatalf("publishing at %s: %v", endpoint, err)
	}
	if p.at, err = p.pub.GetLastEndpoint(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p
}

func (p *publisher) stop() {
	if p.pub != nil {
		if err := errors.Join(p.pub.Close(), p.zctx.Term()); err != nil {
			p.t.Error(err)
		}
		p.pub = nil
	}
}

func (p *publisher) send(topic string, seq uint64, payload string) {
	p.t.Helper()
	if _, err := p.pub.SendMessage(topic, binary.BigEndian.AppendUint64(nil, seq), payload); err != nil {
		p.t.Fatal(err)
	}
}

// reach publishes number 0 until s hears it: the subscription takes its time to arrive. What is left
// of the copies is taken out of the way by a message of its own.
func (p *publisher) reach(ctx context.Context, s feed.Subscription, topic string) {
	p.t.Helper()
	for {
		p.send(topic, 0, "reach")
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		m, err := s.Receive(short)
		cancel()
		if err == nil && m.Event == feed.Batch {
			break
		}
		if ctx.Err() != nil {
			p.t.Fatalf("nothing of %s came", p.at)
		}
	}
	p.send(topic, 1, "reached")
	for {
		m, err := s.Receive(ctx)
		if err != nil {
			p.t.Fatal(err)
		}
		if m.Seq == 1 {
			return
		}
	}
}

func receive(t *testing.T, ctx context.Context, s feed.Subscription) feed.Message {
	t.Helper()
	m, err := s.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// await receives until an event of the given kind comes.
func await(t *testing.T, ctx context.Context, s feed.Subscription, want feed.Event) feed.Message {
	t.Helper()
	for {
		if m := receive(t, ctx, s); m.Event == want {
			return m
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestLive(t *testing.T) {
	for _, tt := range []struct{ name, bind, host string }{
		{"tcp", "tcp://127.0.0.1:*", "127.0.0.1"},
		{"by name", "tcp://127.0.0.1:*", "localhost"},
		{"IPv6", "tcp://[::1]:*", "[::1]"},
		{"ipc", "ipc://" + filepath.Join(t.TempDir(), "events"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.bind, "::1") {
				l, err := net.Listen("tcp", "[::1]:0")
				if err != nil {
					t.Skip("this machine has no IPv6: ", err)
				}
				l.Close()
			}
			ctx := within(t)
			p := publish(t, tt.bind, false)
			endpoint := p.at
			if tt.host != "" {
				endpoint = "tcp://" + tt.host + p.at[strings.LastIndex(p.at, ":"):]
			}
			s := subscribe(t, newTransport(t, Options{}), endpoint, "kv", false)
			await(t, ctx, s, feed.Connected)
			p.reach(ctx, s, "kv-events")
			p.send("other", 7, "not ours")
			for seq := uint64(2); seq < 2000; seq++ {
				p.send("kv-events", seq, fmt.Sprint("payload ", seq))
			}
			for seq := uint64(2); seq < 2000; seq++ {
				m := receive(t, ctx, s)
				if m.Topic != "kv-events" || m.Seq != seq || !m.HasSeq || string(m.Payload) != fmt.Sprint("payload ", seq) {
					t.Fatalf("got %+v, want number %d", m, seq)
				}
			}
		})
	}
}

func TestFramesThatAreNoBatch(t *testing.T) {
	ctx := within(t)
	p := publish(t, "tcp://127.0.0.1:*", false)
	s := subscribe(t, newTransport(t, Options{}), p.at, "", false)
	await(t, ctx, s, feed.Connected)
	p.reach(ctx, s, "")
	for _, parts := range [][]any{{"alone"}, {"topic", "payload"}, {"t", "short", "payload"}, {"a", "b", "c", "d"}} {
		if _, err := p.pub.SendMessage(parts...); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []feed.Message{
		{Payload: []byte("alone")},
		{Topic: "topic", Payload: []byte("payload")},
		{Event: feed.Garbled},
		{Event: feed.Garbled},
	} {
		m := receive(t, ctx, s)
		if m.Event != want.Event || m.Topic != want.Topic || !bytes.Equal(m.Payload, want.Payload) || m.HasSeq || (m.Event == feed.Garbled) == (m.Reason == "") {
			t.Errorf("message %d: got %+v, want %+v", i, m, want)
		}
	}
}

// TestPublisherComesLateAndAgain holds that a publisher may bind after the subscription, and that its
// successor's batches come after a Disconnected and a Connected.
func TestPublisherComesLateAndAgain(t *testing.T) {
	ctx := within(t)
	endpoint := "tcp://" + freePort(t)
	s := subscribe(t, newTransport(t, Options{}), endpoint, "", false)
	if m := receive(t, ctx, s); m.Event != feed.Disconnected || !strings.Contains(m.Reason, endpoint) {
		t.Fatalf("before there is a publisher: got %+v, want Disconnected naming %s", m, endpoint)
	}
	for life := range 3 {
		p := publish(t, endpoint, false)
		if m := receive(t, ctx, s); m.Event != feed.Connected {
			t.Fatalf("life %d: got %+v, want Connected", life, m)
		}
		p.reach(ctx, s, "")
		p.send("", 2, "last words")
		if m := receive(t, ctx, s); m.Seq != 2 {
			t.Fatalf("life %d: got %+v, want number 2", life, m)
		}
		p.stop()
		if m := receive(t, ctx, s); m.Event != feed.Disconnected {
			t.Fatalf("after life %d: got %+v, want Disconnected", life, m)
		}
	}
}

// TestNothingOfAFormerLife holds that batches of a dead engine, left unread, never come after the
// Connected of the next one.
func TestNothingOfAFormerLife(t *testing.T) {
	ctx := within(t)
	endpoint := "tcp://" + freePort(t)
	s := subscribe(t, newTransport(t, Options{}), endpoint, "", false)
	p := publish(t, endpoint, false)
	await(t, ctx, s, feed.Connected)
	p.reach(ctx, s, "")
	for seq := uint64(2); seq < 500; seq++ {
		p.send("", seq, "former")
	}
	p.stop()
	p = publish(t, endpoint, false) // nobody has read in between
	for m := range messages(t, ctx, s) {
		if m.Event == feed.Connected {
			break
		}
		if m.Event == feed.Batch && string(m.Payload) != "former" {
			t.Fatalf("got %+v before Connected", m)
		}
	}
	p.send("", 600, "latter")
	for m := range messages(t, ctx, s) {
		if string(m.Payload) == "former" {
			t.Fatalf("got %+v after Connected", m)
		}
		if m.Seq == 600 {
			return
		}
		p.send("", 600, "latter")
	}
}

// messages yields what comes, and nothing every 10 ms.
func messages(t *testing.T, ctx context.Context, s feed.Subscription) func(func(feed.Message) bool) {
	return func(yield func(feed.Message) bool) {
		for {
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			m, err := s.Receive(short)
			cancel()
			if ctx.Err() != nil {
				t.Fatal(ctx.Err())
			}
			if err != nil {
				m = feed.Message{Event: feed.Garbled}
			}
			if !yield(m) {
				return
			}
		}
	}
}

// TestBind is the form of engines that dial: several publishers, one subscription.
func TestBind(t *testing.T) {
	ctx := within(t)
	endpoint := "tcp://" + freePort(t)
	s := subscribe(t, newTransport(t, Options{}), endpoint, "kv@", true)
	if m := receive(t, ctx, s); m.Event != feed.Connected {
		t.Fatalf("got %+v, want Connected as soon as it is bound", m)
	}
	seen := map[string]uint64{}
	for _, topic := range []string{"kv@10.0.0.1:8000@m", "kv@10.0.0.2:8000@m"} {
		p := publish(t, endpoint, true)
		if m := receive(t, ctx, s); m.Event != feed.Connected {
			t.Fatalf("got %+v, want Connected when %s dials", m, topic)
		}
		p.reach(ctx, s, topic)
		p.send(topic, 2, "x")
		m := receive(t, ctx, s)
		seen[m.Topic] = m.Seq
	}
	if len(seen) != 2 {
		t.Errorf("got batches %v, want number 2 of two publishers", seen)
	}
}

func TestCancel(t *testing.T) {
	tr := newTransport(t, Options{})
	p := publish(t, "tcp://127.0.0.1:*", false)
	idle := subscribe(t, tr, p.at, "", false)
	await(t, within(t), idle, feed.Connected)
	for _, tt := range []struct {
		name string
		call func(context.Context) error
	}{
		{"receive from an idle publisher", func(ctx context.Context) error { _, err := idle.Receive(ctx); return err }},
		{"receive where nobody is", func(ctx context.Context) error {
			s := subscribe(t, tr, "tcp://"+freePort(t), "", false)
			for {
				if _, err := s.Receive(ctx); err != nil {
					return err
				}
			}
		}},
		{"replay where nobody is", func(ctx context.Context) error {
			return tr.Replay(ctx, "tcp://"+freePort(t), 0, limit, func(feed.Message) error { return nil })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error, 1)
			go func() { got <- tt.call(ctx) }()
			time.AfterFunc(20*time.Millisecond, cancel)
			if err := <-got; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		})
	}
}

func TestEndpoints(t *testing.T) {
	tr := newTransport(t, Options{})
	for _, tt := range []struct {
		endpoint string
		bind     bool
		want     string
	}{
		{"", false, "want tcp://host:port"},
		{"host:5557", false, "want tcp://host:port"},
		{"udp://host:5557", false, `unknown transport "udp"`},
		{"tcp://host", false, "missing port"},
		{"tcp://host:http", false, `the port "http" is not a number`},
		{"tcp://*:5557", false, `cannot connect to "*"`},
		{"tcp://host:*", false, `the port "*" is not a number`},
		{"tcp://::1:5557", false, "too many colons"},
		{"tcp://192.0.2.1:5557", true, "binding events endpoint tcp://192.0.2.1:5557"},
	} {
		s, err := tr.Subscribe(t.Context(), tt.endpoint, "", tt.bind)
		if err == nil {
			t.Errorf("Subscribe(%q, bind %v): no error, want %q", tt.endpoint, tt.bind, tt.want)
			s.Close()
			continue
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Subscribe(%q, bind %v): got %q, want %q", tt.endpoint, tt.bind, err, tt.want)
		}
	}
}

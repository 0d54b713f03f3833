//go:build cgo

package fakeengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/kvevent"
)

// batch is one message, decoded.
type batch struct {
	seq    uint64
	hasSeq bool
	events []string // "stored 3 at root", "removed 2", "cleared"
	err    error
}

func describe(msg feed.Message) batch {
	out := batch{seq: msg.Seq, hasSeq: msg.HasSeq}
	var d kvevent.Decoder
	var b kvevent.Batch
	if out.err = d.Decode(msg.Payload, &b); out.err != nil {
		return out
	}
	for reason, n := range b.Skipped {
		out.err = errors.Join(out.err, fmt.Errorf("%d events skipped: %s", n, reason))
	}
	for _, e := range b.Events {
		switch e.Kind {
		case kvevent.Stored:
			where := "root"
			if e.HasParent {
				where = "parent"
			}
			out.events = append(out.events, fmt.Sprintf("stored %d at %s", len(e.Handles), where))
		case kvevent.Removed:
			out.events = append(out.events, fmt.Sprintf("removed %d", len(e.Handles)))
		case kvevent.Cleared:
			out.events = append(out.events, "cleared")
		}
	}
	return out
}

// replayed asks for everything from start on, with a socket of its own.
func replayed(t testing.TB, at string, start uint64, each func(feed.Message)) {
	t.Helper()
	s := dial(t, zmq4.DEALER, at)
	if err := s.SetRcvtimeo(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SendMessage([]byte{}, number(start)); err != nil {
		t.Fatal(err)
	}
	for {
		parts, err := s.RecvMessageBytes(0)
		if err != nil {
			t.Fatalf("waiting for an answer of %s: %v", at, err)
		}
		f, end, err := feed.ParseReplay(parts)
		if err != nil {
			t.Fatal(err)
		}
		if end {
			return
		}
		each(f)
	}
}

// dial makes a socket of the test's own, and its end.
func dial(t testing.TB, kind zmq4.Type, at string) *zmq4.Socket {
	t.Helper()
	ctx, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ctx.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), ctx.Term()); err != nil {
			t.Error(err)
		}
	})
	if err := s.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if kind == zmq4.SUB {
		if err := s.SetSubscribe(""); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Connect(at); err != nil {
		t.Fatal(err)
	}
	return s
}

// listener follows a stream from its first message on.
type listener struct {
	t    testing.TB
	sub  *zmq4.Socket
	e    *Engine
	rank int
}

// listen subscribes and waits until messages arrive: a subscription takes a moment, so requests are made
// until one is seen; what came so far is thrown away.
func listen(t testing.TB, e *Engine, rank int) *listener {
	t.Helper()
	at, _ := e.Endpoints(rank)
	l := &listener{t, dial(t, zmq4.SUB, at), e, rank}
	for i := range 1000 {
		l.store(900000 + 100*i)
		if _, ok := l.receive(20 * time.Millisecond); ok {
			for ok {
				_, ok = l.receive(100 * time.Millisecond)
			}
			return l
		}
	}
	t.Fatal("nothing is ever received")
	return nil
}

// store makes the rank store one block after a root, in one batch.
func (l *listener) store(from int) {
	l.t.Helper()
	complete(l.t, l.e, m{"prompt": ids(from, 1+l.e.cfg.BlockSize), "max_tokens": 1}, "X-data-parallel-rank", fmt.Sprint(l.rank))
}

// receive takes the next message, if one comes in time.
func (l *listener) receive(limit time.Duration) (batch, bool) {
	l.t.Helper()
	if err := l.sub.SetRcvtimeo(limit); err != nil {
		l.t.Fatal(err)
	}
	parts, err := l.sub.RecvMessageBytes(0)
	if err != nil {
		return batch{}, false
	}
	f, err := feed.ParseLive(parts)
	if err != nil {
		l.t.Fatal(err)
	}
	return describe(f), true
}

func (l *listener) next() batch {
	l.t.Helper()
	b, ok := l.receive(10 * time.Second)
	if !ok {
		l.t.Fatal("nothing comes")
	}
	return b
}

// none wants that nothing comes.
func (l *listener) none() {
	l.t.Helper()
	if b, ok := l.receive(100 * time.Millisecond); ok {
		l.t.Errorf("received %+v, want nothing", b)
	}
}

var forms = []Config{
	{Dialect: VLLM},
	{Dialect: VLLM, Version: "0.23.0"},
	{Dialect: VLLM, Version: "0.10.0"},
	{Dialect: VLLM, Version: "0.9.0"},
	{Dialect: VLLM, EventForm: FormArray},
	{Dialect: SGLang},
	{Dialect: SGLang, Version: "0.5.12"},
	{Dialect: SGLang, Version: "0.4.8"},
	{Dialect: ATOM},
	{Dialect: TRTLLM},
}

func (c Config) String() string { return fmt.Sprint(c.Dialect, " ", c.Version, c.EventForm) }

// TestMirrorEqualsCache: after concurrent random traffic with aborts, resets, salts and adapters, what
// the replayed events come to is what the caches hold, for every rank, in every wire form.
func TestMirrorEqualsCache(t *testing.T) {
	for _, c := range forms {
		t.Run(c.String(), func(t *testing.T) {
			c.Events, c.Replay, c.BlockSize, c.Capacity = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", 16, 60
			c.MaxModelLen, c.MaxSeqs, c.Budget, c.Ranks, c.Adapters = 400, 6, 100, 2, []string{"lora"}
			e := start(t, c)
			// Where hashes leave the salt out, or events do not tell it, nobody can follow salted prompts.
			names := e.wire.fields >= 12
			salts := names || e.wire.salted
			var wg sync.WaitGroup
			for k := range 6 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(k), 9))
					for range 25 {
						randomRequest(t, e, r, names, salts)
					}
				})
			}
			wg.Wait()
			eventually(t, "everybody has gone", func() bool { s := e.Stats(); return s.Running+s.Waiting == 0 })
			// One more request each, so that a vLLM that held back a clear sends it.
			for i := range e.ranks {
				complete(t, e, m{"prompt": ids(5000, 40), "max_tokens": 1}, "X-data-parallel-rank", fmt.Sprint(i))
			}
			eventually(t, "everything is published", func() bool { return quiet(e) })
			for i := range e.ranks {
				_, at := e.Endpoints(i)
				mirror, truth := index.New(16, index.Options{}), index.New(16, index.Options{})
				mirror.Join(0)
				truth.Join(0)
				mapper := kvevent.NewMapper(0, kvevent.Dialect(c.Dialect), kvevent.CopiesByDialect)
				next, stores := uint64(0), 0
				replayed(t, at, 0, func(msg feed.Message) {
					if msg.Seq != next {
						t.Fatalf("rank %d: number %d after %d", i, msg.Seq, next)
					}
					next++
					stores += apply(t, mirror, mapper, msg.Payload, i)
				})
				known := 0
				for _, b := range e.Cached(i) {
					truth.Apply(index.Op{
						Kind: index.Store, Target: 0, Handles: []index.Handle{index.Handle(b.Handle)}, Parent: index.Handle(b.Parent),
						HasParent: b.HasParent, Namespace: block.Namespace(b.Adapter, b.Salt), PageSize: 16, Tokens: b.Tokens,
					})
					known++
				}
				if got, want := mirror.ContentHash(0), truth.ContentHash(0); got != want {
					t.Errorf("rank %d: the mirror differs from the cache of %d blocks", i, known)
				}
				if known < 5 || stores < 100 {
					t.Errorf("rank %d: %d blocks at the end after %d stores: too tame", i, known, stores)
				}
			}
		})
	}
}

// apply folds a payload into a mirror and returns how many stores it had.
func apply(t *testing.T, x *index.Index, mapper *kvevent.Mapper, payload []byte, rank int) int {
	t.Helper()
	var d kvevent.Decoder
	var b kvevent.Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	if len(b.Skipped) > 0 || b.HasRank && b.Rank != rank {
		t.Fatalf("rank %d of %d, skipped %v", b.Rank, rank, b.Skipped)
	}
	n := 0
	for _, op := range mapper.Map(&b) {
		if op.Kind == index.Store {
			n++
		}
		x.Apply(op)
	}
	return n
}

// quiet says that every rank has published what it has.
func quiet(e *Engine) bool {
	for _, r := range e.ranks {
		r.mu.Lock()
		busy := r.flush || len(r.waiting)+len(r.running) > 0
		switch kv := r.kv.(type) {
		case *paged:
			busy = busy || len(kv.events) > 0
		case *radix:
			busy = busy || len(kv.events) > 0
		}
		r.mu.Unlock()
		if busy {
			return false
		}
	}
	return true
}

func randomRequest(t *testing.T, e *Engine, r *rand.Rand, adapters, salts bool) {
	prompt := append(ids(100*r.IntN(3), 1+r.IntN(150)), ids(1000*r.IntN(9), r.IntN(60))...)
	body := m{"prompt": prompt, "max_tokens": 1 + r.IntN(60)}
	if adapters && r.IntN(4) == 0 {
		body["model"] = "lora"
	}
	if salts && r.IntN(4) == 0 {
		body["cache_salt"] = "s"
	}
	switch r.IntN(36) {
	case 0:
		e.ResetCache() //nolint:errcheck // refused while requests run
	case 1, 2, 3, 4, 5, 6:
		body["stream"] = true
		body["max_tokens"] = 150
		leaveAfter(t, e, body, r.IntN(2000))
	default:
		complete(t, e, body)
	}
}

// leaveAfter reads so many bytes of an answer and goes.
func leaveAfter(t *testing.T, e *Engine, body m, n int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", e.URL()+"/v1/completions", strings.NewReader(string(encodeJSON(body))))
	if err != nil {
		t.Error(err)
		return
	}
	res, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close() //nolint:errcheck // left on purpose
	for n > 0 {
		k, err := res.Body.Read(make([]byte, min(n, 512)))
		if err != nil {
			return
		}
		n -= k
	}
}

// TestReplayForms: the layouts of answers by version, taken apart frame by frame.
func TestReplayForms(t *testing.T) {
	for _, tt := range []struct {
		c    Config
		want int // frames after the client's identity
	}{
		{Config{Dialect: VLLM, Version: "0.25.0"}, 3},
		{Config{Dialect: VLLM, Version: "0.26.0"}, 4},
		{Config{Dialect: SGLang, Version: "0.5.21"}, 3},
		{Config{Dialect: SGLang}, 4},
	} {
		c := tt.c.withDefaults()
		v, err := parseVersion(c.Version)
		if err != nil {
			t.Fatal(err)
		}
		w := wireOf(c.Dialect, v)
		p := newPublisher(encoder{wire: w, h: newHasher(&c, w), size: 16}, "topic", 3, newFaults(1, 0))
		p.sock = discard{}
		for range 5 {
			p.publish([]event{{kind: cleared}})
		}
		got := p.replay(3)
		if len(got) != 3 {
			t.Fatalf("%s: %d answers, want batches 3 and 4 and the end", c.String(), len(got))
		}
		for i, a := range got {
			f, end, err := feed.ParseReplay(a)
			if err != nil || len(a) != tt.want || end != (i == 2) || !end && f.Seq != uint64(3+i) {
				t.Errorf("%s, answer %d: %d frames, %+v, %v", c.String(), i, len(a), f, err)
			}
		}
		if got := p.replay(0); len(got) != 4 { // batches 0 and 1 are not kept any more
			t.Errorf("%s: %d answers from 0 on, want 3 batches and the end", c.String(), len(got))
		}
	}
}

type discard struct{}

func (discard) send([][]byte) error         { return nil }
func (discard) endpoints() (string, string) { return "", "" }
func (discard) close() error                { return nil }

// TestEventFaults: what each command does to the stream, as a subscriber and a replay see it.
func TestEventFaults(t *testing.T) {
	one := 1
	two := 2
	on, off := true, false
	long, now := Span(time.Hour), Span(0)
	for _, d := range []Dialect{VLLM, SGLang} {
		e := start(t, Config{Dialect: d, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Capacity: 10000})
		l := listen(t, e, 0)
		base := e.EventStats(0).Batches
		at := 0
		store := func() { at += 100; l.store(at) }
		fault := func(f Fault) {
			t.Helper()
			if status, _, out := call(t, "POST", e.URL()+"/fault", f); status != 200 {
				t.Fatalf("%+v: %d %s", f, status, out)
			}
		}
		want := func(seqs ...uint64) {
			t.Helper()
			for _, s := range seqs {
				if got := l.next(); got.err != nil || got.seq != base+s || fmt.Sprint(got.events) != "[stored 1 at root]" {
					t.Fatalf("%s: got %+v, want number %d", d, got, base+s)
				}
			}
		}
		store()
		want(0)

		fault(Fault{DropEvents: &two})
		store() // 1
		store() // 2
		store()
		want(3)
		fault(Fault{DuplicateEvents: &one})
		store()
		want(4, 4)
		fault(Fault{ReorderEvents: &one})
		store()
		l.none()
		store()
		want(6, 5)
		fault(Fault{LoseEvents: &one})
		store() // 7
		store()
		want(8)
		fault(Fault{GarbleEvents: &one})
		store()
		if got := l.next(); got.err == nil || got.seq != base+9 {
			t.Errorf("%s: got %+v, want a broken payload with number %d", d, got, base+9)
		}
		fault(Fault{StallEvents: &long})
		store()
		store()
		l.none()
		fault(Fault{StallEvents: &now})
		want(10, 11)
		fault(Fault{Silent: &on})
		store()
		l.none()
		fault(Fault{Silent: &off})
		store()
		want(12)
		_, replay := e.Endpoints(0)
		var numbers []uint64
		replayed(t, replay, base, func(msg feed.Message) {
			if b := describe(msg); b.err != nil {
				t.Errorf("%s: number %d: %v", d, b.seq-base, b.err)
			}
			numbers = append(numbers, msg.Seq-base)
		})
		if got := fmt.Sprint(numbers); got != "[0 1 2 3 4 5 6 8 9 10 11 12]" {
			t.Errorf("%s: replay has %s, want all but the lost 7", d, got)
		}
	}
}

// TestDeath: after kill -9 and restart the addresses are the same, numbers start at 0, the cache is
// empty, and what ran is lost.
func TestDeath(t *testing.T) {
	for _, d := range []Dialect{VLLM, SGLang} {
		e := start(t, Config{Dialect: d, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Ranks: 2, TimeScale: 1})
		url := e.URL()
		events0, replay0 := e.Endpoints(1)
		complete(t, e, m{"prompt": ids(1, 100), "max_tokens": 1}, "X-data-parallel-rank", "1")
		if len(e.Cached(1)) == 0 {
			t.Fatalf("%s: nothing cached", d)
		}
		broken := make(chan error, 1)
		go func() {
			req, err := http.NewRequest("POST", url+"/v1/completions", strings.NewReader(`{"prompt":[1,2,3],"max_tokens":10000}`))
			if err == nil {
				var res *http.Response
				if res, err = client.Do(req); err == nil {
					err = errors.Join(fmt.Errorf("status %d", res.StatusCode), res.Body.Close())
				}
			}
			broken <- err
		}()
		eventually(t, "the request runs", func() bool { return e.Stats().Running == 1 })
		if err := e.Restart(); err != nil {
			t.Fatal(err)
		}
		if err := <-broken; err == nil || strings.Contains(err.Error(), "status") {
			t.Errorf("%s: the running request got %v, want a broken connection", d, err)
		}
		events1, replay1 := e.Endpoints(1)
		if e.URL() != url || events1 != events0 || replay1 != replay0 || len(e.Cached(1)) != 0 {
			t.Errorf("%s: after the restart: %s %s %s, %d cached", d, e.URL(), events1, replay1, len(e.Cached(1)))
		}
		complete(t, e, m{"prompt": ids(1, 100), "max_tokens": 1}, "X-data-parallel-rank", "1")
		eventually(t, "everything is published", func() bool { return quiet(e) })
		var got []string
		replayed(t, replay1, 0, func(msg feed.Message) {
			b := describe(msg)
			got = append(got, fmt.Sprint(b.seq, b.events, b.err))
		})
		want := map[Dialect]string{
			VLLM:   "[0 [stored 6 at root] <nil>]",
			SGLang: "[0 [cleared] <nil> 1 [stored 6 at root] <nil>]",
		}[d]
		if fmt.Sprint(got) != want {
			t.Errorf("%s: replay %v, want %s", d, got, want)
		}
	}
}

// TestCrashThenBack: away means away.
func TestCrashThenBack(t *testing.T) {
	e := start(t, Config{Events: "tcp://127.0.0.1:0"})
	url := e.URL()
	if status, _, _ := call(t, "POST", url+"/fault", m{"crash": m{"for": "300ms"}}); status != 200 {
		t.Fatal(status)
	}
	gone, back := false, false
	eventually(t, "gone, then back", func() bool {
		res, err := client.Get(url + "/health")
		if err != nil {
			gone = true
			return false
		}
		res.Body.Close() //nolint:errcheck // empty
		back = gone
		return back
	})
}

// TestStartOfStreams: SGLang begins with a clear that is number 0; vLLM tells of an emptied cache with
// its next work, SGLang at once.
func TestStartOfStreams(t *testing.T) {
	for _, d := range []Dialect{VLLM, SGLang} {
		e := start(t, Config{Dialect: d, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"})
		all := func() string {
			_, at := e.Endpoints(0)
			var got []string
			replayed(t, at, 0, func(msg feed.Message) { got = append(got, fmt.Sprint(describe(msg).events)) })
			return strings.Join(got, " ")
		}
		wants := map[Dialect][]string{
			VLLM:   {"", "", "[cleared stored 1 at root]"},
			SGLang: {"[cleared]", "[cleared] [cleared]", "[cleared] [cleared] [stored 1 at root]"},
		}[d]
		for i, do := range []func(){
			func() {},
			func() {
				if err := e.ResetCache(); err != nil {
					t.Fatal(err)
				}
			},
			func() { complete(t, e, m{"prompt": ids(1, 17), "max_tokens": 1}) },
		} {
			do()
			got := ""
			eventually(t, fmt.Sprintf("%s, step %d: %s", d, i, wants[i]), func() bool { got = all(); return got == wants[i] })
		}
	}
}

// TestEndpointPages say where the streams are, as the engines do.
func TestEndpointPages(t *testing.T) {
	v := start(t, Config{Dialect: VLLM, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Ranks: 2})
	_, _, out := call(t, "GET", v.URL()+"/kv_event_sources", nil)
	for r := range 2 {
		events, replay := v.Endpoints(r)
		if want := fmt.Sprintf(`"endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"`, port(events), port(replay)); !strings.Contains(string(out), want) {
			t.Errorf("got %s, want %s in it", out, want)
		}
	}
	s := start(t, Config{Dialect: SGLang, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Ranks: 3, ReportBlockSize: 64})
	_, _, out = call(t, "GET", s.URL()+"/server_info", nil)
	events, replay := s.Endpoints(0)
	want := fmt.Sprintf(`"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":%d,"topic":"kv-events","block_size":64,"dp_size":3,"replay_endpoint_port_base":%d}`, port(events), port(replay))
	if !strings.Contains(string(out), want) {
		t.Errorf("got %s, want %s in it", out, want)
	}
	if third, _ := s.Endpoints(2); port(third) != port(events)+2 {
		t.Errorf("rank 2 publishes at %s, rank 0 at %s", third, events)
	}
}

package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/vitals"
)

// BenchmarkTick is what one tick of a watcher costs a router: a snapshot, what changed in it, and its JSON. Four ticks
// are made a second; 1 % of a core is 2.5 ms a tick.
func BenchmarkTick(b *testing.B) {
	for _, workers := range []int{64, 1000} {
		for _, rate := range []int{0, 50, 500} {
			b.Run(fmt.Sprintf("workers=%d/rate=%d", workers, rate), func(b *testing.B) {
				x := newBench(b, workers)
				sent := x.hub.Current(0)
				size := 0
				var cpu time.Duration
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					x.traffic(b, rate)
					b.StartTimer()
					cpu -= processTime(b)
					now := x.hub.Current(0)
					data, err := x.hub.frames.delta(sent, now, true)
					if err != nil {
						b.Fatal(err)
					}
					size += len(data)
					sent = now
					cpu += processTime(b)
				}
				b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/tick")
				b.ReportMetric(float64(size)/float64(b.N), "bytes/tick")
			})
		}
	}
}

// BenchmarkSecond is what a second of one watcher costs a router, with the settings of kvroute watch: looking four times,
// telling once what changed, unless something turns. 1 % of a core is 10 ms.
func BenchmarkSecond(b *testing.B) {
	for _, workers := range []int{64, 1000} {
		for _, rate := range []int{50, 500, 5000} {
			b.Run(fmt.Sprintf("workers=%d/rate=%d", workers, rate), func(b *testing.B) {
				x := newBench(b, workers)
				sent := x.hub.Current(0)
				size := 0
				var cpu time.Duration
				b.ReportAllocs()
				for b.Loop() {
					for k := range 4 {
						b.StopTimer()
						x.traffic(b, rate)
						b.StartTimer()
						cpu -= processTime(b)
						now := x.hub.Current(125 * time.Millisecond)
						if k == 3 || snapshot.Turned(sent, now) {
							data, err := x.hub.frames.delta(sent, now, true)
							if err != nil {
								b.Fatal(err)
							}
							size += len(data)
							sent = now
						}
						cpu += processTime(b)
					}
				}
				b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/s")
				b.ReportMetric(float64(size)/float64(b.N), "bytes/s")
			})
		}
	}
}

// BenchmarkUnwatched is what looking for what is wrong costs once a second while nobody watches.
func BenchmarkUnwatched(b *testing.B) {
	for _, workers := range []int{64, 1000} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			x := newBench(b, workers)
			b.ReportAllocs()
			began := processTime(b)
			for b.Loop() {
				x.hub.look()
			}
			b.ReportMetric(float64((processTime(b)-began).Microseconds())/float64(b.N), "cpu-µs/look")
		})
	}
}

// bench is a fleet whose workers answer probes and send no events, so that their caches are guessed, and a clock.
type bench struct {
	fleet  *fleet.Fleet
	vitals *vitals.Vitals
	hub    *Hub
	ids    []string
	now    time.Time
	n      int
	terms  *score.Decision
}

func newBench(b *testing.B, workers int) *bench {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		b.Fatal(err)
	}
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm","max_model_len":100}]}`) //nolint:errcheck // a test's own client
		case "/health":
		default:
			http.NotFound(w, r)
		}
	}))
	engine.Listener.Close() //nolint:errcheck // never used
	engine.Listener = l
	engine.Start()
	b.Cleanup(engine.Close)
	x := &bench{vitals: vitals.New(), now: time.Now()}
	if x.fleet, err = fleet.New(fleet.Config{Score: score.Defaults(), Vitals: x.vitals, HealthInterval: time.Hour, ProbeTimeout: time.Minute}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(x.fleet.Close)
	var specs []discovery.Spec
	for i := range workers {
		spec, err := discovery.ParseWorker(fmt.Sprintf("http://127.0.%d.%d:%d", i/250, i%250+1, l.Addr().(*net.TCPAddr).Port))
		if err != nil {
			b.Fatal(err)
		}
		specs = append(specs, spec)
		x.ids = append(x.ids, spec.ID)
	}
	x.fleet.Update(specs)
	for ok := false; !ok; ok, _ = x.fleet.Ready() {
		time.Sleep(10 * time.Millisecond)
	}
	x.hub = NewHub(HubConfig{
		Fleet: x.fleet, Vitals: x.vitals, Version: "bench", Now: func() time.Time { return x.now },
		Data: func(string) router.WorkerState { return router.WorkerState{Breaker: "closed"} },
	})
	x.terms = &score.Decision{Policy: score.LeastWork, Basis: score.BasisEstimated, RequestID: "0123456789abcdef", Tokens: 32_000, Suggested: -1, Original: -1}
	for _, s := range x.fleet.States() {
		x.terms.Terms = append(x.terms.Terms, score.Terms{Candidate: score.Candidate{Key: s.RouteKey}, Eligible: true})
	}
	for i := range workers {
		x.place(b, i)
	}
	return x
}

// place sends a request to a worker: a system prompt that all have, and an end of its own.
func (x *bench) place(b *testing.B, worker int) {
	x.n++
	text, err := json.Marshal([]any{map[string]any{"role": "user", "content": strings.Repeat("the same for all of them ", 400) + fmt.Sprint(x.n%300) + strings.Repeat(" and so on", 400)}})
	if err != nil {
		b.Fatal(err)
	}
	call := &router.Call{ID: fmt.Sprint(x.n), Endpoint: tokenize.Chat, At: x.now, Model: "m", N: 1, Messages: text}
	ticket, err := x.fleet.Place(b.Context(), call)
	if err != nil {
		b.Fatal(err)
	}
	lease, err := ticket.Pick(func(id string) bool { return id != x.ids[worker] })
	if err != nil {
		b.Fatal(err)
	}
	lease.FirstToken()
	lease.Release(router.Outcome{Delivered: true, Status: 200, PromptTokens: -1, CachedTokens: -1, CompletionTokens: 10})
}

// traffic is what happens between two ticks: one request that is placed, and decisions about the others.
func (x *bench) traffic(b *testing.B, rate int) {
	x.now = x.now.Add(250 * time.Millisecond)
	if rate == 0 {
		return
	}
	x.place(b, x.n%len(x.ids))
	for k := range rate/4 - 1 {
		x.n++
		x.terms.Picked = x.n * 31 % len(x.ids)
		x.vitals.Picked(x.now.UnixMilli()+int64(k), &score.Request{Model: "m", Multimodal: true}, x.terms, nil)
	}
}

package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/vitals"
)

// TestEveryStateIsTold: every state of health, breaker and event stream but the good one becomes a warning.
func TestEveryStateIsTold(t *testing.T) {
	warnings := func(change func(*fleet.TargetState, *router.WorkerState)) (texts []string) {
		v := vitals.New()
		for i := range 30 {
			state := fleet.TargetState{
				WorkerID: "a", RouteKey: "a", Health: fleet.Healthy, Joined: true, PageSize: 16, Stream: feed.State{Trust: feed.Trusted, Reason: "WHY"}, HealthReason: "WHY",
			}
			data := router.WorkerState{Breaker: "closed"}
			if change != nil {
				change(&state, &data)
			}
			s := snapshot.Snapshot{AtMS: 1_000_000 + int64(i)*1000, Router: snapshot.Router{Ready: true}}
			s.Workers = []snapshot.Worker{outline(&state, func(string) router.WorkerState { return data })}
			v.Watch(&s)
			v.Fill(s.AtMS, &s)
			texts = nil
			for _, w := range s.Warnings {
				texts = append(texts, w.Text)
			}
		}
		return texts
	}
	if got := warnings(nil); len(got) != 0 {
		t.Fatalf("of a worker that is well: %q", got)
	}
	for trust := range feed.NumTrust {
		got := warnings(func(s *fleet.TargetState, _ *router.WorkerState) { s.Stream.Trust = trust })
		if want := trust != feed.Trusted; (len(got) == 1 && strings.Contains(got[0], "WHY")) != want {
			t.Errorf("events %s: %q", trust, got)
		}
	}
	for _, h := range []fleet.Health{fleet.Starting, fleet.Healthy, fleet.Unhealthy} {
		got := warnings(func(s *fleet.TargetState, _ *router.WorkerState) { s.Health = h })
		if want := h != fleet.Healthy; (len(got) == 1 && strings.Contains(got[0], "WHY")) != want {
			t.Errorf("health %s: %q", h, got)
		}
	}
	for _, b := range []string{"closed", "half-open", "open"} {
		if got := warnings(func(_ *fleet.TargetState, d *router.WorkerState) { d.Breaker = b }); (len(got) == 1) != (b != "closed") {
			t.Errorf("breaker %s: %q", b, got)
		}
	}
}

// TestRequestFacts: each thing that the router counts as going wrong is told of.
func TestRequestFacts(t *testing.T) {
	typ := reflect.TypeFor[router.Troubles]()
	for i := range typ.NumField() {
		var n router.Troubles
		reflect.ValueOf(&n).Elem().Field(i).SetUint(7)
		told := 0
		for _, f := range requestFacts(n) {
			if f.Count == 7 && f.Counted && strings.Contains(f.Text, "%d") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%s is told %d times", typ.Field(i).Name, told)
		}
	}
}

// odd is a tokenizer that cannot.
type odd struct{}

func (odd) Tokenize(context.Context, tokenize.Endpoint, []byte, tokenize.Options) tokenize.Result {
	return tokenize.Result{Tokens: 10, Unhashable: tokenize.ReasonTemplate, Err: errors.New("no template")}
}

// TestWarningsOfARealFleet: what a fleet finds out by itself reaches those who watch, also if it is over at once.
func TestWarningsOfARealFleet(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm","max_model_len":100}]}`) //nolint:errcheck // a test's own client
		case "/metrics":
			io.WriteString(w, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1.0\n") //nolint:errcheck // a test's own client
		case "/health", "/version":
			io.WriteString(w, `{"version":"0.23.0"}`) //nolint:errcheck // a test's own client
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(engine.Close)
	for _, tt := range []struct {
		name   string
		worker string
		cfg    fleet.Config
		want   map[string]string // kind: in the text
	}{
		{"no tokenizer", "", fleet.Config{}, map[string]string{
			"tokenizer": "there is no tokenizer for model m", "approximate": "guessed from what was sent there: this program was built without ZeroMQ",
		}},
		{"another block size", ",block-size=16", fleet.Config{}, map[string]string{"block-size": "its blocks have 32 tokens, 16 are configured"}},
		{"another model", ",model=other", fleet.Config{}, map[string]string{"model": "it does not list model other, which it is meant to serve, but m"}},
		{"a full index", "", fleet.Config{Index: index.Options{Limit: 3}}, map[string]string{"index-full": "the index is full (--index-limit): "}},
		{"no template", "", fleet.Config{Tokenizer: func(string) tokenize.Tokenizer { return odd{} }}, map[string]string{
			"untokenized": "1 requests for model m could not be tokenized and were routed by load: template failed",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := tt.cfg
			cfg.Score, cfg.Vitals = score.Defaults(), vitals.New()
			f, err := fleet.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			now := time.Now()
			hub := NewHub(HubConfig{
				Fleet: f, Vitals: cfg.Vitals, Now: func() time.Time { return now },
				Facts: func() []vitals.Fact { return []vitals.Fact{{Kind: "recording", Text: "the disk is full"}} },
			})
			hub.look()
			spec, err := discovery.ParseWorker(engine.URL + tt.worker)
			if err != nil {
				t.Fatal(err)
			}
			f.Update([]discovery.Spec{spec})
			for ok := false; !ok; ok, _ = f.Ready() {
				if t.Context().Err() != nil {
					t.Fatal("never ready")
				}
			}
			hub.look()
			model := "m"
			if strings.Contains(tt.worker, "model=") {
				model = "other"
			}
			ticket, err := f.Place(t.Context(), &router.Call{ID: "1", Model: model, N: 1, Messages: []byte(`[{"role":"user","content":"` + strings.Repeat("many words ", 400) + `"}]`), At: now})
			if err != nil {
				t.Fatal(err)
			}
			lease, err := ticket.Pick(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release(router.Outcome{})
			now = now.Add(time.Second)
			hub.look()
			tt.want["recording"] = "the disk is full"
			got := map[string]string{}
			for _, w := range hub.Current(0).Warnings {
				if w.OverMS == nil {
					got[w.Kind] += w.Text + "\n"
				}
			}
			for kind, text := range tt.want {
				if !strings.Contains(got[kind], text) {
					t.Errorf("%s: got %q, want …%s…; all: %q", kind, got[kind], text, got)
				}
			}
		})
	}
}

// TestSnapshotsStay: what was handed out does not change with what comes later.
func TestSnapshotsStay(t *testing.T) {
	states := []fleet.TargetState{{RouteKey: "a", Stream: feed.State{HasSeq: true, Seq: 7}, Parity: []fleet.ParityState{{Name: "x", Verdict: "confirmed"}}}}
	w := entry(&states[0], nil, 16)
	was := fmt.Sprint(*w.Stream.Sequence, w.Parity)
	states[0] = fleet.TargetState{Stream: feed.State{Seq: 8}}
	if now := fmt.Sprint(*w.Stream.Sequence, w.Parity); now != was {
		t.Errorf("was %s, is %s after the memory was used again", was, now)
	}
}

// TestHealthFlip: a worker that did not answer for less than the time between two looks is told of.
func TestHealthFlip(t *testing.T) {
	var down atomic.Bool
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm","max_model_len":100}]}`) //nolint:errcheck // a test's own client
		case r.URL.Path != "/health" || down.Load():
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(engine.Close)
	v := vitals.New()
	f, err := fleet.New(fleet.Config{Score: score.Defaults(), Vitals: v, HealthInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hub := NewHub(HubConfig{Fleet: f, Vitals: v})
	spec, err := discovery.ParseWorker(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	f.Update([]discovery.Spec{spec})
	health := func(want fleet.Health) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			if s := f.States(); len(s) == 1 && s[0].Health == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("never %s", want)
			}
		}
	}
	health(fleet.Healthy)
	hub.look()
	down.Store(true)
	health(fleet.Unhealthy)
	down.Store(false)
	health(fleet.Healthy)
	var told []string
	for end := time.Now().Add(30 * time.Second); len(told) == 0 && time.Now().Before(end); {
		hub.look()
		for _, w := range hub.Current(0).Warnings {
			if w.Kind == "health" {
				told = append(told, fmt.Sprint(w.RouteKey, " ", w.Text, " ", w.OverMS != nil))
			}
		}
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], spec.ID+" did not answer: ") || !strings.HasSuffix(told[0], " true") {
		t.Errorf("told %q, want once that it did not answer, and that this is over", told)
	}
}

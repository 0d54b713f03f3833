package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
)

// list is an answer of /v1/models.
func list(owner string) string {
	return fmt.Sprintf(`{"data":[{"id":"m","owned_by":%q,"max_model_len":100}]}`, owner)
}

func one(status int, text string) []answer { return []answer{{status: status, text: text}} }

func TestProbeIdentifies(t *testing.T) {
	vllmMetrics := one(200, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9\",engine=\"0\"} 1\n")
	sglangInfo := one(200, `{"version":"0.5.0","page_size":64,"dp_size":2,"max_total_num_tokens":6400,"internal_states":[{},{}],"kv_events_config":null,"default_chat_template_kwargs":{"a":1}}`)
	tests := []struct {
		name, hint string
		r          recorded
		want       string
		unknown    string // one of the entries of Unknown
	}{
		{"by owner", "", recorded{"GET /v1/models": one(200, list("vllm"))}, VLLM, "block size: GET /metrics answered 404"},
		{"by owner, TensorRT-LLM", "", recorded{"GET /v1/models": one(200, list("tensorrt_llm")), "GET /version": one(200, `{"version":"1.2"}`)}, TRTLLM, "block size: the engine does not say"},
		{"by owner, ATOM", "", recorded{"GET /v1/models": one(200, list("atom")), "GET /server_info": one(200, `{"block_size":16}`)}, ATOM, "event endpoints: the engine does not say"},
		{"by metrics", "", recorded{"GET /v1/models": one(200, list("me")), "GET /metrics": vllmMetrics}, VLLM, ""},
		{"by metrics with underscores", "", recorded{"GET /v1/models": one(200, list("me")), "GET /metrics": one(200, "vllm_cache_config_info{block_size=\"16\"} 1\n")}, VLLM, ""},
		{"by server info", "", recorded{"GET /v1/models": one(200, list("me")), "GET /server_info": sglangInfo}, SGLang, ""},
		{"by server info under its old name", "", recorded{"GET /v1/models": one(200, list("me")), "GET /get_server_info": sglangInfo}, SGLang, ""},
		{"by hint", SGLang, recorded{"GET /v1/models": one(200, list("me"))}, SGLang, "block size: GET /get_server_info answered 404"},
		{"hint against owner", SGLang, recorded{"GET /v1/models": one(200, list("vllm")), "GET /server_info": sglangInfo}, SGLang, "engine: configured as sglang, answers like vllm"},
		{"not at all", "", recorded{"GET /v1/models": one(200, list("me"))}, "", "engine: it answers like none"},
		{"no greatest length", "", recorded{"GET /v1/models": one(200, `{"data":[{"id":"m","owned_by":"vllm"}]}`)}, VLLM, "greatest length of a prompt"},
		{"metrics that are none", "", recorded{"GET /v1/models": one(200, list("vllm")), "GET /metrics": one(200, "{}")}, VLLM, "block size: GET /metrics: not metrics"},
		{"metrics without the information", "", recorded{"GET /v1/models": one(200, list("vllm")), "GET /metrics": one(200, "vllm:x 1\n")}, VLLM, "block size: GET /metrics has no vllm:cache_config_info"},
		{"values that are not set", "", recorded{"GET /v1/models": one(200, list("vllm")), "GET /metrics": one(200, "vllm:cache_config_info{block_size=\"None\",num_gpu_blocks=\"None\"} 1\n")}, VLLM, "size of the cache: vllm:cache_config_info does not say"},
		{"ranks with different blocks", "", recorded{"GET /v1/models": one(200, list("vllm")), "GET /metrics": one(200, "vllm:cache_config_info{engine=\"0\",block_size=\"16\"} 1\nvllm:cache_config_info{engine=\"1\",block_size=\"32\"} 1\n")}, VLLM, "block size: ranks differ: 16 and 32"},
		{"server info that is none", "", recorded{"GET /v1/models": one(200, list("sglang")), "GET /server_info": one(200, "[]")}, SGLang, "version: GET /server_info: not the JSON"},
	}
	for _, tt := range tests {
		client, base := server(t, tt.r)
		info, err := Probe(t.Context(), client, base, tt.hint)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if info.Engine != tt.want {
			t.Errorf("%s: engine %q, want %q", tt.name, info.Engine, tt.want)
		}
		if !slices.ContainsFunc(append(info.Unknown, ""), func(s string) bool { return strings.HasPrefix(s, tt.unknown) }) {
			t.Errorf("%s: unknown %q, want one that begins with %q", tt.name, info.Unknown, tt.unknown)
		}
		// What is 0 has a reason.
		for what, zero := range map[string]bool{
			"block size": info.BlockSize == 0, "size of the cache": info.PoolBlocks == 0, "data-parallel size": info.DPSize == 0,
			"default arguments of the chat template": info.TemplateKwargs == nil && info.Engine != SGLang, "version": info.Version == "",
		} {
			if zero && !slices.ContainsFunc(info.Unknown, func(s string) bool { return strings.HasPrefix(s, what+":") }) {
				t.Errorf("%s: %s is not known, without a reason among %q", tt.name, what, info.Unknown)
			}
		}
	}
}

func TestProbeFails(t *testing.T) {
	tests := []struct {
		name string
		r    recorded
		want string
		wait bool // ErrNotReady
	}{
		{"nothing there", recorded{}, "GET /v1/models answered 404: Not Found", false},
		{"starting", recorded{"GET /v1/models": one(503, `{"error":{"message":"loading\nweights"}}`)}, "answered 503: loading weights", true},
		{"no models yet", recorded{"GET /v1/models": one(200, `{"data":[]}`)}, "lists no model", true},
		{"no JSON", recorded{"GET /v1/models": one(200, "<html>")}, "not the JSON", false},
		{"a model without id", recorded{"GET /v1/models": one(200, `{"data":[{"root":"x"}]}`)}, "without id", false},
		{"a model that is none", recorded{"GET /v1/models": one(200, `{"data":[3]}`)}, "no model", false},
		{"an error as long as a book", recorded{"GET /v1/models": one(500, `{"message":"`+strings.Repeat("x", 5000)+`"}`)}, "xxx…", false},
	}
	for _, tt := range tests {
		client, base := server(t, tt.r)
		_, err := Probe(t.Context(), client, base, "")
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), base.Host) || errors.Is(err, ErrNotReady) != tt.wait || len(err.Error()) > 400 {
			t.Errorf("%s: error %v, want one line with %q and the address, not ready: %v", tt.name, err, tt.want, tt.wait)
		}
	}
}

func TestProbeEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client, base := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(list("vllm")))
			return
		}
		cancel() // in the middle of the probe
		<-r.Context().Done()
	}))
	if _, err := Probe(ctx, client, base, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled rather than half an answer", err)
	}
	if err := Health(ctx, client, base); !errors.Is(err, context.Canceled) {
		t.Errorf("health: error %v, want context.Canceled", err)
	}
	gone, base := server(t, recorded{})
	base.Host = "127.0.0.1:1"
	if _, err := Probe(t.Context(), gone, base, ""); err == nil || strings.Count(err.Error(), "127.0.0.1:1") > 2 {
		t.Errorf("nobody listens: error %v", err)
	}
}

func TestHealth(t *testing.T) {
	client, base := server(t, recorded{"GET /health": one(503, "")})
	if err := Health(t.Context(), client, base); !errors.Is(err, ErrNotReady) {
		t.Errorf("error %v, want ErrNotReady", err)
	}
}

func TestEndpoints(t *testing.T) {
	tests := []struct{ base, in, want, why string }{
		{"http://10.0.0.7:8000", "tcp://*:5557", "tcp://10.0.0.7:5557", ""},
		{"http://worker:8000", "tcp://0.0.0.0:5557", "tcp://worker:5557", ""},
		{"http://[fd00::7]:8000", "tcp://[::]:5557", "tcp://[fd00::7]:5557", ""},
		{"http://worker:8000", "tcp://router:5557", "", "dials"},
		{"http://worker:8000", "tcp://127.0.0.1:5557", "", "events=tcp://*:5557"},
		{"http://worker:8000", "tcp://*:0", "", "a port that it does not name"},
		{"http://localhost:8000", "ipc:///run/kv", "ipc:///run/kv", ""},
		{"http://127.0.0.1:8000", "ipc:///run/kv", "ipc:///run/kv", ""},
		{"http://worker:8000", "ipc:///run/kv", "", "its own machine"},
		{"http://worker:8000", "inproc://kv", "", "cannot be reached"},
		{"http://worker:8000", "", "", "not an endpoint"},
	}
	for _, tt := range tests {
		base, err := url.Parse(tt.base)
		if err != nil {
			t.Fatal(err)
		}
		a := api{base: base}
		got, err := a.endpoint(tt.in)
		if got != tt.want || (err == nil) != (tt.why == "") || err != nil && !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s from %s: %q, error %v, want %q, %q", tt.in, tt.base, got, err, tt.want, tt.why)
		}
	}
}

func TestEventSources(t *testing.T) {
	source := func(port int, replay string) string {
		return fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":%s,"topic":""}`, port, replay)
	}
	tests := []struct {
		name, in string
		want     Events
		sources  int
		unknown  string
	}{
		{"two ranks", `{"1":` + source(6001, `"tcp://*:7001"`) + `,"0":` + source(6000, `"tcp://*:7000"`) + `}`, Events{Live: "tcp://HOST:6000", Replay: "tcp://HOST:7000"}, 2, ""},
		{"ranks on ports of their own", `{"0":` + source(6000, "null") + `,"1":` + source(6200, "null") + `}`, Events{Live: "tcp://HOST:6000"}, 2, "events of rank 1: they are at"},
		{"no replay", `{"0":` + source(6000, "null") + `}`, Events{Live: "tcp://HOST:6000"}, 1, "replay of rank 0: none is configured"},
		{"off", `{"0":{"enable_kv_cache_events":false}}`, Events{}, 0, "events of rank 0: events are off"},
		{"null", `{"0":null}`, Events{}, 0, "events of rank 0: events are off"},
		{"another publisher", `{"0":{"enable_kv_cache_events":true,"publisher":"kafka"}}`, Events{}, 0, `events of rank 0: the publisher is "kafka"`},
		{"a rank that is none", `{"x":` + source(1, "null") + `}`, Events{}, 0, `events of rank x: rank "x" is none`},
		{"none", `{}`, Events{}, 0, "event endpoints: GET /kv_event_sources lists none"},
	}
	for _, tt := range tests {
		client, base := server(t, recorded{"GET /v1/models": one(200, list("vllm")), "GET /kv_event_sources": one(200, tt.in)})
		info, err := Probe(t.Context(), client, base, "")
		if err != nil {
			t.Fatal(err)
		}
		tt.want.Live = strings.ReplaceAll(tt.want.Live, "HOST", base.Hostname())
		tt.want.Replay = strings.ReplaceAll(tt.want.Replay, "HOST", base.Hostname())
		if info.Events != tt.want || len(info.Sources) != tt.sources {
			t.Errorf("%s: events %+v of %d sources, want %+v of %d", tt.name, info.Events, len(info.Sources), tt.want, tt.sources)
		}
		if !slices.ContainsFunc(append(info.Unknown, ""), func(s string) bool { return strings.HasPrefix(s, tt.unknown) }) {
			t.Errorf("%s: unknown %q, want %q", tt.name, info.Unknown, tt.unknown)
		}
	}
}

func TestServerInfo(t *testing.T) {
	tests := []struct {
		name, in string
		check    func(*Info) any
		want     any
	}{
		{
			"old configuration text", `{"version":"1","kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:6000\",\"topic\":\"t\"}"}`,
			func(i *Info) any { return i.Events },
			Events{Live: "tcp://127.0.0.1:6000", Topic: "t"},
		},
		{
			"old configuration without endpoint", `{"version":"1","kv_events_config":"{\"publisher\":\"zmq\"}"}`,
			func(i *Info) any { return i.Events.Live }, "tcp://127.0.0.1:5557",
		},
		{
			"engine dials", `{"version":"1","kv_events":{"publisher":"zmq","endpoint_host":"router","endpoint_port_base":6000}}`,
			func(i *Info) any { return i.Events },
			Events{},
		},
		{"events off", `{"version":"1","kv_events":null,"kv_events_config":null}`, func(i *Info) any { return i.Events }, Events{}},
		{"context parallel pages", `{"version":"1","page_size":16,"dcp_size":4}`, func(i *Info) any { return i.BlockSize }, 64},
		{
			"page of the events counts", `{"version":"1","page_size":1,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":6000,"block_size":64}}`,
			func(i *Info) any { return i.BlockSize }, 64,
		},
		{
			"smallest rank", `{"version":"1","page_size":16,"max_total_num_tokens":999,"internal_states":[{"memory_usage":{"token_capacity":640}},{"memory_usage":{"token_capacity":320}},3]}`,
			func(i *Info) any { return i.PoolBlocks }, int64(20),
		},
		{"template arguments", `{"version":"1","default_chat_template_kwargs":{"b":1,"a":[2]}}`, func(i *Info) any { return string(i.TemplateKwargs) }, `{"b":1,"a":[2]}`},
		{"template arguments as text", `{"version":"1","default_chat_template_kwargs":"{\"a\":1}"}`, func(i *Info) any { return string(i.TemplateKwargs) }, `{"a":1}`},
		{
			"half of a split", `{"version":"1","disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"tool_call_parser":"qwen","reasoning_parser":"qwen3"}`,
			func(i *Info) any { return []any{i.Role, i.BootstrapPort, i.ToolParser, i.ReasoningParser} },
			[]any{"prefill", 8998, "qwen", "qwen3"},
		},
		{"no split", `{"version":"1","disaggregation_mode":"null","disaggregation_bootstrap_port":8998}`, func(i *Info) any { return []any{i.Role, i.BootstrapPort} }, []any{"", 0}},
	}
	for _, tt := range tests {
		client, base := server(t, recorded{"GET /v1/models": one(200, list("sglang")), "GET /server_info": one(200, tt.in)})
		info, err := Probe(t.Context(), client, base, "")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, tt.check(&info)); diff != "" {
			t.Errorf("%s (-want +got):\n%s\nunknown: %q", tt.name, diff, info.Unknown)
		}
	}
}

// TestRanksOfVLLM has the labels that vLLM 0.32 gives with two data-parallel ranks of 256 blocks.
func TestRanksOfVLLM(t *testing.T) {
	series := "vllm:cache_config_info{block_size=\"32\",effective_attention_block_size=\"32\",engine=\"%d\",num_gpu_blocks=\"512\",num_gpu_blocks_override=\"256\"} 1.0\n"
	client, base := server(t, recorded{"GET /v1/models": one(200, list("vllm")), "GET /metrics": one(200, fmt.Sprintf(series+series, 0, 1))})
	info, err := Probe(t.Context(), client, base, "")
	if err != nil {
		t.Fatal(err)
	}
	if info.DPSize != 2 || info.PoolBlocks != 256 || info.BlockSize != 32 {
		t.Errorf("%d ranks with %d blocks of %d, want 2 with 256 of 32", info.DPSize, info.PoolBlocks, info.BlockSize)
	}
}

func TestScrape(t *testing.T) {
	known := func(v float64) Value { return Value{v, true} }
	tests := []struct {
		name, in string
		want     []Load
	}{
		{"ranks in order, models added", `vllm:num_requests_running{engine="10",model_name="a"} 1
vllm:num_requests_running{engine="2",model_name="a"} 3
vllm:num_requests_running{engine="2",model_name="b"} 4
`, []Load{{Rank: 2, HasRank: true, Running: known(7)}, {Rank: 10, HasRank: true, Running: known(1)}}},
		{"underscores, old name, not a number", "vllm_gpu_cache_usage_perc 0.5\nvllm_num_requests_waiting NaN\n", []Load{{Usage: known(0.5)}}},
		{"processes of one rank say the same", `sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 3
sglang:num_running_reqs{dp_rank="1",tp_rank="1"} 3
sglang:cached_tokens_total{cache_source="device",dp_rank="1"} 10
sglang:cached_tokens_total{cache_source="host",dp_rank="1"} 5
`, []Load{{Rank: 1, HasRank: true, Running: known(3), Hits: known(15)}}},
		{"with and without rank", "sglang:num_queue_reqs{dp_rank=\"0\"} 1\nsglang:prompt_tokens_total 9\n", []Load{{Queries: known(9)}, {HasRank: true, Waiting: known(1)}}},
		{"somebody else", "up 1\n", nil},
		{"nothing", "", nil},
	}
	for _, tt := range tests {
		client, base := server(t, recorded{"GET /metrics": one(200, tt.in)})
		got, err := Scrape(t.Context(), client, base)
		if (err == nil) != (tt.want != nil) {
			t.Errorf("%s: error %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	client, base := server(t, recorded{})
	if _, err := Scrape(t.Context(), client, base); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no metrics: error %v", err)
	}
}

// toyTokens makes one token of each byte of what an engine reads of a body: not the keys named.
func toyTokens(body map[string]any, without ...string) []block.Token {
	read := map[string]any{}
	for k, v := range body {
		if !slices.Contains(append(without, "model", "max_tokens", "temperature", "return_token_ids", "add_special_tokens"), k) {
			read[k] = v
		}
	}
	text, err := json.Marshal(read)
	if err != nil {
		panic(err)
	}
	var ts []block.Token
	for _, c := range text {
		ts = append(ts, block.Token(c))
	}
	return ts
}

// toyEngine tokenizes by toyTokens. The /tokenize of an old one knows neither tools nor template arguments.
type toyEngine struct {
	sglang, old, noChat, noGenerate, strange bool
	generated                                int
}

func (e *toyEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(400)
		return
	}
	var without []string
	switch r.URL.Path {
	case "/tokenize":
		if body["messages"] != nil && e.noChat {
			w.WriteHeader(422)
			return
		}
		if e.old {
			without = []string{"tools", "chat_template_kwargs"}
		}
		if e.strange {
			_, _ = w.Write([]byte(`{"count":3}`))
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": toyTokens(body, without...)})
	case chatPath:
		e.generated++
		ids := map[string]any{"prompt_token_ids": toyTokens(body)}
		switch {
		case e.noGenerate:
			_, _ = w.Write([]byte(`{"choices":[{"index":0}]}`))
		case e.sglang:
			_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{ids}})
		default:
			_ = json.NewEncoder(w).Encode(ids)
		}
	default:
		w.WriteHeader(404)
	}
}

func TestParity(t *testing.T) {
	right := Local{
		Body: func(_ context.Context, _ string, body []byte) ([]block.Token, error) {
			var b map[string]any
			if err := json.Unmarshal(body, &b); err != nil {
				return nil, err
			}
			return toyTokens(b), nil
		},
		Text: func(_ context.Context, text string, _ bool) ([]block.Token, error) {
			return toyTokens(map[string]any{"prompt": text}), nil
		},
	}
	wrongTools := right
	wrongTools.Body = func(ctx context.Context, path string, body []byte) ([]block.Token, error) {
		ts, err := right.Body(ctx, path, body)
		if strings.Contains(string(body), `"role":"tool"`) {
			ts[5]++
		}
		return ts, err
	}
	fails := Local{Body: func(context.Context, string, []byte) ([]block.Token, error) { return nil, errors.New("no template") }}
	cases := len(probeCases)
	tests := []struct {
		name      string
		engine    string
		toy       *toyEngine
		local     Local
		confirmed int
		diverged  int
		unknown   int
		generated int
		detail    string
	}{
		{"vllm", VLLM, &toyEngine{}, right, cases + 1, 0, 0, 0, "tokens"},
		{"sglang", SGLang, &toyEngine{sglang: true}, right, cases + 1, 0, 0, 0, ""},
		{"sglang, tools by generating", SGLang, &toyEngine{sglang: true, old: true}, right, cases + 1, 0, 0, 3, ""},
		{"engine without messages in /tokenize", SGLang, &toyEngine{sglang: true, noChat: true}, right, cases + 1, 0, 0, 7, ""},
		{"engine that tells nothing of chats", SGLang, &toyEngine{sglang: true, noChat: true, noGenerate: true}, right, 2, 0, cases - 1, 7, "has no token ids"},
		{"tool results differ", VLLM, &toyEngine{}, wrongTools, cases, 1, 0, 0, "token 5 differs"},
		{"nothing here", VLLM, &toyEngine{}, fails, 0, 0, cases, 0, "not tokenized here: no template"},
		{"strange answers", VLLM, &toyEngine{strange: true}, right, 0, 0, cases + 1, 0, "has no token ids"},
	}
	for _, tt := range tests {
		client, base := server(t, tt.toy)
		all, err := Parity(t.Context(), client, base, tt.engine, "m", tt.local)
		if err != nil {
			t.Fatal(err)
		}
		n, seen := map[Outcome]int{}, false
		for _, v := range all {
			n[v.Outcome]++
			seen = seen || strings.Contains(v.Detail, tt.detail)
			if v.Detail == "" || v.Case == "" {
				t.Errorf("%s: verdict %+v without case or detail", tt.name, v)
			}
		}
		if n[Confirmed] != tt.confirmed || n[Diverged] != tt.diverged || n[Unknown] != tt.unknown || tt.toy.generated != tt.generated || !seen {
			t.Errorf("%s: %d confirmed, %d diverged, %d unknown, %d generated; want %d, %d, %d, %d and %q\n%+v",
				tt.name, n[Confirmed], n[Diverged], n[Unknown], tt.toy.generated, tt.confirmed, tt.diverged, tt.unknown, tt.generated, tt.detail, all)
		}
		want := Unknown
		if tt.diverged > 0 {
			want = Diverged
		} else if tt.confirmed > 0 {
			want = Confirmed
		}
		if got := Worst(all); got != want {
			t.Errorf("%s: worst %v, want %v", tt.name, got, want)
		}
	}
	// Both refusing is agreement: the template raises.
	client, base := server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }))
	all, err := Parity(t.Context(), client, base, VLLM, "m", fails)
	if err != nil || len(all) != cases || Worst(all) != Confirmed {
		t.Errorf("both refuse: %+v, error %v", all, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Parity(ctx, client, base, VLLM, "m", right); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: error %v, want context.Canceled", err)
	}
}

func TestVerdictPositions(t *testing.T) {
	for _, tt := range []struct {
		ours, theirs []block.Token
		outcome      Outcome
		at           int
		detail       string
	}{
		{[]block.Token{1, 2}, []block.Token{1, 2}, Confirmed, 0, "2 tokens"},
		{[]block.Token{1, 2}, []block.Token{1, 2, 3}, Diverged, 2, "token 2 differs: the end here, 3 there (2 and 3 tokens)"},
		{[]block.Token{9}, []block.Token{1, 2}, Diverged, 0, "token 0 differs: 9 here, 1 there (1 and 2 tokens)"},
		{nil, []block.Token{}, Confirmed, 0, "0 tokens"},
	} {
		var v Verdict
		v.compare(tt.ours, nil, tt.theirs, nil)
		if v.Outcome != tt.outcome || v.At != tt.at || v.Detail != tt.detail {
			t.Errorf("%v against %v: %+v, want %v at %d: %s", tt.ours, tt.theirs, v, tt.outcome, tt.at, tt.detail)
		}
	}
}

package fakeengine

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// routes is everything the engine serves. Pages that only other engines have are not there.
func (e *Engine) routes() http.Handler {
	mux := http.NewServeMux()
	on := func(method, path string, h http.HandlerFunc) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != method && !(method == http.MethodGet && r.Method == http.MethodHead) {
				w.Header().Set("Allow", method)
				e.reply(w, http.StatusMethodNotAllowed, object("detail", "Method Not Allowed"))
				return
			}
			h(w, r)
		})
	}
	get := func(path string, h http.HandlerFunc) { on(http.MethodGet, path, h) }
	post := func(path string, h http.HandlerFunc) { on(http.MethodPost, path, h) }

	post("/v1/chat/completions", e.generate(tokenize.Chat))
	post("/v1/completions", e.generate(tokenize.Completions))
	get("/v1/models", e.models)
	get("/health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{e})
	get("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP)
	switch e.cfg.Dialect {
	case VLLM:
		get("/ping", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
		get("/version", func(w http.ResponseWriter, _ *http.Request) { e.reply(w, 200, object("version", e.cfg.Version)) })
		post("/reset_prefix_cache", e.resetPrefixCache)
		if e.wire.eventSources {
			get("/kv_event_sources", e.eventSources)
		}
	case SGLang:
		get("/health_generate", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
		get("/server_info", e.serverInfo)
		get("/get_server_info", e.serverInfo)
		get("/model_info", e.modelInfo)
		get("/get_model_info", e.modelInfo)
		on(http.MethodPost, "/flush_cache", e.flushCache)
	case ATOM:
		get("/server_info", e.serverInfo)
	case TRTLLM:
		get("/version", func(w http.ResponseWriter, _ *http.Request) { e.reply(w, 200, object("version", e.cfg.Version)) })
		post("/kv_cache_events", e.pollEvents)
	}
	if e.cfg.Dialect == VLLM || e.cfg.Dialect == SGLang {
		post("/tokenize", e.tokenizePage)
		post("/detokenize", e.detokenizePage)
	}
	mux.HandleFunc("/fault", e.faultPage)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		e.reply(w, http.StatusNotFound, object("detail", "Not Found"))
	})
	return mux
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	created := e.started.Unix()
	owner := string(e.cfg.Dialect)
	list := []json.RawMessage{object("id", e.cfg.Model, "object", "model", "created", created, "owned_by", owner,
		"root", e.cfg.Model, "parent", nil, "max_model_len", e.cfg.MaxModelLen)}
	for _, a := range e.cfg.Adapters {
		list = append(list, object("id", a, "object", "model", "created", created, "owned_by", owner,
			"root", a, "parent", e.cfg.Model, "max_model_len", nil))
	}
	e.reply(w, http.StatusOK, object("object", "list", "data", list))
}

func (e *Engine) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	err := e.ResetCache()
	if e.wire.resetJSON {
		e.reply(w, http.StatusOK, object("success", err == nil))
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (e *Engine) flushCache(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if e.ResetCache() != nil {
		w.WriteHeader(http.StatusBadRequest)
	}
	io.WriteString(w, "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n") //nolint:errcheck // the client has gone
}

// eventSources lists the publishers, by rank.
func (e *Engine) eventSources(w http.ResponseWriter, _ *http.Request) {
	var pairs []any
	for i := range e.ranks {
		events, replay := e.Endpoints(i)
		if events == "" {
			continue
		}
		pairs = append(pairs, itoa(i), object(
			"enable_kv_cache_events", true, "publisher", "zmq", "endpoint", e.stated(events, e.cfg.EventsDial), "replay_endpoint", orNull(e.stated(replay, false)),
			"buffer_steps", e.cfg.Buffer, "hwm", 100000, "max_queue_size", 100000, "topic", e.cfg.Topic,
		))
	}
	e.reply(w, http.StatusOK, object(pairs...))
}

// stated is an endpoint as the engines' pages say it. Those listen only where their own setting has a *
// for the host, so that is what the pages say of a socket that listens; readers put in the host they know.
func (e *Engine) stated(at string, dials bool) string {
	if _, n, err := splitEndpoint(at); at == "" || dials || err != nil || n < 0 {
		return at
	}
	return fmt.Sprintf("tcp://*:%d", port(at))
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func itoa(n int) string { return string(encodeJSON(n)) }

// serverInfo is SGLang's own page, with what routers read of it: arguments flat, the event publisher, and
// one state for each rank.
func (e *Engine) serverInfo(w http.ResponseWriter, _ *http.Request) {
	tokens := e.cfg.Capacity * e.cfg.BlockSize
	size := e.faults.blockSize(e.cfg.ReportBlockSize)
	var events any = omit{}
	if at, replay := e.Endpoints(0); at != "" && e.wire.serverEvents {
		host, _, _ := splitEndpoint(e.stated(at, e.cfg.EventsDial))
		events = object(
			"publisher", "zmq", "endpoint_host", host, "endpoint_port_base", port(at), "topic", e.cfg.Topic,
			"block_size", size, "dp_size", e.cfg.Ranks, "replay_endpoint_port_base", optional(replay != "", port(replay)),
		)
	}
	var states []json.RawMessage
	for range e.ranks {
		states = append(states, object(
			"page_size", size, "effective_max_running_requests_per_dp", e.cfg.MaxSeqs,
			"last_gen_throughput", 0.0, "memory_usage", object("token_capacity", tokens),
		))
	}
	e.reply(w, http.StatusOK, object(
		"model_path", e.cfg.Model, "tokenizer_path", e.cfg.Model, "served_model_name", e.cfg.Model,
		"context_length", e.cfg.MaxModelLen, "page_size", size, "dp_size", e.cfg.Ranks, "tp_size", 1,
		"max_running_requests", e.cfg.MaxSeqs, "max_total_tokens", tokens, "chunked_prefill_size", e.cfg.Budget,
		"decode_log_interval", 40, "load_balance_method", "round_robin", "enable_cache_report", true, "enable_metrics", true,
		"disaggregation_mode", "null", "disaggregation_bootstrap_port", 8998, "incremental_streaming_output", false,
		"default_chat_template_kwargs", nil, "max_total_num_tokens", tokens,
		"kv_events", events, "internal_states", states, "version", e.cfg.Version,
	))
}

func (e *Engine) modelInfo(w http.ResponseWriter, _ *http.Request) {
	e.reply(w, http.StatusOK, object("model_path", e.cfg.Model, "tokenizer_path", e.cfg.Model, "is_generation", true))
}

// tokenizePage gives the ids that the engine uses for a prompt or for messages.
func (e *Engine) tokenizePage(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		e.refuse(w, bad("", "reading the body: %v", err))
		return
	}
	var a struct {
		ask
		AddSpecial *bool `json:"add_special_tokens"`
	}
	if no := readJSON(body, &a); no != nil {
		e.refuse(w, no)
		return
	}
	ep := tokenize.Completions
	if len(a.Messages) > 0 {
		ep = tokenize.Chat
	}
	if a.AddSpecial != nil && !*a.AddSpecial && ep == tokenize.Completions {
		e.refuse(w, bad("add_special_tokens", "This stand-in always adds special tokens to a plain prompt."))
		return
	}
	prompts, no := e.prompts(r.Context(), ep, body, &a.ask)
	if no != nil {
		e.refuse(w, no)
		return
	}
	ids := prompts[0]
	if e.cfg.Dialect == SGLang {
		e.reply(w, http.StatusOK, object("tokens", ids, "count", len(ids), "max_model_len", e.cfg.MaxModelLen))
		return
	}
	e.reply(w, http.StatusOK, object("count", len(ids), "max_model_len", e.cfg.MaxModelLen, "tokens", ids, "token_strs", nil))
}

func (e *Engine) detokenizePage(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		e.refuse(w, bad("", "reading the body: %v", err))
		return
	}
	var a struct {
		Tokens []block.Token `json:"tokens"`
	}
	if no := readJSON(body, &a); no != nil {
		e.refuse(w, no)
		return
	}
	if e.cfg.Vocabulary == nil {
		e.refuse(w, bad("", "This engine has no vocabulary to decode with."))
		return
	}
	text, err := e.cfg.Vocabulary.Decode(a.Tokens)
	if err != nil {
		e.refuse(w, bad("tokens", "%v", err))
		return
	}
	name := "prompt"
	if e.cfg.Dialect == SGLang {
		name = "text"
	}
	e.reply(w, http.StatusOK, object(name, text))
}

// faultPage takes commands, and shows what the engine has counted.
func (e *Engine) faultPage(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
		dec.DisallowUnknownFields()
		var f Fault
		err := dec.Decode(&f)
		if err == nil {
			err = f.validate(e.cfg.Ranks)
		}
		if err != nil {
			e.refuse(w, bad("", "not a fault: %v", err))
			return
		}
		if f.Crash == nil && f.Restart == nil && f.Exit == nil {
			if err := e.Fault(f); err != nil {
				e.refuse(w, bad("", "%v", err))
				return
			}
			e.reply(w, http.StatusOK, object("ok", true))
			return
		}
		// The answer goes out before the engine does.
		e.reply(w, http.StatusOK, object("ok", true))
		http.NewResponseController(w).Flush() //nolint:errcheck // then the client sees the connection end
		e.after(time.Millisecond, func() {
			e.Fault(f) //nolint:errcheck // nobody is left to tell
		})
	case http.MethodGet:
		e.reply(w, http.StatusOK, e.Stats())
	default:
		w.Header().Set("Allow", "GET, POST")
		e.reply(w, http.StatusMethodNotAllowed, object("detail", "Method Not Allowed"))
	}
}

// poll keeps events for TensorRT-LLM's POST /kv_cache_events, which drains them.
type poll struct {
	mu     sync.Mutex
	next   int
	window int // attention window: the model's length
	events []json.RawMessage
}

// begin starts over and says how large the pools are, as the engine does first. With events over ZeroMQ
// there is nothing to poll.
func (p *poll) begin(c *Config) {
	p.mu.Lock()
	p.next, p.events, p.window = 0, nil, c.MaxModelLen
	p.mu.Unlock()
	if c.Events != "" {
		return
	}
	for i := range c.Ranks {
		p.add(object("type", "created", "num_blocks_per_cache_level", []int{c.Capacity, 0}), i, c.Ranks)
	}
}

// maxPolled bounds what waits to be polled; the oldest go first.
const maxPolled = 65536

func (p *poll) add(data json.RawMessage, rank, ranks int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, object("event_id", p.next, "data", data, "window_size", p.window,
		"attention_dp_rank", optional(ranks > 1, rank)))
	p.next++
	if over := len(p.events) - maxPolled; over > 0 {
		p.events = append(p.events[:0:0], p.events[over:]...)
	}
}

func (p *poll) drain() []json.RawMessage {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.events
	p.events = nil
	if out == nil {
		out = []json.RawMessage{}
	}
	return out
}

func (e *Engine) pollEvents(w http.ResponseWriter, _ *http.Request) {
	e.reply(w, http.StatusOK, e.polled.drain())
}

// collect puts a rank's events into the polled form. There is no event for an emptied cache: the engine
// reports what was removed.
func (p *poll) collect(c *Config, h hasher, rank int, events []event) {
	for _, ev := range events {
		switch ev.kind {
		case stored:
			var parent any
			if ev.first > 0 {
				parent = h.handle(ev.parent)
			}
			var blocks []json.RawMessage
			for i, d := range ev.blocks {
				var ids []json.RawMessage
				for _, t := range ev.tokens[i*c.BlockSize : (i+1)*c.BlockSize] {
					ids = append(ids, object("type", "unique_token", "token_id", t, "token_extra_id", 0))
				}
				blocks = append(blocks, object("type", "stored_block", "block_hash", h.handle(d), "tokens", ids, "cache_level", 0, "priority", 35))
			}
			p.add(object("type", "stored", "parent_hash", parent, "blocks", blocks), rank, c.Ranks)
		case removed:
			var list []uint64
			for _, d := range ev.blocks {
				list = append(list, h.handle(d))
			}
			p.add(object("type", "removed", "block_hashes", list), rank, c.Ranks)
		}
	}
}

// collector gives the numbers of /metrics under the engine's names.
type collector struct{ e *Engine }

// Describe says nothing: names depend on the engine, and are checked when collected.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all ranks.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	e := c.e
	var names, labels []string
	value := func(kind prometheus.ValueType, name, help string, v float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, labels...)
	}
	gauge := func(name, help string, v float64) { value(prometheus.GaugeValue, name, help, v) }
	count := func(name, help string, v uint64) { value(prometheus.CounterValue, name, help, float64(v)) }
	size := itoa(e.faults.blockSize(e.cfg.ReportBlockSize))
	for i, r := range e.ranks {
		s := r.snapshot()
		usage := float64(s.UsedBlocks) / float64(e.cfg.Capacity)
		if e.cfg.Dialect == SGLang {
			names, labels = []string{"model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank"}, []string{e.cfg.Model, "unified", "0", "0", itoa(i)}
			gauge("sglang:num_running_reqs", "The number of running requests.", float64(s.Running))
			gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.", float64(s.Waiting))
			gauge("sglang:token_usage", "The token usage.", usage)
			gauge("sglang:num_used_tokens", "The number of used tokens.", float64(s.UsedBlocks*e.cfg.BlockSize))
			gauge("sglang:max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", float64(e.cfg.Capacity*e.cfg.BlockSize))
			gauge("sglang:cache_hit_rate", "The prefix cache hit rate.", share(s.CachedTokens, s.PromptTokens))
			count("sglang:cached_tokens_total", "Number of cached prompt tokens.", s.CachedTokens)
			count("sglang:prompt_tokens_total", "Number of prefill tokens processed.", s.PromptTokens)
			count("sglang:generation_tokens_total", "Number of generation tokens processed.", s.OutputTokens)
			count("sglang:num_retracted_requests_total", "Number of retracted requests.", s.Preemptions)
			count("sglang:num_aborted_requests_total", "Number of requests aborted.", s.Aborted)
			continue
		}
		names, labels = []string{"model_name", "engine"}, []string{e.cfg.Model, itoa(i)}
		gauge("vllm:num_requests_running", "Number of requests in model execution batches.", float64(s.Running))
		gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", float64(s.Waiting))
		gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage)
		count("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", s.PromptTokens)
		count("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", s.CachedTokens)
		count("vllm:prompt_tokens_total", "Number of prefill tokens processed.", s.PromptTokens)
		count("vllm:generation_tokens_total", "Number of generation tokens processed.", s.OutputTokens)
		count("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", s.Preemptions)
		count("vllm:aborted_requests_total", "Requests whose client left (of this stand-in only).", s.Aborted)
		names = []string{"block_size", "num_gpu_blocks", "kv_cache_size_tokens", "enable_prefix_caching", "prefix_caching_hash_algo", "cache_dtype", "engine"}
		labels = []string{size, itoa(e.cfg.Capacity), itoa(e.cfg.Capacity * e.cfg.BlockSize), "True", "sha256_cbor", "auto", itoa(i)}
		gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", 1)
	}
}

func share(part, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return float64(part) / float64(all)
}

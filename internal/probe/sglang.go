package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strconv"
	"strings"
)

// serverInfo is what is read of GET /server_info, of SGLang and of ATOM.
type serverInfo struct {
	err error

	Version        string            `json:"version"`
	PageSize       int               `json:"page_size"`
	BlockSize      int               `json:"block_size"`
	KVBlockSize    int               `json:"kv_cache_block_size"`
	DCPSize        int               `json:"dcp_size"`
	DPSize         int               `json:"dp_size"`
	MaxTotalTokens int64             `json:"max_total_num_tokens"`
	KVEvents       *sglangEvents     `json:"kv_events"`
	KVEventsConfig json.RawMessage   `json:"kv_events_config"`
	TemplateKwargs json.RawMessage   `json:"default_chat_template_kwargs"`
	Disaggregation string            `json:"disaggregation_mode"`
	BootstrapPort  int               `json:"disaggregation_bootstrap_port"`
	ToolParser     string            `json:"tool_call_parser"`
	Reasoning      string            `json:"reasoning_parser"`
	InternalStates []json.RawMessage `json:"internal_states"`
}

// sglangEvents is how SGLang describes its event streams since May 2026.
type sglangEvents struct {
	Publisher  string `json:"publisher"`
	Host       string `json:"endpoint_host"`
	Port       int    `json:"endpoint_port_base"`
	ReplayHost string `json:"replay_endpoint_host"`
	ReplayPort int    `json:"replay_endpoint_port_base"`
	Topic      string `json:"topic"`
	BlockSize  int    `json:"block_size"`
	DPSize     int    `json:"dp_size"`
}

// serverInfo asks for it under the name it has now and the one it had.
func (a *api) serverInfo(ctx context.Context) (s serverInfo) {
	err := a.getJSON(ctx, "/server_info", &s)
	if status(err) == 404 {
		err = a.getJSON(ctx, "/get_server_info", &s)
	}
	s.err = err
	return s
}

// sglang reads what SGLang says in /server_info.
func (a *api) sglang(ctx context.Context, info *Info, s serverInfo) {
	if s.err == nil && s.Version == "" && s.PageSize == 0 {
		s = a.serverInfo(ctx)
	}
	if s.err != nil {
		for _, what := range []string{"version", "block size", "size of the cache", "data-parallel size", "event endpoints", "default arguments of the chat template"} {
			info.unknown(what, s.err)
		}
		return
	}
	if info.Version = s.Version; info.Version == "" {
		info.unknown("version", "/server_info does not say")
	}
	info.DPSize, info.BlockSize = max(s.DPSize, 0), max(s.PageSize, 0)*max(s.DCPSize, 1)
	if s.KVEvents != nil && s.KVEvents.BlockSize > 0 {
		info.BlockSize = s.KVEvents.BlockSize
	}
	if info.BlockSize == 0 {
		info.unknown("block size", "/server_info has no page_size")
	}
	if info.DPSize == 0 {
		info.unknown("data-parallel size", "/server_info has no dp_size")
	}
	a.sglangPool(info, &s)
	a.sglangEvents(info, &s)
	if k := bytes.TrimSpace(s.TemplateKwargs); len(k) > 0 && k[0] == '{' {
		info.TemplateKwargs = k
	} else if len(k) > 0 && k[0] == '"' {
		var text string
		if json.Unmarshal(k, &text) == nil && strings.HasPrefix(text, "{") && json.Valid([]byte(text)) {
			info.TemplateKwargs = json.RawMessage(text)
		}
	} else if len(k) == 0 {
		info.unknown("default arguments of the chat template", "/server_info does not say")
	}
	if s.Disaggregation == "prefill" || s.Disaggregation == "decode" {
		info.Role, info.BootstrapPort = s.Disaggregation, s.BootstrapPort
	}
	info.ToolParser, info.ReasoningParser = s.ToolParser, s.Reasoning
}

// sglangPool reads the size of the cache and the limit of running requests, of the smallest rank.
func (a *api) sglangPool(info *Info, s *serverInfo) {
	tokens := s.MaxTotalTokens
	for _, raw := range s.InternalStates {
		var state struct {
			Running int `json:"effective_max_running_requests_per_dp"`
			Memory  struct {
				Capacity int64 `json:"token_capacity"`
			} `json:"memory_usage"`
		}
		if json.Unmarshal(raw, &state) != nil {
			continue
		}
		if c := state.Memory.Capacity; c > 0 && (tokens <= 0 || c < tokens) {
			tokens = c
		}
		if r := state.Running; r > 0 && (info.MaxRunning == 0 || r < info.MaxRunning) {
			info.MaxRunning = r
		}
	}
	if tokens > 0 && info.BlockSize > 0 {
		info.PoolBlocks = tokens / int64(info.BlockSize)
	} else {
		info.unknown("size of the cache", "/server_info has neither max_total_num_tokens nor token_capacity")
	}
}

// sglangEvents reads kv_events, or the configuration text that was there before it.
func (a *api) sglangEvents(info *Info, s *serverInfo) {
	live, replay, topic, publisher := "", "", "", ""
	if e := s.KVEvents; e != nil {
		publisher, topic = e.Publisher, e.Topic
		live = sglangEndpoint(e.Host, e.Port)
		host := e.ReplayHost
		if host == "" {
			host = "*" // replay sockets always listen
		}
		replay = sglangEndpoint(host, e.ReplayPort)
	} else {
		var text string
		config := []byte(s.KVEventsConfig)
		if json.Unmarshal(config, &text) == nil {
			config = []byte(text)
		}
		var c struct {
			Publisher string `json:"publisher"`
			Endpoint  string `json:"endpoint"`
			Replay    string `json:"replay_endpoint"`
			Topic     string `json:"topic"`
		}
		if len(config) > 0 && json.Unmarshal(config, &c) == nil {
			publisher, live, topic, replay = c.Publisher, c.Endpoint, c.Topic, c.Replay
		}
		if publisher == "zmq" && live == "" {
			live = "tcp://*:5557" // what SGLang takes where nothing is said
		}
	}
	switch publisher {
	case "zmq":
	case "", "null":
		info.unknown("event endpoints", "events are off; start SGLang with --kv-events-config")
		return
	default:
		info.unknown("event endpoints", "the publisher is "+strconv.Quote(publisher)+", not zmq")
		return
	}
	var err error
	if live, err = a.endpoint(live); err != nil {
		info.unknown("event endpoints", err)
		return
	}
	info.Events = Events{Live: live, Topic: topic}
	if replay == "" {
		info.unknown("replay", "none is configured: what was before the first event stays unknown")
	} else if info.Events.Replay, err = a.endpoint(replay); err != nil {
		info.unknown("replay", err)
	}
}

func sglangEndpoint(host string, port int) string {
	if port <= 0 {
		return ""
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// plusPort adds to the port of an endpoint; "" stays "".
func plusPort(endpoint string, n int) string {
	at := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[at+1:])
	if at < 0 || err != nil {
		return endpoint
	}
	return endpoint[:at+1] + strconv.Itoa(port+n)
}

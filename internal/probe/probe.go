// Package probe asks a running engine over HTTP what it is, how it does, and how it makes tokens.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// The engines that are told apart.
const (
	VLLM   = "vllm"
	SGLang = "sglang"
	ATOM   = "atom"
	TRTLLM = "trtllm"
)

// Info is what an engine says of itself. Numbers are 0 and texts empty where it does not say; Unknown then
// has the reason.
type Info struct {
	Engine  string
	Version string
	// Models are the entries of /v1/models, base models and adapters.
	Models []Model
	// BlockSize is the number of tokens in one block of the engine's cache.
	BlockSize int
	// PoolBlocks is the number of blocks in the cache of one rank, as the engine counts them.
	PoolBlocks int64
	// DPSize is the number of data-parallel ranks behind the URL, at least 1 where it is known.
	DPSize int
	// Events are the endpoints of rank 0, in the form that a port for each rank follows from; Sources are
	// those of every rank where the engine lists them itself.
	Events  Events
	Sources []Source
	// TemplateKwargs are the engine's default arguments of the chat template, a JSON object.
	TemplateKwargs json.RawMessage
	// Role is "prefill" or "decode" for one half of a split deployment.
	Role          string
	BootstrapPort int // SGLang: where a prefill engine hands over
	MaxRunning    int // requests of one rank that may run at once
	// ToolParser and ReasoningParser are the names of the engine's parsers, "" if none or not told.
	ToolParser, ReasoningParser string
	// Unknown says what is not known, and why: "block size: GET /metrics answered 404".
	Unknown []string
}

// Model is one entry of /v1/models.
type Model struct {
	ID          string
	Parent      string // base model of an adapter; "" for a base model
	Root        string
	MaxModelLen int             // tokens; 0: not said
	Raw         json.RawMessage // the entry as it came
}

// Events are the endpoints of an event stream, reachable from here: "tcp://host:port".
type Events struct {
	Live   string // "": none
	Replay string // "": none
	Topic  string
}

// Source is the event stream of one rank.
type Source struct {
	Rank int
	Events
}

// BaseModel is the first model that is no adapter, "" if there is none.
func (i *Info) BaseModel() string {
	for _, m := range i.Models {
		if m.Parent == "" {
			return m.ID
		}
	}
	return ""
}

// Adapters are the ids of the models that are adapters.
func (i *Info) Adapters() []string {
	var out []string
	for _, m := range i.Models {
		if m.Parent != "" {
			out = append(out, m.ID)
		}
	}
	return out
}

func (i *Info) unknown(what string, why any) {
	i.Unknown = append(i.Unknown, fmt.Sprintf("%s: %v", what, why))
}

// ErrNotReady is wrapped by errors of engines that answer and do not serve yet.
var ErrNotReady = errors.New("the engine is not ready")

// Probe asks the engine behind base, an address without a path. engine is what it was configured as, ""
// if nothing was said. Only /v1/models has to be answered; what else is missing is named in Info.Unknown.
func Probe(ctx context.Context, client *http.Client, base *url.URL, engine string) (Info, error) {
	a := api{client: client, base: base}
	var info Info
	owner, err := a.models(ctx, &info)
	if err != nil {
		return Info{}, fmt.Errorf("probing %s: %w", base.Host, err)
	}
	found, server := a.identify(ctx, owner, engine)
	info.Engine = found
	switch {
	case found == "":
		info.Engine = engine
		if engine == "" {
			info.unknown("engine", "it answers like none of vllm, sglang, atom, trtllm; name it with engine=")
		}
	case engine != "" && found != engine:
		info.unknown("engine", "configured as "+engine+", answers like "+found)
		info.Engine = engine
	}
	switch info.Engine {
	case VLLM:
		a.vllm(ctx, &info)
	case SGLang:
		a.sglang(ctx, &info, server)
	default:
		a.other(ctx, &info, server)
	}
	if err := ctx.Err(); err != nil { // half an answer must not pass for what the engine says
		return Info{}, fmt.Errorf("probing %s: %w", base.Host, err)
	}
	return info, nil
}

// Health asks whether the engine serves: nil if it does. With SGLang this may run a generation of one
// token, so it is not for every second.
func Health(ctx context.Context, client *http.Client, base *url.URL) error {
	a := api{client: client, base: base}
	if _, err := a.get(ctx, "/health"); err != nil {
		return fmt.Errorf("checking the health of %s: %w", base.Host, err)
	}
	return nil
}

// models reads /v1/models and returns who owns the first.
func (a *api) models(ctx context.Context, info *Info) (owner string, err error) {
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := a.getJSON(ctx, "/v1/models", &list); err != nil {
		return "", err
	}
	for _, raw := range list.Data {
		var m struct {
			ID          string  `json:"id"`
			Root        string  `json:"root"`
			Parent      *string `json:"parent"`
			OwnedBy     string  `json:"owned_by"`
			MaxModelLen int     `json:"max_model_len"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return "", fmt.Errorf("GET /v1/models: an entry that is no model: %w", err)
		}
		if m.ID == "" {
			return "", errors.New("GET /v1/models: a model without id")
		}
		model := Model{ID: m.ID, Root: m.Root, MaxModelLen: max(m.MaxModelLen, 0), Raw: raw}
		if m.Parent != nil {
			model.Parent = *m.Parent
		}
		info.Models = append(info.Models, model)
		if owner == "" {
			owner = m.OwnedBy
		}
	}
	if len(info.Models) == 0 {
		return "", fmt.Errorf("%w: GET /v1/models lists no model", ErrNotReady)
	}
	if info.Models[0].MaxModelLen == 0 {
		info.unknown("greatest length of a prompt", "GET /v1/models does not say max_model_len")
	}
	return owner, nil
}

// identify tells the engine by the owner it names for its models, else by what only one of them has. The
// answer of /server_info comes along where it was asked for.
func (a *api) identify(ctx context.Context, owner, hint string) (engine string, server serverInfo) {
	switch strings.ToLower(owner) {
	case "vllm":
		engine = VLLM
	case "sglang":
		engine = SGLang
	case "atom":
		engine = ATOM
	case "tensorrt_llm", "tensorrt-llm", "trtllm":
		engine = TRTLLM
	}
	if engine == VLLM || engine == TRTLLM || engine == "" && hint == VLLM {
		if engine == "" && a.speaks(ctx, "vllm") {
			engine = VLLM
		}
		return engine, serverInfo{}
	}
	server = a.serverInfo(ctx)
	if engine == "" {
		switch {
		case server.KVEvents != nil || server.InternalStates != nil:
			engine = SGLang
		case a.speaks(ctx, "vllm"):
			engine = VLLM
		case a.speaks(ctx, "sglang"):
			engine = SGLang
		}
	}
	return engine, server
}

// speaks tells whether the engine's metrics have a prefix.
func (a *api) speaks(ctx context.Context, prefix string) bool {
	families, err := a.metrics(ctx)
	if err != nil {
		return false
	}
	for name := range families {
		if strings.HasPrefix(name, prefix+":") || strings.HasPrefix(name, prefix+"_") {
			return true
		}
	}
	return false
}

// other reads what an engine without a page of its own here may say.
func (a *api) other(ctx context.Context, info *Info, server serverInfo) {
	info.Version = server.Version
	if info.Version == "" {
		info.Version = a.version(ctx, info)
	}
	if info.BlockSize = max(server.BlockSize, server.KVBlockSize, server.PageSize, 0); info.BlockSize == 0 {
		info.unknown("block size", "the engine does not say; give block-size=, or it comes from events")
	}
	if info.DPSize = max(server.DPSize, 0); info.DPSize == 0 {
		info.unknown("data-parallel size", "the engine does not say; give dp-size=")
	}
	info.unknown("size of the cache", "the engine does not say")
	info.unknown("event endpoints", "the engine does not say; give events=")
	info.unknown("default arguments of the chat template", "the engine does not say")
}

func (a *api) version(ctx context.Context, info *Info) string {
	var v struct {
		Version string `json:"version"`
	}
	if err := a.getJSON(ctx, "/version", &v); err != nil {
		info.unknown("version", err)
	} else if v.Version == "" {
		info.unknown("version", "GET /version does not say")
	}
	return v.Version
}

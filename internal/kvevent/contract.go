// Package kvevent reads the KV cache events of engines: msgpack batches of vLLM, SGLang, ATOM and
// TensorRT-LLM in all their forms, TensorRT-LLM's polled JSON, and the frames they come in. It turns
// them into operations of the index. It does no I/O; package feed follows streams.
package kvevent

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
)

// Kind says what an Event does.
type Kind uint8

// The kinds.
const (
	Stored Kind = iota + 1
	Removed
	Cleared
	Moved // ATOM's BlockTransferred, TensorRT-LLM's updated: handles go from From to Tier
)

// Event is one event as the engine sent it, forms made equal. Slices belong to the Batch it is in.
type Event struct {
	Kind       Kind
	Handles    []index.Handle
	Parent     index.Handle
	HasParent  bool
	Tokens     []block.Token // the first of each pair where the engine sends pairs
	PageSize   int           // block_size as sent; 0: not sent
	Tier       index.Tier
	From       index.Tier
	AnyTier    bool   // no medium was sent: stores mean GPU, removals mean every tier
	Adapter    string // lora_name, or "lora_id:<n>" where only that was sent
	Salt       string // cache_salt where it is a field of its own
	Extra      []Extra
	Group      int // group_idx; -1: not sent
	Spec       string
	Window     int
	Incomplete bool // tokens do not fit the handles: Mamba groups, other page size
}

// Extra is what the engine mixed into one block's hash beside its tokens (vLLM's extra_keys).
type Extra struct {
	Block int // index into Handles
	Key   string
}

// Batch is one decoded payload. Decode reuses its memory.
type Batch struct {
	Time    float64 // seconds since 1970, as sent
	Rank    int
	HasRank bool
	Events  []Event
	// Skipped counts events that were left out, by reason.
	Skipped map[string]int
	arena   arena
}

type arena struct{}

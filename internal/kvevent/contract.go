// Package kvevent reads the KV cache events of engines: msgpack batches of vLLM, SGLang, ATOM and
// TensorRT-LLM in all their forms, and TensorRT-LLM's polled JSON. It turns
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
	AnyTier    bool   // no medium was sent: stores mean GPU, removals and clears mean every tier
	Adapter    string // lora_name, or "lora_id:<n>" where only that was sent
	Salt       string // cache_salt where it is a field of its own
	Extra      []Extra
	Group      int // group_idx; -1: not sent
	Spec       string
	Window     int
	Incomplete bool // tokens do not fit the handles: Mamba groups, other page size, hashes alone
}

// Extra is what the engine mixed into one block's hash beside its tokens (vLLM's extra_keys).
type Extra struct {
	Block int // index into Handles, ascending
	Key   string
}

// Batch is one decoded payload. Decode reuses its memory; the zero value is ready.
type Batch struct {
	Time    float64 // seconds since 1970, as sent
	Rank    int
	HasRank bool
	Events  []Event
	// Skipped counts what was left out, by reason (the Skip constants): events, and a rank that is none.
	Skipped map[string]int
	// Fields counts the fields of known events that nobody knew and that were passed over.
	Fields int
	// Signed: a handle was negative, which only SGLang's are. Grouped: a field was there that vLLM and
	// ATOM send and SGLang does not (extra_keys, group_idx). They help to tell who sends.
	Signed  bool
	Grouped bool
	arena   arena
}

// arena holds what events point into.
type arena struct {
	handles []index.Handle
	tokens  []block.Token
	extra   []Extra
}

// Reasons in Batch.Skipped. They are label values of metrics.
const (
	SkipUnknownKind   = "unknown kind"   // a tag from after our time
	SkipNotEvent      = "not an event"   // neither array nor map
	SkipNoKind        = "no kind"        // without a tag
	SkipHandles       = "bad handles"    // missing, or not a list of integers and byte strings
	SkipTokens        = "bad tokens"     // not a list, or ids outside 32 bits
	SkipPageSize      = "bad block size" // not a positive number
	SkipMedium        = "unknown medium" // a tier we cannot place
	SkipField         = "bad field"      // another known field of the wrong type
	SkipRank          = "bad rank"       // the rank is not one; the batch counts as without
	SkipSmallerWindow = "smaller window" // TensorRT-LLM: a chain of a shorter attention window
	SkipPartialBlock  = "partial block"  // TensorRT-LLM: a block that is not full
)

func (b *Batch) skip(reason string) {
	if b.Skipped == nil {
		b.Skipped = map[string]int{}
	}
	b.Skipped[reason]++
}

// reset empties the batch and keeps its memory.
func (b *Batch) reset() {
	clear(b.Skipped)
	*b = Batch{Skipped: b.Skipped, Events: b.Events[:0], arena: arena{
		handles: b.arena.handles[:0], tokens: b.arena.tokens[:0], extra: b.arena.extra[:0],
	}}
}

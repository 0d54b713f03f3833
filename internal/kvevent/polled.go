package kvevent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/kvroute/kvroute/internal/index"
)

// Polled reads what TensorRT-LLM's POST /kv_cache_events answers: JSON, and each event once only. It is
// owned by one goroutine; the zero value is ready.
//
// With several attention windows only the chain of the largest counts: a store of a larger window than
// any before clears what was there. Blocks that are not full are left out.
type Polled struct {
	// PageSize is the number of tokens in a full block; 0: the largest block seen.
	PageSize int

	learned int // page size, as long as none is given
	window  int
	pool    []int64
}

// PolledBatch is a run of events of one rank, in the engine's order.
type PolledBatch struct {
	Batch
	// First and Last are the event_ids of the run. They rise by one an event over all ranks.
	First, Last uint64
}

// Pool is the number of blocks of each cache level as the engine announced it, GPU first; nil: unknown.
func (p *Polled) Pool() []int64 { return p.pool }

type polledEvent struct {
	ID     *uint64         `json:"event_id"`
	Data   json.RawMessage `json:"data"`
	Window *int            `json:"window_size"`
	Rank   *int            `json:"attention_dp_rank"`
}

type polledData struct {
	Type        string        `json:"type"`
	Pool        []int64       `json:"num_blocks_per_cache_level"`
	Parent      *polledHandle `json:"parent_hash"`
	Blocks      []polledBlock `json:"blocks"`
	BlockHashes polledHandles `json:"block_hashes"`
	BlockHash   *polledHandle `json:"block_hash"`
	Level       *struct {
		New *int `json:"new_value"`
		Old *int `json:"old_value"`
	} `json:"cache_level"`
}

type polledBlock struct {
	Hash   *polledHandle `json:"block_hash"`
	Tokens []struct {
		ID    *int64 `json:"token_id"`
		Extra int64  `json:"token_extra_id"`
	} `json:"tokens"`
	Level  int             `json:"cache_level"`
	LoraID *int64          `json:"lora_id"`
	Keys   json.RawMessage `json:"mm_keys"`
}

// polledHandle is a number, signed or not, or text: decimal, or the hexadecimal form of a digest, of
// which the last 64 bits count.
type polledHandle index.Handle

type polledHandles []polledHandle

var errHandle = errors.New("a block hash that is neither a number of 64 bits nor hexadecimal")

// UnmarshalJSON reads one.
func (h *polledHandle) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	base := 10
	if b[0] == '"' && (len(s) > 20 || strings.HasPrefix(s, "0x")) {
		s, base = strings.TrimPrefix(s, "0x"), 16
		s = s[max(0, len(s)-16):]
	}
	if v, err := strconv.ParseUint(s, base, 64); err == nil {
		*h = polledHandle(v)
		return nil
	}
	v, err := strconv.ParseInt(s, base, 64)
	if err != nil {
		return errHandle
	}
	*h = polledHandle(v)
	return nil
}

// Decode reads one answer: a list of events, or events one after the other. It returns them in runs of
// one rank. Events that cannot be read are skipped and counted with the run they stand in.
func (p *Polled) Decode(data []byte) ([]*PolledBatch, error) {
	if len(data) > DefaultMaxPayload {
		return nil, fmt.Errorf("decoding polled events: %w: longer than %d bytes", ErrBatch, DefaultMaxPayload)
	}
	events, err := polledEvents(data)
	if err != nil {
		return nil, fmt.Errorf("decoding polled events: %w: %w", ErrBatch, err)
	}
	var all []*PolledBatch
	for i := range events {
		e := &events[i]
		rank, hasRank := 0, e.Rank != nil
		if hasRank {
			rank = *e.Rank
		}
		n := len(all)
		if n == 0 || all[n-1].Rank != rank || all[n-1].HasRank != hasRank {
			b := &PolledBatch{Batch: Batch{Rank: rank, HasRank: hasRank}}
			if e.ID != nil {
				b.First = *e.ID
			}
			all = append(all, b)
		}
		b := all[len(all)-1]
		if e.ID != nil {
			b.Last = *e.ID
		}
		if reason := p.event(e, &b.Batch); reason != "" {
			b.skip(reason)
		}
	}
	return all, nil
}

func polledEvents(data []byte) ([]polledEvent, error) {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		var events []polledEvent
		if err := json.Unmarshal(data, &events); err != nil {
			return nil, err
		}
		return events, nil
	}
	var events []polledEvent
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var e polledEvent
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return events, nil
		} else if err != nil {
			return nil, fmt.Errorf("at byte %d: %w", dec.InputOffset(), err)
		}
		events = append(events, e)
	}
}

func (p *Polled) event(e *polledEvent, b *Batch) string {
	var d polledData
	if len(e.Data) == 0 {
		return SkipNoKind
	}
	if err := json.Unmarshal(e.Data, &d); errors.Is(err, errHandle) {
		return SkipHandles
	} else if err != nil {
		return SkipField
	}
	if e.Rank != nil && (*e.Rank < 0 || *e.Rank > maxRank) {
		return SkipRank
	}
	window := 0
	if e.Window != nil {
		window = *e.Window
	}
	if window < p.window {
		return SkipSmallerWindow
	}
	larger := p.window != 0 && window > p.window
	p.window = window
	if larger {
		b.Events = append(b.Events, Event{Kind: Cleared, Group: -1, AnyTier: true})
	}
	switch d.Type {
	case "created":
		p.pool = d.Pool
		return ""
	case "stored":
		return p.stored(&d, b)
	case "removed":
		hs := make([]index.Handle, len(d.BlockHashes))
		for i, h := range d.BlockHashes {
			hs[i] = index.Handle(h)
		}
		b.Events = append(b.Events, Event{Kind: Removed, Handles: hs, AnyTier: true, Group: -1})
		return ""
	case "updated":
		return polledMove(&d, b)
	case "":
		return SkipNoKind
	}
	return SkipUnknownKind
}

func levelTier(level int) (index.Tier, bool) {
	if level < 0 {
		return 0, false
	}
	return index.Tier(min(level, int(index.Disk))), true
}

func polledMove(d *polledData, b *Batch) string {
	if d.BlockHash == nil {
		return SkipHandles
	}
	if d.Level == nil {
		return "" // another priority: nothing that we keep
	}
	if d.Level.New == nil || d.Level.Old == nil {
		return SkipMedium
	}
	to, ok := levelTier(*d.Level.New)
	from, ok2 := levelTier(*d.Level.Old)
	if !ok || !ok2 {
		return SkipMedium
	}
	b.Events = append(b.Events, Event{Kind: Moved, Handles: []index.Handle{index.Handle(*d.BlockHash)}, Tier: to, From: from, Group: -1})
	return ""
}

// stored appends one event for each run of full blocks at one level. A block after one that is not full
// is not stored either: it has no place in a chain of full ones.
func (p *Polled) stored(d *polledData, b *Batch) string {
	parent, hasParent := index.Handle(0), d.Parent != nil
	if hasParent {
		parent = index.Handle(*d.Parent)
	}
	size := p.PageSize
	if size == 0 {
		size = p.learned
		for _, bl := range d.Blocks {
			size = max(size, len(bl.Tokens))
		}
		if p.learned != 0 && size > p.learned {
			// What was taken for full blocks were not, and has wrong places.
			b.Events = append(b.Events, Event{Kind: Cleared, Group: -1, AnyTier: true})
		}
		p.learned = size
	}
	var events []Event
	for i := range d.Blocks {
		e, reason := d.Blocks[i].event(parent, hasParent)
		if reason != "" {
			return reason
		}
		if len(e.Tokens) > size {
			return SkipPageSize
		}
		if len(e.Tokens) < size {
			b.skip(SkipPartialBlock)
			break
		}
		e.PageSize = size
		if n := len(events); n > 0 && events[n-1].Tier == e.Tier && events[n-1].Adapter == e.Adapter {
			last := &events[n-1]
			for _, x := range e.Extra {
				last.Extra = append(last.Extra, Extra{Block: len(last.Handles), Key: x.Key})
			}
			last.Handles = append(last.Handles, e.Handles...)
			last.Tokens = append(last.Tokens, e.Tokens...)
		} else {
			events = append(events, e)
		}
		parent, hasParent = e.Handles[0], true
	}
	b.Events = append(b.Events, events...)
	return ""
}

// event makes an Event of one block.
func (bl *polledBlock) event(parent index.Handle, hasParent bool) (Event, string) {
	e := Event{Kind: Stored, Parent: parent, HasParent: hasParent, Group: -1}
	if bl.Hash == nil {
		return e, SkipHandles
	}
	e.Handles = []index.Handle{index.Handle(*bl.Hash)}
	var ok bool
	if e.Tier, ok = levelTier(bl.Level); !ok {
		return e, SkipMedium
	}
	if bl.LoraID != nil {
		e.Adapter = "lora_id:" + strconv.FormatInt(*bl.LoraID, 10)
	}
	extra := int64(0)
	for _, t := range bl.Tokens {
		if t.ID == nil || *t.ID < 0 || *t.ID > 1<<32-1 {
			return e, SkipTokens
		}
		e.Tokens = append(e.Tokens, uint32(*t.ID))
		if t.Extra != 0 {
			extra = t.Extra
		}
	}
	if extra != 0 {
		e.Extra = append(e.Extra, Extra{Key: "token_extra_id:" + strconv.FormatInt(extra, 10)})
	}
	if k := bytes.TrimSpace(bl.Keys); len(k) > 0 && !bytes.Equal(k, []byte("null")) && !bytes.Equal(k, []byte("[]")) {
		e.Extra = append(e.Extra, Extra{Key: "mm_keys:" + string(k)})
	}
	return e, ""
}

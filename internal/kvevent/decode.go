package kvevent

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvroute/kvroute/internal/index"
)

// ErrBatch is wrapped by the errors of Decode and DecodePolled: nothing of the payload can be used. Its
// sequence number counts as received all the same.
var ErrBatch = errors.New("not a batch of events")

// DefaultMaxPayload is the longest payload a Decoder reads unless told otherwise. Engines put one
// scheduler step into a batch; the memory a payload needs is at most eight times its length.
const DefaultMaxPayload = 64 << 20

// maxRank bounds data-parallel ranks.
const maxRank = 1<<14 - 1

// Decoder reads msgpack batches. It is owned by one goroutine; the zero value is ready.
type Decoder struct {
	// MaxPayload is the greatest length of a payload in bytes; 0: DefaultMaxPayload.
	MaxPayload int

	r     reader
	names map[string]string
	size  int // bytes of names
}

// Decode reads one payload into b, whose memory it reuses: without new strings and once b is large
// enough, it does not allocate. The form of each event is told by its first byte. Events that cannot be
// read are skipped and counted in b.Skipped. On an error, which says where, b is empty; a payload with
// bytes after the batch is an error.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	b.reset()
	limit := d.MaxPayload
	if limit <= 0 {
		limit = DefaultMaxPayload
	}
	if len(payload) > limit {
		return fmt.Errorf("decoding a payload of %d bytes: %w: longer than %d bytes", len(payload), ErrBatch, limit)
	}
	d.r = reader{buf: payload}
	err := d.batch(b)
	if err == nil && d.r.left() > 0 {
		err = errors.New("bytes after the end of the batch")
	}
	at := d.r.pos
	d.r = reader{} // the payload is the caller's
	if err != nil {
		b.reset()
		return fmt.Errorf("decoding a payload of %d bytes: %w: at byte %d: %w", len(payload), ErrBatch, min(at, len(payload)), err)
	}
	return nil
}

func (d *Decoder) batch(b *Batch) error {
	c := d.r.peek()
	switch {
	case d.r.left() == 0:
		return errors.New("it is empty")
	case isArray(c):
		return d.batchArray(b)
	case isMap(c):
		return d.batchMap(b)
	}
	return fmt.Errorf("it begins with %#02x, neither an array nor a map", c)
}

// batchArray reads [time, events, rank?, …].
func (d *Decoder) batchArray(b *Batch) error {
	n, ok := d.r.array()
	if !ok {
		return errCut
	}
	if n < 2 {
		return fmt.Errorf("%d fields, want at least time and events", n)
	}
	var err error
	if b.Time, ok = d.r.number(); !ok {
		return errors.New("the time is not a number")
	}
	if err = d.events(b); err != nil {
		return err
	}
	if n > 2 {
		if err = d.rank(b); err != nil {
			return err
		}
	}
	for i := 3; i < n; i++ {
		if err = d.r.skip(); err != nil {
			return err
		}
	}
	return nil
}

// batchMap reads {ts, events, data_parallel_rank}, in any order.
func (d *Decoder) batchMap(b *Batch) error {
	n, ok := d.r.object()
	if !ok {
		return errCut
	}
	seen := false
	for range n {
		key, ok := d.r.bytes()
		if !ok {
			return errors.New("a key that is not a string")
		}
		var err error
		switch string(key) {
		case "ts":
			if b.Time, ok = d.r.number(); !ok {
				err = errors.New("the time is not a number")
			}
		case "events":
			if seen {
				return errors.New("two lists of events")
			}
			seen = true
			err = d.events(b)
		case "data_parallel_rank", "attn_dp_rank":
			err = d.rank(b)
		default:
			b.Fields++
			err = d.r.skip()
		}
		if err != nil {
			return err
		}
	}
	if !seen {
		return errors.New("no events")
	}
	return nil
}

func (d *Decoder) rank(b *Batch) error {
	if d.r.isNil() {
		return nil
	}
	at := d.r.pos
	if b.Rank, b.HasRank = d.r.natural(maxRank); b.HasRank {
		return nil
	}
	b.skip(SkipRank)
	d.r.pos = at
	return d.r.skip()
}

// events reads the list of events. What is wrong within an event costs that event.
func (d *Decoder) events(b *Batch) error {
	if !isArray(d.r.peek()) {
		return errors.New("the events are not a list")
	}
	n, ok := d.r.array()
	if !ok {
		return errCut
	}
	for range n {
		at, mark := d.r.pos, b.arena
		b.Events = append(b.Events, Event{})
		e := &b.Events[len(b.Events)-1]
		reason := d.event(b, e)
		if reason == "" {
			continue
		}
		b.Events = b.Events[:len(b.Events)-1]
		b.arena = mark
		d.r.pos = at
		if err := d.r.skip(); err != nil {
			return err
		}
		b.skip(reason)
	}
	return nil
}

// event reads one event and says why it cannot be used, "" if it can.
func (d *Decoder) event(b *Batch, e *Event) (reason string) {
	e.Group, e.AnyTier, e.From = -1, true, index.NumTiers
	switch c := d.r.peek(); {
	case isArray(c):
		reason = d.eventArray(b, e)
	case isMap(c):
		reason = d.eventMap(b, e)
	default:
		return SkipNotEvent
	}
	if reason == "" {
		reason = e.check()
	}
	return reason
}

// kindOf is the meaning of an event's tag, 0 if it is not known.
func kindOf(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	case "BlockTransferred":
		return Moved
	}
	return 0
}

// field names what events carry.
type field uint8

const (
	fNone field = iota // known, of no use here
	fHandles
	fParent
	fTokens
	fPageSize
	fLoraID
	fMedium
	fLoraName
	fExtra
	fGroup
	fSpec
	fWindow
	fFrom
	fTo
	fSalt
	fUnknown
)

// positions are the fields of array events in order, after the tag.
var positions = [...][]field{
	Stored: {
		fHandles, fParent, fTokens, fPageSize, fLoraID, fMedium, fLoraName, fExtra, fGroup, fSpec, fWindow,
		fNone, /* token_offset */
	},
	Removed: {fHandles, fMedium, fGroup},
	Cleared: {fMedium},
	Moved:   {fHandles, fFrom, fTo, fGroup},
}

func fieldOf(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return fHandles
	case "parent_block_hash":
		return fParent
	case "token_ids":
		return fTokens
	case "block_size":
		return fPageSize
	case "lora_id":
		return fLoraID
	case "medium":
		return fMedium
	case "lora_name":
		return fLoraName
	case "extra_keys":
		return fExtra
	case "group_idx":
		return fGroup
	case "kv_cache_spec_kind":
		return fSpec
	case "kv_cache_spec_sliding_window":
		return fWindow
	case "from_medium":
		return fFrom
	case "to_medium":
		return fTo
	case "cache_salt":
		return fSalt
	case "type", "token_offset", "locality", "ownership", "session_id":
		return fNone
	}
	return fUnknown
}

// eventArray reads [tag, field, field, …]. Missing fields are null, further ones are passed over.
func (d *Decoder) eventArray(b *Batch, e *Event) string {
	n, ok := d.r.array()
	if !ok {
		return SkipField
	}
	if n == 0 {
		return SkipNoKind
	}
	tag, ok := d.r.bytes()
	if !ok {
		return SkipNoKind
	}
	if e.Kind = kindOf(tag); e.Kind == 0 {
		return SkipUnknownKind
	}
	order := positions[e.Kind]
	for i := range n - 1 {
		f := fUnknown
		if i < len(order) {
			f = order[i]
		}
		var reason string
		// SGLang appends a map of further fields, wherever its version's positions end.
		if e.Kind == Stored && i >= 5 && isMap(d.r.peek()) {
			reason = d.fields(b, e)
		} else {
			reason = d.value(b, e, f)
		}
		if reason != "" {
			return reason
		}
	}
	return ""
}

// eventMap reads {type: tag, field: …}, in any order.
func (d *Decoder) eventMap(b *Batch, e *Event) string {
	at := d.r.pos
	tag, ok := d.tag()
	if !ok {
		return SkipNoKind
	}
	if e.Kind = kindOf(tag); e.Kind == 0 {
		return SkipUnknownKind
	}
	d.r.pos = at
	return d.fields(b, e)
}

// tag finds the value of "type", which engines send first.
func (d *Decoder) tag() ([]byte, bool) {
	n, ok := d.r.object()
	for i := 0; ok && i < n; i++ {
		var key []byte
		if key, ok = d.r.bytes(); !ok {
			break
		}
		if string(key) == "type" {
			return d.r.bytes()
		}
		ok = d.r.skip() == nil
	}
	return nil, false
}

func (d *Decoder) fields(b *Batch, e *Event) string {
	n, ok := d.r.object()
	if !ok {
		return SkipField
	}
	for range n {
		key, ok := d.r.bytes()
		if !ok {
			return SkipField
		}
		if reason := d.value(b, e, fieldOf(key)); reason != "" {
			return reason
		}
	}
	return ""
}

// check completes an event whose fields have been read.
func (e *Event) check() string {
	if e.Kind != Cleared && e.Handles == nil {
		return SkipHandles
	}
	if e.Kind == Moved && (e.AnyTier || e.From == index.NumTiers) {
		return SkipMedium // to where, or from where, was not said
	}
	if e.Kind != Moved {
		e.From = index.GPU
	}
	if e.Kind == Stored {
		e.Incomplete = e.PageSize > 0 && len(e.Tokens) != e.PageSize*len(e.Handles) ||
			e.PageSize == 0 && (len(e.Handles) == 0 || len(e.Tokens) == 0 || len(e.Tokens)%len(e.Handles) != 0)
	}
	return ""
}

// maxPageSize bounds block sizes: hybrid models make them large, but not beyond a context.
const maxPageSize = math.MaxInt32

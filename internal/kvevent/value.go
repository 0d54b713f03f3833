package kvevent

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/kvroute/kvroute/internal/index"
)

// value reads one field's value and says why the event cannot be used, "" if it can. Null means that
// the field was not sent.
func (d *Decoder) value(b *Batch, e *Event, f field) string {
	switch f {
	case fExtra, fGroup:
		b.Grouped = true
	case fUnknown:
		b.Fields++
	}
	if d.r.isNil() {
		return ""
	}
	ok := true
	switch f {
	case fHandles:
		if !d.handles(b, e) {
			return SkipHandles
		}
	case fParent:
		var v uint64
		var negative bool
		v, negative, ok = d.r.handle()
		// A parent of 0 is how llm-d's simulator writes a root.
		e.Parent, e.HasParent = index.Handle(v), v != 0
		b.Signed = b.Signed || negative
	case fTokens:
		if !d.tokens(b, e) {
			return SkipTokens
		}
	case fPageSize:
		if e.PageSize, ok = d.r.natural(maxPageSize); !ok || e.PageSize == 0 {
			return SkipPageSize
		}
	case fLoraID:
		var v uint64
		if v, _, ok = d.r.integer(); ok && e.Adapter == "" {
			e.Adapter = d.loraID(int64(v))
		}
	case fLoraName:
		var s []byte
		if s, ok = d.r.bytes(); ok && len(s) > 0 {
			e.Adapter = d.name(s)
		}
	case fSalt:
		var s []byte
		s, ok = d.r.bytes()
		e.Salt = d.name(s)
	case fSpec:
		var s []byte
		s, ok = d.r.bytes()
		e.Spec = d.name(s)
	case fGroup:
		e.Group, ok = d.r.natural(math.MaxInt32)
	case fWindow:
		e.Window, ok = d.r.natural(math.MaxInt32)
	case fMedium, fFrom, fTo:
		return d.medium(e, f)
	case fExtra:
		ok = d.extra(b, e)
	default:
		ok = d.r.skip() == nil
	}
	if !ok {
		return SkipField
	}
	return ""
}

// handles reads a list of handles.
func (d *Decoder) handles(b *Batch, e *Event) bool {
	n, ok := d.r.array()
	if !ok {
		return false
	}
	r, from := &d.r, len(b.arena.handles)
	hs := b.arena.handles
	for range n {
		var v uint64
		var negative bool
		switch c := r.peek(); {
		case c == 0xcf && r.left() >= 9: // what nearly all are
			v = binary.BigEndian.Uint64(r.buf[r.pos+1:])
			r.pos += 9
		case c == 0xd3 && r.left() >= 9:
			v = binary.BigEndian.Uint64(r.buf[r.pos+1:])
			negative = int64(v) < 0
			r.pos += 9
		default:
			if v, negative, ok = r.handle(); !ok {
				return false
			}
		}
		b.Signed = b.Signed || negative
		hs = append(hs, index.Handle(v))
	}
	b.arena.handles = hs
	e.Handles = hs[from:len(hs):len(hs)]
	if e.Handles == nil {
		e.Handles = noHandles
	}
	return true
}

// noHandles tells an empty list from none.
var noHandles = []index.Handle{}

// tokens reads a list of token ids, or of pairs of them, of which it takes the first.
func (d *Decoder) tokens(b *Batch, e *Event) bool {
	n, ok := d.r.array()
	if !ok {
		return false
	}
	r, from := &d.r, len(b.arena.tokens)
	ts := b.arena.tokens
	for range n {
		var v uint32
		switch c := r.peek(); {
		case c <= 0x7f:
			v = uint32(c)
			r.pos++
		case c == 0xcd && r.left() >= 3:
			v = uint32(binary.BigEndian.Uint16(r.buf[r.pos+1:]))
			r.pos += 3
		case c == 0xce && r.left() >= 5:
			v = binary.BigEndian.Uint32(r.buf[r.pos+1:])
			r.pos += 5
		default:
			if v, ok = r.token(); !ok {
				return false
			}
		}
		ts = append(ts, v)
	}
	b.arena.tokens = ts
	e.Tokens = ts[from:len(ts):len(ts)]
	return true
}

// token reads an id of any width, or a list of which it is the first.
func (r *reader) token() (uint32, bool) {
	n := 1
	if isArray(r.peek()) {
		var ok bool
		if n, ok = r.array(); !ok || n == 0 {
			return 0, false
		}
	}
	v, negative, ok := r.integer()
	if !ok || negative || v > math.MaxUint32 {
		return 0, false
	}
	for range n - 1 {
		if _, _, ok := r.integer(); !ok {
			return 0, false
		}
	}
	return uint32(v), true
}

// medium reads the name of a tier.
func (d *Decoder) medium(e *Event, f field) string {
	s, ok := d.r.bytes()
	if !ok {
		return SkipField
	}
	t, ok := tierOf(s)
	if !ok {
		return SkipMedium
	}
	if f == fFrom {
		e.From = t
	} else {
		e.Tier, e.AnyTier = t, false
	}
	return ""
}

// tierOf places the media engines name: vLLM's GPU, CPU, FS, OBJ and STORAGE; SGLang's CPU_PINNED, DISK,
// EXTERNAL and before them CPU_TIER1, CPU_TIER2; ATOM's REMOTE; llm-d's SHARED_STORAGE. Everything beyond
// the host's memory is Disk.
func tierOf(s []byte) (index.Tier, bool) {
	switch string(s) {
	case "GPU", "gpu":
		return index.GPU, true
	case "CPU", "cpu", "CPU_PINNED", "CPU_TIER1":
		return index.CPU, true
	case "DISK", "disk", "CPU_TIER2", "EXTERNAL", "FS", "OBJ", "STORAGE", "SHARED_STORAGE", "REMOTE":
		return index.Disk, true
	}
	return 0, false
}

// extra reads one entry a block, each null or a list of keys.
func (d *Decoder) extra(b *Batch, e *Event) bool {
	n, ok := d.r.array()
	if !ok {
		return false
	}
	from := len(b.arena.extra)
	for i := range n {
		if d.r.isNil() {
			continue
		}
		keys, ok := d.r.array()
		if !ok {
			return false
		}
		for range keys {
			key, ok := d.extraKey()
			if !ok {
				return false
			}
			b.arena.extra = append(b.arena.extra, Extra{Block: i, Key: key})
		}
	}
	e.Extra = b.arena.extra[from:len(b.arena.extra):len(b.arena.extra)]
	return true
}

// extraKey reads one key: a string, or a pair of a string and an offset, which says nothing that the
// tokens do not say. Keys of other kinds are told apart by their bytes.
func (d *Decoder) extraKey() (string, bool) {
	at := d.r.pos
	if s, ok := d.r.bytes(); ok {
		return d.name(s), true
	}
	d.r.pos = at
	if n, ok := d.r.array(); ok && n == 2 {
		if s, ok := d.r.bytes(); ok {
			if _, _, ok := d.r.integer(); ok {
				return d.name(s), true
			}
		}
	}
	d.r.pos = at
	if d.r.skip() != nil {
		return "", false
	}
	return d.name(d.r.buf[at:d.r.pos]), true
}

// Names are remembered up to maxName bytes each and maxNames bytes together.
const (
	maxName  = 1 << 10
	maxNames = 1 << 20
)

// name makes a string of bytes without allocating where it was seen before. Names that come and go, as
// salts and images do, push out all: what is in use is soon back.
func (d *Decoder) name(b []byte) string {
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	if len(b) > maxName {
		return string(b)
	}
	if d.names == nil || d.size+len(b) > maxNames || len(d.names) >= maxNames/64 {
		d.names, d.size = map[string]string{}, 0
	}
	s := string(b)
	d.names[s] = s
	d.size += len(b)
	return s
}

func (d *Decoder) loraID(id int64) string {
	var buf [32]byte
	return d.name(strconv.AppendInt(append(buf[:0], "lora_id:"...), id, 10))
}

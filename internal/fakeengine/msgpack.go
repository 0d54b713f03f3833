package fakeengine

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvroute/kvroute/internal/block"
)

// encoder puts batches of events into the wire form of an engine's version.
type encoder struct {
	wire
	h    hasher
	size int // tokens of a block
	rank int
}

// batch encodes [time, events, rank].
func (e *encoder) batch(now float64, events []event) []byte {
	events = e.split(events)
	n := uint32(2)
	if e.wire.rank {
		n = 3
	}
	b := msgp.AppendArrayHeader(nil, n)
	b = msgp.AppendFloat64(b, now)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for i := range events {
		if e.asMap {
			b = e.named(b, &events[i])
		} else {
			b = e.positional(b, &events[i])
		}
	}
	if e.wire.rank {
		b = msgp.AppendUint64(b, uint64(e.rank))
	}
	return b
}

// split makes events as large as this engine makes them.
func (e *encoder) split(events []event) []event {
	var out []event
	for _, ev := range events {
		switch {
		case ev.kind == removed && !e.merge && len(ev.blocks) > 1:
			for i := range ev.blocks {
				one := ev
				one.blocks = ev.blocks[i : i+1]
				out = append(out, one)
			}
		case ev.kind == removed && e.merge && len(out) > 0 && out[len(out)-1].kind == removed:
			last := &out[len(out)-1]
			last.blocks = append(last.blocks[:len(last.blocks):len(last.blocks)], ev.blocks...)
		case ev.kind == stored && e.oneBlock:
			for i := range ev.blocks {
				one := ev
				one.blocks, one.tokens, one.first = ev.blocks[i:i+1], ev.tokens[i*e.size:(i+1)*e.size], ev.first+i
				if i > 0 {
					one.parent = ev.blocks[i-1]
				}
				out = append(out, one)
			}
		case ev.kind == cleared && !e.clears:
		default:
			out = append(out, ev)
		}
	}
	return out
}

// integer appends a number as Python's msgpack does: as short as possible, above zero as unsigned.
func (e *encoder) integer(b []byte, v uint64) []byte {
	if e.signed && int64(v) < 0 {
		return msgp.AppendInt64(b, int64(v))
	}
	return msgp.AppendUint64(b, v)
}

func (e *encoder) hashes(b []byte, list []digest) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(list)))
	for _, d := range list {
		b = e.integer(b, e.h.handle(d))
	}
	return b
}

func (e *encoder) parent(b []byte, ev *event) []byte {
	if ev.first == 0 {
		return msgp.AppendNil(b)
	}
	return e.integer(b, e.h.handle(ev.parent))
}

func tokens(b []byte, list []block.Token) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(list)))
	for _, t := range list {
		b = msgp.AppendUint64(b, uint64(t))
	}
	return b
}

func orNil(b []byte, s string) []byte {
	if s == "" {
		return msgp.AppendNil(b)
	}
	return msgp.AppendString(b, s)
}

// extras appends one entry for each block: null, or a list of names.
func (e *encoder) extras(b []byte, ev *event) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(ev.blocks)))
	for i := range ev.blocks {
		names := e.h.extra(ev.first+i, ev.sp)
		if names == nil {
			b = msgp.AppendNil(b)
			continue
		}
		b = msgp.AppendArrayHeader(b, uint32(len(names)))
		for _, n := range names {
			b = msgp.AppendString(b, n)
		}
	}
	return b
}

// positional is the array form: the tag, then fields up to the version's length.
func (e *encoder) positional(b []byte, ev *event) []byte {
	switch ev.kind {
	case cleared:
		if e.clearMedium {
			return msgp.AppendString(msgp.AppendString(msgp.AppendArrayHeader(b, 2), "AllBlocksCleared"), "GPU")
		}
		return msgp.AppendString(msgp.AppendArrayHeader(b, 1), "AllBlocksCleared")
	case removed:
		b = msgp.AppendArrayHeader(b, uint32(e.removed))
		b = e.hashes(msgp.AppendString(b, "BlockRemoved"), ev.blocks)
		for i := 2; i < e.removed; i++ {
			if i == 2 {
				b = msgp.AppendString(b, "GPU")
			} else {
				b = msgp.AppendInt64(b, 0) // group_idx
			}
		}
		return b
	}
	salt := e.saltField && ev.sp.salt != ""
	n := e.fields
	if salt {
		n++
	}
	b = msgp.AppendString(msgp.AppendArrayHeader(b, uint32(n)), "BlockStored")
	b = tokens(e.parent(e.hashes(b, ev.blocks), ev), ev.tokens)
	b = msgp.AppendNil(msgp.AppendUint64(b, uint64(e.size))) // block_size, lora_id
	for i := 6; i < e.fields; i++ {
		switch i {
		case 6:
			b = msgp.AppendString(b, "GPU")
		case 7:
			b = orNil(b, ev.sp.adapter)
		case 8:
			b = e.extras(b, ev)
		case 9:
			b = msgp.AppendInt64(b, 0) // group_idx
		case 10:
			b = msgp.AppendString(b, "full_attention")
		default:
			b = msgp.AppendNil(b) // sliding window
		}
	}
	if salt {
		b = msgp.AppendString(msgp.AppendMapHeader(b, 1), "cache_salt")
		b = msgp.AppendString(b, ev.sp.salt)
	}
	return b
}

// named is the map form, keys in the order in which the engine sends them.
func (e *encoder) named(b []byte, ev *event) []byte {
	key := func(name string) { b = msgp.AppendString(b, name) }
	full := e.fields >= 12 // vLLM's long form
	switch ev.kind {
	case cleared:
		b = msgp.AppendMapHeader(b, 1)
		key("type")
		return msgp.AppendString(b, "AllBlocksCleared")
	case removed:
		n := uint32(3)
		if full {
			n = 4
		}
		b = msgp.AppendMapHeader(b, n)
		key("type")
		b = msgp.AppendString(b, "BlockRemoved")
		key("block_hashes")
		b = e.hashes(b, ev.blocks)
		key("medium")
		b = msgp.AppendString(b, "GPU")
		if full {
			key("group_idx")
			b = msgp.AppendInt64(b, 0)
		}
		return b
	}
	n := uint32(7)
	if full {
		n = 11
	}
	salt := e.saltField && ev.sp.salt != ""
	if salt {
		n++
	}
	b = msgp.AppendMapHeader(b, n)
	key("type")
	b = msgp.AppendString(b, "BlockStored")
	key("block_hashes")
	b = e.hashes(b, ev.blocks)
	key("parent_block_hash")
	b = e.parent(b, ev)
	key("token_ids")
	b = tokens(b, ev.tokens)
	key("block_size")
	b = msgp.AppendUint64(b, uint64(e.size))
	key("lora_id")
	b = msgp.AppendNil(b)
	key("medium")
	b = msgp.AppendString(b, "GPU")
	if full {
		key("lora_name")
		b = orNil(b, ev.sp.adapter)
		key("extra_keys")
		b = e.extras(b, ev)
		key("group_idx")
		b = msgp.AppendInt64(b, 0)
		key("kv_cache_spec_kind")
		b = msgp.AppendString(b, "full_attention")
	}
	if salt {
		key("cache_salt")
		b = msgp.AppendString(b, ev.sp.salt)
	}
	return b
}

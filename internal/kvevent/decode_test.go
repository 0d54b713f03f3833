package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/index"
)

// enc writes msgpack, integers in a width drawn from those that fit.
type enc struct {
	b   []byte
	rng *rand.Rand
}

func (e *enc) put(head byte, n int, v uint64) {
	var buf [8]byte
	binary.BigEndian.PutUint64(buf[:], v)
	e.b = append(append(e.b, head), buf[8-n:]...)
}

func (e *enc) uint(v uint64) {
	for {
		switch w := e.rng.IntN(8); {
		case w == 0 && v <= 0x7f:
			e.b = append(e.b, byte(v))
			return
		case w >= 1 && w <= 4 && v>>(8<<(w-1)-1)>>1 == 0:
			e.put(0xcb+byte(w), 1<<(w-1), v)
			return
		case w > 4 && v <= 1<<63-1:
			e.put(0xd3, 8, v)
			return
		}
	}
}

func (e *enc) handle(h index.Handle, digest bool) {
	switch {
	case digest:
		e.b = append(e.b, 0xc4, 32)
		for range 3 {
			e.b = binary.BigEndian.AppendUint64(e.b, e.rng.Uint64())
		}
		e.b = binary.BigEndian.AppendUint64(e.b, uint64(h))
	case h >= 1<<63 && e.rng.IntN(2) == 0:
		e.put(0xd3, 8, uint64(h))
	default:
		e.uint(uint64(h))
	}
}

func (e *enc) array(n int) {
	switch {
	case n < 16 && e.rng.IntN(2) == 0:
		e.b = append(e.b, 0x90|byte(n))
	case n < 1<<16 && e.rng.IntN(2) == 0:
		e.put(0xdc, 2, uint64(n))
	default:
		e.put(0xdd, 4, uint64(n))
	}
}

func (e *enc) str(s string) { e.b = append(append(e.b, 0xd9, byte(len(s))), s...) }

// value is a field with its key and what writes it; nil writes null.
type value struct {
	key   string
	write func()
}

// event writes an event in one of its forms.
func (e *enc) event(tag string, asMap bool, fields []value) {
	if !asMap {
		last := len(fields)
		for last > 0 && fields[last-1].write == nil && e.rng.IntN(2) == 0 {
			last--
		}
		e.array(last + 1)
		e.str(tag)
		for _, f := range fields[:last] {
			if f.write == nil {
				e.b = append(e.b, 0xc0)
			} else {
				f.write()
			}
		}
		return
	}
	var all []value
	for _, f := range append(fields, value{"type", func() { e.str(tag) }}, value{"of_later", func() { e.array(0) }}) {
		if f.write != nil || e.rng.IntN(2) == 0 {
			all = append(all, f)
		}
	}
	e.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	e.put(0xde, 2, uint64(len(all)))
	for _, f := range all {
		e.str(f.key)
		if f.write == nil {
			e.b = append(e.b, 0xc0)
		} else {
			f.write()
		}
	}
}

// TestFormsAreEqual writes random events in random forms, widths and orders: all decode to what was meant.
func TestFormsAreEqual(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var d Decoder
	var b Batch
	for round := range 3000 {
		e := &enc{rng: rng}
		handles := make([]index.Handle, rng.IntN(5))
		for i := range handles {
			handles[i] = index.Handle(rng.Uint64() >> rng.IntN(64))
		}
		page := 1 + rng.IntN(4)
		ts := make([]uint32, page*len(handles))
		for i := range ts {
			ts[i] = rng.Uint32() >> rng.IntN(32)
		}
		digest, pairs := rng.IntN(3) == 0, rng.IntN(3) == 0
		want := Event{Kind: Stored, Handles: handles, Tokens: ts, PageSize: page, AnyTier: true, Group: -1}
		list := func(h []index.Handle) func() {
			return func() {
				e.array(len(h))
				for _, x := range h {
					e.handle(x, digest)
				}
			}
		}
		fields := []value{{"block_hashes", list(handles)}, {"parent_block_hash", nil}, {"token_ids", func() {
			e.array(len(ts))
			for _, x := range ts {
				if pairs {
					e.array(2)
					e.uint(uint64(x))
				}
				e.uint(uint64(x))
			}
		}}, {"block_size", func() { e.uint(uint64(page)) }}, {"lora_id", nil}, {"medium", nil}, {"lora_name", nil}, {"extra_keys", nil}, {"group_idx", nil}, {"kv_cache_spec_kind", nil}}
		set := func(i int, write func()) { fields[i].write = write }
		if rng.IntN(2) == 0 {
			want.Parent, want.HasParent = index.Handle(rng.Uint64()|1), true
			set(1, func() { e.handle(want.Parent, digest) })
		}
		if rng.IntN(3) == 0 {
			want.Adapter = "lora_id:300"
			set(4, func() { e.uint(300) })
		}
		if rng.IntN(2) == 0 {
			want.Tier, want.AnyTier = index.CPU, false
			set(5, func() { e.str("CPU_PINNED") })
		}
		if rng.IntN(3) == 0 {
			want.Adapter = "adapter"
			set(6, func() { e.str("adapter") })
		}
		if len(handles) > 1 && rng.IntN(2) == 0 {
			want.Extra = []Extra{{1, "img"}, {1, "lora"}}
			set(7, func() {
				e.array(2)
				e.b = append(e.b, 0xc0)
				e.array(2)
				e.array(2)
				e.str("img")
				e.uint(12)
				e.str("lora")
			})
		}
		if rng.IntN(2) == 0 {
			want.Group = 3
			set(8, func() { e.uint(3) })
		}
		want.Incomplete = len(ts) == 0 && len(handles) > 0
		e.array(3)
		e.put(0xcb, 8, 0)
		e.array(2)
		e.event("BlockStored", rng.IntN(2) == 0, fields)
		e.event("BlockRemoved", rng.IntN(2) == 0, []value{{"block_hashes", list(handles)}, {"medium", nil}, {"group_idx", func() { e.uint(1) }}})
		e.uint(uint64(round % 8))
		if err := d.Decode(e.b, &b); err != nil {
			t.Fatalf("round %d: %v\n%x", round, err, e.b)
		}
		events := []Event{want, {Kind: Removed, Handles: handles, AnyTier: true, Group: 1}}
		if diff := cmp.Diff(events, b.Events, eventCmp); diff != "" || b.Rank != round%8 || len(b.Skipped) > 0 {
			t.Fatalf("round %d: rank %d, skipped %v, events (-want +got):\n%s\n%x", round, b.Rank, b.Skipped, diff, e.b)
		}
	}
}

// naive walks one msgpack value, recursively, and returns what is left.
func naive(b []byte, depth int) ([]byte, bool) {
	if len(b) == 0 || depth > maxDepth {
		return nil, false
	}
	c, rest := b[0], b[1:]
	size := func(n int) (uint64, bool) {
		if len(rest) < n {
			return 0, false
		}
		v := uint64(0)
		for _, x := range rest[:n] {
			v = v<<8 | uint64(x)
		}
		rest = rest[n:]
		return v, true
	}
	body, items := uint64(0), uint64(0)
	ok := true
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
	case c <= 0x8f:
		items = 2 * uint64(c&15)
	case c <= 0x9f:
		items = uint64(c & 15)
	case c <= 0xbf:
		body = uint64(c & 31)
	default:
		switch c {
		case 0xc1:
			return nil, false
		case 0xc4, 0xd9:
			body, ok = size(1)
		case 0xc5, 0xda:
			body, ok = size(2)
		case 0xc6, 0xdb:
			body, ok = size(4)
		case 0xc7:
			body, ok = size(1)
			body++
		case 0xc8:
			body, ok = size(2)
			body++
		case 0xc9:
			body, ok = size(4)
			body++
		case 0xcc, 0xd0:
			body = 1
		case 0xcd, 0xd1, 0xd4:
			body = 2
		case 0xd5:
			body = 3
		case 0xca, 0xce, 0xd2:
			body = 4
		case 0xd6:
			body = 5
		case 0xcb, 0xcf, 0xd3:
			body = 8
		case 0xd7:
			body = 9
		case 0xd8:
			body = 17
		case 0xdc:
			items, ok = size(2)
		case 0xdd:
			items, ok = size(4)
		case 0xde:
			items, ok = size(2)
			items *= 2
		case 0xdf:
			items, ok = size(4)
			items *= 2
		}
	}
	if !ok || body > uint64(len(rest)) {
		return nil, false
	}
	rest = rest[body:]
	for range items {
		if rest, ok = naive(rest, depth+1); !ok {
			return nil, false
		}
	}
	return rest, true
}

// FuzzDecode holds for any bytes: no panic; what is accepted is one whole msgpack value; what was decoded
// is bounded by the payload, the same the second time, and the index takes it.
func FuzzDecode(f *testing.F) {
	var v vectors
	readJSON(f, "vectors.json", &v)
	for _, x := range append(v.Vectors, v.Bad...) {
		f.Add(unhex(f, x.Hex))
	}
	var d Decoder // shared, as in use
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b, again Batch
		err := d.Decode(payload, &b)
		if err != nil {
			if !errors.Is(err, ErrBatch) || len(b.Events) > 0 {
				t.Fatalf("error %v with %d events, want ErrBatch and none", err, len(b.Events))
			}
			return
		}
		if rest, ok := naive(payload, 0); !ok || len(rest) > 0 {
			t.Fatalf("accepted what is not one msgpack value")
		}
		values := 0
		for i := range b.Events {
			values += 1 + len(b.Events[i].Handles) + len(b.Events[i].Tokens) + len(b.Events[i].Extra)
		}
		if values > len(payload) {
			t.Fatalf("%d values from %d bytes", values, len(payload))
		}
		if err := new(Decoder).Decode(payload, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, again, eventCmp, cmp.Comparer(func(a, b float64) bool { return a == b || a != a && b != b })); diff != "" {
			t.Fatalf("decoded twice (-first +second):\n%s", diff)
		}
		for _, dialect := range []Dialect{VLLM, SGLang} {
			m := newMirror(t, 4, dialect)
			m.feed(b.Events...)
		}
	})
}

func TestLimits(t *testing.T) {
	deep := append([]byte{0x93, 0x00, 0x91, 0x92}, make([]byte, 0, 64)...)
	deep = append(deep, 0xa1, 'x')
	for range 40 {
		deep = append(deep, 0x91)
	}
	deep = append(deep, 0xc0, 0xc0)
	tests := []struct {
		name string
		in   []byte
		max  int
		want error
	}{
		{"nesting", deep, 0, errDepth},
		{"length", make([]byte, 101), 100, ErrBatch},
		{"no msgpack", []byte{0x92, 0x00, 0x91, 0xc1}, 0, errByte},
		{"rank of a map and what follows it", []byte{0x93, 0x00, 0x90, 0x81, 0x00}, 0, errCut},
	}
	for _, tt := range tests {
		d := Decoder{MaxPayload: tt.max}
		var b Batch
		if err := d.Decode(tt.in, &b); !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
		}
	}
	// A rank that is none costs itself only.
	var d Decoder
	var b Batch
	if err := d.Decode([]byte{0x93, 0x00, 0x90, 0xff}, &b); err != nil || b.HasRank || b.Skipped[SkipRank] != 1 {
		t.Errorf("negative rank: error %v, rank %v, skipped %v", err, b.HasRank, b.Skipped)
	}
	// A count far beyond the payload is refused before anything is allocated for it.
	huge := append([]byte{0x92, 0x00, 0x91, 0x92, 0xac}, "BlockRemoved\xdd\xff\xff\xff\xff"...)
	if n := testing.AllocsPerRun(10, func() { _ = d.Decode(huge, &b) }); n > 20 {
		t.Errorf("%v allocations for a count that is not there", n)
	}
}

func TestNames(t *testing.T) {
	var d Decoder
	for i := range 3 * maxNames / 64 {
		s := fmt.Sprint("salt-", i)
		if got := d.name([]byte(s)); got != s {
			t.Fatalf("name %q came back as %q", s, got)
		}
		if d.size > maxNames || len(d.names) > maxNames/64 {
			t.Fatalf("%d names of %d bytes are kept", len(d.names), d.size)
		}
	}
}

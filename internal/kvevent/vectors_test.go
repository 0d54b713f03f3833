package kvevent

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
)

const (
	h1 = index.Handle(15760518052499183552)
	h2 = index.Handle(81985529216486895)
	n1 = index.Handle(0xaaaaaaaaaaaaaaaa)
)

func readJSON(t testing.TB, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(name) == ".gz" {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewDecoder(z).Decode(v); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

type vectors struct {
	Vectors, Bad []struct{ ID, What, Hex string }
	TRTLLM       []json.RawMessage
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func tokens(from, to uint32) []block.Token {
	var ts []block.Token
	for ; from <= to; from++ {
		ts = append(ts, from)
	}
	return ts
}

// handles of an event in short.
func hs(h ...index.Handle) []index.Handle { return h }

// eventCmp compares events without regard to nil and empty slices.
var eventCmp = cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Batch{})}

// root is a store without a parent, in GPU as said.
func root(h []index.Handle, ts []block.Token) Event {
	return Event{Kind: Stored, Handles: h, Tokens: ts, PageSize: 4, Group: -1}
}

func with(e Event, change func(*Event)) Event {
	change(&e)
	return e
}

// wants says what each good vector comes to.
func wants() map[string]Batch {
	const ts = 1789095808.5
	ranked := func(rank int, events ...Event) Batch {
		return Batch{Time: ts, Rank: rank, HasRank: true, Events: events}
	}
	grouped := func(b Batch) Batch { b.Grouped = true; return b }
	signed := func(b Batch) Batch { b.Signed = true; return b }
	removed := func(h ...index.Handle) Event { return Event{Kind: Removed, Handles: h, Group: -1} }
	anyTier := func(e *Event) { e.AnyTier = true }
	group0 := func(e *Event) { e.Group = 0 }
	full := func(e *Event) { e.Group, e.Spec = 0, "full_attention" }
	child := func(parent index.Handle) func(*Event) {
		return func(e *Event) { e.Parent, e.HasParent = parent, true }
	}
	cleared := Event{Kind: Cleared, Group: -1, AnyTier: true}
	one, two := tokens(1, 4), tokens(1, 8)
	return map[string]Batch{
		"A1": {Time: ts, Events: []Event{with(root(hs(h1, h2), two), anyTier)}},
		"A2": ranked(3, with(with(root(hs(7), tokens(9, 12)), anyTier), child(h2)), with(removed(h1), anyTier), cleared),
		"A3": ranked(0, root(hs(h1), one), removed(h1)),
		"A4": ranked(0, with(root(hs(h1), one), func(e *Event) { e.Adapter = "adapter-a" })),
		"A5": grouped(ranked(0, with(root(hs(h1, h2, 7), tokens(1, 12)), func(e *Event) {
			e.Extra = []Extra{{Block: 1, Key: "img-hash"}, {Block: 2, Key: "img-hash"}}
		}))),
		"A6": grouped(ranked(0, with(root(hs(h1), one), func(e *Event) { e.Group = 1 }),
			with(removed(h2), func(e *Event) { e.Group = 1 }))),
		"A7": grouped(ranked(0, with(root(hs(h1), one), full), with(root(hs(h2), one), func(e *Event) {
			e.Group, e.Spec, e.Window = 1, "sliding_window", 128
		}))),
		"A8": ranked(0, with(root(hs(8970465118873813635), tokens(9, 12)), child(1736447835066146335)), removed(1736447835066146335)),
		"A9": ranked(0),
		"M1": grouped(ranked(0, with(root(hs(h1, h2), two), full))),
		"M2": grouped(ranked(0, with(removed(21), group0), with(removed(22), group0),
			with(with(root(hs(7), tokens(9, 12)), full), child(h2)))),
		"M3": ranked(0, cleared),
		"M4": grouped(ranked(1, with(root(hs(h1), two), func(e *Event) {
			e.PageSize, e.Group, e.Spec, e.Window = 8, 1, "sliding_window", 128
		}))),
		"M5": ranked(0, with(root(hs(h1, h2), nil), func(e *Event) { e.Tier, e.Incomplete = index.CPU, true })),
		"M6": ranked(0, with(root(hs(h1), one), func(e *Event) { e.Tier = index.Disk })),
		"M7": ranked(2, removed(h1)),
		"M8": with2(ranked(0, with(removed(h1), anyTier), cleared), map[string]int{SkipUnknownKind: 2}),
		"S1": signed(Batch{Time: ts, Events: []Event{with(root(hs(n1), one), anyTier)}}),
		"S2": signed(ranked(1, root(hs(n1, 7), two), removed(n1), cleared)),
		"S3": ranked(0, with(root(hs(7), one), func(e *Event) { e.Salt = "tenant-1" })),
		"S4": ranked(0, root(hs(7), one)),
		"S5": signed(ranked(0, with(with(root(hs(n1), one), child(1<<64-1)), func(e *Event) { e.Salt = "tenant-1" }))),
		"S6": signed(ranked(0, with(root(hs(n1), one), func(e *Event) { e.Tier = index.CPU }), removed(n1))),
		"S7": ranked(1, cleared),
		"O1": grouped(ranked(0, with(root(hs(h1), one), full),
			Event{Kind: Moved, Handles: hs(h1), From: index.GPU, Tier: index.CPU, Group: -1}, Event{Kind: Cleared, Group: -1})),
		"N1": signed(ranked(0, with(removed(1, 200, 60000, 4000000000, h1, 1<<64-5, n1), anyTier))),
		"N2": ranked(0, with(removed(1, 2), anyTier)),
	}
}

func with2(b Batch, skipped map[string]int) Batch {
	b.Skipped = skipped
	return b
}

func TestGoodVectors(t *testing.T) {
	var v vectors
	readJSON(t, "vectors.json", &v)
	want := wants()
	var d Decoder
	var b Batch // shared: what one payload leaves must not show in the next
	for _, x := range v.Vectors {
		w, ok := want[x.ID]
		if !ok {
			t.Errorf("%s: no expectation for this vector", x.ID)
			continue
		}
		delete(want, x.ID)
		if err := d.Decode(unhex(t, x.Hex), &b); err != nil {
			t.Errorf("%s (%s): %v", x.ID, x.What, err)
			continue
		}
		if diff := cmp.Diff(w, b, eventCmp); diff != "" {
			t.Errorf("%s (%s): decoded batch differs (-want +got):\n%s", x.ID, x.What, diff)
		}
	}
	for id := range want {
		t.Errorf("%s: vector is missing from the file", id)
	}
}

func TestBadVectors(t *testing.T) {
	rejected := map[string]bool{"X1": true, "X2": true, "X3": true, "X4": true, "X5": true, "X7": true, "X8": true, "X9": true}
	skipped := map[string]string{"X6": SkipHandles, "X10": SkipTokens, "X11": SkipPageSize, "X12": SkipNoKind, "X13": SkipTokens}
	var v vectors
	readJSON(t, "vectors.json", &v)
	if len(v.Bad) != len(rejected)+len(skipped) {
		t.Errorf("%d bad vectors, want %d", len(v.Bad), len(rejected)+len(skipped))
	}
	for _, x := range v.Bad {
		var d Decoder
		var b Batch
		err := d.Decode(unhex(t, x.Hex), &b)
		if len(b.Events) > 0 {
			t.Errorf("%s (%s): %d events, want none", x.ID, x.What, len(b.Events))
		}
		switch {
		case rejected[x.ID]:
			if !errors.Is(err, ErrBatch) {
				t.Errorf("%s (%s): error %v, want ErrBatch", x.ID, x.What, err)
			}
		case err != nil:
			t.Errorf("%s (%s): %v, want the event alone skipped", x.ID, x.What, err)
		case b.Skipped[skipped[x.ID]] != 1:
			t.Errorf("%s (%s): skipped %v, want one for %q", x.ID, x.What, b.Skipped, skipped[x.ID])
		}
	}
}

// TestTruncated cuts every good vector at every byte: an error each time, never a panic, never events.
func TestTruncated(t *testing.T) {
	var v vectors
	readJSON(t, "vectors.json", &v)
	var d Decoder
	var b Batch
	for _, x := range v.Vectors {
		p := unhex(t, x.Hex)
		for n := range p {
			if err := d.Decode(p[:n], &b); err == nil || len(b.Events) > 0 {
				t.Fatalf("%s cut at %d of %d bytes: error %v, %d events, want an error and none", x.ID, n, len(p), err, len(b.Events))
			}
		}
	}
}

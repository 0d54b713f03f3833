package kvevent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/index"
)

// polledStore is a stored event of blocks given as "hash:first-last" of their tokens.
func polledStore(id int, parent string, window int, tail string, blocks ...string) string {
	var list []string
	for _, b := range blocks {
		h, span, _ := strings.Cut(b, ":")
		var from, to int
		if _, err := fmt.Sscanf(span, "%d-%d", &from, &to); err != nil {
			panic(err)
		}
		var ts []string
		for ; from <= to; from++ {
			ts = append(ts, fmt.Sprintf(`{"type":"unique_token","token_id":%d,"token_extra_id":0}`, from))
		}
		list = append(list, fmt.Sprintf(`{"type":"stored_block","block_hash":%s,"tokens":[%s],"cache_level":0,"priority":35}`, h, strings.Join(ts, ",")))
	}
	return fmt.Sprintf(`{"event_id":%d,"data":{"type":"stored","parent_hash":%s,"blocks":[%s]},"window_size":%d%s}`, id, parent, strings.Join(list, ","), window, tail)
}

func TestPolledVectors(t *testing.T) {
	var v vectors
	readJSON(t, "vectors.json", &v)
	var p Polled
	var lines []string
	for _, e := range v.TRTLLM {
		lines = append(lines, string(e))
	}
	const handle = 4203099703668305365
	want := []*PolledBatch{
		{First: 0, Last: 0},
		{First: 1, Last: 3, Batch: Batch{HasRank: true, Events: []Event{
			{Kind: Stored, Handles: hs(handle), Tokens: tokens(1, 4), PageSize: 4, Group: -1},
			{Kind: Moved, Handles: hs(handle), From: index.GPU, Tier: index.CPU, Group: -1},
			{Kind: Removed, Handles: hs(handle), AnyTier: true, Group: -1},
		}}},
	}
	for _, form := range []string{"[" + strings.Join(lines, ",") + "]", strings.Join(lines, "\n")} {
		p = Polled{}
		got, err := p.Decode([]byte(form))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, eventCmp); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int64{101230, 0}, p.Pool()); diff != "" {
			t.Errorf("pool (-want +got):\n%s", diff)
		}
	}
}

// TestPolledInIndex follows polled events to the hits they come to.
func TestPolledInIndex(t *testing.T) {
	tests := []struct {
		name    string
		page    int
		events  []string
		hits    int
		skipped map[string]int
	}{
		{"chain", 0, []string{polledStore(1, "null", 64, "", "11:1-4", "12:5-8"), polledStore(2, "12", 64, "", "13:9-12")}, 3, nil},
		{"signed and hexadecimal", 0, []string{polledStore(1, "null", 64, "", "-5:1-4"), polledStore(2, `"0xfffffffffffffffb"`, 64, "", "12:5-8")}, 2, nil},
		{"last block not full", 0, []string{polledStore(1, "null", 64, "", "11:1-4", "12:5-6")}, 1, map[string]int{SkipPartialBlock: 1}},
		{"first block not full, later full", 0, []string{polledStore(1, "null", 64, "", "11:1-3"), polledStore(2, "null", 64, "", "12:1-4")}, 1, nil},
		{"first block not full, size given", 4, []string{polledStore(1, "null", 64, "", "11:1-3")}, 0, map[string]int{SkipPartialBlock: 1}},
		{"block above the size given", 2, []string{polledStore(1, "null", 64, "", "11:1-4")}, 0, map[string]int{SkipPageSize: 1}},
		{"smaller window", 0, []string{
			polledStore(1, "null", 64, "", "11:1-4"), polledStore(2, "11", 32, "", "12:5-8"),
			`{"event_id":3,"data":{"type":"removed","block_hashes":[11]},"window_size":32}`,
		}, 1, map[string]int{SkipSmallerWindow: 2}},
		{"larger window later", 0, []string{polledStore(1, "null", 32, "", "11:1-4", "12:5-8"), polledStore(2, "null", 64, "", "21:1-4")}, 1, nil},
		{"priority alone", 0, []string{
			polledStore(1, "null", 64, "", "11:1-4"),
			`{"event_id":2,"data":{"type":"updated","block_hash":11,"cache_level":null,"priority":{"type":"event_diff","new_value":1,"old_value":2}},"window_size":64}`,
		}, 1, nil},
		{"image in the second block", 0, []string{strings.Replace(polledStore(1, "null", 64, "", "11:1-4", "12:5-8", "13:9-12"),
			`"token_id":6,"token_extra_id":0`, `"token_id":6,"token_extra_id":9`, 1)}, 1, nil},
		{"kind from later", 0, []string{`{"event_id":1,"data":{"type":"demoted"},"window_size":64}`}, 0, map[string]int{SkipUnknownKind: 1}},
		{"no data", 0, []string{`{"event_id":1}`}, 0, map[string]int{SkipNoKind: 1}},
		{"hash of the wrong kind", 0, []string{`{"event_id":1,"data":{"type":"removed","block_hashes":[true]},"window_size":64}`}, 0, map[string]int{SkipHandles: 1}},
		{"token that is none", 0, []string{strings.Replace(polledStore(1, "null", 64, "", "11:1-4"), `"token_id":2,`, `"token_id":-2,`, 1)}, 0, map[string]int{SkipTokens: 1}},
	}
	for _, tt := range tests {
		p := Polled{PageSize: tt.page}
		m := newMirror(t, 4, TRTLLM)
		got, err := p.Decode([]byte(strings.Join(tt.events, " ")))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if len(got) != 1 {
			t.Errorf("%s: %d batches, want 1", tt.name, len(got))
			continue
		}
		m.feed(got[0].Events...)
		if hits := m.hits(tokens(1, 12), "", ""); hits != tt.hits {
			t.Errorf("%s: %d hits, want %d", tt.name, hits, tt.hits)
		}
		if diff := cmp.Diff(tt.skipped, got[0].Skipped); diff != "" {
			t.Errorf("%s: skipped (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestPolledRanks(t *testing.T) {
	var p Polled
	events := []string{
		polledStore(5, "null", 64, `,"attention_dp_rank":0`, "11:1-4"), polledStore(6, "11", 64, `,"attention_dp_rank":0`, "12:5-8"),
		polledStore(7, "null", 64, `,"attention_dp_rank":1`, "11:1-4"), polledStore(8, "12", 64, `,"attention_dp_rank":0`, "13:9-12"),
	}
	got, err := p.Decode([]byte(strings.Join(events, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	type run struct {
		Rank, Events int
		First, Last  uint64
	}
	var runs []run
	for _, b := range got {
		runs = append(runs, run{b.Rank, len(b.Events), b.First, b.Last})
	}
	if diff := cmp.Diff([]run{{0, 2, 5, 6}, {1, 1, 7, 7}, {0, 1, 8, 8}}, runs); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestPolledBad(t *testing.T) {
	for _, in := range []string{"{", "[1]", "null x", `[{"event_id":-1}]`, `{"event_id":"x"}`} {
		if _, err := new(Polled).Decode([]byte(in)); !errors.Is(err, ErrBatch) {
			t.Errorf("%q: error %v, want ErrBatch", in, err)
		}
	}
	for _, in := range []string{"", "[]", " \n"} {
		if b, err := new(Polled).Decode([]byte(in)); err != nil || len(b) > 0 {
			t.Errorf("%q: %d batches, error %v, want none", in, len(b), err)
		}
	}
}

func FuzzPolled(f *testing.F) {
	f.Add([]byte(polledStore(1, "null", 64, `,"attention_dp_rank":3`, "11:1-4", "12:5-6")))
	f.Add([]byte(`[{"event_id":2,"data":{"type":"updated","block_hash":11,"cache_level":{"new_value":1,"old_value":0}}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Polled
		batches, err := p.Decode(data)
		if err != nil && !errors.Is(err, ErrBatch) {
			t.Fatalf("error %v, want ErrBatch", err)
		}
		m := newMirror(t, 4, TRTLLM)
		for _, b := range batches {
			m.feed(b.Events...)
		}
	})
}

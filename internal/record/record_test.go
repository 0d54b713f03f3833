package record_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/score"
)

// full is a configuration in which every field differs from its zero value.
func full() score.Config {
	c := score.Defaults()
	half, third := 0.5, 1.0/3
	c.Policy, c.OverlapWeight, c.RecentWeight, c.PrefillOverlapWeight, c.DecodeOverlapWeight = score.KVAware, 2.25, 1, &half, &third
	c.DecodeInputDemand, c.DecodeRequestWeight, c.SessionAffinity = score.DemandShadow, 1e5, score.AffinityBoth
	c.TierWeights, c.Seed = [3]float64{1, 0.75, 0.1}, 1<<64-1
	return c
}

// A field of score.Config that headings did not hold would make a replay decide by other rules than the
// router, so each has to come back.
func TestConfigurationIsWhole(t *testing.T) {
	cfg := full()
	v := reflect.ValueOf(cfg)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("this test leaves %s zero: set it, and see that package record has a setting for it", v.Type().Field(i).Name)
		}
	}
	head := record.Header{Run: "r", Part: 3, Program: "v1 \"x\"", Model: "org/m", BlockSize: 16, Config: cfg}
	line, err := record.NewEncoder(head, 0).Begin(nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.Open(bytes.NewReader(line), "f")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(head, r.Header()); diff != "" {
		t.Errorf("heading (-want +got):\n%s", diff)
	}
}

// encoded is a recording of one of everything, and what a reader must make of it.
func encoded(tb testing.TB) ([]byte, []record.Record) {
	tb.Helper()
	e := record.NewEncoder(record.Header{Run: "r", Model: "m", BlockSize: 16, Config: score.Defaults()}, 0)
	b, err := e.Begin(nil, 1)
	if err != nil {
		tb.Fatal(err)
	}
	a := score.Candidate{Target: 0, Key: "http://a#dp0", BlockSize: 16, PageSize: 32}
	d := score.Candidate{Target: 5, Key: "http://b", Role: score.Decode, Variant: 1, Doubt: "gap"}
	led := load.New()
	led.Join(0, 1)
	led.Join(5, 1)
	s, err := score.New(score.Defaults(), index.New(16, index.Options{}), led)
	if err != nil {
		tb.Fatal(err)
	}
	req := score.Request{
		ID: "x", Model: "m", Role: score.Mixed, At: 1_234_567_890, Blocks: []block.Hash{1, 2}, BlockSize: 16, InputTokens: 50, TokensExact: true,
		N: 2, Session: "somebody", Retention: score.RetainLong, Images: []uint64{1 << 63}, More: [][]block.Hash{{1, 9}, nil}, Lengths: []int64{33, 15, 2}, LastComputed: true,
		Approximate: "no events", Variants: []score.Variant{{Blocks: []block.Hash{1, 2, 3}, InputTokens: 51, Lengths: []int64{49, 1, 1}, More: [][]block.Hash{nil, nil}}},
	}
	cands := []score.Candidate{a, d}
	var dec score.Decision
	b = e.Join(b, 0, a)
	b = e.Join(b, 5, d)
	b = e.Changed(b, 0, 1, block.Root, index.GPU, true)
	b = e.Changed(b, 0, 2, 1, index.GPU, true)
	b = e.Changed(b, 0, 4, 2, index.Disk, true)
	b = e.Changed(b, 0, 2, 1, index.GPU, false)
	b = e.Changed(b, 0, 1, 0, index.GPU, false)
	b = e.Emptied(b, 5)
	if err := s.Pick(&req, cands, &dec); err != nil {
		tb.Fatal(err)
	}
	b = e.Pick(b, &req, cands, &dec)
	line := dec.AppendJSON(nil)
	b = e.FirstToken(b, dec.Handle, 7)
	b = e.Unbind(b, dec.Handle)
	b = e.Note(b, 8, 5, "a \"gap\"")
	b = e.Release(b, dec.Handle, 9, 100)
	b = e.Leave(b, 5)
	b = e.Forget(b, 5)
	b = e.End(b, false, "why not")

	heard := req // as the reader tells it
	heard.Session = ""
	for _, l := range bytes.Split(b, []byte("\n")) {
		if i := bytes.Index(l, []byte(`"s":"`)); i >= 0 {
			heard.Session = string(l[i+5 : i+21])
		}
	}
	return b, []record.Record{
		{Kind: record.Worker, Op: record.Join, Target: 0, Candidate: a},
		{Kind: record.Worker, Op: record.Join, Target: 5, Candidate: d},
		{Kind: record.Event, Target: 0, Held: true, Blocks: []block.Hash{1, 2}},
		{Kind: record.Event, Target: 0, Held: true, Tier: 2, Parent: 2, Blocks: []block.Hash{4}},
		{Kind: record.Event, Target: 0, Blocks: []block.Hash{2, 1}},
		{Kind: record.Event, Target: 5, Emptied: true},
		{Kind: record.Decision, Req: heard, Candidates: cands, JSON: line},
		{Kind: record.Load, Load: record.FirstToken, Seq: 1, At: 7, Output: -1},
		{Kind: record.Load, Load: record.Unbind, Seq: 1, Output: -1},
		{Kind: record.Note, Target: 5, At: 8, Text: "a \"gap\""},
		{Kind: record.Load, Load: record.Release, Seq: 1, At: 9, Output: 100},
		{Kind: record.Request},
		{Kind: record.Request},
		{Kind: record.Request},
		{Kind: record.Worker, Op: record.Leave, Target: 5},
		{Kind: record.Worker, Op: record.Forget, Target: 5},
		{Kind: record.End, Text: "why not"},
	}
}

func TestReadBack(t *testing.T) {
	b, want := encoded(t)
	if bytes.Contains(b, []byte("somebody")) {
		t.Error("a session id was recorded as the user typed it")
	}
	r, err := record.Open(bytes.NewReader(b), "f")
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range want {
		var got record.Record
		if err := r.Read(&got); err != nil {
			t.Fatalf("record %d: %v\n%s", i, err, b)
		}
		if got.File != "f" || got.Line < 2 {
			t.Errorf("record %d is at %s", i, got.Place())
		}
		got.File, got.Line = "", 0
		if diff := cmp.Diff(w, got); diff != "" {
			t.Errorf("record %d (-want +got):\n%s", i, diff)
		}
	}
	if err := r.Read(&record.Record{}); err != io.EOF || r.Cut() {
		t.Errorf("at the end: %v, cut %v", err, r.Cut())
	}
}

func TestBadRecords(t *testing.T) {
	b, _ := encoded(t)
	head := string(b[:bytes.IndexByte(b, '\n')+1])
	join := `{"type":"worker","op":"join","w":0,"key":"a","role":"mixed","block_size":16}` + "\n"
	for _, tc := range []struct{ name, lines, want string }{
		{"not JSON", "nonsense\n", "not a record"},
		{"no worker", `{"type":"worker","op":"join"}` + "\n", "w is missing"},
		{"an odd worker", `{"type":"worker","op":"join","w":-1}` + "\n", "w:"},
		{"a target beyond the limit", `{"type":"event","w":99999,"add":""}` + "\n", "beyond the limit"},
		{"an unknown operation", `{"type":"worker","op":"jump","w":1}` + "\n", `op "jump"`},
		{"a worker without key", `{"type":"worker","op":"join","w":1,"role":"mixed"}` + "\n", "without a key"},
		{"an unknown role", `{"type":"worker","op":"join","w":1,"role":"cook","key":"a"}` + "\n", "cook"},
		{"an event of nothing", `{"type":"event","w":1}` + "\n", "want one of"},
		{"an event of two kinds", `{"type":"event","w":1,"add":"","gone":""}` + "\n", "want one of"},
		{"half a hash", `{"type":"event","w":1,"add":"00"}` + "\n", "16 lower-case"},
		{"an unknown tier", `{"type":"event","w":1,"add":"","tier":3}` + "\n", "tier 3"},
		{"half a parent", `{"type":"event","w":1,"add":"","after":"12"}` + "\n", "after"},
		{"blocks after none", `{"type":"blocks","at":0,"new":""}` + "\n", "block 0 is not known"},
		{"odd blocks", `{"type":"blocks","new":"0"}` + "\n", "16 lower-case"},
		{"numbers after a reset", `{"type":"blocks","new":"0000000000000001"}` + "\n" + `{"type":"reset"}` + "\n" + `{"type":"blocks","at":0}` + "\n", "block 0 is not known"},
		{"a decision without one", `{"type":"decision","ns":1,"in":2,"w":[]}` + "\n", "decision is missing"},
		{"a decision without tokens", `{"type":"decision","ns":1,"w":[],"decision":{}}` + "\n", "in is missing"},
		{"a decision without workers", `{"type":"decision","ns":1,"in":1,"decision":{}}` + "\n", "w:"},
		{"a decision about a stranger", `{"type":"decision","ns":1,"in":1,"w":[3],"decision":{}}` + "\n", "has not joined"},
		{"a decision about an unknown block", `{"type":"decision","ns":1,"in":1,"at":3,"w":[],"decision":{}}` + "\n", "block 3"},
		{"lengths of other prompts", `{"type":"decision","ns":1,"in":1,"lens":[1,2],"w":[],"decision":{}}` + "\n", "2 lengths of 1 prompts"},
		{"a variant that is not there", strings.Replace(join, `"block_size"`, `"variant":2,"block_size"`, 1) + `{"type":"decision","ns":1,"in":1,"w":[0],"decision":{}}` + "\n", "variant 2"},
		{"a bad variant", join + `{"type":"decision","ns":1,"in":1,"variants":[{}],"w":[0],"decision":{}}` + "\n", "variant 1: in is missing"},
		{"too few block sizes", join + `{"type":"blocks","new":"00000000000000010000000000000002"}` + "\n" + `{"type":"decision","ns":1,"in":1,"at":1,"bt":[3],"w":[0],"decision":{}}` + "\n", "1 counts for 2 blocks"},
		{"a load of nothing", `{"type":"load","op":"first","ns":1}` + "\n", "d or ns"},
		{"an unknown load", `{"type":"load","op":"think","d":1,"ns":1}` + "\n", `op "think"`},
		{"a request with blocks", `{"t":1,"in":1,"out":1,"new":"0000000000000001"}` + "\n", "numbered in blocks records only"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := record.Open(strings.NewReader(head+tc.lines), "f")
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				err = r.Read(&record.Record{})
			}
			var e *record.Error
			if !errors.As(err, &e) || !e.Damaged || e.File != "f" || e.Line < 2 || !strings.Contains(e.Why, tc.want) {
				t.Errorf("error %v, want damage with %q", err, tc.want)
			}
		})
	}
}

// FuzzReader holds the reader to its promises on any input: no panic, only *Error, records within bounds.
func FuzzReader(f *testing.F) {
	b, _ := encoded(f)
	f.Add(b)
	f.Add(b[:len(b)*2/3])
	head := b[:bytes.IndexByte(b, '\n')+1]
	for _, line := range bytes.SplitAfter(b, []byte("\n")) {
		f.Add(append(bytes.Clone(head), line...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, in := range [][]byte{data, append(bytes.Clone(head), data...)} {
			r, err := record.Open(bytes.NewReader(in), "f")
			var rec record.Record
			for err == nil {
				if err = r.Read(&rec); err != nil {
					break
				}
				if rec.Kind == 0 || rec.Target > record.NoTarget || rec.Tier > 2 || rec.Kind == record.Decision && len(rec.JSON) == 0 {
					t.Fatalf("impossible record %+v", rec)
				}
				for _, c := range rec.Candidates {
					if c.Key == "" || c.Variant > len(rec.Req.Variants) {
						t.Fatalf("impossible candidate %+v", c)
					}
				}
			}
			var e *record.Error
			if err != io.EOF && (!errors.As(err, &e) || e.Why == "") {
				t.Fatalf("error %#v is no *Error with a reason", err)
			}
		}
	})
}

package trace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/trace"
)

// fuzzFormat holds a reader to its promises on any input: no panic, only *trace.Error, records within
// bounds; what loads is a sound forest and survives being written and read back.
func fuzzFormat(f *testing.F, format string, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
		f.Add([]byte(s[:len(s)*2/3]))
		f.Add([]byte(gz(s)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		opt := trace.Options{Name: "fuzz", MaxLine: 1 << 20}
		r, _, err := trace.Open(bytes.NewReader(data), format, opt)
		for err == nil {
			var rec trace.Record
			if err = r.Read(&rec); err == nil && (rec.Input < 0 || rec.Output < 0 || rec.BlockTokens != nil && len(rec.BlockTokens) != len(rec.Blocks)) {
				t.Fatalf("impossible record %+v", rec)
			}
		}
		var e *trace.Error
		if err != io.EOF && !errors.As(err, &e) {
			t.Fatalf("error %v is no *trace.Error", err)
		}
		opt.Format = format
		w, err := trace.Load([]trace.Source{{Name: "fuzz", R: bytes.NewReader(data)}}, opt)
		if err != nil {
			if !errors.As(err, &e) || e.File == "" || e.Why == "" {
				t.Fatalf("error %#v lacks its place or reason", err)
			}
			return
		}
		if err := w.Forest.Check(); err != nil {
			t.Fatal(err)
		}
		again := loadBytes(t, trace.Options{}, string(save(t, w, trace.KVRoute, "")))
		if len(again.Requests) != len(w.Requests) || !slices.Equal(again.Sessions, w.Sessions) || !slices.Equal(again.IDs, w.IDs) || again.Forest.Len() != w.Forest.Len() {
			t.Fatalf("written and read back: %d requests and %d blocks, want %d and %d", len(again.Requests), again.Forest.Len(), len(w.Requests), w.Forest.Len())
		}
	})
}

func FuzzMooncake(f *testing.F) { fuzzFormat(f, trace.Mooncake, moonLine+moonLine, chainLine) }
func FuzzChained(f *testing.F)  { fuzzFormat(f, trace.Chained, chainLine+chainLine, sizedLine) }
func FuzzClaudeCode(f *testing.F) {
	fuzzFormat(f, trace.ClaudeCode, claudeA, claudeA+strings.Replace(claudeA, `"A"`, `"B"`, 1))
}

func FuzzRAGPulse(f *testing.F) {
	fuzzFormat(f, trace.RAGPulse, ragLine, `{"sys_prompt_id":8,"token_length":3}`+"\n"+ragLine)
}
func FuzzAzure(f *testing.F) { fuzzFormat(f, trace.Azure, azureHead+azureLine+azureLine) }
func FuzzKVRoute(f *testing.F) {
	fuzzFormat(f, trace.KVRoute, kvHead+kvLine+`{"t":6,"in":40,"out":5,"at":0}`+"\n",
		kvHead+`{"type":"blocks","new":"000000000000000100000000000000ff"}`+"\n"+`{"t":6,"in":40,"out":5,"at":1}`+"\n")
}

func FuzzAuto(f *testing.F) {
	fuzzFormat(f, trace.Auto, moonLine, chainLine, claudeA, ragLine, azureHead+azureLine, kvHead+kvLine, "{}", `{"input":"x"}`)
}

// FuzzLine holds the scanner against encoding/json: a line is valid for both or for neither.
func FuzzLine(f *testing.F) {
	for _, s := range []string{moonLine, claudeA, `{"a":"\ud83d\ude00\u00e9\n"}`, `{"a":[1,2.5e-3,-0,true,false,null,{}]}`, `{"a":01}`, `{"a":1.}`, `{"a":"` + "\x01" + `"}`, `{"a":tru}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.ContainsAny(data, "\n\x00") || bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > 60 {
			return
		}
		trimmed := bytes.TrimLeft(data, " \t\r")
		if len(trimmed) == 0 || trimmed[0] != '{' {
			return
		}
		// Records of unknown types are read to their end and skipped.
		in := kvHead + `{"type":"unknown","x":` + string(data) + "}\n"
		_, err := readAll([]byte(in), trace.KVRoute, trace.Options{})
		want := json.Valid([]byte(`{"type":"unknown","x":` + string(data) + "}"))
		if got := err == nil; got != want && !(want && strings.Contains(err.Error(), "twice")) {
			t.Fatalf("%q: valid %v (%v), encoding/json says %v", data, got, err, want)
		}
	})
}

package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScanRecord(t *testing.T) {
	none := Record{Usage: NoUsage, Choices: -1}
	with := func(change func(*Record)) Record {
		r := none
		change(&r)
		return r
	}
	tests := []struct {
		name, data string
		want       Record
		ok         bool
	}{
		{"role only", `{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, with(func(r *Record) { r.Choices = 1 }), true},
		{"content", `{"choices":[{"delta":{"content":"x"}}]}`, with(func(r *Record) { r.Choices, r.Content = 1, true }), true},
		{"reasoning", `{"choices":[{"delta":{"reasoning_content":"x","content":null}}]}`, with(func(r *Record) { r.Choices, r.Content = 1, true }), true},
		{"tool calls", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, with(func(r *Record) { r.Choices, r.Content = 1, true }), true},
		{"no tool calls", `{"choices":[{"delta":{"tool_calls":[]}}]}`, with(func(r *Record) { r.Choices = 1 }), true},
		{"completion", `{"choices":[{"text":"x","finish_reason":"stop"}]}`, with(func(r *Record) { r.Choices, r.Content, r.Final = 1, true, true }), true},
		{"message", `{"choices":[{"message":{"content":"x"}},{"message":{"content":"y"}}]}`, with(func(r *Record) { r.Choices, r.Content = 2, true }), true},
		{
			"usage", `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`,
			with(func(r *Record) { r.Choices, r.Usage = 0, Usage{9, 8, 3} }), true,
		},
		{"no cached tokens is not zero", `{"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":null}}`, with(func(r *Record) { r.Usage = Usage{9, -1, 3} }), true},
		{"zero cached tokens is zero", `{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}`, with(func(r *Record) { r.Usage = Usage{9, 0, -1} }), true},
		{"null usage", `{"usage":null}`, none, true},
		{"error", `{"error":{"message":"m","type":"t","code":500}}`, with(func(r *Record) { r.Error, r.Code = true, 500 }), true},
		{"error with a word for a code", `{"error":{"message":"m","code":"c"}}`, with(func(r *Record) { r.Error = true }), true},
		{"error as text", `{"error":"m"}`, with(func(r *Record) { r.Error = true }), true},
		{"no error", `{"error":null}`, none, true},
		{"error object", `{"object":"error","message":"m"}`, with(func(r *Record) { r.Error = true }), true},
		{"not an object", `[DONE]`, none, false},
		{"not JSON", `{"choices":[`, none, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ScanRecord([]byte(tt.data))
			if d := cmp.Diff(tt.want, got); d != "" || ok != tt.ok {
				t.Errorf("ScanRecord(%s) ok = %v, want %v (-want +got):\n%s", tt.data, ok, tt.ok, d)
			}
		})
	}
}

var answers = []struct {
	data string
	want Usage
}{
	{`{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":1}"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`, Usage{9, -1, 3}},
	{`{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}`, Usage{2, -1, -1}},
	{`{"a":{"usage":{"prompt_tokens":1}},"b":[{"usage":{"prompt_tokens":1}}]}`, NoUsage},
	{`{"usage" : { "prompt_tokens" : 5 , "prompt_tokens_details":{"cached_tokens":4} } , "z":"}{"}`, Usage{5, 4, -1}},
	{`{"usage":null,"choices":[]}`, NoUsage},
	{`{"x":"usage","y":{"prompt_tokens":1}}`, NoUsage},
	{`{"xusage":{"prompt_tokens":1}}`, NoUsage},
	{`{"usagex":{"prompt_tokens":1}}`, NoUsage},
	{`{"usage":{"x":"` + strings.Repeat("y", maxUsage) + `","prompt_tokens":1}}`, NoUsage},
	{`not json at all {"usage`, NoUsage},
}

func TestUsageReaderWhateverTheCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, a := range answers {
		for range 50 {
			var u UsageReader
			for rest := a.data; rest != ""; {
				n := min(1+rng.IntN(len(rest)), 1+rng.IntN(40))
				n = min(n, len(rest))
				if k, err := u.Write([]byte(rest[:n])); k != n || err != nil {
					t.Fatalf("Write took %d of %d: %v", k, n, err)
				}
				rest = rest[n:]
			}
			if got := u.Usage(); got != a.want {
				t.Fatalf("usage of %.80s is %+v, want %+v", a.data, got, a.want)
			}
		}
	}
}

// FuzzUsageReader holds that cuts do not matter, and that of an answer that is JSON the usage is the one
// a whole read finds.
func FuzzUsageReader(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a.data), uint(len(a.data)/2))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint) {
		var whole, cutup UsageReader
		whole.Write(data)
		at := int(cut % uint(len(data)+1))
		cutup.Write(data[:at])
		cutup.Write(data[at:])
		if whole.Usage() != cutup.Usage() {
			t.Fatalf("usage of %q is %+v, cut at %d %+v", data, whole.Usage(), at, cutup.Usage())
		}
		if rec, ok := ScanRecord(data); ok && len(data) < maxUsage && strings.Count(string(data), "usage") == 1 && whole.Usage() != rec.Usage {
			t.Fatalf("usage of %q is %+v in passing, %+v at once", data, whole.Usage(), rec.Usage)
		}
	})
}

func FuzzScanRecord(f *testing.F) {
	f.Add([]byte(`{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, ok := ScanRecord(data); ok && !json.Valid(data) {
			t.Fatalf("ScanRecord(%q) accepts what is not JSON", data)
		}
	})
}

func TestErrorsAreInTheSchema(t *testing.T) {
	tests := []struct {
		err  Error
		want string
	}{
		{
			Error{Status: 404, Message: `no "x"`, Type: TypeInvalid, Param: "model", Code: "model_not_found"},
			`{"error":{"message":"no \"x\"","type":"invalid_request_error","param":"model","code":"model_not_found"}}`,
		},
		{Error{Status: 503, Message: "a\nb\xff", Type: TypeServer}, `{"error":{"message":"a\nb\ufffd","type":"server_error","param":null,"code":null}}`},
	}
	for _, tt := range tests {
		if got := string(tt.err.Body()); got != tt.want {
			t.Errorf("body of %+v is %s, want %s", tt.err, got, tt.want)
		}
		rec := string(tt.err.Record())
		if rec != fmt.Sprintf("data: %s\n\n", tt.want) {
			t.Errorf("record of %+v is %q", tt.err, rec)
		}
		if r, ok := ScanRecord([]byte(strings.TrimSpace(strings.TrimPrefix(rec, "data: ")))); !ok || !r.Error {
			t.Errorf("record of %+v does not read as an error: %+v", tt.err, r)
		}
	}
}

func BenchmarkScanRecord(b *testing.B) {
	data := []byte(`{"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}`)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := ScanRecord(data); !ok {
			b.Fatal("not read")
		}
	}
}

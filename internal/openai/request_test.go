package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
)

func keys(refs ...string) []uint64 {
	var out []uint64
	for _, r := range refs {
		out = append(out, xxh3.HashString(r))
	}
	return out
}

func TestScan(t *testing.T) {
	tests := []struct {
		name, body string
		want       Request
	}{
		{"nothing", ` {} `, Request{N: 1}},
		{"usual", `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"n":3}`, Request{Model: "m", Stream: true, N: 3}},
		{"last of equal keys", `{"model":"a","stream":true,"model":"b","stream":false}`, Request{Model: "b", N: 1}},
		{"escaped key and value", `{"mod\u0065l":"a\/b\n\ud83d\ude00"}`, Request{Model: "a/b\n😀", N: 1}},
		{"model of another type", `{"model":7}`, Request{N: 1}},
		{"best_of above n", `{"n":2,"best_of":5}`, Request{N: 5}},
		{"invalid n", `{"n":-1,"best_of":"7"}`, Request{N: 1}},
		{"null n", `{"n":null}`, Request{N: 1}},
		{"n as a float", `{"n":4.0}`, Request{N: 4}},
		{"stream as engines read it", `{"stream":"Yes"}`, Request{N: 1, Stream: true}},
		{"stream as 1", `{"stream":1}`, Request{N: 1, Stream: true}},
		{"stream as 0", `{"stream":0}`, Request{N: 1}},
		{
			"names", `{"cache_salt":"s","session_id":"i","user":"u","prompt_cache_key":"k"}`,
			Request{N: 1, CacheSalt: "s", SessionID: "i", User: "u", PromptCacheKey: "k", Retention: RetainShort},
		},
		{"key gone again", `{"prompt_cache_key":"k","prompt_cache_key":null}`, Request{N: 1}},
		{"nested keys are not the body's", `{"metadata":{"model":"x","n":9,"stream":true}}`, Request{N: 1}},
		{"usage", `{"stream_options": {"include_usage": true} }`, Request{N: 1, IncludeUsage: true, Options: []byte(`{"include_usage": true}`), OptionsAt: 19}},
		{"null options", `{"stream_options":null}`, Request{N: 1, Options: []byte("null"), OptionsAt: 18}},

		{"hint 24h", `{"prompt_cache_retention":"24h"}`, Request{N: 1, Retention: RetainLong}},
		{"hint 5m", `{"prompt_cache_retention":"5m"}`, Request{N: 1, Retention: RetainShort}},
		{"hint off", `{"prompt_cache_retention":"off"}`, Request{N: 1, Retention: RetainNone}},
		{"hint unknown", `{"prompt_cache_retention":"ever"}`, Request{N: 1}},
		{"hint in a block", `{"messages":[{"content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}`, Request{N: 1, Retention: RetainLong}},
		{"hint without ttl", `{"system":[{"type":"text","cache_control":{"type":"ephemeral"}}]}`, Request{N: 1, Retention: RetainShort}},
		{"hint of an unknown type", `{"system":[{"type":"text","cache_control":{"type":"lasting","ttl":"1h"}}]}`, Request{N: 1}},
		{"hint in a tool", `{"tools":[{"type":"function","cache_control":{"type":"ephemeral","ttl":"5m"}}]}`, Request{N: 1, Retention: RetainShort}},
		{"hint on thinking", `{"messages":[{"content":[{"type":"thinking","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}`, Request{N: 1, Retention: RetainNone}},
		{"the strongest hint", `{"prompt_cache_retention":"none","system":[{"cache_control":{"type":"ephemeral"}}]}`, Request{N: 1, Retention: RetainShort}},

		{
			"image", `{"messages":[{"content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":" http://a "}}]}]}`,
			Request{N: 1, Multimodal: true, Images: keys("http://a")},
		},
		{
			"order: messages, system, images", `{"images":["i"],"system":[{"type":"image","source":{"data":"s"}}],"messages":[{"content":[{"type":"image_url","image_url":"m"}]}]}`,
			Request{N: 1, Multimodal: true, Images: keys("m", "s", "i")},
		},
		{
			"order inside a block", `{"messages":[{"content":[{"type":"file","data":"6","url":"5","source":{"data":"4","url":"3"},"input_audio":{"data":"2"},"image_url":{"url":"1"}}]}]}`,
			Request{N: 1, Multimodal: true, Images: keys("1")},
		},
		{
			"audio before source", `{"messages":[{"content":[{"type":"input_audio","source":{"url":"3"},"input_audio":{"data":"2"}}]}]}`,
			Request{N: 1, Multimodal: true, Images: keys("2")},
		},
		{"a text with a url makes a key, but not a picture", `{"messages":[{"content":[{"type":"text","url":"u"}]}]}`, Request{N: 1, Images: keys("u")}},
		{"an image without a reference", `{"messages":[{"content":[{"type":"file","file_id":"f"}]}]}`, Request{N: 1, Multimodal: true}},
		{"blank reference", `{"messages":[{"content":[{"type":"image_url","image_url":{"url":" \n\t "}}]}]}`, Request{N: 1, Multimodal: true}},
		{"blank before the next", `{"images":[{"url":"  ","data":"x"}]}`, Request{N: 1, Multimodal: true}},
		{"not a string, so the next", `{"images":[{"url":5,"data":"x"}]}`, Request{N: 1, Multimodal: true, Images: keys("x")}},
		{"twice the same", `{"images":["a","a"]}`, Request{N: 1, Multimodal: true, Images: keys("a", "a")}},
		{"content replaced", `{"messages":[{"content":[{"type":"image","url":"a"}],"content":"text"}]}`, Request{N: 1}},
		{"messages replaced", `{"messages":[{"content":[{"type":"image","url":"a"}]}],"messages":[]}`, Request{N: 1}},
		{"reference replaced", `{"images":[{"image_url":"a","image_url":{"url":"b"}}]}`, Request{N: 1, Multimodal: true, Images: keys("b")}},
		{"empty images", `{"images":[]}`, Request{N: 1}},
		{"audio out", `{"audio":{"voice":"v"}}`, Request{N: 1, Multimodal: true}},
		{"empty audio", `{"audio":{ }}`, Request{N: 1}},
		{"audio true", `{"audio":true}`, Request{N: 1}},
		{"tool results make none", `{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","url":"a"}]}]}]}`, Request{N: 1}},
		{"escaped reference", `{"images":["data:image\/png;base64,\/\/8="]}`, Request{N: 1, Multimodal: true, Images: keys("data:image/png;base64,//8=")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Scan([]byte(tt.body))
			if err != nil {
				t.Fatalf("Scan(%s): %v", tt.body, err)
			}
			got.Tools, got.Messages, got.Prompt = nil, nil, nil // tested apart
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("Scan(%s) (-want +got):\n%s", tt.body, d)
			}
		})
	}
}

func TestScanKeepsThePartsOfThePrompt(t *testing.T) {
	body := []byte(`{"tools": [ {"a":1} ] ,"prompt":[1, 2],"messages":7,"prompt": "x","messages" : [{"content":"y"}]}`)
	got, err := Scan(body)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct {
		name, want string
		got        []byte
	}{{"tools", `[ {"a":1} ]`, got.Tools}, {"messages", `[{"content":"y"}]`, got.Messages}, {"prompt", `"x"`, got.Prompt}} {
		if string(p.got) != p.want {
			t.Errorf("%s of %s is %s, want %s", p.name, body, p.got, p.want)
		}
	}
	if got, err = Scan([]byte(`{}`)); err != nil || got.Tools != nil || got.Messages != nil || got.Prompt != nil {
		t.Errorf("an empty body has parts: %+v, %v", got, err)
	}
}

func TestScanRefuses(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"empty", "", "at byte 0: the text ends"},
		{"white space", "  ", "at byte 2: the text ends"},
		{"array", "[]", "at byte 0: the body is not a JSON object"},
		{"text", "hello", "at byte 0: the body is not"},
		{"cut", `{"model":"m`, "at byte 11: the text ends"},
		{"cut escape", `{"model":"m\`, "the text ends"},
		{"trailing", `{} x`, "at byte 3: text after the end"},
		{"two", `{}{}`, "at byte 2: text after the end"},
		{"trailing comma", `{"a":1,}`, "at byte 7: a string is expected"},
		{"trailing comma in a list", `{"a":[1,]}`, "a value is expected"},
		{"no colon", `{"a" 1}`, "at byte 5: a colon"},
		{"bare key", `{a:1}`, "at byte 1: a string is expected"},
		{"NaN", `{"a":NaN}`, "at byte 5: a value is expected"},
		{"leading zero", `{"a":01}`, "at byte 6: a comma"},
		{"plus", `{"a":+1}`, "a value is expected"},
		{"point", `{"a":1.}`, "a digit is expected after the point"},
		{"exponent", `{"a":1e}`, "a digit is expected in the exponent"},
		{"control character", "{\"a\":\"x\ny\"}", "at byte 7: a control character"},
		{"escape", `{"a":"\x"}`, "an unknown escape"},
		{"hex", `{"a":"\u12g4"}`, "four hexadecimal digits"},
		{"wrong bracket", `{"a":[1}`, "at byte 7: a comma or the closing bracket"},
		{"deep", `{"a":` + strings.Repeat("[", 2000), "nested too deeply"},
		{"deep where fields are known", `{"messages":[{"content":[{"x":` + strings.Repeat(`{"y":`, 2000), "nested too deeply"},
		{"byte order mark", "\ufeff{}", "at byte 0: the body is not"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Scan([]byte(tt.body))
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Scan(%.40q) gives %v, want a SyntaxError with %q", tt.body, err, tt.want)
			}
		})
	}
	if _, err := Scan([]byte(`{"a":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + "}")); err != nil {
		t.Errorf("depth %d: %v, want none", maxDepth, err)
	}
}

// naive is Scan by encoding/json, a value at a time.
func naive(body []byte) (Request, bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var m map[string]any
	if dec.Decode(&m) != nil || m == nil || !json.Valid(body) {
		return Request{}, false
	}
	str := func(v any) string { s, _ := v.(string); return s }
	q := Request{
		Model: str(m["model"]), CacheSalt: str(m["cache_salt"]), SessionID: str(m["session_id"]), User: str(m["user"]),
		PromptCacheKey: str(m["prompt_cache_key"]), N: 1, Retention: retention(str(m["prompt_cache_retention"])),
	}
	truth := func(v any) bool {
		switch v := v.(type) {
		case bool:
			return v
		case json.Number:
			return v == "1" || v == "1.0"
		case string:
			switch strings.ToLower(v) {
			case "true", "1", "on", "t", "y", "yes":
				return true
			}
		}
		return false
	}
	q.Stream = truth(m["stream"])
	for _, k := range []string{"n", "best_of"} {
		if v, ok := m[k].(json.Number); ok {
			if f, err := v.Float64(); err == nil && f >= 1 && f < 1<<31 && f == float64(int64(f)) {
				q.N = max(q.N, int64(f))
			}
		}
	}
	if q.PromptCacheKey != "" {
		q.Retention = max(q.Retention, RetainShort)
	}
	control := func(b map[string]any) Retention {
		c, _ := b["cache_control"].(map[string]any)
		if str(c["type"]) != "ephemeral" {
			return NoHint
		}
		if strings.Contains("|1h|1hr|60m|3600s|long|", "|"+str(c["ttl"])+"|") {
			return RetainLong
		}
		return RetainShort
	}
	ref := func(s string) {
		if s = strings.TrimSpace(s); s != "" {
			q.Images = append(q.Images, xxh3.HashString(s))
		}
	}
	block := func(b map[string]any) (media bool) {
		sub := func(k, f string) any { o, _ := b[k].(map[string]any); return o[f] }
		for _, v := range []any{b["image_url"], sub("image_url", "url"), sub("input_audio", "data"), sub("source", "url"), sub("source", "data"), b["url"], b["data"]} {
			if s, ok := v.(string); ok {
				ref(s)
				break
			}
		}
		hint := control(b)
		kind := str(b["type"])
		if hint != NoHint && (kind == "thinking" || kind == "redacted_thinking") {
			hint = RetainNone
		}
		q.Retention = max(q.Retention, hint)
		return kind != "" && strings.Contains("|image|image_url|input_audio|document|file|video|audio|", "|"+kind+"|")
	}
	list := func(v any) {
		l, _ := v.([]any)
		for _, e := range l {
			if b, ok := e.(map[string]any); ok && block(b) {
				q.Multimodal = true
			}
		}
	}
	messages, _ := m["messages"].([]any)
	for _, e := range messages {
		msg, _ := e.(map[string]any)
		list(msg["content"])
	}
	list(m["system"])
	images, _ := m["images"].([]any)
	for _, e := range images {
		q.Multimodal = true
		switch e := e.(type) {
		case string:
			ref(e)
		case map[string]any:
			// Hints count in messages, system and tools only.
			keep := q.Retention
			block(e)
			q.Retention = keep
		}
	}
	switch a := m["audio"].(type) {
	case []any:
		q.Multimodal = q.Multimodal || len(a) > 0
	case map[string]any:
		q.Multimodal = q.Multimodal || len(a) > 0
	}
	tools, _ := m["tools"].([]any)
	for _, e := range tools {
		tool, _ := e.(map[string]any)
		q.Retention = max(q.Retention, control(tool))
	}
	options, _ := m["stream_options"].(map[string]any)
	q.IncludeUsage = truth(options["include_usage"])
	return q, true
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,x"}}]}],"n":2}`,
		`{"images":["a\/\u00e9 ",{"source":{"url":1,"data":"\ud83d\ude00"}}],"audio":[1]}`,
		`{"system":[{"type":"thinking","cache_control":{"type":"ephemeral","ttl":"1h"}}],"tools":[{"cache_control":{"type":"ephemeral"}}]}`,
		`{"a":[[],{},[{"b":null}],-0.5e+7,true,"\\\""],"stream":"on","stream_options":{"include_usage":1}}`,
		`{"prompt_cache_key":"\ud800","prompt_cache_retention":"none"}`, `{"n":1e2,"best_of":3}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Scan(body)
		if bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) > maxDepth {
			return
		}
		want, ok := naive(body)
		if ok != (err == nil) {
			t.Fatalf("Scan(%q) gives error %v, encoding/json accepts it: %v", body, err, ok)
		}
		if !ok || !utf8.Valid(body) || len(body) > escapedChunk {
			return
		}
		var parts struct{ Tools, Messages, Prompt json.RawMessage }
		exact := map[string]json.RawMessage{}
		if err := json.Unmarshal(body, &exact); err != nil {
			t.Fatal(err)
		}
		parts.Tools, parts.Messages, parts.Prompt = exact["tools"], exact["messages"], exact["prompt"]
		if string(got.Tools) != string(parts.Tools) || string(got.Messages) != string(parts.Messages) || string(got.Prompt) != string(parts.Prompt) {
			t.Fatalf("parts of %q are %q, %q, %q, want %q", body, got.Tools, got.Messages, got.Prompt, parts)
		}
		got.Options, got.OptionsAt, got.Tools, got.Messages, got.Prompt = nil, 0, nil, nil, nil
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("Scan(%q) (-want +got):\n%s", body, d)
		}
	})
}

func TestEscapedReferencesHashLikePlainOnes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	parts := []string{"/", "a", " ", "\n", "é", "\u2003", "😀", `"`, `\`, "aaaaaaaaaaaaaaa"}
	for range 300 {
		var b strings.Builder
		for b.Len() < rng.IntN(3*escapedChunk) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		var raw strings.Builder // the value with as many escapes as chance wants
		for _, r := range b.String() {
			switch {
			case r == '/':
				raw.WriteString(`\/`)
			case r == '"', r == '\\':
				raw.WriteString(`\` + string(r))
			case r < ' ', rng.IntN(3) == 0 && r < 0x10000:
				fmt.Fprintf(&raw, `\u%04X`, r)
			case r >= 0x10000 && rng.IntN(2) == 0:
				raw.WriteString(`\ud83d\uDE00`)
			default:
				raw.WriteRune(r)
			}
		}
		want, wantOK := imageKey(text{raw: []byte(b.String())})
		got, ok := escapedKey([]byte(raw.String()))
		if ok != wantOK || (ok && got != want) {
			t.Fatalf("key of %q is %x %v, want %x %v", raw.String(), got, ok, want, wantOK)
		}
	}
}

func TestAskForUsage(t *testing.T) {
	tests := []struct {
		name, body, want string
		ok               bool
	}{
		{"none", `{"model":"m"} `, `{"model":"m","stream_options":{"include_usage":true}} `, true},
		{"empty body", `{ }`, `{ "stream_options":{"include_usage":true}}`, true},
		{"asked already", `{"stream_options":{"include_usage":true}}`, "", false},
		{"empty options", `{"stream_options":{},"n":1}`, `{"stream_options":{"include_usage":true},"n":1}`, true},
		{"other options", `{"stream_options":{"a":"}"},"n":1}`, `{"stream_options":{"a":"}","include_usage":true},"n":1}`, true},
		{"refused", `{"stream_options":{"include_usage":false}}`, `{"stream_options":{"include_usage":false,"include_usage":true}}`, true},
		{"null", `{"stream_options":null}`, `{"stream_options":null,"stream_options":{"include_usage":true}}`, true},
		{"wrong type", `{"stream_options":7}`, "", false},
		{"twice, the last counts", `{"stream_options":{"include_usage":true},"stream_options":{}}`, `{"stream_options":{"include_usage":true},"stream_options":{"include_usage":true}}`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := []byte(tt.body)
			q, err := Scan(body)
			if err != nil {
				t.Fatal(err)
			}
			s, ok := AskForUsage(body, &q)
			if ok != tt.ok {
				t.Fatalf("AskForUsage(%s) ok = %v, want %v", tt.body, ok, tt.ok)
			}
			if !ok {
				return
			}
			got, err := io.ReadAll(NewBody(body, s))
			if err != nil || string(got) != tt.want {
				t.Errorf("spliced %s is %s, %v; want %s", tt.body, got, err, tt.want)
			}
		})
	}
}

// FuzzSplice holds that a spliced body is the body, byte for byte, with the field in it, and that it then
// asks for usage and is otherwise the same request.
func FuzzSplice(f *testing.F) {
	f.Add([]byte(`{"stream_options":{"a":1},"model":"m"}`), uint8(3))
	f.Add([]byte("{\n}"), uint8(0))
	f.Fuzz(func(t *testing.T, body []byte, piece uint8) {
		q, err := Scan(body)
		if err != nil {
			return
		}
		s, ok := AskForUsage(body, &q)
		if !ok {
			return
		}
		var got []byte
		r := NewBody(body, s)
		for buf := make([]byte, int(piece)+1); ; {
			n, err := r.Read(buf)
			got = append(got, buf[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var whole bytes.Buffer
		if n, err := NewBody(body, s).WriteTo(&whole); err != nil || n != Spliced(body, s) || !bytes.Equal(whole.Bytes(), got) {
			t.Fatalf("WriteTo gives %q (%d, %v), Read gives %q", whole.Bytes(), n, err, got)
		}
		if back := append(bytes.Clone(got[:s.At]), got[s.At+len(s.Text):]...); !bytes.Equal(back, body) {
			t.Fatalf("without the splice %q is %q, want %q", got, back, body)
		}
		p, err := Scan(got)
		if err != nil {
			t.Fatalf("spliced body %q: %v", got, err)
		}
		if !p.IncludeUsage {
			t.Fatalf("spliced body %q does not ask for usage", got)
		}
		p.IncludeUsage, p.Options, p.OptionsAt = q.IncludeUsage, q.Options, q.OptionsAt // the rest is the same
		if d := cmp.Diff(q, p); d != "" {
			t.Fatalf("splicing changed the request (-before +after):\n%s", d)
		}
	})
}

// chatBody is a conversation of about size bytes with line ends and quotes as code has them.
func chatBody(size, messages int) []byte {
	line := "\tif err := run(ctx, \"job\"); err != nil { return fmt.Errorf(\"running: %w\", err) }\nThe next line is plain prose about nothing in particular, as people write it.\n"
	per := strings.Repeat(line, size/messages/len(line)+1)
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var m []message
	for i := range messages {
		m = append(m, message{[]string{"user", "assistant"}[i%2], per})
	}
	b, err := json.Marshal(map[string]any{"model": "m", "messages": m, "stream": true})
	if err != nil {
		panic(err)
	}
	return b
}

func BenchmarkScan(b *testing.B) {
	for _, size := range []int{1 << 10, 100 << 10, 400 << 10} {
		body := chatBody(size, max(size/10240, 1))
		b.Run(fmt.Sprintf("chat%dk", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Scan(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	image := []byte(`{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image\/png;base64,` + strings.Repeat(`iVBORw0KGgo\/AAAA`, 20<<16) + `"}}]}]}`)
	b.Run("image20m", func(b *testing.B) {
		b.SetBytes(int64(len(image)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Scan(image); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestScanAllocatesLittle(t *testing.T) {
	body := chatBody(400<<10, 41)
	if got := testing.AllocsPerRun(20, func() {
		if _, err := Scan(body); err != nil {
			t.Fatal(err)
		}
	}); got > 4 {
		t.Errorf("Scan of a plain chat allocates %v times, want at most 4 (its model and its state)", got)
	}
}

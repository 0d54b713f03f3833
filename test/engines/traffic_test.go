//go:build engines

package engines

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// request is one request of the workload.
type request struct {
	what  string // its sort, for tables
	path  string
	body  map[string]any
	leave int // the client leaves after that many pieces of a stream; 0: it stays
}

const (
	chatPath = "/v1/chat/completions"
	textPath = "/v1/completions"
)

// words is what texts are made of: scripts, code, digits, white space and emoji fall into tokens very differently.
var words = strings.Split("the cache holds|a prefix|Größe|数据块|キャッシュ|данные|func main() {|\n\n|return nil, err|1234567|🦄🚀|  |naïve café|"+
	"SELECT * FROM t;|don't|http://example.com/a?b=c|\tif x != 0|…|مرحبا|한국어|and then|it was|of blocks|to the router|\"quoted\"|<tag>|</tag>|e=mc²", "|")

// traffic makes requests. Equal seeds make equal requests.
type traffic struct {
	rng   *rand.Rand
	block int
	kind  kind
	n     int

	systems []string
	ids     [][]int // prompts of token ids
	turns   [][]any // conversations that go on
	salted  []string
}

func newTraffic(k kind, seed uint64) *traffic {
	g := &traffic{rng: rand.New(rand.NewPCG(seed, 17)), block: k.block, kind: k}
	for i := range 10 {
		g.systems = append(g.systems, fmt.Sprintf("System %d. ", i)+g.text(30+g.rng.IntN(90)))
	}
	for range 8 {
		ids := make([]int, 14*k.block)
		for j := range ids {
			ids[j] = 100 + g.rng.IntN(100_000)
		}
		g.ids = append(g.ids, ids)
	}
	for i := range 6 {
		g.turns = append(g.turns, []any{message("system", g.systems[i%len(g.systems)]), message("user", g.text(20))})
	}
	for i := range 3 {
		g.salted = append(g.salted, fmt.Sprintf("tenant-%d", i))
	}
	return g
}

func (g *traffic) text(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[g.rng.IntN(len(words))])
	}
	return b.String()
}

func message(role, content string) map[string]any {
	return map[string]any{"role": role, "content": content}
}

var tools = []any{map[string]any{"type": "function", "function": map[string]any{
	"name": "lookup", "description": "Finds a <record> by its \"key\" & shows it",
	"parameters": map[string]any{"type": "object", "properties": map[string]any{"key": map[string]any{"type": "string"}, "most": map[string]any{"type": "integer"}}, "required": []any{"key"}},
}}}

// next makes the next request.
func (g *traffic) next() request {
	g.n++
	r := g.choose()
	r.body["model"] = modelName
	if _, ok := r.body["temperature"]; !ok {
		r.body["temperature"] = 0
	}
	if _, ok := r.body["max_tokens"]; !ok {
		r.body["max_tokens"] = 1 + g.rng.IntN(8)
		if g.rng.IntN(6) == 0 {
			r.body["max_tokens"] = g.block + g.rng.IntN(g.block) // blocks fill while decoding
		}
	}
	if r.leave > 0 || g.rng.IntN(2) == 0 {
		r.body["stream"] = true
		r.body["stream_options"] = map[string]any{"include_usage": true}
	}
	return r
}

func (g *traffic) choose() request {
	chat := func(what string, body map[string]any) request { return request{what: what, path: chatPath, body: body} }
	text := func(what string, body map[string]any) request { return request{what: what, path: textPath, body: body} }
	system := g.systems[g.rng.IntN(len(g.systems))]
	switch p := g.rng.IntN(100); {
	case p < 20:
		return chat("chat", map[string]any{"messages": []any{message("system", system), message("user", g.text(1+g.rng.IntN(30)))}})
	case p < 40: // a conversation goes on, or begins again when it has become long
		k := g.rng.IntN(len(g.turns))
		c := g.turns[k]
		if len(c) > 8 {
			c = c[:2]
		}
		c = append(c[:len(c):len(c)], message("assistant", g.text(10)), message("user", g.text(12)))
		g.turns[k] = c
		return chat("next turn", map[string]any{"messages": c})
	case p < 48:
		return chat("tools", map[string]any{"tools": tools, "messages": []any{message("system", system), message("user", g.text(4))}})
	case p < 56:
		call := map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
			"id": "call_1", "type": "function", "function": map[string]any{"name": "lookup", "arguments": `{"key": "größe", "most": 3}`},
		}}}
		return chat("tool result", map[string]any{"tools": tools, "messages": []any{
			message("system", system), message("user", g.text(3)), call,
			map[string]any{"role": "tool", "tool_call_id": "call_1", "content": g.text(8)},
		}})
	case p < 64:
		return text("text", map[string]any{"prompt": system + g.text(g.rng.IntN(20))})
	case p < 80: // whole blocks, to the token
		ids := g.ids[g.rng.IntN(len(g.ids))][:(2+g.rng.IntN(12))*g.block]
		return text("whole blocks", map[string]any{"prompt": ids})
	case p < 85: // token ids that end anywhere
		ids := g.ids[g.rng.IntN(len(g.ids))]
		return text("token ids", map[string]any{"prompt": ids[:g.block+g.rng.IntN(len(ids)-g.block)]})
	case p < 90:
		return text("n=2", map[string]any{"prompt": system + g.text(5), "n": 2, "temperature": 1})
	case p < 94:
		return text("batch", map[string]any{"prompt": []any{system + g.text(6), g.systems[g.rng.IntN(len(g.systems))] + g.text(9)}})
	case p < 97:
		return chat("salt", map[string]any{"cache_salt": g.salted[g.rng.IntN(len(g.salted))], "messages": []any{message("system", system), message("user", g.text(3))}})
	default:
		r := chat("abort", map[string]any{"max_tokens": 4 * g.block, "messages": []any{message("system", system), message("user", g.text(10))}})
		r.leave = 1 + g.rng.IntN(g.block)
		return r
	}
}

// answer is what a client saw.
type answer struct {
	id     string
	status int
	worker string
	cached int64 // as the engine reported it; -1: it did not
	said   bool  // explicitly
	prompt int64
	output int64
	ttft   time.Duration
	took   time.Duration
	cut    bool // the stream broke off
	err    error
	text   string // of an answer that is an error
}

type usage struct {
	Prompt     *int64 `json:"prompt_tokens"`
	Completion *int64 `json:"completion_tokens"`
	Details    *struct {
		Cached *int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (a *answer) take(u *usage) {
	if u == nil {
		return
	}
	if u.Prompt != nil {
		a.prompt = *u.Prompt
		a.cached = 0 // some leave the details out when nothing was cached
	}
	if u.Completion != nil {
		a.output = *u.Completion
	}
	if u.Details != nil && u.Details.Cached != nil {
		a.cached, a.said = *u.Details.Cached, true
	}
}

// send carries one request through a router.
func send(ctx context.Context, base, id string, r request) (a answer) {
	a = answer{id: id, cached: -1}
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	body, err := json.Marshal(r.body)
	if err != nil {
		a.err = err
		return a
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+r.path, bytes.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	req.Header.Set("X-Kvroute-Explain", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.status, a.worker = resp.StatusCode, resp.Header.Get("X-Kvroute-Worker")
	if resp.StatusCode != http.StatusOK || r.body["stream"] != true {
		data, err := io.ReadAll(resp.Body)
		a.err, a.ttft = err, time.Since(began)
		var whole struct{ Usage *usage }
		if err == nil && resp.StatusCode == http.StatusOK {
			a.err = json.Unmarshal(data, &whole)
			a.take(whole.Usage)
		} else {
			a.text = string(data)
		}
		return a
	}
	a.stream(resp.Body, r, began)
	return a
}

// stream reads a stream to its end, or until the client leaves.
func (a *answer) stream(in io.Reader, r request, began time.Time) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	pieces, done := 0, false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var piece struct {
			Usage   *usage
			Choices []json.RawMessage
			Error   json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &piece); err != nil {
			a.err = err
			return
		}
		if piece.Error != nil {
			a.cut, a.text = true, string(piece.Error)
		}
		if len(piece.Choices) > 0 {
			if pieces++; pieces == 1 {
				a.ttft = time.Since(began)
			}
		}
		a.take(piece.Usage)
		if r.leave > 0 && pieces >= r.leave {
			return
		}
	}
	if err := lines.Err(); err != nil {
		a.err = err
	} else if !done && !a.cut {
		a.err = errors.New("the stream ended without [DONE]")
	}
}

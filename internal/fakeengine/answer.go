package fakeengine

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// object writes a JSON object whose keys stand in the order given: name, value, name, value. A value
// that is omit leaves its key out.
func object(pairs ...any) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := 0; i < len(pairs); i += 2 {
		if _, out := pairs[i+1].(omit); out {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(encodeJSON(pairs[i]))
		b.WriteByte(':')
		b.Write(encodeJSON(pairs[i+1]))
	}
	b.WriteByte('}')
	return b.Bytes()
}

type omit struct{}

// encodeJSON writes a value without HTML escapes, as Python does.
func encodeJSON(v any) []byte {
	if raw, ok := v.(json.RawMessage); ok && raw != nil {
		return raw
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("fakeengine: encoding an answer: " + err.Error()) // only texts, numbers and lists of them
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// optional is v if it is wanted, and omit if not.
func optional(want bool, v any) any {
	if want {
		return v
	}
	return omit{}
}

func (e *Engine) reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(encodeJSON(v)) //nolint:errcheck // the client has gone
}

// refuse answers with an error in the engine's schema.
func (e *Engine) refuse(w http.ResponseWriter, no *refusal) {
	var param any
	if no.param != "" {
		param = no.param
	}
	if no.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	e.reply(w, no.status, e.errorBody(no, param))
}

func (e *Engine) errorBody(no *refusal, param any) json.RawMessage {
	if e.cfg.Dialect == SGLang || e.cfg.Dialect == TRTLLM {
		return object("object", "error", "message", no.message, "type", no.kind, "param", nil, "code", no.status)
	}
	return object("error", object("message", no.message, "type", no.kind, "param", param, "code", no.status))
}

// finishReason: answers end where a limit was asked for, or by themselves.
func (j *job) finishReason() string {
	if j.stop {
		return "stop"
	}
	return "length"
}

// usage is the engine's account of a request.
func (j *job) usage(output int) json.RawMessage {
	prompt := 0
	for _, p := range j.prompts {
		prompt += len(p)
	}
	e, cached := j.e, j.cached()
	details := any(nil)
	switch {
	case e.cfg.Dialect == VLLM && e.wire.nullCached && cached == 0 && !j.ask.Stream:
	case e.cfg.Dialect == VLLM && e.wire.created:
		var created any
		if j.ep == tokenize.Chat {
			last := len(j.prompts[len(j.prompts)-1])
			created = max(0, last/e.cfg.BlockSize*e.cfg.BlockSize-cached)
		}
		if j.ask.Stream {
			details = object("cached_tokens", cached, "created_cache_tokens", optional(created != nil, created))
		} else {
			details = object("cached_tokens", cached, "created_cache_tokens", created, "multimodal_tokens", nil)
		}
	default:
		details = object("cached_tokens", cached)
	}
	sglang := e.cfg.Dialect == SGLang
	return object(
		"prompt_tokens", prompt, "total_tokens", prompt+output, "completion_tokens", output,
		"prompt_tokens_details", details,
		"reasoning_tokens", optional(sglang, 0),
		"completion_tokens_details", optional(sglang || e.wire.created && !j.ask.Stream, nil),
	)
}

// whole answers when everything is there.
func (j *job) whole(w http.ResponseWriter, r *http.Request) {
	texts := make([]strings.Builder, len(j.seqs))
	ids := make([][]block.Token, len(j.seqs))
	output := 0
	err := j.each(r.Context(), func(p piece) error {
		texts[p.index].WriteString(p.text)
		ids[p.index] = append(ids[p.index], p.id)
		output++
		return nil
	})
	if err != nil {
		breakOff(w)
		return
	}
	var choices []json.RawMessage
	for i := range texts {
		choices = append(choices, j.choice(i, texts[i].String(), ids[i]))
	}
	kind := "text_completion"
	if j.ep == tokenize.Chat {
		kind = "chat.completion"
	}
	vllm := j.e.cfg.Dialect == VLLM
	var promptIDs any
	if j.ask.ReturnToken {
		promptIDs = j.prompts[0]
	}
	j.e.reply(w, http.StatusOK, object(
		"id", j.id, "object", kind, "created", j.created, "model", j.model, "choices", choices,
		"service_tier", optional(vllm, nil), "system_fingerprint", optional(vllm, "vllm-"+j.e.cfg.Version+"-standin"),
		"usage", j.usage(output),
		"prompt_token_ids", optional(vllm && j.ep == tokenize.Chat, promptIDs),
		"kv_transfer_params", optional(vllm, nil),
		"metadata", optional(j.e.cfg.Dialect == SGLang, object("weight_version", "default")),
	))
}

// choice is one answer of a whole response.
func (j *job) choice(i int, text string, ids []block.Token) json.RawMessage {
	sglang, vllm := j.e.cfg.Dialect == SGLang, j.e.cfg.Dialect == VLLM
	var tokenIDs, promptIDs any
	if j.ask.ReturnToken {
		tokenIDs, promptIDs = ids, j.prompts[i/j.n]
	}
	tail := []any{
		"logprobs", nil, "finish_reason", j.finishReason(),
		"stop_reason", optional(vllm, nil), "matched_stop", optional(sglang, nil), "token_ids", optional(vllm, tokenIDs),
		"prompt_token_ids", optional(vllm && j.ep == tokenize.Completions || sglang && j.ask.ReturnToken, promptIDs),
		"response_token_ids", optional(sglang && j.ask.ReturnToken, tokenIDs),
	}
	if j.ep == tokenize.Completions {
		return object(append([]any{"index", i, "text", text}, tail...)...)
	}
	message := object(
		"role", "assistant", "content", text,
		"refusal", optional(vllm, nil), "annotations", optional(vllm, nil), "audio", optional(vllm, nil),
		"function_call", optional(vllm, nil), "tool_calls", optional(vllm && !j.e.wire.asMap, []int{}),
		"reasoning", optional(vllm, nil), "reasoning_content", optional(sglang, nil),
	)
	return object(append([]any{"index", i, "message", message}, tail...)...)
}

// stream answers as server-sent events, one for each token.
func (j *job) stream(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	begun := false
	send := func(record []byte) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			w.Header().Set("Cache-Control", "no-cache")
			w.WriteHeader(http.StatusOK)
		}
		if _, err := w.Write(append(append([]byte("data: "), record...), "\n\n"...)); err != nil {
			return err
		}
		return out.Flush()
	}
	output := 0
	spoke := make([]bool, len(j.seqs))
	err := j.each(r.Context(), func(p piece) error {
		output++
		if !spoke[p.index] {
			spoke[p.index] = true
			if j.ep == tokenize.Chat {
				if err := send(j.chunk(p.index, j.delta("", true), nil)); err != nil {
					return err
				}
			}
		}
		var reason any
		apart := j.e.cfg.Dialect == SGLang && j.ep == tokenize.Chat // the end is a record of its own
		if p.last && !apart {
			reason = j.finishReason()
		}
		if err := send(j.chunk(p.index, j.delta(p.text, false), reason)); err != nil || !p.last || !apart {
			return err
		}
		return send(j.chunk(p.index, object("reasoning_content", nil), j.finishReason()))
	})
	if err != nil {
		breakOff(w)
		return
	}
	if o := j.ask.Options; o != nil && o.IncludeUsage {
		if send(j.record([]json.RawMessage{}, j.usage(output))) != nil {
			return
		}
	}
	send([]byte("[DONE]")) //nolint:errcheck // the client has gone
}

// delta is the changing part of a record: a chat's message, or the text itself.
func (j *job) delta(text string, first bool) json.RawMessage {
	if j.ep == tokenize.Completions {
		return encodeJSON(text)
	}
	return object(
		"reasoning_content", optional(j.e.cfg.Dialect == SGLang, nil),
		"role", optional(first, "assistant"), "content", text,
	)
}

// chunk is one record of a stream.
func (j *job) chunk(i int, delta json.RawMessage, reason any) []byte {
	name := "delta"
	if j.ep == tokenize.Completions {
		name = "text"
	}
	c := object(
		"index", i, name, delta, "logprobs", nil, "finish_reason", reason,
		"matched_stop", optional(j.e.cfg.Dialect == SGLang, nil),
		"stop_reason", optional(j.e.cfg.Dialect == VLLM && reason != nil, nil),
		"token_ids", optional(j.e.cfg.Dialect == VLLM, nil),
	)
	return j.record([]json.RawMessage{c}, nil)
}

func (j *job) record(choices []json.RawMessage, usage json.RawMessage) []byte {
	kind := "text_completion"
	if j.ep == tokenize.Chat {
		kind = "chat.completion.chunk"
	}
	return object(
		"id", j.id, "object", kind, "created", j.created, "model", j.model, "choices", choices,
		"usage", optional(usage != nil, usage),
	)
}

// breakOff resets the connection, so that nobody takes what was sent for the whole.
func breakOff(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: the server resets the stream
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		cut(tcp)
		return
	}
	conn.Close() //nolint:errcheck // it is to end, nothing else
}

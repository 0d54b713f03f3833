package openai

import (
	"math"
	"strconv"
	"strings"
)

// Retention is a client's cache hint, weakest first.
type Retention uint8

// The hints. NoHint: none was given.
const (
	NoHint Retention = iota
	RetainNone
	RetainShort
	RetainLong
)

// Request is what routing needs to know of a body of /v1/chat/completions or /v1/completions. Strings
// are copies. Of equal keys in one object the last counts, as in engines.
type Request struct {
	Model     string
	Stream    bool
	N         int64 // samples: the larger of n and best_of; absent or invalid counts as 1
	CacheSalt string
	// PromptCacheKey, SessionID and User are fields by which clients name a conversation or themselves.
	PromptCacheKey string
	SessionID      string
	User           string
	Retention      Retention
	// Multimodal and Images are by infera-router reference 15: a block of a known type, images or audio;
	// the keys of images in order of messages, system, images.
	Multimodal bool
	Images     []uint64
	// IncludeUsage says that stream_options asks for usage at the end of the stream.
	IncludeUsage bool
	// Options is the value of stream_options and OptionsAt where it stands; nil if there is none.
	Options   []byte
	OptionsAt int
	// Tools, Messages and Prompt are the values of these fields, slices of the body; nil where there is none.
	Tools, Messages, Prompt []byte
}

// Scan reads a body. It checks that the whole body is one JSON object, but of the fields it knows only
// the type it needs: what an engine would refuse is the engine's to refuse. Errors are *SyntaxError.
func Scan(body []byte) (Request, error) {
	r := scanRequest{scanner: scanner{b: body}}
	r.n, r.bestOf = 1, 1
	if r.peek() != '{' {
		r.fail("the body is not a JSON object")
		return Request{}, r.err
	}
	r.object(r.field)
	r.end()
	if r.err != nil {
		return Request{}, r.err
	}
	return r.finish(), nil
}

// blocks is what was found in one list of content blocks.
type blocks struct {
	images []uint64
	media  bool
	hint   Retention
}

func (b *blocks) add(o blocks) {
	b.images = append(b.images, o.images...)
	b.media = b.media || o.media
	b.hint = max(b.hint, o.hint)
}

type scanRequest struct {
	scanner
	req                      Request
	n, bestOf                int64
	hint, keyHint, toolsHint Retention
	messages, system, images blocks
	imagesList, audio        bool
}

func (r *scanRequest) finish() Request {
	all := r.messages
	all.add(r.system)
	all.add(r.images)
	q := r.req
	q.N = max(r.n, r.bestOf)
	q.Images = all.images
	q.Multimodal = r.messages.media || r.system.media || r.imagesList || r.audio
	q.Retention = max(r.hint, r.keyHint, r.toolsHint, r.messages.hint, r.system.hint)
	return q
}

// field takes the value of a key of the body.
func (r *scanRequest) field(key []byte) {
	switch string(key) {
	case "model":
		r.req.Model = r.optional()
	case "stream":
		r.req.Stream = r.truth()
	case "n":
		r.n = r.count()
	case "best_of":
		r.bestOf = r.count()
	case "cache_salt":
		r.req.CacheSalt = r.optional()
	case "prompt_cache_key":
		r.req.PromptCacheKey = r.optional()
		r.keyHint = NoHint
		if r.req.PromptCacheKey != "" {
			r.keyHint = RetainShort
		}
	case "session_id":
		r.req.SessionID = r.optional()
	case "user":
		r.req.User = r.optional()
	case "prompt_cache_retention":
		r.hint = retention(r.optional())
	case "messages":
		r.messages = blocks{}
		r.value(&r.req.Messages, func() { r.each(r.message) })
	case "prompt":
		r.value(&r.req.Prompt, r.skip)
	case "system":
		r.system = blocks{}
		r.content(&r.system)
	case "tools":
		r.toolsHint = NoHint
		r.value(&r.req.Tools, func() { r.each(r.tool) })
	case "images":
		r.images, r.imagesList = blocks{}, false
		r.each(func() {
			r.imagesList = true
			r.block(&r.images)
		})
	case "audio":
		c := r.peek()
		v := r.raw()
		r.audio = (c == '{' || c == '[') && !empty(v)
	case "stream_options":
		r.streamOptions()
	default:
		r.skip()
	}
}

// value has take take a value and keeps its text.
func (r *scanRequest) value(into *[]byte, take func()) {
	r.peek()
	start := r.i
	take()
	*into = r.b[start:r.i]
}

// each calls do for every element of an array and skips anything else.
func (r *scanRequest) each(do func()) {
	if r.peek() == '[' {
		r.array(do)
		return
	}
	r.skip()
}

// optional takes any value and returns it if it is a string.
func (r *scanRequest) optional() string {
	if r.peek() == '"' {
		return r.str().String()
	}
	r.skip()
	return ""
}

// truth takes any value and reports whether engines read it as true.
func (r *scanRequest) truth() bool {
	switch r.peek() {
	case '"':
		switch strings.ToLower(r.str().String()) {
		case "true", "1", "on", "t", "y", "yes":
			return true
		}
		return false
	default:
		v := string(r.raw())
		return v == "true" || v == "1" || v == "1.0"
	}
}

// count takes any value and returns it if it is a whole number above 0, else 1.
func (r *scanRequest) count() int64 {
	if r.peek() == '"' {
		r.str()
		return 1
	}
	v := string(r.raw())
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return max(n, 1)
	}
	if f, err := strconv.ParseFloat(v, 64); err == nil && f >= 1 && f <= math.MaxInt32 && f == math.Trunc(f) {
		return int64(f)
	}
	return 1
}

func (r *scanRequest) message() {
	if r.peek() != '{' {
		r.skip()
		return
	}
	var found blocks
	r.object(func(key []byte) {
		if string(key) != "content" {
			r.skip()
			return
		}
		found = blocks{}
		r.content(&found)
	})
	r.messages.add(found)
}

// content takes a content: a list of blocks, or anything else.
func (r *scanRequest) content(into *blocks) {
	r.each(func() {
		if r.peek() == '{' {
			r.block(into)
			return
		}
		r.skip()
	})
}

// The places of an image reference in a block, first found first taken.
const (
	refImageURL = iota
	refImageURLNested
	refAudioData
	refSourceURL
	refSourceData
	refURL
	refData
	refs
)

// block takes a content block, or a reference that stands for itself.
func (r *scanRequest) block(into *blocks) {
	var (
		ref  [refs]text
		has  [refs]bool
		kind string
		hint Retention
	)
	take := func(at int) {
		if has[at] = r.peek() == '"'; has[at] {
			ref[at] = r.str()
			return
		}
		r.skip()
	}
	nested := func(first, second string, at1, at2 int) {
		if r.peek() != '{' {
			r.skip()
			return
		}
		r.object(func(key []byte) {
			switch string(key) {
			case first:
				take(at1)
			case second:
				take(at2)
			default:
				r.skip()
			}
		})
	}
	switch r.peek() {
	case '"':
		take(refImageURL)
	case '{':
		r.object(func(key []byte) {
			switch string(key) {
			case "type":
				kind = r.optional()
			case "image_url":
				has[refImageURL], has[refImageURLNested] = false, false
				if r.peek() == '"' {
					take(refImageURL)
				} else {
					nested("url", "url", refImageURLNested, refImageURLNested)
				}
			case "input_audio":
				has[refAudioData] = false
				nested("data", "data", refAudioData, refAudioData)
			case "source":
				has[refSourceURL], has[refSourceData] = false, false
				nested("url", "data", refSourceURL, refSourceData)
			case "url":
				take(refURL)
			case "data":
				take(refData)
			case "cache_control":
				hint = r.cacheControl()
			default:
				r.skip()
			}
		})
	default:
		r.skip()
		return
	}
	for i, ok := range has {
		if ok {
			if key, ok := imageKey(ref[i]); ok {
				into.images = append(into.images, key)
			}
			break
		}
	}
	switch kind {
	case "image", "image_url", "input_audio", "document", "file", "video", "audio":
		into.media = true
	case "thinking", "redacted_thinking":
		if hint != NoHint {
			hint = RetainNone
		}
	}
	into.hint = max(into.hint, hint)
}

func (r *scanRequest) tool() {
	if r.peek() != '{' {
		r.skip()
		return
	}
	hint := NoHint
	r.object(func(key []byte) {
		if string(key) == "cache_control" {
			hint = r.cacheControl()
			return
		}
		r.skip()
	})
	r.toolsHint = max(r.toolsHint, hint)
}

// cacheControl takes an Anthropic cache_control: {"type":"ephemeral","ttl":…}.
func (r *scanRequest) cacheControl() Retention {
	if r.peek() != '{' {
		r.skip()
		return NoHint
	}
	kind, ttl := "", ""
	r.object(func(key []byte) {
		switch string(key) {
		case "type":
			kind = r.optional()
		case "ttl":
			ttl = r.optional()
		default:
			r.skip()
		}
	})
	if kind != "ephemeral" {
		return NoHint
	}
	switch ttl {
	case "1h", "1hr", "60m", "3600s", "long":
		return RetainLong
	}
	return RetainShort
}

// retention reads OpenAI's prompt_cache_retention; what is not known is no hint.
func retention(v string) Retention {
	switch v {
	case "24h", "1h", "long":
		return RetainLong
	case "5m", "short":
		return RetainShort
	case "none", "off", "disabled":
		return RetainNone
	}
	return NoHint
}

func (r *scanRequest) streamOptions() {
	r.req.IncludeUsage, r.req.Options = false, nil
	r.peek()
	start := r.i
	if r.peek() == '{' {
		r.object(func(key []byte) {
			if string(key) == "include_usage" {
				r.req.IncludeUsage = r.truth()
				return
			}
			r.skip()
		})
	} else {
		r.skip()
	}
	if r.err == nil {
		r.req.Options, r.req.OptionsAt = r.b[start:r.i], start
	}
}

// empty reports whether the text of an object or array holds nothing.
func empty(v []byte) bool {
	s := scanner{b: v, i: 1}
	c := s.peek()
	return c == '}' || c == ']'
}

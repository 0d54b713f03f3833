package openai

import (
	"bytes"
	"strconv"
)

// Usage is what an engine says of its work. Numbers are -1 where it says nothing.
type Usage struct {
	PromptTokens     int64
	CachedTokens     int64
	CompletionTokens int64
}

// NoUsage is the usage of an answer that names none.
var NoUsage = Usage{-1, -1, -1}

// Known reports whether anything is known.
func (u Usage) Known() bool { return u != NoUsage }

// Record is what one JSON document of an answer says: a record of a stream, or a whole answer.
type Record struct {
	Usage   Usage // NoUsage if it has none, or null
	Content bool  // it brings something generated: text, reasoning, tool calls, token ids
	Final   bool  // a choice has its finish_reason
	Choices int   // number of choices; -1 if the field is missing
	Error   bool  // it is an error
	Code    int   // the error's code where that is a number, else 0
}

// ScanRecord reads a record. What is not a JSON object gives ok == false: engines send none such, but the
// router passes on what it does not understand.
func ScanRecord(data []byte) (rec Record, ok bool) {
	s := recordScan{scanner: scanner{b: data}}
	s.rec = Record{Usage: NoUsage, Choices: -1}
	if s.peek() != '{' {
		return s.rec, false
	}
	s.object(s.field)
	s.end()
	if s.err != nil {
		return Record{Usage: NoUsage, Choices: -1}, false
	}
	return s.rec, true
}

type recordScan struct {
	scanner
	rec Record
}

func (s *recordScan) field(key []byte) {
	switch string(key) {
	case "usage":
		s.rec.Usage = NoUsage
		s.usage(&s.rec.Usage)
	case "error":
		switch s.peek() {
		case 'n':
			s.skip()
		case '{':
			s.rec.Error = true
			s.object(func(key []byte) {
				if string(key) == "code" {
					s.rec.Code = int(max(s.integer(), 0))
					return
				}
				s.skip()
			})
		default:
			s.rec.Error = true
			s.skip()
		}
	case "object":
		if s.peek() == '"' { // vLLM's older errors are the object itself
			s.rec.Error = s.rec.Error || string(s.str().raw) == "error"
			return
		}
		s.skip()
	case "choices":
		if s.peek() != '[' {
			s.skip()
			return
		}
		s.rec.Choices = 0
		s.array(s.choice)
	default:
		s.skip()
	}
}

func (s *recordScan) choice() {
	s.rec.Choices++
	if s.peek() != '{' {
		s.skip()
		return
	}
	s.object(func(key []byte) {
		switch string(key) {
		case "delta", "message":
			if s.peek() != '{' {
				s.skip()
				return
			}
			s.object(func(key []byte) {
				v := s.raw()
				if string(key) != "role" && !blank(v) {
					s.rec.Content = true
				}
			})
		case "text", "token_ids":
			if !blank(s.raw()) {
				s.rec.Content = true
			}
		case "finish_reason":
			if !blank(s.raw()) {
				s.rec.Final = true
			}
		default:
			s.skip()
		}
	})
}

// blank reports whether a value is null, "", [] or {}.
func blank(v []byte) bool {
	switch {
	case len(v) == 0:
		return true
	case v[0] == '"':
		return len(v) == 2
	case v[0] == '[' || v[0] == '{':
		return empty(v)
	}
	return string(v) == "null"
}

// integer takes any value and returns it if it is a whole number, else -1.
func (s *scanner) integer() int64 {
	n, err := strconv.ParseInt(string(s.raw()), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// usage takes a usage object: prompt_tokens, completion_tokens, prompt_tokens_details.cached_tokens.
func (s *scanner) usage(u *Usage) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	s.object(func(key []byte) {
		switch string(key) {
		case "prompt_tokens":
			u.PromptTokens = max(s.integer(), -1)
		case "completion_tokens":
			u.CompletionTokens = max(s.integer(), -1)
		case "prompt_tokens_details":
			u.CachedTokens = -1
			if s.peek() != '{' {
				s.skip()
				return
			}
			s.object(func(key []byte) {
				if string(key) == "cached_tokens" {
					u.CachedTokens = max(s.integer(), -1)
					return
				}
				s.skip()
			})
		default:
			s.skip()
		}
	})
}

// maxUsage bounds what is kept of a usage object.
const maxUsage = 16 << 10

// UsageReader picks the usage out of an answer that passes by in pieces. It keeps nothing but the usage
// object itself. The zero value is ready.
type UsageReader struct {
	depth   int
	inside  bool // in a string
	escape  bool // after a backslash
	value   bool // after a colon at depth 1
	capture bool
	tooLong bool
	key     []byte // the last string at depth 1, up to the length of "usage"
	keep    []byte
	last    Usage
	found   bool
}

// Usage returns the last usage seen.
func (u *UsageReader) Usage() Usage {
	if !u.found {
		return NoUsage
	}
	return u.last
}

// Write looks at the next piece of the answer; it takes everything and never fails.
func (u *UsageReader) Write(p []byte) (int, error) {
	for i := 0; i < len(p); {
		if u.inside && !u.escape {
			n := plain(p[i:])
			u.note(p[i : i+n])
			if i += n; i == len(p) {
				break
			}
		}
		u.next(p[i])
		i++
	}
	return len(p), nil
}

// note keeps bytes of strings that matter.
func (u *UsageReader) note(p []byte) {
	if u.capture {
		if len(u.keep)+len(p) > maxUsage {
			u.tooLong = true
			return
		}
		u.keep = append(u.keep, p...)
	} else if u.depth == 1 && !u.value {
		u.key = append(u.key, p[:min(len(p), len("usage")+1-min(len(u.key), len("usage")+1))]...)
	}
}

// next takes one byte that can change the state.
func (u *UsageReader) next(c byte) {
	if u.inside {
		u.note([]byte{c})
		switch {
		case u.escape:
			u.escape = false
		case c == '\\':
			u.escape = true
		case c == '"':
			u.inside = false
		}
		return
	}
	if u.capture {
		u.note([]byte{c})
	}
	switch c {
	case '"':
		u.inside = true
		if !u.capture {
			u.key = u.key[:0]
		}
	case ':':
		if u.depth == 1 {
			u.value = true
		}
	case '{', '[':
		if c == '{' && u.depth == 1 && u.value && string(u.key) == `usage"` {
			u.capture, u.tooLong = true, false
			u.keep = append(u.keep[:0], c)
		}
		u.depth++
	case '}', ']':
		u.depth--
		if u.depth == 1 && u.capture {
			u.capture = false
			u.take()
		}
	case ',':
		if u.depth == 1 {
			u.value = false
		}
	}
}

func (u *UsageReader) take() {
	if u.tooLong {
		return
	}
	s := scanner{b: u.keep}
	v := NoUsage
	s.usage(&v)
	s.end()
	if s.err == nil && v.Known() {
		u.last, u.found = v, true
	}
}

// Done is the data of the record that ends a stream.
const Done = "[DONE]"

// IsDone reports whether a record's data ends the stream.
func IsDone(data []byte) bool { return string(bytes.TrimSpace(data)) == Done }

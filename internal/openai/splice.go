package openai

import (
	"bytes"
	"io"
)

// Splice is text put into a body at a place, the body itself being left as it is. Of equal keys the last
// counts, so what is spliced in at the end of an object overrides what stands before.
type Splice struct {
	At   int
	Text []byte
}

// AddField returns the splice that puts a field at the end of the object that body[at:end] is. The value
// must be JSON, and so must the object: Scan has seen it.
func AddField(body []byte, at, end int, key, value string) Splice {
	closing := at + bytes.LastIndexByte(body[at:end], '}')
	t := make([]byte, 0, len(key)+len(value)+4)
	if !empty(body[at:end]) {
		t = append(t, ',')
	}
	t = append(append(append(t, '"'), key...), `":`...)
	return Splice{At: closing, Text: append(t, value...)}
}

// AskForUsage returns the splice that makes an engine report usage at the end of a stream, and false where
// none is needed or none is possible.
func AskForUsage(body []byte, q *Request) (Splice, bool) {
	switch {
	case q.IncludeUsage:
		return Splice{}, false
	case q.Options == nil, string(q.Options) == "null":
		at := bytes.IndexByte(body, '{')
		return AddField(body, at, len(body), "stream_options", `{"include_usage":true}`), true
	case q.Options[0] == '{':
		return AddField(body, q.OptionsAt, q.OptionsAt+len(q.Options), "include_usage", "true"), true
	}
	return Splice{}, false // not an object: the engine will say so
}

// Spliced returns the length of a body with splices in it.
func Spliced(body []byte, splices ...Splice) int64 {
	n := int64(len(body))
	for _, s := range splices {
		n += int64(len(s.Text))
	}
	return n
}

// Body is a reader over a body with splices in it, which must be in order. The body is not copied.
type Body struct {
	parts [][]byte
}

// NewBody returns a reader of body with the splices.
func NewBody(body []byte, splices ...Splice) *Body {
	b := &Body{parts: make([][]byte, 0, 2*len(splices)+1)}
	at := 0
	for _, s := range splices {
		b.parts = append(b.parts, body[at:s.At], s.Text)
		at = s.At
	}
	b.parts = append(b.parts, body[at:])
	return b
}

func (b *Body) Read(p []byte) (n int, err error) {
	for n < len(p) && len(b.parts) > 0 {
		k := copy(p[n:], b.parts[0])
		n += k
		if b.parts[0] = b.parts[0][k:]; len(b.parts[0]) == 0 {
			b.parts = b.parts[1:]
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo writes what is left, part by part.
func (b *Body) WriteTo(w io.Writer) (n int64, err error) {
	for len(b.parts) > 0 {
		k, err := w.Write(b.parts[0])
		n += int64(k)
		if err != nil {
			b.parts[0] = b.parts[0][k:]
			return n, err
		}
		b.parts = b.parts[1:]
	}
	return n, nil
}

// Close does nothing: a body is not a resource.
func (b *Body) Close() error { return nil }

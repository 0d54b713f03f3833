package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Names of the formats.
const (
	Auto       = "auto"
	Mooncake   = "mooncake"
	Chained    = "chained"
	ClaudeCode = "claude-code"
	RAGPulse   = "ragpulse"
	Azure      = "azure"
	KVRoute    = "kvroute"
)

// Formats lists the names Open takes.
func Formats() []string {
	return []string{Auto, Mooncake, Chained, ClaudeCode, RAGPulse, Azure, KVRoute}
}

// Bounds of what a request may claim; more is an error in the file.
const (
	maxTokens  = 1 << 30
	maxSpeedup = 1e12
	maxArrival = 9e15 // µs: 285 years, which holds milliseconds since 1970 too
)

// shared is what the readers of several sources of one trace have in common.
type shared struct {
	ids      idTable // chained ids
	sessions int     // claude-code: sessions read so far
	names    map[string]bool
	pieces   map[int64]uint32 // ragpulse: tokens of a piece, where a size file was given
	chained  int              // block_tokens: 0 not seen yet, 1 present, 2 absent
}

func newShared() *shared { return &shared{names: map[string]bool{}} }

// Open returns a reader of r, which is unpacked if it is gzip or zstd. A format of "" or "auto" is
// found by looking at the first line. Errors are *Error.
func Open(r io.Reader, format string, opt Options) (Reader, Meta, error) {
	return open(r, format, opt, newShared())
}

func open(r io.Reader, format string, opt Options, sh *shared) (Reader, Meta, error) {
	if err := opt.validate(); err != nil {
		return nil, Meta{}, err
	}
	src, err := decompress(r, opt.Name)
	if err != nil {
		return nil, Meta{}, err
	}
	b := base{in: newLines(src, opt.MaxLine), name: opt.Name}
	line, err := b.peek()
	if err == io.EOF {
		return nil, Meta{}, &Error{File: opt.Name, Why: "there is nothing in the file but blank lines"}
	}
	if err != nil {
		return nil, Meta{}, err
	}
	if format == "" || format == Auto {
		if format, err = b.detect(line); err != nil {
			return nil, Meta{}, err
		}
	}
	switch format {
	case Mooncake, Chained:
		return &idReader{base: b, sh: sh, size: opt.BlockSize, asked: opt.BlockSize}, Meta{format, opt.BlockSize}, nil
	case ClaudeCode:
		return newClaudeReader(b, sh, opt), Meta{format, opt.BlockSize}, nil
	case RAGPulse:
		return &ragReader{base: b, sh: sh}, Meta{format, evenBlock}, nil
	case KVRoute:
		r := &kvReader{base: b}
		if err := r.heading(opt.BlockSize); err != nil {
			return nil, Meta{}, err
		}
		return r, Meta{format, r.size}, nil
	case Azure:
		r := &azureReader{base: b}
		if err := r.heading(); err != nil {
			return nil, Meta{}, err
		}
		return r, Meta{Format: format}, nil
	}
	return nil, Meta{}, &Error{
		File: opt.Name, Why: fmt.Sprintf("unknown trace format %q", format),
		Hint: "known formats: " + strings.Join(Formats(), ", "),
	}
}

func (o *Options) validate() error {
	bad := func(why string) error { return &Error{File: o.Name, Why: why} }
	switch {
	case o.BlockSize < 0 || o.BlockSize > maxTokens:
		return bad(fmt.Sprintf("block size %d is out of range", o.BlockSize))
	case !(o.Speedup >= 0) || o.Speedup > maxSpeedup:
		return bad(fmt.Sprintf("speed-up %v is not a number above 0 and up to %v", o.Speedup, maxSpeedup))
	case o.Limit < 0:
		return bad(fmt.Sprintf("limit %d is negative", o.Limit))
	}
	return nil
}

// detect names the format by the fields of the first line.
func (b *base) detect(line []byte) (string, error) {
	hint := "name it with --trace-format; known formats: " + strings.Join(Formats()[1:], ", ")
	if t := bytes.TrimSpace(line); len(t) == 0 || t[0] != '{' {
		if looksAzure(line) {
			return Azure, nil
		}
		return "", b.fail(hint, "unknown trace format: the first line is neither a JSON object nor a known table heading")
	}
	f, s := fields{}, scan{b: line}
	if !f.read(&s) {
		e := b.failScan(&s)
		e.Why = "unknown trace format: " + e.Why
		e.Hint = hint
		return "", e
	}
	switch {
	case f["kvroute"] != 0:
		return KVRoute, nil
	case f["requests"] == '[':
		return ClaudeCode, nil
	case f["hash_ids"] == '{', f["token_length"] != 0 && f["hash_ids"] == 0:
		return RAGPulse, nil
	case f["hash_ids"] == '[' && (f["block_tokens"] != 0 || f["session_id"] != 0 || f["block_size"] != 0):
		return Chained, nil
	case f["hash_ids"] == '[':
		return Mooncake, nil
	case f["input"] == '"' || f["messages"] != 0 || f["prompt"] == '"':
		return "", b.fail("tokenize the prompts and write their blocks in one of the formats "+Mooncake+", "+Chained+" or "+KVRoute+"; docs/trace-format.md shows how",
			"this is a text trace: it has prompts, but neither token counts nor blocks")
	}
	return "", b.fail(hint, "unknown trace format: none of its fields says which")
}

// fields holds the first byte of each member of an object.
type fields map[string]byte

func (f fields) read(s *scan) bool {
	if !s.open('{') {
		return false
	}
	for first := true; ; {
		k, ok := s.key(&first)
		if !ok {
			return s.end()
		}
		name := string(k)
		f[name] = s.peek()
		if !s.skip() {
			return false
		}
	}
}

// errAgain is the text for a field given twice in one object.
const errAgain = "the field %q is there twice"

// IsDamaged tells whether err says that data is damaged or cut off.
func IsDamaged(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Damaged
}

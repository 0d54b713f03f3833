package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// defaultMaxLine bounds the memory a damaged or foreign file can claim.
const defaultMaxLine = 256 << 20

// readChunk is the least room offered to one read of the source.
const readChunk = 64 << 10

// magics are file kinds people may hand over by mistake, with what to do.
var magics = []struct{ magic, kind, hint string }{
	{"PK\x03\x04", "a zip archive", "unpack it first"},
	{"BZh", "bzip2 data", "unpack it first; gzip and zstd are read directly"},
	{"\xfd7zXZ", "xz data", "unpack it first; gzip and zstd are read directly"},
	{"PAR1", "a Parquet file", "convert it to JSON lines first"},
	{"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch the file with git lfs pull"},
}

// decompress looks at the content and unpacks gzip and zstd. It returns io.EOF for an empty source.
func decompress(r io.Reader, name string) (io.Reader, error) {
	br := bufio.NewReaderSize(r, readChunk)
	head, err := br.Peek(24)
	if len(head) == 0 {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, &Error{File: name, Why: "the file is empty"}
		}
		return nil, &Error{File: name, Why: "cannot be read: " + err.Error(), Damaged: true}
	}
	for _, m := range magics {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return nil, &Error{File: name, Why: "this is " + m.kind, Hint: m.hint}
		}
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, &Error{File: name, Why: "not readable as gzip: " + err.Error(), Damaged: true}
		}
		return unpacked{z, "gzip"}, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			return nil, &Error{File: name, Why: "not readable as zstd: " + err.Error(), Damaged: true}
		}
		return unpacked{z, "zstd"}, nil
	}
	return br, nil
}

// unpacked names the packing in errors.
type unpacked struct {
	r    io.Reader
	kind string
}

func (u unpacked) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	switch {
	case err == nil || err == io.EOF:
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = endsEarly(u.kind)
	default:
		err = fmt.Errorf("the %s data is corrupt: %w", u.kind, err)
	}
	return n, err
}

// endsEarly is the error of packed data that breaks off; it is io.ErrUnexpectedEOF to errors.Is.
type endsEarly string

func (e endsEarly) Error() string { return "the " + string(e) + " data ends early" }

// Unwrap names the kind of error for callers.
func (e endsEarly) Unwrap() error { return io.ErrUnexpectedEOF }

// Unpack returns r, unpacked if its content is gzip or zstd. Errors are *Error; those of reading wrap
// io.ErrUnexpectedEOF where packed data breaks off.
func Unpack(r io.Reader, name string) (io.Reader, error) { return decompress(r, name) }

// lines cuts a stream into lines without copying. The last line may lack its newline.
type lines struct {
	src  io.Reader
	buf  []byte
	i, n int // unread bytes are buf[i:n]
	err  error
	max  int
	line int // number of the line last returned
}

func newLines(src io.Reader, max int) *lines {
	if max <= 0 {
		max = defaultMaxLine
	}
	return &lines{src: src, max: max, buf: make([]byte, readChunk)}
}

// errLongLine is given for a line above the limit.
var errLongLine = errors.New("the line is too long")

// next returns the next line without its end, and whether it had one. The slice is valid until the
// following call. io.EOF at the end; other errors are those of the source.
func (l *lines) next() (line []byte, whole bool, err error) {
	seen := 0
	for {
		if k := bytes.IndexByte(l.buf[l.i+seen:l.n], '\n'); k >= 0 {
			line = l.buf[l.i : l.i+seen+k]
			l.i += seen + k + 1
			l.line++
			if len(line) > l.max {
				return nil, false, errLongLine
			}
			return trimCR(line), true, nil
		}
		seen = l.n - l.i
		if seen > l.max {
			l.line++
			return nil, false, errLongLine
		}
		if l.err != nil {
			if seen == 0 || l.err != io.EOF {
				return nil, false, l.err
			}
			line = l.buf[l.i:l.n]
			l.i = l.n
			l.line++
			return trimCR(line), false, nil
		}
		l.fill()
	}
}

// fill makes room and reads once. The buffer grows to the longest line allowed and one chunk, no further.
func (l *lines) fill() {
	if l.i > 0 && len(l.buf)-l.n < readChunk {
		copy(l.buf, l.buf[l.i:l.n])
		l.n -= l.i
		l.i = 0
	}
	if len(l.buf)-l.n < readChunk/2 {
		grown := make([]byte, min(2*len(l.buf), l.max+readChunk))
		copy(grown, l.buf[:l.n])
		l.buf = grown
	}
	for range 100 {
		k, err := l.src.Read(l.buf[l.n:])
		l.n += k
		l.err = err
		if k > 0 || err != nil {
			return
		}
	}
	l.err = io.ErrNoProgress
}

func trimCR(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] == '\r' {
		return b[:len(b)-1]
	}
	return b
}

// base is what all readers share: the lines of a source, its name, and how many requests it gave.
type base struct {
	in    *lines
	first []byte // a line read ahead by detection
	ahead bool
	whole bool // the current line ended in a newline
	name  string
	read  int
}

// next returns the next line that is not blank.
func (b *base) next() ([]byte, error) {
	if b.ahead {
		b.ahead = false
		return b.first, nil
	}
	for {
		line, whole, err := b.in.next()
		if err == io.EOF {
			return nil, io.EOF
		}
		if err == errLongLine {
			return nil, &Error{
				File: b.name, Line: b.in.line, Why: fmt.Sprintf("the line is longer than %d bytes", b.in.max),
				Hint: "a trace has one JSON object a line",
			}
		}
		if err != nil {
			return nil, &Error{File: b.name, Line: b.in.line + 1, Why: err.Error(), Damaged: true, Read: b.read}
		}
		if b.in.line == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if len(bytes.TrimLeft(line, " \t")) == 0 {
			continue
		}
		b.whole = whole
		return line, nil
	}
}

// peek reads one line ahead.
func (b *base) peek() ([]byte, error) {
	line, err := b.next()
	if err != nil {
		return nil, err
	}
	b.first, b.ahead = line, true
	return line, nil
}

// fail makes the error for the current line.
func (b *base) fail(hint, format string, args ...any) *Error {
	return &Error{File: b.name, Line: b.in.line, Why: fmt.Sprintf(format, args...), Hint: hint}
}

// failScan makes the error for a line the scanner stopped at: a last line without its newline that
// ends in the middle of a value was cut off.
func (b *base) failScan(s *scan) *Error {
	e := b.fail("", "%s (column %d)", s.why, s.at+1)
	if s.short && !b.whole {
		e.Why = "the last line is cut off: " + s.why
		e.Damaged, e.Read = true, b.read
	}
	return e
}

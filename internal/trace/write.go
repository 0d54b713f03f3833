package trace

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Writer writes records in one format. Close writes what is still held back; it does not close the
// stream beneath. After an error the output is incomplete and must not be used.
type Writer interface {
	Write(rec *Record) error
	Close() error
}

// WriteFormats lists the names NewWriter takes.
func WriteFormats() []string { return []string{KVRoute, Mooncake} }

// NewWriter returns a writer of our own format or of Mooncake's form.
func NewWriter(w io.Writer, format string) (Writer, error) {
	out := output{w: bufio.NewWriterSize(w, 64<<10), b: newForestBuilder()}
	switch format {
	case KVRoute:
		return &kvWriter{output: out}, nil
	case Mooncake:
		return &idWriter{output: out}, nil
	}
	return nil, &Error{Why: fmt.Sprintf("traces cannot be written as %q", format), Hint: "known formats: " + KVRoute + ", " + Mooncake}
}

// Packed returns a writer that packs what it is given: "gzip", "zstd" or "" for neither. Headers carry
// neither name nor time, so equal contents give equal bytes.
func Packed(w io.Writer, packing string) (io.WriteCloser, error) {
	switch packing {
	case "":
		return plain{w}, nil
	case "gzip":
		return gzip.NewWriterLevel(w, gzip.BestCompression)
	case "zstd":
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	}
	return nil, &Error{Why: fmt.Sprintf("unknown packing %q", packing), Hint: "known: gzip, zstd"}
}

type plain struct{ io.Writer }

func (plain) Close() error { return nil }

// Copy writes all records of r in their order and returns how many there were.
func Copy(dst Writer, r Reader) (int, error) {
	var rec Record
	for n := 0; ; n++ {
		if err := r.Read(&rec); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		if err := dst.Write(&rec); err != nil {
			return n, err
		}
	}
}

// Save writes the requests of w, by arrival.
func Save(dst Writer, w *Workload) error {
	var rec Record
	var tokens []uint32
	for i := range w.Requests {
		tokens = w.record(i, &rec, tokens)
		if err := dst.Write(&rec); err != nil {
			return err
		}
	}
	return nil
}

// output is what both writers share. The builder numbers blocks in the order they are first seen.
type output struct {
	w    *bufio.Writer
	b    *forestBuilder
	size int
	n    int
	buf  []byte
}

// add notes the blocks of rec. New ones are numbered from fresh on.
func (o *output) add(rec *Record) (leaf, fresh NodeID, err error) {
	o.n++
	leaf, fresh = NoNode, NodeID(o.b.f.Len())
	if rec.Arrival < 0 {
		return 0, 0, &Error{Why: fmt.Sprintf("request %d arrives before the first of its file", o.n), Hint: "sort the trace by loading it"}
	}
	if rec.BlockSize != 0 && !rec.Even {
		if o.size != 0 && o.size != rec.BlockSize {
			return 0, 0, &Error{Why: fmt.Sprintf("request %d has blocks of %d tokens, those before of %d", o.n, rec.BlockSize, o.size)}
		}
		o.size = rec.BlockSize
	}
	if len(rec.Blocks) == 0 {
		return leaf, fresh, nil
	}
	if leaf, err = o.b.add(rec); err != nil {
		return 0, 0, &Error{Why: fmt.Sprintf("request %d: %v", o.n, err)}
	}
	return leaf, fresh, nil
}

func (o *output) flush() error {
	_, err := o.w.Write(o.buf)
	o.buf = o.buf[:0]
	return err
}

// kvWriter writes our own format.
type kvWriter struct {
	output
	begun bool
}

// begin writes the heading.
func (w *kvWriter) begin(size int) {
	if w.begun {
		return
	}
	w.begun = true
	w.buf = append(w.buf, `{"kvroute":"`+version+`"`...)
	if size != 0 {
		w.buf = append(w.buf, `,"block_size":`...)
		w.buf = strconv.AppendInt(w.buf, int64(size), 10)
	}
	w.buf = append(w.buf, "}\n"...)
}

func (w *kvWriter) Write(rec *Record) error {
	size := rec.BlockSize
	if rec.Even {
		size = evenBlock
	}
	w.begin(size)
	leaf, fresh, err := w.add(rec)
	if err != nil {
		return err
	}
	f := w.b.f
	b := append(w.buf, `{"t":`...)
	b = strconv.AppendInt(b, rec.Arrival, 10)
	b = append(b, `,"in":`...)
	b = strconv.AppendInt(b, rec.Input, 10)
	b = append(b, `,"out":`...)
	b = strconv.AppendInt(b, rec.Output, 10)
	at := leaf
	if int(fresh) < f.Len() {
		at = f.Parent[fresh]
	}
	if at != NoNode {
		b = append(b, `,"at":`...)
		b = strconv.AppendInt(b, int64(at), 10)
	}
	if int(fresh) < f.Len() {
		b = append(b, `,"new":"`...)
		for _, h := range f.Hash[fresh:] {
			b = appendHex(b, uint64(h))
		}
		b = append(b, '"')
		if rec.BlockTokens != nil {
			b = appendCounts(append(b, `,"bt":`...), rec.BlockTokens[len(rec.BlockTokens)-(f.Len()-int(fresh)):])
		}
	}
	if rec.Even && leaf != NoNode {
		b = append(b, `,"even":`...)
		b = strconv.AppendInt(b, int64(rec.BlockSize), 10)
	}
	if rec.Session != "" {
		b = appendQuoted(append(b, `,"s":`...), rec.Session)
	}
	if rec.ID != "" {
		b = appendQuoted(append(b, `,"id":`...), rec.ID)
	}
	w.buf = append(b, "}\n"...)
	return w.flush()
}

func (w *kvWriter) Close() error {
	w.begin(0)
	if err := w.flush(); err != nil {
		return err
	}
	return w.w.Flush()
}

// idWriter writes Mooncake's form, with the fields of its relatives where the trace needs them.
type idWriter struct {
	output
	ids []NodeID
}

func (w *idWriter) Write(rec *Record) error {
	switch {
	case rec.BlockSize == 0 && rec.Input > 0:
		return &Error{Why: "the trace has no blocks, which the form " + Mooncake + " cannot do without", Hint: "write it as " + KVRoute}
	case rec.Even:
		return &Error{
			Why:  "the sizes of the trace's blocks are not known, only an even split of each prompt",
			Hint: "give the files of the sizes too, or write it as " + KVRoute,
		}
	}
	leaf, _, err := w.add(rec)
	if err != nil {
		return err
	}
	f := w.b.f
	w.ids = w.ids[:0]
	for n := leaf; n != NoNode; n = f.Parent[n] {
		w.ids = append(w.ids, n)
	}
	b := append(w.buf, `{"timestamp":`...)
	b = appendMillis(b, rec.Arrival)
	b = append(b, `,"input_length":`...)
	b = strconv.AppendInt(b, rec.Input, 10)
	b = append(b, `,"output_length":`...)
	b = strconv.AppendInt(b, rec.Output, 10)
	b = append(b, `,"hash_ids":[`...)
	for i := len(w.ids) - 1; i >= 0; i-- {
		b = strconv.AppendUint(b, uint64(w.ids[i]), 10)
		if i > 0 {
			b = append(b, ',')
		}
	}
	b = append(b, ']')
	if rec.BlockTokens != nil {
		b = appendCounts(append(b, `,"block_tokens":`...), rec.BlockTokens)
	}
	if rec.BlockSize != mooncakeBlock {
		b = append(b, `,"block_size":`...)
		b = strconv.AppendInt(b, int64(rec.BlockSize), 10)
	}
	if rec.Session != "" {
		b = appendQuoted(append(b, `,"session_id":`...), rec.Session)
	}
	if rec.ID != "" {
		b = appendQuoted(append(b, `,"request_id":`...), rec.ID)
	}
	w.buf = append(b, "}\n"...)
	return w.flush()
}

func (w *idWriter) Close() error { return w.w.Flush() }

// appendMillis writes µs as milliseconds, with decimals only where there are any.
func appendMillis(b []byte, us int64) []byte {
	b = strconv.AppendInt(b, us/1000, 10)
	if r := us % 1000; r != 0 {
		b = append(b, '.', byte('0'+r/100), byte('0'+r/10%10), byte('0'+r%10))
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return b
}

func appendCounts(b []byte, v []uint32) []byte {
	b = append(b, '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(x), 10)
	}
	return append(b, ']')
}

const hexDigits = "0123456789abcdef"

func appendHex(b []byte, v uint64) []byte {
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, hexDigits[v>>shift&15])
	}
	return b
}

// appendQuoted writes a JSON string. Bytes that are not UTF-8 become the replacement character.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[r>>4], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

package mirrorfile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/index"
)

// Reader reads what Writer wrote. A frame is checked before anything in it is given out.
type Reader struct {
	in      *bufio.Reader
	hash    *xxh3.Hasher
	sum     uint64
	at      int64 // bytes read
	frameAt int64 // where the present frame begins
	buf     []byte
	codec   codec
	rec     index.Record
	records uint64 // of the present target, so far
	targets uint64
	inside  bool // of a target
	err     error
}

// NewReader looks at the beginning of a file.
func NewReader(r io.Reader) (*Reader, error) {
	in := &Reader{in: bufio.NewReaderSize(r, 1<<18), hash: xxh3.New()}
	head, err := in.take(len(magic) + 4)
	if err == nil && !bytes.HasPrefix(head, []byte(magic)) {
		err = in.fail("it does not begin like one")
	}
	if err != nil {
		return nil, err
	}
	if v := binary.LittleEndian.Uint32(head[len(magic):]); v != Version {
		return nil, fmt.Errorf("reading mirrors: %w: version %d, this program reads version %d; without it the mirrors start empty", ErrVersion, v, Version)
	}
	return in, nil
}

// fail makes the error of a damaged file, which stays.
func (r *Reader) fail(format string, args ...any) error {
	r.err = fmt.Errorf("reading mirrors: byte %d: %w: %s", r.frameAt, ErrFormat, fmt.Sprintf(format, args...))
	return r.err
}

// take reads n bytes, valid until the next call.
func (r *Reader) take(n int) ([]byte, error) {
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	r.buf = r.buf[:n]
	got, err := io.ReadFull(r.in, r.buf)
	r.at += int64(got)
	switch {
	case err == nil:
		return r.buf, nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, r.fail("it is cut short at byte %d", r.at)
	}
	r.err = fmt.Errorf("reading mirrors: byte %d: %w", r.at, err)
	return nil, r.err
}

// frame reads and checks the next frame. The payload is valid until the next call.
func (r *Reader) frame() (kind byte, payload []byte, err error) {
	if r.err != nil {
		return 0, nil, r.err
	}
	r.frameAt = r.at
	var head [headLen]byte
	b, err := r.take(headLen)
	if err != nil {
		return 0, nil, err
	}
	copy(head[:], b)
	n := binary.LittleEndian.Uint32(head[1:])
	if n > maxPayload {
		return 0, nil, r.fail("a frame of %d bytes, the limit is %d", n, maxPayload)
	}
	if b, err = r.take(int(n) + sumLen); err != nil {
		return 0, nil, err
	}
	r.sum = chain(r.hash, r.sum, head[:], b[:n])
	if binary.LittleEndian.Uint64(b[n:]) != r.sum {
		return 0, nil, r.fail("the checksum of the frame differs")
	}
	return head[0], b[:n], nil
}

// Next goes to the next mirror, past what has not been read of the present one. At the end of an undamaged
// file it returns io.EOF.
func (r *Reader) Next() (Meta, error) {
	for _, err := range r.Records() {
		if err != nil {
			return Meta{}, err
		}
	}
	if r.err != nil {
		return Meta{}, r.err
	}
	kind, payload, err := r.frame()
	if err != nil {
		return Meta{}, err
	}
	switch kind {
	case kindTarget:
		return r.meta(payload)
	case kindClose:
		return Meta{}, r.close(payload)
	}
	return Meta{}, r.fail("a frame of kind %q where a mirror begins", kind)
}

func (r *Reader) meta(payload []byte) (Meta, error) {
	var m Meta
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Meta{}, r.fail("the description of a mirror: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Meta{}, r.fail("the description of a mirror: more text after its end")
	}
	if err := m.validate(); err != nil {
		return Meta{}, r.fail("%v", err)
	}
	r.inside, r.records, r.codec = true, 0, codec{}
	r.targets++
	return m, nil
}

func (r *Reader) close(payload []byte) error {
	if len(payload) != 8 || binary.LittleEndian.Uint64(payload) != r.targets {
		return r.fail("it has %d mirrors, not as many as it says", r.targets)
	}
	r.frameAt = r.at
	switch _, err := r.in.ReadByte(); {
	case errors.Is(err, io.EOF):
		r.err = io.EOF
	case err == nil:
		r.fail("more bytes after its end") //nolint:errcheck // it is r.err
	default:
		r.err = fmt.Errorf("reading mirrors: byte %d: %w", r.at, err)
	}
	return r.err
}

// Records gives the rest of the records of the present mirror, for index.Import. They are valid until the
// next. An error is the last thing given.
func (r *Reader) Records() iter.Seq2[*index.Record, error] {
	return func(yield func(*index.Record, error) bool) {
		for r.inside {
			kind, payload, err := r.frame()
			switch {
			case err != nil:
			case kind == kindEnd:
				r.inside = false
				if len(payload) != 8 || binary.LittleEndian.Uint64(payload) != r.records {
					err = r.fail("a mirror has %d records, not as many as it says", r.records)
				}
			case kind != kindRecords:
				err = r.fail("a frame of kind %q within a mirror", kind)
			}
			if err != nil {
				r.inside = false
				yield(nil, err)
				return
			}
			for kind == kindRecords && len(payload) > 0 {
				var ok bool
				if payload, ok = r.codec.read(payload, &r.rec); !ok {
					r.inside = false
					yield(nil, r.fail("record %d of a mirror is none", r.records+1))
					return
				}
				r.records++
				if !yield(&r.rec, nil) {
					r.abandon(payload)
					return
				}
			}
		}
	}
}

// abandon counts what was left of a frame when its reader had enough.
func (r *Reader) abandon(payload []byte) {
	for len(payload) > 0 {
		var ok bool
		if payload, ok = r.codec.read(payload, &r.rec); !ok {
			r.fail("record %d of a mirror is none", r.records+1) //nolint:errcheck // it is r.err
			r.inside = false
			return
		}
		r.records++
	}
}

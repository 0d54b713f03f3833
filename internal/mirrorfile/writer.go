package mirrorfile

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/index"
)

// Writer writes mirrors, one after the other.
type Writer struct {
	out     *bufio.Writer
	hash    *xxh3.Hasher
	sum     uint64
	targets uint64
	codec   codec
	buf     []byte // records not written yet
	err     error  // of writing; the file is of no use after it
}

// NewWriter begins a file.
func NewWriter(w io.Writer) *Writer {
	out := &Writer{out: bufio.NewWriterSize(w, 1<<18), hash: xxh3.New()}
	_, out.err = out.out.Write(binary.LittleEndian.AppendUint32([]byte(magic), Version))
	return out
}

// Target writes one mirror: export must call each for its records in the order of index.Export, which is
// what it usually is. Errors of export are returned as they are; if one comes before the first record, as
// index.ErrExport does, the writer goes on without the target, after any later one it is of no use.
func (w *Writer) Target(m Meta, export func(each func(*index.Record) error) error) error {
	if err := m.validate(); err != nil {
		return fmt.Errorf("writing mirrors: %w", err)
	}
	n := uint64(0)
	begin := func() error {
		w.codec = codec{}
		meta, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("writing mirrors: the description of target %q: %w", m.Worker, err)
		}
		return w.frame(kindTarget, meta)
	}
	err := export(func(r *index.Record) error {
		if n == 0 {
			if err := begin(); err != nil {
				return err
			}
		}
		n++
		return w.record(r)
	})
	if err != nil {
		if n > 0 && w.err == nil {
			w.err = fmt.Errorf("writing mirrors: target %q was left in the middle: %w", m.Worker, err)
		}
		return err
	}
	if n == 0 {
		if err := begin(); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	w.targets++
	return w.frame(kindEnd, binary.LittleEndian.AppendUint64(nil, n))
}

func (w *Writer) record(r *index.Record) error {
	var err error
	if w.buf, err = w.codec.append(w.buf, r); err != nil {
		return fmt.Errorf("writing mirrors: %w", err)
	}
	if len(w.buf) >= flushAt {
		return w.flush()
	}
	return nil
}

func (w *Writer) flush() error {
	if len(w.buf) == 0 {
		return w.err
	}
	err := w.frame(kindRecords, w.buf)
	w.buf = w.buf[:0]
	return err
}

func (w *Writer) frame(kind byte, payload []byte) error {
	if w.err != nil {
		return w.err
	}
	if len(payload) > maxPayload {
		w.err = fmt.Errorf("writing mirrors: a frame of %d bytes, the limit is %d", len(payload), maxPayload)
		return w.err
	}
	head := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	w.sum = chain(w.hash, w.sum, head, payload)
	for _, part := range [][]byte{head, payload, binary.LittleEndian.AppendUint64(nil, w.sum)} {
		if _, err := w.out.Write(part); err != nil {
			w.err = fmt.Errorf("writing mirrors: %w", err)
			return w.err
		}
	}
	return nil
}

// Close ends the file; it does not close what is written to. Without it, the file is refused when read.
func (w *Writer) Close() error {
	if err := w.frame(kindClose, binary.LittleEndian.AppendUint64(nil, w.targets)); err != nil {
		return err
	}
	if err := w.out.Flush(); err != nil {
		w.err = fmt.Errorf("writing mirrors: %w", err)
	}
	return w.err
}

package recorder

import (
	"errors"
	"fmt"
	"io"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/record"
)

// writer makes lines of calls and puts them into files. It is owned by the Recorder's goroutine.
type writer struct {
	opt  *Options
	enc  *record.Encoder
	file io.WriteCloser
	part int
	size int64 // of the present file
	all  int64
	buf  []byte

	hashes []block.Hash // of the batch, not yet written
}

func (w *writer) stats() Stats { return Stats{Counts: w.enc.Counts(), Part: w.part, Bytes: w.all} }

// next begins a file.
func (w *writer) next() error {
	file, err := w.opt.Create(w.part + 1)
	if err != nil {
		return fmt.Errorf("opening part %d: %w", w.part+1, err)
	}
	w.file, w.size = file, 0
	w.part++
	buf, err := w.enc.Begin(w.buf, w.part)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	w.buf = buf
	return nil
}

// flush writes the lines made so far.
func (w *writer) flush() error {
	n, err := w.file.Write(w.buf)
	w.size += int64(n)
	w.all += int64(n)
	w.buf = w.buf[:0]
	return err
}

// batch writes calls, and begins a new file where the present one is full.
func (w *writer) batch(b *batch) error {
	w.hashes = b.hashes
	for i := range b.calls {
		w.call(b, &b.calls[i])
		full := w.opt.MaxSize > 0 && w.size+int64(len(w.buf)) >= w.opt.MaxSize
		if !full && len(w.buf) < writeSize {
			continue
		}
		if full {
			w.buf = w.enc.Flush(w.buf)
		}
		if err := w.flush(); err != nil {
			return err
		}
		if full {
			if err := w.file.Close(); err != nil {
				return fmt.Errorf("closing part %d: %w", w.part, err)
			}
			if err := w.next(); err != nil {
				return err
			}
		}
	}
	// Events that may share a line with the next ones stay with the encoder, so that the same calls give
	// the same bytes whenever the goroutine looks.
	return w.flush()
}

func (w *writer) call(b *batch, c *call) {
	e := w.enc
	switch c.kind {
	case changed:
		parent := c.parent
		for _, h := range w.hashes[:c.blocks] {
			w.buf = e.Changed(w.buf, c.id, h, parent, c.tier, c.held)
			parent = h
		}
		w.hashes = w.hashes[c.blocks:]
	case emptied:
		w.buf = e.Emptied(w.buf, c.id)
	case join:
		w.buf = e.Join(w.buf, c.id, *c.cand)
	case leave:
		w.buf = e.Leave(w.buf, c.id)
	case forget:
		w.buf = e.Forget(w.buf, c.id)
	case picked:
		p := &b.picks[c.pick]
		w.buf = e.Pick(w.buf, &p.req, p.cands, &p.dec)
	case firstToken:
		w.buf = e.FirstToken(w.buf, c.handle, c.at)
	case unbind:
		w.buf = e.Unbind(w.buf, c.handle)
	case release:
		w.buf = e.Release(w.buf, c.handle, c.at, c.out)
	case note:
		w.buf = e.Note(w.buf, c.at, c.id, c.text)
	}
}

// end writes the last record; why is what ended the recording early, nil: nothing did.
func (w *writer) end(why error) error {
	text := ""
	if why != nil {
		text = why.Error()
	}
	w.buf = w.enc.End(w.buf, why == nil, text)
	return w.flush()
}

// close closes the file, after err.
func (w *writer) close(err error) error { return errors.Join(err, w.file.Close()) }

package tui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// tapeForm is the value of "kvroute" in the heading of a recorded screen.
const tapeForm = "watch/v1"

type tapeHead struct {
	Form   string `json:"kvroute"`
	Source string `json:"source"`
}

// wholeEvery is the longest time between whole snapshots on a tape, in ms, so that it can be played from anywhere.
const wholeEvery = 60_000

// Tape records what a router tells, as JSON lines: a heading, then snapshots and deltas as they come, and a whole
// snapshot once a minute. A nil Tape takes everything and keeps nothing.
type Tape struct {
	w     io.Writer
	left  int64 // bytes that may be written
	limit int64
	whole int64 // AtMS of the last whole one; 0: none yet
	kept  bool  // a snapshot is on it
	err   error // why it ended
}

// NewTape begins a tape of source that is never longer than limit bytes.
func NewTape(w io.Writer, source string, limit int64) (*Tape, error) {
	head, err := json.Marshal(tapeHead{tapeForm, source})
	if err != nil {
		return nil, err
	}
	t := &Tape{w: w, left: limit, limit: limit}
	return t, t.line(head)
}

// Err is why the tape ended early: a write that failed, or that its limit was reached; nil if it did not.
func (t *Tape) Err() error {
	if t == nil {
		return nil
	}
	return t.err
}

// Empty says that nothing was recorded: no router has answered, or its first snapshot could not be written.
func (t *Tape) Empty() bool { return t == nil || !t.kept }

// Write takes s, which came as raw: itself, or the delta that led to it. After an error, which is told once,
// nothing more is written; what was written before is a whole tape unless a write failed half way.
func (t *Tape) Write(s *snapshot.Snapshot, raw []byte) error {
	if t == nil || t.err != nil {
		return nil
	}
	line := raw
	switch {
	case bytes.HasPrefix(raw, []byte(`{"schema":`)):
		t.whole = s.AtMS
	case t.whole == 0 || s.AtMS-t.whole >= wholeEvery:
		var err error
		if line, err = json.Marshal(s); err != nil {
			return err
		}
		t.whole = s.AtMS
	}
	if bytes.ContainsAny(line, "\r\n") {
		var b bytes.Buffer
		if err := json.Compact(&b, line); err != nil {
			return err
		}
		line = b.Bytes()
	}
	t.err = t.line(line)
	t.kept = t.kept || t.err == nil
	return t.err
}

func (t *Tape) line(line []byte) error {
	n := int64(len(line)) + 1
	if n > t.left {
		return fmt.Errorf("it has reached its limit of %d bytes", t.limit)
	}
	t.left -= n
	if _, err := t.w.Write(append(bytes.Clone(line), '\n')); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	return nil
}

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
	whole int64 // AtMS of the last whole one; 0: none yet
	err   error
}

// NewTape begins a tape of source.
func NewTape(w io.Writer, source string) (*Tape, error) {
	head, err := json.Marshal(tapeHead{tapeForm, source})
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(append(head, '\n')); err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	return &Tape{w: w}, nil
}

// Write takes s, which came as raw: itself, or the delta that led to it. After an error nothing more is written.
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
	if _, err := t.w.Write(append(bytes.Clone(line), '\n')); err != nil {
		t.err = fmt.Errorf("recording: %w", err)
	}
	return t.err
}

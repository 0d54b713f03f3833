package tui

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// IsTape says whether a file that begins with head is a Tape's.
func IsTape(head []byte) bool {
	line, _, _ := bytes.Cut(head, []byte("\n"))
	var h tapeHead
	return json.Unmarshal(line, &h) == nil && h.Form == tapeForm
}

// TapeError is what is wrong with a tape's file.
type TapeError struct {
	File    string
	Line    int64 // 0: the whole file
	Why     string
	Hint    string // what can be done; "" nothing
	Damaged bool   // a tape, but not whole or not sound; else no tape
}

// Error returns "file:line: why".
func (e *TapeError) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Why
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Why)
}

// Hints of a damaged tape.
const (
	hintCut  = "what was recorded before is played; the watch that wrote it was killed, or its disk was full"
	hintSkip = "what was recorded before is played, and what comes later can be jumped to"
)

// tapeTrack plays a Tape's file. In memory it has the last snapshot, and where the whole ones are.
type tapeTrack struct {
	name   string
	f      io.ReadSeeker
	in     *bufio.Reader
	line   int64
	last   *snapshot.Snapshot
	wholes []whole
	from   int64
	to     int64
}

// whole is where a whole snapshot is.
type whole struct{ offset, line, ms int64 }

// OpenTape reads a Tape's file once, to know where things are. A file that breaks off is played as far as it goes.
func OpenTape(name string, f io.ReadSeeker) (Track, error) {
	t := &tapeTrack{name: name, f: f, in: bufio.NewReaderSize(f, 256<<10)}
	var offset int64
	for {
		data, err := t.readLine()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if len(data) == 0 {
			break
		}
		var at struct {
			Form   string `json:"kvroute"`
			Schema string `json:"schema"`
			MS     int64  `json:"at_unix_ms"`
		}
		cut := data[len(data)-1] != '\n'
		bad := json.Unmarshal(data, &at)
		switch {
		case t.line == 1 && (bad != nil || at.Form != tapeForm):
			return nil, &TapeError{File: name, Line: 1, Why: "not a recording of kvroute watch --record"}
		case t.line == 1 || bad != nil || cut: // Next tells of damage where it comes to it
		case at.Schema != "":
			t.wholes = append(t.wholes, whole{offset, t.line, at.MS})
			t.to = max(t.to, at.MS)
		case len(t.wholes) > 0:
			t.to = max(t.to, at.MS)
		}
		offset += int64(len(data))
		if err != nil {
			break
		}
	}
	if len(t.wholes) == 0 {
		return nil, &TapeError{File: name, Why: "the recording has no snapshot", Hint: "the router it was made of never answered, or it broke off at its beginning", Damaged: true}
	}
	t.from = t.wholes[0].ms
	t.to = max(t.to, t.from)
	return t, t.jump(0)
}

// readLine reads a line with its end; io.EOF with what is left at the end of the file.
func (t *tapeTrack) readLine() ([]byte, error) {
	t.line++
	var long []byte
	for {
		part, err := t.in.ReadSlice('\n')
		if err == nil && long == nil {
			return part, nil
		}
		long = append(long, part...)
		switch {
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull):
			return nil, t.damaged("cannot be read: "+err.Error(), "")
		case !errors.Is(err, bufio.ErrBufferFull):
			return long, err
		case len(long) > snapshot.MaxBytes:
			return nil, t.damaged(fmt.Sprintf("the line is longer than %d bytes", snapshot.MaxBytes), "")
		}
	}
}

func (t *tapeTrack) damaged(why, hint string) error {
	return &TapeError{File: t.name, Line: t.line, Why: why, Hint: hint, Damaged: true}
}

// Next implements Track.
func (t *tapeTrack) Next() (*snapshot.Snapshot, error) {
	data, err := t.readLine()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(data) == 0 {
		return nil, io.EOF
	}
	if err != nil {
		return nil, t.damaged("the recording breaks off here", hintCut)
	}
	s, err := next(t.last, bytes.TrimRight(data, "\r\n"))
	if err != nil {
		return nil, t.damaged("the recording is damaged here: "+err.Error(), hintSkip)
	}
	t.last = s
	return s, nil
}

// SeekTo implements Track.
func (t *tapeTrack) SeekTo(ms int64) error {
	i := 0 // the last whole one at or before ms: clocks are set back, so times may go back too
	for n := range t.wholes {
		if t.wholes[n].ms <= ms {
			i = n
		}
	}
	if err := t.jump(i); err != nil {
		return err
	}
	// Up to the last one at or before ms: as reading goes one too far, twice.
	n := 0
	for {
		s, err := t.Next()
		if err != nil || s.AtMS > ms {
			break
		}
		n++
	}
	if err := t.jump(i); err != nil {
		return err
	}
	for range n - 1 {
		if _, err := t.Next(); err != nil {
			return err
		}
	}
	return nil
}

func (t *tapeTrack) jump(i int) error {
	if _, err := t.f.Seek(t.wholes[i].offset, io.SeekStart); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	t.in.Reset(t.f)
	t.line, t.last = t.wholes[i].line-1, nil
	return nil
}

// Span implements Track.
func (t *tapeTrack) Span() (from, to int64) { return t.from, t.to }

// Explain implements Track.
func (t *tapeTrack) Explain(pick uint64) ([]byte, error) { return nil, noExplain(pick) }

// Clean makes a string from outside fit to be printed: control codes and whatever else would move or hide text
// are replaced.
func Clean(s string) string { return clean(s, false) }

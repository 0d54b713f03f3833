package decodelog

import (
	"bytes"
	"io"
)

// maxLine is the longest line that is looked at. Longer ones are skipped and counted.
const maxLine = 1 << 20

// chunk is how much is read at once; of many inputs, which are all open, less, so that all of them together take no more
// than allChunks or the least that makes sense.
const (
	chunk      = 256 << 10
	leastChunk = 16 << 10
	allChunks  = 64 << 20
)

func chunkOf(inputs int) int { return min(max(allChunks/max(inputs, 1), leastChunk), chunk) }

// scanned is what came of asking for a line.
type scanned uint8

const (
	gotLine scanned = iota
	gotLong         // a line above maxLine, not handed over
	gotIdle         // nothing for now
	gotEnd          // err says why, nil at the end of the input
)

// lineReader cuts a stream into lines without copying them. Its memory is bounded by maxLine and chunk.
type lineReader struct {
	src    io.Reader
	chunk  int
	stop   func() bool // nothing more is to be read
	live   bool        // a read of nothing means that there is nothing for now
	buf    []byte
	i, n   int // unread bytes are buf[i:n]
	seen   int // of those, known to hold no newline
	long   bool
	ended  bool
	err    error // why it ended, nil: end of input
	line   int64 // number of the line last returned
	empty  int   // reads in a row that gave nothing
	cutOff bool  // the line last returned had no newline
}

// next returns the next line without its end. It is valid until the next call.
func (l *lineReader) next() ([]byte, scanned) {
	for {
		if k := bytes.IndexByte(l.buf[l.i+l.seen:l.n], '\n'); k >= 0 {
			line := l.buf[l.i : l.i+l.seen+k]
			l.i += l.seen + k + 1
			l.seen = 0
			l.line++
			if l.long || len(line) > maxLine {
				l.long = false
				return nil, gotLong
			}
			return trimEnd(line), gotLine
		}
		l.seen = l.n - l.i
		if l.seen > maxLine {
			l.long = true
			l.i, l.n, l.seen = 0, 0, 0
		}
		if l.ended {
			return l.last()
		}
		if !l.fill() {
			return nil, gotIdle
		}
	}
}

// last returns what stands behind the last newline.
func (l *lineReader) last() ([]byte, scanned) {
	line := l.buf[l.i:l.n]
	long := l.long
	l.i, l.n, l.seen, l.long = 0, 0, 0, false
	switch {
	case long:
		l.line++
		return nil, gotLong
	case len(line) > 0:
		l.line++
		l.cutOff = true
		return trimEnd(line), gotLine
	}
	return nil, gotEnd
}

func trimEnd(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		return line[:n-1]
	}
	return line
}

// fill reads once; false: there is nothing for now, or it is told to stop.
func (l *lineReader) fill() bool {
	if l.stop() {
		return false
	}
	if l.i > 0 && (l.i == l.n || len(l.buf)-l.n < l.chunk/4) {
		copy(l.buf, l.buf[l.i:l.n])
		l.n -= l.i
		l.i = 0
	}
	if len(l.buf)-l.n < l.chunk/4 {
		grown := make([]byte, max(2*len(l.buf), l.chunk))
		copy(grown, l.buf[:l.n])
		l.buf = grown
	}
	k, err := l.src.Read(l.buf[l.n:])
	l.n += k
	switch {
	case err != nil:
		l.ended = true
		if err != io.EOF {
			l.err = err
		}
	case k > 0:
		l.empty = 0
	case l.live:
		return false
	default:
		if l.empty++; l.empty > 100 {
			l.ended, l.err = true, io.ErrNoProgress
		}
	}
	return true
}

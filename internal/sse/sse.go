// Package sse splits a stream of server-sent events into records as it passes by, whatever the borders of
// its chunks, and says up to where it holds whole records, so that a record never has to be cut in two.
package sse

import "bytes"

// Record is one event of a stream.
type Record struct {
	// Data is the record's data lines, joined by line feeds. It is valid until the next call of Feed.
	Data []byte
	// TooLong says that the data was longer than the splitter's bound and is left out.
	TooLong bool
}

// Splitter reads a stream by the rules of the HTML standard: lines end in CR, LF or CRLF, a record ends
// with an empty line, comments and fields other than data are passed over. Data that lies in one chunk
// and one line is not copied. The zero value is not ready; use New.
type Splitter struct {
	max  int
	emit func(Record)

	started bool // past the first line, where a byte order mark may stand
	cr      bool // the last byte was a CR: a LF that follows belongs to it

	line    []byte // beginning of a line whose end has not come
	skipped bool   // the line is longer than max and not kept

	data    []byte // of the record so far
	owned   bool   // data is in buf, not in a chunk
	has     bool   // there was a data line
	tooLong bool
	any     bool // there was a line other than comments since the last record
	buf     []byte
}

// New returns a splitter that calls emit for each record with data, and keeps at most about max bytes of
// a record.
func New(max int, emit func(Record)) *Splitter { return &Splitter{max: max, emit: emit} }

// Feed reads the next chunk. It returns how many bytes of it belong to complete records and comments
// between them; what is behind is the beginning of a record.
func (s *Splitter) Feed(chunk []byte) (whole int) {
	i := 0
	if s.cr && len(chunk) > 0 {
		s.cr = false
		if chunk[0] == '\n' {
			i = 1
			if s.Between() {
				whole = 1
			}
		}
	}
	for i < len(chunk) {
		n := lineEnd(chunk[i:])
		if n < 0 {
			s.keepLine(chunk[i:])
			break
		}
		s.endLine(chunk[i : i+n])
		i += n
		if chunk[i] == '\r' {
			if i+1 == len(chunk) {
				s.cr = true
			} else if chunk[i+1] == '\n' {
				i++
			}
		}
		i++
		if s.Between() {
			whole = i
		}
	}
	s.own()
	return whole
}

// Between reports whether the stream is between records: nothing has come since the last one's end.
func (s *Splitter) Between() bool { return !s.any && len(s.line) == 0 && !s.skipped }

func lineEnd(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	if n < 0 {
		return bytes.IndexByte(b, '\r')
	}
	if r := bytes.IndexByte(b[:n], '\r'); r >= 0 {
		return r
	}
	return n
}

// keepLine keeps the beginning of a line.
func (s *Splitter) keepLine(b []byte) {
	if s.skipped || len(s.line)+len(b) > s.max {
		s.skipped, s.line = true, s.line[:min(len(s.line), len("data:"))]
		if len(s.line) < len("data:") {
			s.line = append(s.line, b[:min(len(b), len("data:")-len(s.line))]...)
		}
		return
	}
	s.line = append(s.line, b...)
}

// endLine takes the rest of a line.
func (s *Splitter) endLine(rest []byte) {
	line, fresh := rest, true
	if len(s.line) > 0 || s.skipped {
		s.keepLine(rest)
		line, fresh = s.line, false
	}
	skipped := s.skipped
	s.line, s.skipped = s.line[:0], false
	if !s.started {
		s.started = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if len(line) == 0 {
		s.dispatch()
		return
	}
	if line[0] == ':' {
		return // a comment belongs to no record, engines keep connections alive with them
	}
	s.any = true
	value, ok := bytes.CutPrefix(line, []byte("data"))
	switch {
	case !ok, len(value) > 0 && value[0] != ':':
		return
	case len(value) > 0:
		value = value[1:]
	}
	value = bytes.TrimPrefix(value, []byte(" "))
	s.addData(value, fresh, skipped)
}

// addData adds a data line; fresh says that value is in the chunk and stays until Feed returns.
func (s *Splitter) addData(value []byte, fresh, skipped bool) {
	if skipped || s.tooLong || len(s.data)+1+len(value) > s.max+1 {
		s.has, s.tooLong, s.data = true, true, nil
		return
	}
	if !s.has {
		s.has, s.data, s.owned = true, value, false
		if !fresh {
			s.own()
		}
		return
	}
	s.own()
	s.buf = append(append(s.buf, '\n'), value...)
	s.data = s.buf
}

// own copies the data out of the chunk.
func (s *Splitter) own() {
	if s.has && !s.owned && !s.tooLong {
		s.buf = append(s.buf[:0], s.data...)
		s.data, s.owned = s.buf, true
	}
}

func (s *Splitter) dispatch() {
	rec := Record{Data: s.data, TooLong: s.tooLong}
	had := s.has
	s.data, s.owned, s.has, s.tooLong, s.any = nil, false, false, false, false
	if had {
		s.emit(rec)
	}
}

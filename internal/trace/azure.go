package trace

import (
	"bytes"
	"math"
	"strconv"
)

// Columns of Azure's tables.
const (
	azureTime   = "TIMESTAMP"
	azureInput  = "ContextTokens"
	azureOutput = "GeneratedTokens"
)

// looksAzure tells whether line is the heading of such a table.
func looksAzure(line []byte) bool {
	return bytes.Contains(line, []byte(azureInput)) && bytes.Contains(line, []byte(azureOutput))
}

// azureReader reads Azure's tables of arrivals and lengths: comma-separated, with a heading. They have
// no blocks. Times are kept to the microsecond; the seventh decimal is dropped.
type azureReader struct {
	base
	cols  [3]int // of time, input, output
	width int
	parts [][]byte
	from  int64 // µs of the first row
}

// heading reads the first line.
func (r *azureReader) heading() error {
	line, err := r.next()
	if err != nil {
		return err
	}
	r.split(line)
	r.width = len(r.parts)
	for i, name := range [...]string{azureTime, azureInput, azureOutput} {
		r.cols[i] = -1
		for k, p := range r.parts {
			if string(p) == name {
				r.cols[i] = k
			}
		}
		if r.cols[i] < 0 {
			return r.fail("", "the heading has no column %s", name)
		}
	}
	r.from = math.MinInt64
	return nil
}

// split cuts a row into r.parts. These tables quote nothing.
func (r *azureReader) split(line []byte) {
	r.parts = r.parts[:0]
	for {
		k := bytes.IndexByte(line, ',')
		if k < 0 {
			r.parts = append(r.parts, bytes.TrimSpace(line))
			return
		}
		r.parts = append(r.parts, bytes.TrimSpace(line[:k]))
		line = line[k+1:]
	}
}

func (r *azureReader) Read(rec *Record) error {
	line, err := r.next()
	if err != nil {
		return err
	}
	*rec = Record{Line: r.in.line}
	if err := r.row(rec, line); err != nil {
		if !r.whole {
			err.Why = "the last line is cut off: " + err.Why
			err.Damaged, err.Read = true, r.read
		}
		return err
	}
	r.read++
	return nil
}

func (r *azureReader) row(rec *Record, line []byte) *Error {
	r.split(line)
	if len(r.parts) != r.width {
		return r.fail("", "%d columns, the heading has %d", len(r.parts), r.width)
	}
	at, ok := stamp(r.parts[r.cols[0]])
	if !ok {
		return r.fail("", "%q is not a time of the form 2023-11-16 18:15:46.6805900", r.parts[r.cols[0]])
	}
	if r.from == math.MinInt64 {
		r.from = at
	}
	for i, v := range [...]*int64{&rec.Input, &rec.Output} {
		n, err := strconv.ParseInt(string(r.parts[r.cols[1+i]]), 10, 64)
		if *v = n; err != nil {
			return r.fail("", "%q is not a number of tokens", r.parts[r.cols[1+i]])
		}
	}
	if err := r.checkCounts(rec); err != nil {
		return asError(err, r.name, r.in.line)
	}
	rec.Arrival = at - r.from // may be negative: Load moves the earliest to 0
	if max(rec.Arrival, -rec.Arrival) > maxArrival {
		return r.fail("", "the time is out of range")
	}
	return nil
}

// stamp returns the µs since 1970 of "YYYY-MM-DD HH:MM:SS[.fraction]", T for the space and a final Z
// allowed. There are no zones and no leap seconds.
func stamp(b []byte) (int64, bool) {
	const form = "dddd-dd-dd dd:dd:dd"
	if len(b) < len(form) {
		return 0, false
	}
	for i := range len(form) {
		switch c := b[i]; form[i] {
		case 'd':
			if c < '0' || c > '9' {
				return 0, false
			}
		case ' ':
			if c != ' ' && c != 'T' {
				return 0, false
			}
		default:
			if c != form[i] {
				return 0, false
			}
		}
	}
	num := func(from, to int) int64 {
		v := int64(0)
		for _, c := range b[from:to] {
			v = v*10 + int64(c-'0')
		}
		return v
	}
	year, month, day := num(0, 4), num(5, 7), num(8, 10)
	hour, minute, second := num(11, 13), num(14, 16), num(17, 19)
	if month < 1 || month > 12 || day < 1 || day > daysIn(year, month) || hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	frac, ok := fraction(b[len(form):])
	return ((days(year, month, day)*24+hour)*60+minute)*60e6 + second*1e6 + frac, ok
}

// fraction returns the µs of ".ddd…", which may be missing, with a final Z allowed.
func fraction(b []byte) (int64, bool) {
	b = bytes.TrimSuffix(b, []byte("Z"))
	if len(b) == 0 {
		return 0, true
	}
	if b[0] != '.' || len(b) == 1 {
		return 0, false
	}
	v, unit := int64(0), int64(100000)
	for _, c := range b[1:] {
		if c < '0' || c > '9' {
			return 0, false
		}
		v += int64(c-'0') * unit
		unit /= 10
	}
	return v, true
}

func leap(year int64) bool { return year%4 == 0 && (year%100 != 0 || year%400 == 0) }

func daysIn(year, month int64) int64 {
	switch {
	case month == 2 && leap(year):
		return 29
	case month == 2:
		return 28
	case month == 4 || month == 6 || month == 9 || month == 11:
		return 30
	}
	return 31
}

// days returns the days since 1970-01-01 in the Gregorian calendar. Years are counted from March, so
// that the leap day ends a year.
func days(year, month, day int64) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	return 365*year + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 719469
}

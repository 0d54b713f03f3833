package decodelog

import (
	"bytes"
	"time"
)

// stamp is a time as it stands in a line.
type stamp struct {
	kind     stampKind
	days     int64 // since the epoch, if dated
	md       int32 // month*32 + day, of a date without year
	ns       int64 // since midnight
	offsetNS int64 // of the zone
}

type stampKind uint8

const (
	noTime    stampKind = iota
	hoursOnly           // HH:MM:SS
	yearless            // MM-DD HH:MM:SS, Aug  1 HH:MM:SS
	dated
)

const (
	daySeconds = 86400
	second     = int64(1e9)
	dayNS      = daySeconds * second
)

// dates remembers the last date that was read: lines next to each other have the same.
type dates struct {
	text [10]byte
	days int64
	ok   bool
}

// readStamp reads a time from the start of b, and how many bytes it takes; 0: there is none.
func (d *dates) readStamp(b []byte) (s stamp, n int) {
	switch {
	case len(b) < 8:
		return s, 0
	case b[2] == ':':
		ns, k := timeOfDay(b)
		if k == 0 {
			return s, 0
		}
		return stamp{kind: hoursOnly, ns: ns}, k
	case len(b) >= 19 && (b[4] == '-' || b[4] == '/') && b[7] == b[4] && (b[10] == ' ' || b[10] == 'T'):
		return d.full(b)
	case len(b) >= 14 && b[2] == '-' && b[5] == ' ':
		md := two(b)*32 + two(b[3:])
		ns, k := timeOfDay(b[6:])
		if k == 0 || !validDay(md) {
			return s, 0
		}
		return stamp{kind: yearless, md: int32(md), ns: ns}, 6 + k
	case len(b) >= 15 && b[3] == ' ' && b[6] == ' ':
		return syslog(b)
	case b[0]-'1' < 9:
		return epoch(b)
	}
	return s, 0
}

func (d *dates) full(b []byte) (s stamp, n int) {
	if !d.ok || !bytes.Equal(d.text[:], b[:10]) {
		y, m, day := two(b)*100+two(b[2:]), two(b[5:]), two(b[8:])
		if two(b) < 0 || two(b[2:]) < 0 || y < 1970 || y > 2200 || !validDay(m*32+day) {
			return s, 0
		}
		d.days = civilDays(y, m, day)
		copy(d.text[:], b)
		d.ok = true
	}
	ns, k := timeOfDay(b[11:])
	if k == 0 {
		return s, 0
	}
	s = stamp{kind: dated, days: d.days, ns: ns}
	n = 11 + k
	off, k := zone(b[n:])
	s.offsetNS = off
	return s, n + k
}

// epoch reads seconds or milliseconds since the epoch that stand alone: a collector's column.
func epoch(b []byte) (s stamp, n int) {
	v, k := integer(b)
	if k != 10 && k != 13 || k < len(b) && b[k] != ' ' && b[k] != '\t' {
		return s, 0
	}
	if k == 10 {
		v *= 1000
	}
	return stamp{kind: dated, days: v / (daySeconds * 1000), ns: v % (daySeconds * 1000) * 1e6}, k
}

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

func syslog(b []byte) (s stamp, n int) {
	i := bytes.Index([]byte(months), b[:3])
	if i < 0 || i%3 != 0 {
		return s, 0
	}
	day := int(b[5] - '0')
	if b[4] != ' ' {
		day = two(b[4:])
	}
	md := (i/3+1)*32 + day
	ns, k := timeOfDay(b[7:])
	if k == 0 || !validDay(md) {
		return s, 0
	}
	return stamp{kind: yearless, md: int32(md), ns: ns}, 7 + k
}

// two reads two digits, -1 if there are none.
func two(b []byte) int {
	t, o := b[0]-'0', b[1]-'0'
	if t > 9 || o > 9 {
		return -1000
	}
	return int(t)*10 + int(o)
}

func validDay(md int) bool {
	m, d := md/32, md%32
	return md > 0 && m >= 1 && m <= 12 && d >= 1
}

// timeOfDay reads HH:MM:SS with up to nine decimals behind a point or a comma.
func timeOfDay(b []byte) (ns int64, n int) {
	if len(b) < 8 || b[2] != ':' || b[5] != ':' {
		return 0, 0
	}
	h, m, s := two(b), two(b[3:]), two(b[6:])
	if h < 0 || h > 23 || m < 0 || m > 59 || s < 0 || s > 60 {
		return 0, 0
	}
	ns = int64(h*3600+m*60+s) * second
	n = 8
	if len(b) > 9 && (b[8] == '.' || b[8] == ',') && b[9]-'0' < 10 {
		n = 9
		for unit := second / 10; n < len(b) && b[n]-'0' < 10; n++ {
			ns += int64(b[n]-'0') * unit
			unit /= 10
		}
	}
	return ns, n
}

// zone reads Z, +08:00 or +0800.
func zone(b []byte) (ns int64, n int) {
	switch {
	case len(b) > 0 && b[0] == 'Z':
		return 0, 1
	case len(b) < 5 || b[0] != '+' && b[0] != '-':
		return 0, 0
	}
	h, rest, n := two(b[1:]), b[3:], 5
	if rest[0] == ':' {
		rest, n = rest[1:], 6
	}
	if len(rest) < 2 || h < 0 || two(rest) < 0 {
		return 0, 0
	}
	ns = int64(h*3600+two(rest)*60) * second
	if b[0] == '-' {
		ns = -ns
	}
	return ns, n
}

// civilDays is the number of days from 1 January 1970.
func civilDays(y, m, d int) int64 {
	return time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC).Unix() / daySeconds
}

// baseYear stands for the year of dates that have none: a leap year, so that every date is one.
const baseYear = 1972

// timeline gives the lines of a source, whose clocks may lack the year or the date, one time axis.
type timeline struct {
	year int // 0: not known
	last int64
	any  bool
}

// place returns ns since the epoch. What a stamp lacks is chosen so that it comes nearest to the line before: over
// midnight and new year, also where two lines have changed places there.
func (t *timeline) place(s stamp) int64 {
	var at int64
	switch s.kind {
	case dated:
		at = s.days*dayNS + s.ns - s.offsetNS
	case hoursOnly:
		day := int64(0)
		if t.any {
			day = floorDiv(t.last, dayNS)
		}
		at = t.nearest(day, func(day int64) int64 { return day*dayNS + s.ns })
	case yearless:
		y := int64(t.year)
		if y == 0 {
			y = baseYear
		}
		if t.any {
			y = int64(time.Unix(0, t.last).UTC().Year())
		}
		at = t.nearest(y, func(y int64) int64 { return civilDays(int(y), int(s.md/32), int(s.md%32))*dayNS + s.ns })
	}
	t.last, t.any = at, true
	return at
}

func (t *timeline) nearest(mid int64, at func(int64) int64) int64 {
	best := at(mid)
	if !t.any {
		return best
	}
	for _, i := range [...]int64{mid - 1, mid + 1} {
		if a := at(i); abs(a-t.last) < abs(best-t.last) {
			best = a
		}
	}
	return best
}

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

package decodelog

import (
	"bytes"
)

// fullEnough is the least share of the pool in use from which its size is estimated: two decimals make 2 % of it.
const fullEnough = 0.25

// rankLog is what is known of a rank within a source.
type rankLog struct {
	pool    int64 // 0: not stated
	prefill bool  // since its last decode line
	forward int64 // number of its last decode line's forward pass
	counted bool
	at      int64 // ns of its last line, on the axis of lines without time
	shares  shares
	given   bool // a sample of it was handed over
}

// rankLog returns the rank's, making it where it is new.
func (s *source) rankLog(rank int32) *rankLog {
	i := int(rank) + 1
	for i >= len(s.ranks) {
		s.ranks = append(s.ranks, nil)
	}
	if s.ranks[i] == nil {
		s.ranks[i] = &rankLog{}
	}
	return s.ranks[i]
}

// poolOf is the size of a rank's pool as its input told it, or of another rank in it: they are alike. 0: not told yet.
func (s *source) poolOf(r *rankLog) int64 {
	if r.pool > 0 {
		return r.pool
	}
	return s.pool
}

// have says which fields a decode line had.
type have uint16

const (
	haveRunning have = 1 << iota
	haveTokens
	haveUsage
	haveAccept
	havePre
	haveThroughput
	haveGraph
	torn
	unread
	foreign
	windowed // layers that hold a window of the context only
)

// batch is a decode line's fields.
type batch struct {
	have                                       have
	running, tokens, usage, accept, pre, speed float64
	graph                                      bool
	forward                                    int64
	counted                                    bool
	speedAtEnd                                 bool // the throughput is the last thing in the line
}

// parse reads the fields behind the word "batch".
func (b *batch) parse(f []byte) {
	i := 0
	if len(f) > 2 && f[0] == ' ' && f[1] == '[' {
		if v, n := integer(f[2:]); n > 0 && 2+n < len(f) && f[2+n] == ']' {
			b.forward, b.counted = v, true
			i = 3 + n
		}
	}
	if i < len(f) && (f[i] == ',' || f[i] == '.') {
		i++
	}
	for i < len(f) {
		if f[i] == ' ' {
			i++
		}
		n := b.usual(f[i:])
		if n == 0 {
			n = b.unusual(f[i:])
		}
		i += n
		if i >= len(f) || b.have&haveThroughput != 0 && len(f)-i < len(", #queue-req: 12345") {
			return
		}
		if f[i] == ',' {
			i++
			continue
		}
		k := bytes.IndexByte(f[i:], ',')
		if k < 0 {
			return
		}
		i += k + 1
	}
}

// usual reads a field in the spelling that most lines have; 0: it is none of those. It is what makes reading fast.
func (b *batch) usual(f []byte) int {
	is := func(key string) bool { return len(f) > len(key) && string(f[:len(key)]) == key }
	key, to, bit := 0, (*float64)(nil), have(0)
	if len(f) == 0 {
		return 0
	}
	switch f[0] {
	case '#':
		if is("#running-req: ") {
			key, to, bit = len("#running-req: "), &b.running, haveRunning
		} else if is("#token: ") {
			key, to, bit = len("#token: "), &b.tokens, haveTokens
		} else if len(f) > 1 && f[1] != 'f' && f[1] != 'g' && f[1] != 's' { // nothing that is needed
			k := bytes.IndexByte(f, ',')
			if k < 0 {
				k = len(f)
			}
			if bytes.IndexByte(f[:k], '[') >= 0 {
				b.have |= torn
			}
			return k
		}
	case 't':
		if is("token usage: ") {
			key, to, bit = len("token usage: "), &b.usage, haveUsage
		}
	case 'g':
		if is("gen throughput (token/s): ") {
			key, to, bit = len("gen throughput (token/s): "), &b.speed, haveThroughput
		}
	case 'a':
		if is("accept len: ") {
			key, to, bit = len("accept len: "), &b.accept, haveAccept
		} else if is("accept rate: ") {
			_, n, _ := number(f[len("accept rate: "):])
			return len("accept rate: ") + n
		}
	case 'p':
		if is("pre-allocated usage: ") {
			key, to, bit = len("pre-allocated usage: "), &b.pre, havePre
		}
	case 'c':
		if is("cuda graph: True,") {
			b.graph = true
			b.have |= haveGraph
			return len("cuda graph: True")
		}
	}
	if key == 0 {
		return 0
	}
	n := key + b.number(to, bit, f[key:])
	if bit == haveThroughput {
		b.speedAtEnd = n == len(f)
	}
	return n
}

// unusual reads a field by its key; it returns how much of f it took.
func (b *batch) unusual(f []byte) int {
	k := bytes.IndexByte(f, ':')
	if k < 0 {
		return len(f)
	}
	key := bytes.TrimLeft(f[:k], " ,.")
	i := k + 1
	for i < len(f) && f[i] == ' ' {
		i++
	}
	n, known := b.field(key, f[i:])
	if !known {
		if c := bytes.LastIndexByte(key, ','); c >= 0 {
			n, _ = b.field(bytes.TrimLeft(key[c+1:], " "), f[i:])
		}
		if bytes.IndexByte(key, '[') >= 0 {
			b.have |= torn
		}
		if string(key) == "#swa token" {
			b.have |= windowed
		}
	}
	return i + n
}

// field reads the value of a key that is known, and how long it is.
func (b *batch) field(key, f []byte) (n int, known bool) {
	if len(key) < 9 {
		switch string(key) {
		case "#token":
			return b.number(&b.tokens, haveTokens, f), true
		}
		return 0, false
	}
	switch string(key) {
	case "#running-req":
		return b.number(&b.running, haveRunning, f), true
	case "#full token", "#gpu token":
		return b.number(&b.tokens, haveTokens, f), true
	case "token usage", "full token usage", "gpu token usage":
		return b.number(&b.usage, haveUsage, f), true
	case "accept len":
		return b.number(&b.accept, haveAccept, f), true
	case "pre-allocated usage":
		return b.number(&b.pre, havePre, f), true
	case "cuda graph", "npu graph", "cpu graph", "xpu graph", "hpu graph":
		if len(f) > 3 {
			b.graph = f[0] == 'T'
			b.have |= haveGraph
		}
		return 0, true
	}
	if bytes.HasPrefix(key, []byte("gen throughput")) {
		n := b.number(&b.speed, haveThroughput, f)
		b.speedAtEnd = n == len(f)
		return n, true
	}
	return 0, false
}

func (b *batch) number(to *float64, bit have, f []byte) int {
	v, n, odd := number(f)
	switch {
	case n == 0:
		b.have |= unread
		return 0
	case b.have&bit != 0:
		b.have |= torn
	case n < len(f) && f[n] != ',' && f[n] != ' ' && f[n] != '.' && f[n] != '\\' && f[n] != '"' && f[n] != '%':
		b.have |= torn
	}
	if odd {
		b.have |= foreign
	}
	b.have |= bit
	*to = v
	return n
}

// decodeLine takes in a decode line of SGLang; the words "Decode batch" are line[at:end].
func (s *source) decodeLine(line []byte, at, end int) error {
	colored := bytes.IndexByte(line[:at], 0x1b) >= 0
	var b batch
	if !colored {
		b.parse(line[end:])
		colored = b.have&(torn|unread) != 0 && bytes.IndexByte(line[end:], 0x1b) >= 0
	}
	if colored {
		line = s.decolored(line)
		k := bytes.Index(line, wDecodeBatch)
		if k < 0 {
			s.leave(leftTorn, line)
			return nil
		}
		at, end = k, k+len(wDecodeBatch)
		b = batch{}
		b.parse(line[end:])
	}
	if b.have == 0 { // prose
		s.other(kindOther, line)
		return nil
	}
	if s.st.engine != SGLang || s.st.decided == (Place{}) {
		if ok, err := s.is(SGLang, false); !ok {
			s.other(kindForeign, line)
			return err
		}
	}
	p := s.prefix(line[:at])
	why, ok := s.judge(&b, &p)
	if p.bad {
		s.leave(leftRank, line)
		return nil
	}
	r := s.rankLog(p.rank)
	at64 := s.place(p.at, r, &b)
	prefilled := r.prefill
	weight := 0.0
	if why != leftStage {
		r.prefill = false
		if b.counted && r.counted && b.forward > r.forward {
			weight = float64(b.forward - r.forward)
		}
		r.forward, r.counted = b.forward, b.counted
	}
	if !ok {
		s.leave(why, line)
		return nil
	}
	if b.have&foreign != 0 && s.st.once("foreign") {
		s.st.note("%s has numbers with other separators than a decimal point: they are read as such", s.here())
	}
	s.emit(&b, &p, r, at64, weight, prefilled)
	return nil
}

// judge says whether a line becomes a sample, else why not.
func (s *source) judge(b *batch, p *prefix) (reason, bool) {
	switch {
	case b.have&torn != 0:
		return leftTorn, false
	case b.have&haveThroughput == 0 && b.have&unread != 0, b.have&haveRunning == 0 && b.have&unread != 0:
		return leftNumber, false
	case b.have&haveThroughput == 0 || b.have&haveRunning == 0 || s.lr.cutOff && b.speedAtEnd:
		return leftCut, false
	case b.have&unread != 0:
		return leftNumber, false
	case p.bad:
		return leftRank, false
	case !s.st.stageCounts(p.rank, p.stage):
		return leftStage, false
	case b.running == 0:
		return leftIdle, false
	case b.speed == 0:
		return leftStill, false
	case b.have&haveAccept != 0 && b.accept < 1:
		return leftAccept, false
	}
	if b.have&haveAccept == 0 {
		b.accept = 1
	} else {
		s.st.spec = true
	}
	if b.have&haveUsage != 0 && b.usage <= 1.5 && s.pool == 0 {
		if u := s.st.fromRank[p.rank]; b.usage > u.share && b.tokens > 0 {
			s.st.fromRank[p.rank] = usedest{b.tokens, b.usage}
		}
	}
	return s.st.allowed(b.step(), s.rankLog(p.rank).prefill)
}

// step is the mean time of a decode step, s.
func (b *batch) step() float64 { return float64(b.running*b.accept) / b.speed }

func (s *source) emit(b *batch, p *prefix, r *rankLog, at int64, weight float64, prefilled bool) {
	if b.pre > 0 && !s.st.pre {
		s.st.pre = true
		s.st.note("pre-allocated tokens are subtracted; their share is told in two decimals, which makes 0.5 %% of the pool")
	}
	if b.have&windowed != 0 && s.st.once("windowed") {
		s.st.note("layers with a sliding window: tokens held are those of the layers that see all of the context")
	}
	e := s.slot(at)
	e.Rank, e.Step, e.Running, e.Accept = p.rank, b.step(), b.running, b.accept
	e.Graph, e.HasGraph, e.Prefill, e.Weight = b.graph, b.have&haveGraph != 0, prefilled, weight
	e.tokens, e.share, e.pool, e.place = b.tokens, b.pre, s.poolOf(r), s.lr.line
	if b.have&havePre != 0 {
		e.unit = 0.01 // two decimals
	}
}

// place returns when a line was printed. Lines without a time are taken as printed every 40 steps, one after the
// other; those without date or year by the lines around them.
func (s *source) place(t stamp, r *rankLog, b *batch) int64 {
	if t.kind == noTime {
		if s.anyTime {
			return s.times.last
		}
		if !s.noTime {
			s.noTime = true
			s.st.note("%s tells no times: lines are taken as 40 steps apart, pauses are not seen", s.name)
		}
		if b.have&(haveRunning|haveThroughput) == haveRunning|haveThroughput && b.speed > 0 {
			accept := max(b.accept, 1)
			if step := float64(b.running*accept) / b.speed; step <= s.st.opt.MaxStep {
				r.at += int64(step * 40 * float64(second))
			}
		}
		s.latest = max(s.latest, r.at)
		r.at = s.latest
		return r.at
	}
	return s.dated(t)
}

// dated returns when a line with a time was printed, and notes what its clock lacks.
func (s *source) dated(t stamp) int64 {
	if !s.anyTime {
		s.anyTime = true
		s.times.year = s.st.opt.Year
		switch t.kind {
		case hoursOnly:
			s.st.note("%s tells no dates: lines are taken as of following days where the clock passes midnight", s.name)
		case yearless:
			if s.st.opt.Year == 0 {
				s.st.note("%s tells no year: lines are taken as of one run", s.name)
			}
		}
		return s.times.place(t)
	}
	before := s.times.last
	at := s.times.place(t)
	if before-at > 60*second && !s.back {
		s.back = true
		s.st.note("%s: the clock goes back by %d s: the parts are in another order, or the clock was set", s.here(), (before-at)/second)
	}
	return at
}

// prefillLine takes in a prefill batch of SGLang: the rank's next decode line covers it.
func (s *source) prefillLine(line []byte, at int) error {
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = s.decolored(line)
		if at = bytes.Index(line, wPrefill); at < 0 {
			at = 0
		}
	}
	if !bytes.Contains(line[at:], []byte("#new-")) { // prose
		s.other(kindOther, line)
		return nil
	}
	if s.st.engine != SGLang || s.st.decided == (Place{}) {
		if ok, err := s.is(SGLang, false); !ok {
			s.other(kindForeign, line)
			return err
		}
	}
	s.other(kindPrefill, line)
	if p := s.prefix(line[:at]); !p.bad {
		s.rankLog(p.rank).prefill = true
		if p.at.kind != noTime {
			s.dated(p.at)
		}
	}
	return nil
}

// sglangPool takes in "max_total_num_tokens=N".
func (s *source) sglangPool(line []byte) error {
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = s.decolored(line)
	}
	s.other(kindStartup, line)
	at := max(bytes.Index(line, wPool), 0)
	v, n := integer(line[min(at+len(wPool), len(line)):])
	if n == 0 || v == 0 {
		return nil
	}
	if ok, err := s.is(SGLang, false); !ok {
		return err
	}
	if p := s.prefix(line[:at]); !p.bad {
		s.pool = v
		s.rankLog(p.rank).pool = v
		s.st.pools[p.rank] = v
	}
	return nil
}

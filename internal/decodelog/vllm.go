package decodelog

import (
	"bytes"
)

// vllmStat is a periodic line of vLLM.
type vllmStat struct {
	valid          bool
	at, line       int64
	rank           int32
	engines        float64 // that it is the sum of
	prompt, speed  float64 // tokens/s
	running, usage float64 // usage: share of the pool
	have           have
}

// vllmLog is the line that waits for the one about speculation that may follow it.
type vllmLog struct {
	wait vllmStat
	text []byte
}

// vllmLine takes in a periodic line: "Engine 000: Avg prompt throughput: ...".
func (s *source) vllmLine(line []byte) error {
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = s.decolored(line)
	}
	at := bytes.Index(line, wAvg)
	if at < 0 {
		s.other(kindOther, line)
		return nil
	}
	if ok, err := s.is(VLLM, false); !ok {
		s.other(kindForeign, line)
		return err
	}
	s.vllmFlush()
	v := vllmStat{rank: NoRank, engines: 1, line: s.lr.line}
	v.parse(line[at:])
	why, ok := v.judge(s, line, at)
	t := s.leading(line[:at])
	r := s.rankLog(v.rank)
	if t.kind == noTime && !s.anyTime {
		if !s.noTime {
			s.noTime = true
			s.st.note("%s tells no times: lines are taken as 10 s apart, pauses are not seen", s.name)
		}
		r.at += 10 * second
		s.latest = max(s.latest, r.at)
		v.at, r.at = s.latest, s.latest
	} else if t.kind == noTime {
		v.at = s.times.last
	} else {
		v.at = s.dated(t)
	}
	if !ok {
		s.leave(why, line)
		return nil
	}
	v.valid = true
	s.vllm.wait = v
	s.vllm.text = append(s.vllm.text[:0], line[:min(len(line), 200)]...)
	return nil
}

func (v *vllmStat) parse(f []byte) {
	for i := 0; ; {
		for i < len(f) && (f[i] == ' ' || f[i] == ',') {
			i++
		}
		k := bytes.IndexByte(f[i:], ':')
		if k < 0 {
			return
		}
		key := f[i : i+k]
		i += k + 1
		for i < len(f) && f[i] == ' ' {
			i++
		}
		switch {
		case string(key) == "Avg prompt throughput":
			i += v.number(&v.prompt, haveTokens, f[i:], ' ')
		case string(key) == "Avg generation throughput":
			i += v.number(&v.speed, haveThroughput, f[i:], ' ')
		case string(key) == "Running":
			i += v.number(&v.running, haveRunning, f[i:], ' ')
		case bytes.HasSuffix(key, []byte("KV cache usage")) && !bytes.HasPrefix(key, []byte("CPU")):
			i += v.number(&v.usage, haveUsage, f[i:], '%')
			v.usage /= 100
		case bytes.IndexByte(key, '[') >= 0:
			v.have |= torn
		}
		k = bytes.IndexByte(f[i:], ',')
		if k < 0 {
			return
		}
		i += k + 1
	}
}

func (v *vllmStat) number(to *float64, bit have, f []byte, end byte) int {
	x, n, odd := number(f)
	switch {
	case n == 0:
		v.have |= unread
		return 0
	case v.have&bit != 0:
		v.have |= torn
	case n < len(f) && f[n] != end:
		v.have |= torn
	case n == len(f): // its unit is missing
		v.have |= unread
	}
	if odd {
		v.have |= foreign
	}
	v.have |= bit
	*to = x
	return n
}

// judge finds the rank and says whether a line can become a sample.
func (v *vllmStat) judge(s *source, line []byte, at int) (reason, bool) {
	before := bytes.TrimRight(line[:at], " :")
	d := len(before)
	for d > 0 && before[d-1]-'0' < 10 {
		d--
	}
	switch {
	case bytes.HasSuffix(before[:d], []byte("Engine ")):
		n, k := integer(before[d:])
		if k == 0 || n > maxRank {
			return leftRank, false
		}
		v.rank = int32(n)
	case bytes.HasSuffix(before, []byte(" Engines Aggregated")):
		before = bytes.TrimSuffix(before, []byte(" Engines Aggregated"))
		d = len(before)
		for d > 0 && before[d-1]-'0' < 10 {
			d--
		}
		if n, k := integer(before[d:]); k > 0 && n > 0 && n <= maxRank {
			v.engines = float64(n)
			if n > 1 && s.st.once("aggregated") {
				s.st.note("%s: lines sum up %d engines: requests and tokens are means over them, not the busiest one's", s.here(), n)
			}
		}
	}
	switch {
	case v.have&torn != 0:
		return leftTorn, false
	case v.have&haveThroughput == 0 || v.have&haveRunning == 0 || v.have&haveTokens == 0:
		return leftCut, false
	case v.have&unread != 0:
		return leftNumber, false
	case v.running == 0:
		return leftIdle, false
	case v.speed == 0:
		return leftStill, false
	}
	if v.have&foreign != 0 && s.st.once("foreign") {
		s.st.note("%s has numbers with other separators than a decimal point: they are read as such", s.here())
	}
	return 0, true
}

// vllmSpec takes in "SpecDecoding metrics: Mean acceptance length: X, ...", which follows the line that it is about.
func (s *source) vllmSpec(line []byte) {
	s.other(kindSpec, line)
	accept, ok := acceptance(line)
	if !ok {
		return
	}
	s.st.spec = true
	if s.vllm.wait.valid {
		s.vllmEmit(accept)
	}
}

// acceptance reads the accepted tokens a step, the engine's own among them. V0 tells them as the share of k+1.
func acceptance(line []byte) (float64, bool) {
	after := func(key string) (float64, bool) {
		k := bytes.Index(line, []byte(key))
		if k < 0 {
			return 0, false
		}
		v, n, _ := number(line[k+len(key):])
		return v, n > 0
	}
	if v, ok := after("Mean acceptance length: "); ok {
		return v, v >= 1
	}
	share, ok1 := after("System efficiency: ")
	k, ok2 := after("Number of speculative tokens: ")
	v := share * (k + 1)
	return v, ok1 && ok2 && v >= 1
}

// vllmFlush hands on the line that waits, as nothing about speculation followed it.
func (s *source) vllmFlush() {
	if !s.vllm.wait.valid {
		return
	}
	if s.st.spec {
		v := s.vllm.wait
		s.vllm.wait.valid = false
		c := &s.st.left[leftAccept]
		if c.N++; c.N == 1 {
			c.First, c.Text = Place{s.name, v.line}, excerpt(s.vllm.text)
		}
		return
	}
	s.vllmEmit(1)
}

// vllmEmit makes a sample of the line that waits.
func (s *source) vllmEmit(accept float64) {
	v := s.vllm.wait
	s.vllm.wait.valid = false
	r := s.rankLog(v.rank)
	step := float64(v.running*accept) / v.speed
	if why, ok := s.st.allowed(step, v.prompt > 0); !ok {
		s.leaveAt(why, v.line)
		return
	}
	e := entry{tokens: -1, share: v.usage / v.engines, unit: 0.001 / v.engines, pool: s.poolOf(r), place: v.line}
	if e.share > 1.5 { // not a share
		s.leaveAt(leftNumber, v.line)
		return
	}
	e.Sample = Sample{At: v.at, Rank: v.rank, Step: step, Running: v.running / v.engines, Accept: accept, Prefill: v.prompt > 0}
	if v.have&haveUsage == 0 {
		e.tokens, e.share = 0, 0
	}
	s.push(e)
}

func (s *source) leaveAt(r reason, line int64) {
	c := &s.st.left[r]
	if c.N++; c.N == 1 {
		c.First, c.Text = Place{s.name, line}, excerpt(s.vllm.text)
	}
}

// vllmPool takes in "GPU KV cache size: 1,234,567 tokens", or "Maximum concurrency for 32,768 tokens per request: 3.41x".
func (s *source) vllmPool(line []byte) {
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = s.decolored(line)
	}
	s.other(kindStartup, line)
	exact := true
	var v float64
	if k := bytes.Index(line, wKVSize); k >= 0 {
		rest := line[k+len(wKVSize):]
		n := 0
		if v, n = grouped(rest); n == 0 || !bytes.HasPrefix(rest[n:], []byte(" tokens")) {
			return
		}
	} else {
		exact = false
		rest := line[max(bytes.Index(line, wMostReqs), 0)+len(wMostReqs):]
		length, n := grouped(rest)
		const between = " tokens per request: "
		if n == 0 || !bytes.HasPrefix(rest[n:], []byte(between)) {
			return
		}
		times, n, _ := number(rest[n+len(between):])
		if n == 0 {
			return
		}
		v = length * times
	}
	if v < 1 || v > 1e15 {
		return
	}
	rank := int32(NoRank)
	if k := bytes.Index(line, []byte("_DP")); k >= 0 {
		if n, d := integer(line[k+3:]); d > 0 && n <= maxRank {
			rank = int32(n)
		}
	}
	r := s.rankLog(rank)
	if r.pool > 0 && !exact {
		return // the exact size was told
	}
	r.pool, s.pool = int64(v), int64(v)
	s.st.pools[rank] = int64(v)
	if !exact && s.st.once("concurrency") {
		s.st.note("%s: the pool is taken as length x concurrency, told in two decimals", s.here())
	}
}

// grouped reads a whole number with commas between thousands.
func grouped(b []byte) (v float64, n int) {
	for n < len(b) && n < 24 && (b[n]-'0' < 10 || b[n] == ',' && n > 0 && n+1 < len(b) && b[n+1]-'0' < 10) {
		if b[n] != ',' {
			v = float64(v*10) + float64(b[n]-'0')
		}
		n++
	}
	return v, n
}

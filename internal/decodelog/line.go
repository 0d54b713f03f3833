package decodelog

import (
	"bytes"
)

var (
	wBatchWord   = []byte("batch")
	wDecodeBatch = []byte("Decode batch")
	wDecode      = []byte("Decode ")
	wPrefill     = []byte("Prefill ")
	wPool        = []byte("max_total_num_tokens=")
	wAvg         = []byte("Avg prompt throughput: ")
	wSpec        = []byte("SpecDecoding metrics: ")
	wSpecV0      = []byte("Speculative metrics: ")
	wKVSize      = []byte("KV cache size: ")
	wMostReqs    = []byte("Maximum concurrency for ")
	wAtom        = []byte("[atom ")
	wRequest     = []byte("ReqTimeStats(")
	wHTTP        = []byte("HTTP/1.")
	wRunning     = []byte("#running-req: ")
	wKVRoute     = []byte(`{"kvroute":`)
)

// line takes one line in.
func (s *source) line(line []byte) error {
	if s.scrape != nil {
		return s.scrape.line(line)
	}
	// Where the line before had it is the best guess.
	if at := s.guess; at+len(wDecodeBatch) <= len(line) && string(line[at:at+len(wDecodeBatch)]) == "Decode batch" {
		return s.decodeLine(line, at, at+len(wDecodeBatch))
	}
	for from := 0; ; {
		k := bytes.Index(line[from:], wBatchWord)
		if k < 0 {
			break
		}
		at := from + k
		switch {
		case bytes.HasSuffix(line[:at], wDecode):
			s.guess = at - len(wDecode)
			return s.decodeLine(line, at-len(wDecode), at+len(wBatchWord))
		case bytes.HasSuffix(line[:at], wPrefill):
			return s.prefillLine(line, at-len(wPrefill))
		}
		from = at + 1
	}
	return s.otherLine(line)
}

// decolored returns line without terminals' colours.
func (s *source) decolored(line []byte) []byte {
	out := s.clean[:0]
	for {
		k := bytes.IndexByte(line, 0x1b)
		if k < 0 {
			break
		}
		out = append(out, line[:k]...)
		line = line[k+1:]
		if len(line) > 0 && line[0] == '[' {
			i := 1
			for i < len(line) && line[i] < 0x40 {
				i++
			}
			line = line[min(i+1, len(line)):]
		}
	}
	s.clean = append(out, line...)
	return s.clean
}

// otherLine takes lines in that are not about a batch of SGLang.
func (s *source) otherLine(line []byte) error {
	if bytes.IndexByte(line, 0) >= 0 {
		// Files that were cut while written to begin with a hole.
		if line = bytes.TrimLeft(line, "\x00"); len(line) == 0 || bytes.IndexByte(line, 0) >= 0 {
			s.other(kindBinary, line)
			return nil
		}
	}
	switch {
	case len(line) == 0:
		s.other(kindEmpty, line)
	case bytes.Contains(line, wHTTP): // first, as most others are of these
		s.other(kindAccess, line)
	case bytes.Contains(line, wAvg):
		return s.vllmLine(line)
	case bytes.Contains(line, wSpec), bytes.Contains(line, wSpecV0):
		s.vllmSpec(line)
	case bytes.IndexByte(line, '=') >= 0 && bytes.Contains(line, wPool):
		return s.sglangPool(line)
	case bytes.Contains(line, wKVSize), bytes.Contains(line, wMostReqs):
		s.vllmPool(line)
	case bytes.Contains(line, wAtom):
		s.other(kindATOM, line)
	case bytes.Contains(line, wRequest):
		s.other(kindRequest, line)
	case bytes.Contains(line, wRunning):
		s.leave(leftBare, line)
	case s.lr.line == 1 && bytes.HasPrefix(line, wKVRoute):
		return s.fail("this is a file of kvroute, not an engine's log", "kvroute fit takes recordings of kvroute serve --record without --engine and --follow")
	default:
		return s.rareLine(line)
	}
	return nil
}

// rareLine takes in what occurs at the beginning of scraped metrics, and the rest.
func (s *source) rareLine(line []byte) error {
	if metric, engine := metricLine(line); metric {
		if engine != VLLM {
			s.other(kindSGLangMetrics, line)
			return nil
		}
		ok, err := s.is(VLLM, true)
		if err != nil || !ok {
			s.other(kindForeign, line)
			return err
		}
		s.scrape = newScraper(s)
		return s.scrape.line(line)
	}
	if s.st.engine == Auto || s.st.engine == VLLM {
		if t, ok := bareTime(line); ok {
			s.when = lineTime{t, s.lr.line}
			s.other(kindTime, line)
			return nil
		}
	}
	if s.st.decided.Line == 0 && binary(line) { // tells only where nothing else is found
		s.other(kindBinary, line)
		return nil
	}
	s.other(kindOther, line)
	return nil
}

// binary says whether a line has control codes that no log has.
func binary(line []byte) bool {
	bad := 0
	for _, c := range line[:min(len(line), 256)] {
		if c < 0x20 && c != '\t' && c != 0x1b && c != '\r' && c != '\f' && c != '\b' {
			bad++
		}
	}
	return bad > 0
}

// prefix is what stands before a batch.
type prefix struct {
	at    stamp
	rank  int32
	stage stage
	bad   bool // the rank's number is too large
}

// prefix reads the time and the rank that stand before end: from the nearest bracket that has a time, else from the
// line's start.
func (s *source) prefix(before []byte) prefix {
	p := prefix{rank: NoRank}
	if n := len(before); n > 10 && before[0] == '[' && before[n-2] == ']' && bytes.IndexByte(before[:n-2], ']') < 0 {
		if st, k := s.dates.readStamp(before[1 : n-2]); k > 0 {
			p.at = st
			p.ranks(before[1+k : n-2])
			return p
		}
	}
	ranked := false
	rest := before
	for range 4 {
		r := bytes.LastIndexByte(rest, ']')
		if r < 0 {
			break
		}
		l := bytes.LastIndexByte(rest[:r], '[')
		if l < 0 {
			break
		}
		in := rest[l+1 : r]
		st, n := s.dates.readStamp(in)
		if !ranked {
			ranked = p.ranks(in[n:])
		}
		if n > 0 {
			p.at = st
			return p
		}
		rest = rest[:l]
	}
	p.at = s.leading(before)
	return p
}

// leading returns the first time at the start of a word; one with a date is preferred to one without.
func (s *source) leading(b []byte) stamp {
	var found stamp
	start := true
	for i, c := range b {
		if start {
			if st, n := s.dates.readStamp(b[i:]); n > 0 && st.kind > found.kind {
				found = st
				if st.kind == dated {
					return st
				}
			}
		}
		start = c == ' ' || c == '\t' || c == '[' || c == '(' || c == '"' || c == '|' || c == '>'
	}
	return found
}

// ranks reads "DP3 TP3 EP3" and says whether there was a rank.
func (p *prefix) ranks(b []byte) bool {
	found := false
	for i := 0; i < len(b); {
		j := i
		for j < len(b) && b[j] != ' ' {
			j++
		}
		if p.rankWord(b[i:j]) {
			found = true
		}
		i = j + 1
	}
	return found
}

func (p *prefix) rankWord(w []byte) bool {
	d := len(w)
	for d > 0 && w[d-1]-'0' < 10 {
		d--
	}
	if d == len(w) || d == 0 {
		return false
	}
	v, n := integer(w[d:])
	if n == 0 || v > maxRank {
		p.bad = true
		v = 0
	}
	switch string(w[:d]) {
	case "DP", "gpu=":
		p.rank = int32(v)
	case "PP":
		p.stage.pp = int32(v)
	case "ATTN_CP", "CP":
		p.stage.cp = int32(v)
	case "TP":
		p.stage.tp = int32(v)
	case "EP", "MOE_DP", "ATTN_TP", "MOE_EP", "MOE_TP":
	default:
		return false
	}
	return true
}

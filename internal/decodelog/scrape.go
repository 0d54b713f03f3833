package decodelog

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// lineTime is a time that stands alone in a line.
type lineTime struct {
	at   int64
	line int64 // 0: none
}

// bareTime reads lines that are a time and nothing else: what date prints between scrapes, or "# scraped_at T".
func bareTime(line []byte) (int64, bool) {
	if len(line) > 80 || len(line) < 8 || line[0] != '#' && line[0]-'0' >= 10 && !bytes.Contains([]byte("MonTueWedThuFriSatSun"), line[:3]) {
		return 0, false
	}
	text := strings.TrimSpace(strings.TrimPrefix(string(line), "#"))
	for _, word := range []string{"scraped_at", "scrape_at", "time:", "date:"} {
		text = strings.TrimSpace(strings.TrimPrefix(text, word))
	}
	if text == "" {
		return 0, false
	}
	if c := text[0] - '0'; c < 10 && !strings.ContainsAny(text, "-/:") {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, false
		}
		return unixNS(v)
	}
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 && t.Year() < 2200 {
			return t.UnixNano(), true
		}
	}
	return 0, false
}

var timeLayouts = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05Z0700", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04:05 MST",
	"Mon Jan _2 15:04:05 MST 2006", "Mon Jan _2 15:04:05 2006", "Mon Jan _2 03:04:05 PM MST 2006",
	"Mon _2 Jan 15:04:05 MST 2006", "Mon _2 Jan 03:04:05 PM MST 2006", time.RFC1123, time.RFC1123Z,
}

// unixNS takes seconds or milliseconds since the epoch to ns.
func unixNS(v float64) (int64, bool) {
	if v > 1e11 && v < 1e13 {
		v /= 1000
	}
	if !(v >= 1e8 && v < 7e9) {
		return 0, false
	}
	return int64(math.Round(v*1e6)) * 1000, true
}

// metricLine says whether a line belongs to an engine's metrics in Prometheus' text form.
func metricLine(line []byte) (ok bool, e Engine) {
	rest := line
	for _, p := range []string{"# HELP ", "# TYPE "} {
		rest = bytes.TrimPrefix(rest, []byte(p))
	}
	switch {
	case bytes.HasPrefix(rest, []byte("vllm:")):
		return true, VLLM
	case bytes.HasPrefix(rest, []byte("sglang:")):
		return true, SGLang
	}
	return false, ""
}

// series are the metrics that are used. Those of later names come after the older name of the same thing.
type series uint8

const (
	mRunning series = iota
	mUsage
	mPrompt
	mGenerated
	mIterations
	mStepSum
	mStepCount
	mLatencySum
	mLatencyCount
	mDrafts
	mAccepted
	mSeries
)

var seriesOf = map[string]series{
	"vllm:num_requests_running":                  mRunning,
	"vllm:gpu_cache_usage_perc":                  mUsage,
	"vllm:kv_cache_usage_perc":                   mUsage,
	"vllm:prompt_tokens_total":                   mPrompt,
	"vllm:prompt_tokens":                         mPrompt,
	"vllm:generation_tokens_total":               mGenerated,
	"vllm:generation_tokens":                     mGenerated,
	"vllm:iteration_tokens_total_count":          mIterations,
	"vllm:time_per_output_token_seconds_sum":     mStepSum,
	"vllm:time_per_output_token_seconds_count":   mStepCount,
	"vllm:inter_token_latency_seconds_sum":       mLatencySum,
	"vllm:inter_token_latency_seconds_count":     mLatencyCount,
	"vllm:spec_decode_num_drafts_total":          mDrafts,
	"vllm:spec_decode_num_drafts":                mDrafts,
	"vllm:spec_decode_num_accepted_tokens_total": mAccepted,
	"vllm:spec_decode_num_accepted_tokens":       mAccepted,
}

// counters must not go down.
var counters = []series{mPrompt, mGenerated, mIterations, mStepCount, mLatencyCount, mDrafts, mAccepted}

// scrape is what one scrape told of one engine.
type scrape struct {
	at   int64
	line int64
	have uint16
	v    [mSeries]float64
}

func (c *scrape) has(m series) bool { return c.have&(1<<m) != 0 }

// engineLog is one engine's scrapes.
type engineLog struct {
	rank      int32
	now, last scrape
}

// scraper reads scrapes of vLLM's metrics that follow one another in a file. What tells when each was made may stand
// before or behind it, or in the samples.
type scraper struct {
	s        *source
	engines  []*engineLog
	model    string
	when     lineTime // of the scrape at hand
	inline   int64    // ns, time in its samples
	any      bool     // it has samples
	trailing bool     // times stand behind
}

func newScraper(s *source) *scraper {
	c := &scraper{s: s, when: s.when}
	return c
}

// line takes in one line of a file of scrapes.
func (c *scraper) line(line []byte) error {
	if metric, e := metricLine(line); metric && e == VLLM && line[0] == 'v' {
		return c.sample(line)
	}
	if string(line) == "# EOF" {
		if c.when.line > 0 || c.inline > 0 {
			return c.close()
		}
		return nil
	}
	if len(line) > 0 && (line[0] != '#' || bytes.Contains(line, []byte("scrape"))) || len(line) > 2 && line[0] == '#' && line[2]-'0' < 10 {
		if t, ok := bareTime(line); ok {
			c.s.other(kindTime, line)
			return c.time(t)
		}
	}
	c.s.other(kindMetrics, line)
	return nil
}

// time takes in a line that tells when the scrape before or behind it was made.
func (c *scraper) time(t int64) error {
	if c.any && c.when.line == 0 && c.inline == 0 {
		c.trailing = true
	}
	if c.trailing {
		c.when = lineTime{t, c.s.lr.line}
		return c.close()
	}
	if err := c.close(); err != nil {
		return err
	}
	c.when = lineTime{t, c.s.lr.line}
	return nil
}

// sample takes in "name{labels} value [time]".
func (c *scraper) sample(line []byte) error {
	end := bytes.IndexAny(line, "{ ")
	if end < 0 {
		c.s.other(kindMetrics, line)
		return nil
	}
	name, rest := line[:end], line[end:]
	var labels []byte
	if rest[0] == '{' {
		k := closing(rest)
		if k < 0 {
			c.s.leave(leftCut, line)
			return nil
		}
		labels, rest = rest[1:k], rest[k+1:]
	}
	m, known := seriesOf[string(name)]
	info := string(name) == "vllm:cache_config_info"
	if !known && !info {
		c.s.other(kindMetrics, line)
		return nil
	}
	rank := int32(NoRank)
	if e, ok := label(labels, "engine"); ok {
		n, k := integer(e)
		if k != len(e) || n > maxRank {
			c.s.leave(leftRank, line)
			return nil
		}
		rank = int32(n)
	}
	if info {
		c.pool(rank, labels)
		return nil
	}
	if name, ok := label(labels, "model_name"); ok && string(name) != c.model {
		if c.model != "" {
			return c.s.fail(fmt.Sprintf("metrics of two models: %s and %s", excerpt([]byte(c.model)), excerpt(name)), "scrape one model a file")
		}
		c.model = string(name)
	}
	words := bytes.Fields(rest)
	if len(words) == 0 || c.s.lr.cutOff {
		c.s.leave(leftCut, line)
		return nil
	}
	v, err := strconv.ParseFloat(string(words[0]), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		c.s.leave(leftNumber, line)
		return nil
	}
	at := int64(0)
	if len(words) > 1 {
		if t, err := strconv.ParseFloat(string(words[1]), 64); err == nil {
			at, _ = unixNS(t)
		}
	}
	return c.put(rank, m, v, at)
}

// closing finds the brace that ends labels; braces in quotes do not.
func closing(b []byte) int {
	quoted := false
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			quoted = !quoted
		case '}':
			if !quoted {
				return i
			}
		}
	}
	return -1
}

// label finds a label's value.
func label(labels []byte, name string) ([]byte, bool) {
	for from := 0; ; {
		k := bytes.Index(labels[from:], []byte(name+`="`))
		if k < 0 {
			return nil, false
		}
		at := from + k
		v := labels[at+len(name)+2:]
		if at == 0 || labels[at-1] == ',' || labels[at-1] == ' ' {
			if e := bytes.IndexByte(v, '"'); e >= 0 {
				return v[:e], true
			}
			return nil, false
		}
		from = at + 1
	}
}

func (c *scraper) pool(rank int32, labels []byte) {
	size, ok1 := label(labels, "block_size")
	n, ok2 := label(labels, "num_gpu_blocks")
	if !ok1 || !ok2 {
		return
	}
	a, k1 := integer(size)
	b, k2 := integer(n)
	if k1 != len(size) || k2 != len(n) || a < 1 || b < 1 || a > 1<<20 || b > 1<<40 {
		return
	}
	c.s.pool = a * b
	c.s.rankLog(rank).pool = a * b
	c.s.st.pools[rank] = a * b
}

func (c *scraper) engine(rank int32) *engineLog {
	for _, e := range c.engines {
		if e.rank == rank {
			return e
		}
	}
	e := &engineLog{rank: rank}
	c.engines = append(c.engines, e)
	return e
}

// put takes a value in. The same series twice means that another scrape has begun.
func (c *scraper) put(rank int32, m series, v float64, at int64) error {
	e := c.engine(rank)
	if e.now.has(m) || at > 0 && c.inline > 0 && at != c.inline && m == mRunning {
		if err := c.close(); err != nil {
			return err
		}
	}
	if at > 0 && c.inline == 0 {
		c.inline = at
	}
	c.any = true
	if e.now.have == 0 {
		e.now.line = c.s.lr.line
	}
	e.now.have |= 1 << m
	e.now.v[m] = v
	return nil
}

// close ends the scrape at hand.
func (c *scraper) close() error {
	at := c.inline
	if c.when.line > 0 {
		at = c.when.at
	}
	any := c.any
	c.any, c.inline, c.when = false, 0, lineTime{}
	if !any {
		return nil
	}
	if at == 0 {
		return c.s.fail("nothing tells when this scrape was made", "print a time before each scrape: while sleep 5; do date +%s; curl -s http://HOST:PORT/metrics; done > FILE")
	}
	for _, e := range c.engines {
		if e.now.have == 0 {
			continue
		}
		e.now.at = at
		if e.last.have != 0 {
			c.difference(e)
		}
		e.last, e.now = e.now, scrape{}
	}
	return nil
}

// end is called at the end of the file.
func (c *scraper) end() error {
	if c.any && c.when.line == 0 && c.inline == 0 && c.trailing {
		c.s.st.note("%s: the last scrape has no time and is left out", c.s.here())
		return nil
	}
	return c.close()
}

func (c *scraper) leave(r reason, e *engineLog) {
	n := &c.s.st.left[r]
	if n.N++; n.N == 1 {
		n.First = Place{c.s.name, e.now.line}
		n.Text = "the scrape that begins here"
	}
}

// difference makes a sample of the steps between two scrapes.
func (c *scraper) difference(e *engineLog) {
	a, b, st := &e.last, &e.now, c.s.st
	d := func(m series) (float64, bool) { return b.v[m] - a.v[m], a.has(m) && b.has(m) }
	for _, m := range counters {
		if v, ok := d(m); ok && v < 0 {
			c.leave(leftRestart, e)
			return
		}
	}
	if !a.has(mRunning) || !b.has(mRunning) || b.at <= a.at {
		c.leave(leftCut, e)
		return
	}
	seconds := float64(b.at-a.at) / 1e9
	running := (a.v[mRunning] + b.v[mRunning]) / 2
	smp := Sample{At: b.at, Rank: e.rank, Accept: 1, Meanwhile: true}
	if drafts, ok := d(mDrafts); ok && drafts > 0 {
		if n, ok := d(mAccepted); ok {
			smp.Accept = 1 + n/drafts
			st.spec = true
		}
	}
	sum, ok := d(mLatencySum)
	count, _ := d(mLatencyCount)
	if !ok {
		sum, ok = d(mStepSum)
		count, _ = d(mStepCount)
	}
	generated, gok := d(mGenerated)
	switch {
	case ok && count > 0:
		smp.Step, smp.Measured = sum/count, true
	case !ok && gok && generated > 0:
		smp.Step = float64(running*smp.Accept) * seconds / generated
		if st.once("no latency") {
			st.note("%s: no histogram of token latencies: steps are taken from tokens generated and requests running", c.s.here())
		}
	default:
		c.leave(leftNoSteps, e)
		return
	}
	prompts, pok := d(mPrompt)
	smp.Prefill = pok && prompts > 0
	if steps, ok := d(mIterations); ok && steps > 0 {
		smp.Weight = steps
		// Each request observes each step once: exact, unlike the gauges at both ends.
		if count > 0 && !smp.Prefill {
			running = count / steps
		}
	} else if count > 0 && running > 0 {
		smp.Weight = count / running
	}
	smp.Running = running
	c.emit(e, smp)
}

func (c *scraper) emit(e *engineLog, smp Sample) {
	st := c.s.st
	if !(smp.Running > 0) {
		c.leave(leftIdle, e)
		return
	}
	if why, ok := st.allowed(smp.Step, smp.Prefill); !ok {
		c.leave(why, e)
		return
	}
	if st.once("scrapes") {
		st.note("steps are means between scrapes, tokens the mean of the two scrapes")
	}
	out := entry{Sample: smp, pool: c.s.poolOf(c.s.rankLog(e.rank)), place: e.now.line}
	if e.last.has(mUsage) && e.now.has(mUsage) {
		out.tokens, out.share = -1, (e.last.v[mUsage]+e.now.v[mUsage])/2
		if out.share > 1.5 {
			c.leave(leftNumber, e)
			return
		}
	}
	c.s.push(out)
}

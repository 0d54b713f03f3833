package decodelog

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// reason is why a line with statistics did not become a Sample.
type reason uint8

const (
	leftCut reason = iota
	leftTorn
	leftBare
	leftNumber
	leftIdle
	leftStill
	leftShort
	leftLong
	leftStage
	leftRank
	leftPool
	leftAccept
	leftRestart
	leftNoSteps
	reasons
)

// minStep and maxStep are the defaults of Options: steps outside are not decode steps, but first lines after a pause.
const (
	minStep = 0.005
	maxStep = 0.25
)

var reasonWords = [reasons]string{
	leftCut:     "no throughput in the line, it is cut or shortened",
	leftTorn:    "two lines torn into one",
	leftBare:    "a form without throughput (early 2024)",
	leftNumber:  "a number that cannot be read",
	leftIdle:    "no request was running",
	leftStill:   "no token was produced",
	leftShort:   "step shorter than the least one allowed",
	leftLong:    "step longer than the most allowed: the first line after a pause, or other work in between",
	leftStage:   "another stage of the same batch",
	leftRank:    "a rank number above 65535",
	leftPool:    "the pool's size is not known, so pre-allocated tokens cannot be subtracted",
	leftAccept:  "accepted tokens a step not told, though tokens are speculated",
	leftRestart: "the engine was restarted since the line before",
	leftNoSteps: "no decode step since the line before",
}

// kind is what a line without decode statistics is.
type kind uint8

const (
	kindEmpty kind = iota
	kindPrefill
	kindStartup
	kindAccess
	kindRequest
	kindSpec
	kindATOM
	kindMetrics
	kindSGLangMetrics
	kindTime
	kindForeign
	kindBinary
	kindLong
	kindOther
	kinds
)

var kindWords = [kinds]string{
	kindEmpty:         "empty lines",
	kindPrefill:       "prefill batches",
	kindStartup:       "start-up",
	kindAccess:        "access log",
	kindRequest:       "statistics of requests",
	kindSpec:          "speculation",
	kindATOM:          "lines of ATOM",
	kindMetrics:       "metrics",
	kindSGLangMetrics: "metrics of SGLang",
	kindTime:          "times of scrapes",
	kindForeign:       "statistics of another engine",
	kindBinary:        "binary data",
	kindLong:          "lines above 1 MiB",
	kindOther:         "other lines",
}

// maxRank bounds rank numbers: memory is kept for each.
const maxRank = 65535

// stage tells the printers of one batch apart.
type stage struct{ pp, cp, tp int32 }

// state is what the sources of one Read share.
type state struct {
	opt  Options
	rep  Report
	left [reasons]Count
	kind [kinds]Count

	engine   Engine // Auto until it is known
	decided  Place  // where
	scraped  bool   // the engine's metrics, not its log
	spec     bool
	pre      bool    // pre-allocated tokens were subtracted
	stages   []stage // by rank+1; the one that counts
	staged   []bool
	pools    map[int32]int64   // stated, by rank
	fromRank map[int32]usedest // for estimating
	said     map[string]bool   // notes
	ranks    []bool            // handed over, by rank+1
}

// usedest is the fullest that a pool was seen: tokens of it and their share.
type usedest struct{ tokens, share float64 }

func newState(opt Options) *state {
	if opt.Engine == "" {
		opt.Engine = Auto
	}
	if opt.MinStep <= 0 {
		opt.MinStep = minStep
	}
	if opt.MaxStep <= 0 {
		opt.MaxStep = maxStep
	}
	st := &state{
		opt: opt, engine: opt.Engine, pools: map[int32]int64{}, fromRank: map[int32]usedest{},
		said: map[string]bool{},
	}
	st.rep.Shortest.Step, st.rep.Longest.Step = opt.MinStep, opt.MaxStep
	return st
}

// note says something once.
func (st *state) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	st.said[text] = true
	st.rep.Notes = append(st.rep.Notes, text)
}

// once says whether key is new.
func (st *state) once(key string) bool {
	if st.said[key] {
		return false
	}
	st.said[key] = true
	return true
}

// leave counts a line that is left out.
func (s *source) leave(r reason, line []byte) { s.st.left[r].add(s, line) }

// other counts a line without decode statistics.
func (s *source) other(k kind, line []byte) { s.st.kind[k].add(s, line) }

func (c *Count) add(s *source, line []byte) {
	c.N++
	if c.N == 1 {
		c.First = s.here()
		c.Text = excerpt(line)
	}
}

// excerpt is the start of a line without what terminals would act upon.
func excerpt(line []byte) string {
	const most = 160
	if len(line) > most {
		line = line[:most]
	}
	return strings.Map(func(c rune) rune {
		if c < 0x20 || c >= 0x7f && c < 0xa0 || c == utf8.RuneError || c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069 {
			return '?'
		}
		return c
	}, string(line))
}

// is decides the engine, or checks that a line is of the one decided for. ok is false for lines of another engine
// where one was asked for.
func (s *source) is(e Engine, scraped bool) (ok bool, err error) {
	st := s.st
	switch {
	case st.engine == Auto:
		st.engine, st.decided, st.scraped = e, s.here(), scraped
		return true, nil
	case st.engine == e && st.decided == (Place{}):
		st.decided, st.scraped = s.here(), scraped
		return true, nil
	case st.engine == e && st.scraped == scraped:
		return true, nil
	case st.engine == e:
		return false, &Error{
			Place: s.here(),
			Why:   fmt.Sprintf("%s here, but %s in %s: both tell of the same steps", form(e, scraped), form(e, st.scraped), st.decided),
			Hint:  "fit one of them",
		}
	case st.opt.Engine != Auto:
		return false, nil
	}
	return false, &Error{
		Place: s.here(),
		Why:   fmt.Sprintf("%s here, but %s in %s: engines are mixed", form(e, scraped), form(st.engine, st.scraped), st.decided),
		Hint:  fmt.Sprintf("fit them one by one, or leave the others' lines out with --engine %s", st.engine),
	}
}

func form(e Engine, scraped bool) string {
	name := map[Engine]string{SGLang: "SGLang", VLLM: "vLLM"}[e]
	if scraped {
		return "metrics of " + name
	}
	return "statistics lines of " + name
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// stageCounts says whether lines of this stage count for a rank: those of the stage that was seen first do.
func (st *state) stageCounts(rank int32, g stage) bool {
	i := int(rank) + 1
	if i >= len(st.stages) {
		st.stages = append(st.stages, make([]stage, i+1-len(st.stages))...)
		st.staged = append(st.staged, make([]bool, i+1-len(st.staged))...)
	}
	if !st.staged[i] {
		st.stages[i], st.staged[i] = g, true
	}
	return st.stages[i] == g
}

// saw notes that a sample of rank was handed over.
func (st *state) saw(rank int32) {
	i := int(rank) + 1
	for i >= len(st.ranks) {
		st.ranks = append(st.ranks, false)
	}
	st.ranks[i] = true
}

// pool returns the size of a rank's pool that is stated or given; 0: none is.
func (st *state) pool(rank int32) int64 {
	if n := st.pools[rank]; n > 0 {
		return n
	}
	// Only one rank may have printed it: ranks are alike.
	if len(st.pools) > 0 {
		least, first := int64(0), int32(0)
		for r, n := range st.pools {
			if least == 0 || r < first {
				least, first = n, r
			}
		}
		return least
	}
	return st.opt.PoolTokens
}

// snapshot brings the report up to date.
func (st *state) snapshot(sources []*source) *Report {
	r := &st.rep
	r.Engine = st.engine
	r.Bytes, r.Lines = 0, 0
	for _, s := range sources {
		r.Bytes += s.raw.N
		r.Lines += s.lr.line
	}
	r.Left, r.Other = map[string]Count{}, map[string]Count{}
	for i, c := range st.left {
		if c.N > 0 {
			r.Left[reasonWords[i]] = c
		}
	}
	for i, c := range st.kind {
		if c.N > 0 {
			r.Other[kindWords[i]] = c
		}
	}
	r.Ranks = r.Ranks[:0]
	for i, seen := range st.ranks {
		if seen {
			r.Ranks = append(r.Ranks, int32(i)-1)
		}
	}
	r.PoolTokens = map[int32]int64{}
	for _, rank := range r.Ranks {
		if n := st.pool(rank); n > 0 {
			r.PoolTokens[rank] = n
		} else if u, ok := st.fromRank[rank]; ok && u.share >= fullEnough {
			r.PoolTokens[rank] = int64(u.tokens / u.share)
		}
	}
	for rank, n := range st.pools { // of ranks that print no steps, too: that there are such matters to a fit
		if rank >= 0 {
			r.PoolTokens[rank] = n
		}
	}
	switch {
	case len(r.PoolTokens) == 0:
		r.PoolFrom = ""
	case st.scraped && len(st.pools) > 0:
		r.PoolFrom = "vllm:cache_config_info"
	case len(st.pools) > 0:
		r.PoolFrom = "the start-up line"
	case st.opt.PoolTokens > 0:
		r.PoolFrom = "--pool-tokens"
	default:
		r.PoolFrom = "tokens / usage (two decimals)"
	}
	r.Accepting = st.spec
	return r
}

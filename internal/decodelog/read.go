package decodelog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/kvroute/kvroute/internal/trace"
)

// window is how many samples of a source are kept back to bring lines into order that ranks wrote past each other.
const window = 128

// entry is a sample on its way, with what its held tokens are found from once the pool is known.
type entry struct {
	Sample
	tokens float64 // as told
	share  float64 // of the pool, to be subtracted; with tokens < 0 the share that is held
	unit   float64 // that share is rounded to; 0: it is exact
	pool   int64   // at the line; 0: not known yet
	place  int64   // line
}

// source reads one input.
type source struct {
	st    *state
	name  string
	index int32
	chain int32 // index that its samples bear; -1: none was handed over yet
	raw   *Counter
	text  *Counter // raw, or what unpacks of it
	lr    lineReader
	open  bool // lr has its reader
	done  bool
	idle  bool
	taken bool // another source goes on where this one ended
	end   int64

	dates   dates
	times   timeline
	anyTime bool
	latest  int64  // of lines without times
	noTime  bool   // was noted
	back    bool   // was noted
	clean   []byte // a line without colours
	guess   int    // where the line before had its words
	ranks   []*rankLog
	pool    int64 // that was told last
	vllm    vllmLog
	scrape  *scraper // nil: a log
	when    lineTime // the last line that is nothing but a time

	entries []entry // by time, from head on
	head    int
}

func (s *source) here() Place { return Place{s.name, s.lr.line} }

func (s *source) fail(why, hint string) *Error {
	return &Error{Place: s.here(), Why: why, Hint: hint}
}

// Read reads decode logs to their end and hands every Sample over, nearly in the order of time: lines up to 128
// samples apart within an input are brought into order, and inputs are merged. It keeps no more than that and a
// line of up to 1 MiB per input. The report is there also where an error is returned. Errors are *Error, but for
// those of ctx, each and Idle.
func Read(ctx context.Context, sources []Source, opt Options, each func(*Sample) error) (*Report, error) {
	st := newState(opt)
	if len(sources) == 0 {
		return &st.rep, &Error{Why: "no log is given"}
	}
	m := &merger{ctx: ctx, st: st, each: each, keep: window}
	if opt.Idle != nil {
		m.keep = 0
	}
	stop := func() bool { return ctx.Err() != nil } // input that comes without an end is left, too
	for i, src := range sources {
		raw := NewCounter(src.R)
		st.rep.Inputs = append(st.rep.Inputs, src.Name)
		s := &source{st: st, name: src.Name, index: int32(i), chain: -1, raw: raw, text: raw}
		s.lr = lineReader{src: raw, chunk: chunkOf(len(sources)), live: opt.Idle != nil, stop: stop}
		m.sources = append(m.sources, s)
	}
	err := m.run()
	rep := st.snapshot(m.sources)
	rep.Digest = Digest(m.raw()...)
	twice := m.twice()
	if err != nil {
		if twice != nil { // of logs that are followed
			st.note("%s so far %s", twice.File, twice.Why)
		}
		return rep, err
	}
	if twice != nil {
		return rep, twice
	}
	st.finalNotes()
	st.noteUnused(m.sources)
	if rep.Used == 0 {
		return rep, st.nothing(m.sources)
	}
	return rep, nil
}

// resolve finds the tokens held; false: the sample is left out.
func (st *state) resolve(s *source, e *entry) bool {
	held := e.tokens
	changes := e.unit > 0 && s.rankLog(e.Rank).shares.change(e.share)
	if e.share > 0 || e.tokens < 0 {
		pool := float64(e.pool)
		if e.pool == 0 {
			pool = float64(st.pool(e.Rank))
		}
		if pool == 0 {
			if e.tokens < 0 { // requests are known all the same
				e.Held = 0
				return true
			}
			u := st.fromRank[e.Rank]
			if u.share < fullEnough {
				c := &st.left[leftPool]
				if c.N++; c.N == 1 {
					c.First = Place{s.name, e.place}
				}
				return false
			}
			pool = u.tokens / u.share
		}
		if e.tokens < 0 {
			held = e.share * pool
		} else {
			held = e.tokens - e.share*pool
		}
		if changes {
			e.HeldError = e.unit * pool / math.Sqrt(12)
		}
	}
	// Shares are rounded, so that nothing held can look like less than nothing.
	e.Held = max(held, 0)
	if e.Held > 0 {
		st.rep.HasHeld = true
	}
	return !math.IsInf(e.Held, 0) && !math.IsNaN(e.Held)
}

// slot returns room for a sample of time at, in the order of time. It is valid until the next call.
func (s *source) slot(at int64) *entry {
	const most = 60 * second // further back is no line out of order, but another log behind this one
	if s.head >= 4*window {
		s.entries = s.entries[:copy(s.entries, s.entries[s.head:])]
		s.head = 0
	}
	s.entries = append(s.entries, entry{})
	i := len(s.entries) - 1
	for ; i > s.head && s.entries[i-1].At > at && s.entries[i-1].At-at < most; i-- {
		s.entries[i] = s.entries[i-1]
	}
	if i < len(s.entries)-1 {
		s.entries[i] = entry{}
	}
	s.entries[i].At = at
	return &s.entries[i]
}

// push adds a sample in the order of time.
func (s *source) push(e entry) { *s.slot(e.At) = e }

// advance reads a line.
func (s *source) advance() error {
	if !s.open {
		if err := s.begin(); err != nil || s.idle || s.done {
			return err
		}
	}
	line, got := s.lr.next()
	switch got {
	case gotLine:
		return s.line(line)
	case gotLong:
		s.other(kindLong, nil)
		return nil
	case gotIdle:
		s.idle = true
		return nil
	}
	return s.finish()
}

// begin looks at the first bytes: packed inputs are unpacked, and what cannot be a log is refused.
func (s *source) begin() error {
	for s.lr.n < 24 && !s.lr.ended {
		if !s.lr.fill() {
			s.idle = true
			return nil
		}
	}
	s.open = true
	head := s.lr.buf[:s.lr.n]
	if err := s.lr.err; err != nil {
		return s.broken(err)
	}
	if len(head) == 0 {
		s.done = true
		if s.st.once("empty " + s.name) {
			s.st.note("%s is empty", s.name)
		}
		return nil
	}
	if why := utf16(head); why != "" {
		return &Error{Place: Place{s.name, 1}, Why: why, Hint: "convert it first: iconv -f UTF-16 -t UTF-8"}
	}
	// Plain text is read without another buffer in between.
	if c := head[0]; c != 0x1f && c != 0x28 && c != 'P' && c != 'B' && c != 0xfd && c != 'v' {
		return nil
	}
	lr := lineReader{chunk: s.lr.chunk, live: s.lr.live, stop: s.lr.stop}
	rest := io.Reader(s.raw)
	if s.lr.ended {
		rest = strings.NewReader("")
	}
	if head[0] == 'P' || head[0] == 'B' || head[0] == 'v' {
		// Names of other kinds of files are told from words once enough was read of them.
		return s.refuse(head)
	}
	r, err := trace.Unpack(io.MultiReader(strings.NewReader(string(head)), rest), s.name)
	if err != nil {
		return s.broken(err)
	}
	s.text = NewCounter(r)
	lr.src = s.text
	s.lr = lr
	return nil
}

// refuse gives the error of files that are known not to be logs.
func (s *source) refuse(head []byte) error {
	_, err := trace.Unpack(strings.NewReader(string(head)), s.name)
	if err != nil {
		return s.broken(err)
	}
	return nil
}

func utf16(head []byte) string {
	switch {
	case len(head) >= 2 && (head[0] == 0xff && head[1] == 0xfe || head[0] == 0xfe && head[1] == 0xff),
		len(head) >= 4 && (head[0] != 0 && head[1] == 0 && head[2] != 0 && head[3] == 0 || head[0] == 0 && head[1] != 0 && head[2] == 0 && head[3] != 0):
		return "the text is UTF-16"
	}
	return ""
}

// broken makes an Error of what a reader said.
func (s *source) broken(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := &Error{Place: s.here(), Why: "cannot be read: " + err.Error(), Err: err}
	var t *trace.Error
	switch {
	case errors.As(err, &t):
		e.Why, e.Hint = t.Why, t.Hint
		if !t.Damaged {
			e.Err = nil
		}
	case s.text != s.raw:
		e.Hint = "copy or pack it again; what unpacks of it can be fitted: zcat " + s.name + " | kvroute fit -"
	}
	return e
}

// finish is called at the end of the input.
func (s *source) finish() error {
	if err := s.lr.err; errors.Is(err, io.ErrUnexpectedEOF) {
		s.st.note("%s breaks off after line %d: %v; what came before is used", s.name, s.lr.line, err)
	} else if err != nil {
		return s.broken(err)
	}
	s.done = true
	s.lr.buf, s.clean = nil, nil // of many inputs that come one after the other
	if s.scrape != nil {
		return s.scrape.end()
	}
	s.vllmFlush()
	return nil
}

// rest is called when there is nothing more for now.
func (s *source) rest() {
	if !s.st.spec {
		s.vllmFlush()
	}
}

func (st *state) finalNotes() {
	if st.engine == SGLang && st.rep.PoolFrom != "" && strings.HasPrefix(st.rep.PoolFrom, "tokens") {
		st.note("the pool is taken as tokens / usage, exact to about 1 %%: give --pool-tokens to say it")
	}
	if st.engine == VLLM && !st.rep.HasHeld {
		st.note("the log does not say how large the KV pool is, so tokens are not known: give --pool-tokens, or the start-up lines (GPU KV cache size)")
	}
}

// nothing is the error of logs without a usable line: what was found, and what prints what is needed.
func (st *state) nothing(sources []*source) error {
	e := &Error{Place: Place{File: sources[0].name}}
	if len(sources) > 1 {
		e.File = fmt.Sprintf("%s and %d more", sources[0].name, len(sources)-1)
	}
	e.Why, e.Hint = st.found()
	return e
}

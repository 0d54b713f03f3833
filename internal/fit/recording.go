package fit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/trace"
)

// minAnswer is the shortest answer, in tokens, whose mean time per token is taken as one of decode steps: first and
// last times are those of pieces of a stream, which engines and networks bundle.
const minAnswer = 16

// IsRecording says whether a file that begins with head, packed or not, is one that kvroute serve --record wrote.
func IsRecording(head []byte) bool {
	r, err := trace.Unpack(bytes.NewReader(head), "")
	if err != nil {
		return false
	}
	start := make([]byte, 256)
	n, err := io.ReadFull(r, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return false
	}
	return bytes.HasPrefix(start[:n], []byte(`{"kvroute":`)) && bytes.Contains(start[:n], []byte(`"recording":`))
}

// ReadRecording makes Samples of recordings: one of every request with a first token, a release and an answer of
// known length, at the middle of its decode time. Its step is the mean time per output token, (release - first token) /
// (tokens - 1). Running and Held are the means, over that time, of the requests between first token and release on
// its worker, itself included, and of their tokens: the prompt's and the answer's so far, taken to grow evenly. As a
// step's time is linear in both, so is its mean (over steps; over time, as here, long steps count more, which is a small
// difference of second order). Workers are ranks, runs are sources. Times are the router's: the
// network is in them.
//
// A recording is read whole before the first Sample is handed over; of each request some 100 bytes are kept. Parts may
// come in any order. Errors are *decodelog.Error, but for those of ctx and each.
func ReadRecording(ctx context.Context, sources []decodelog.Source, opt decodelog.Options, each func(*decodelog.Sample) error) (*decodelog.Report, error) {
	rd := &recordings{
		rep:  decodelog.Report{Engine: decodelog.KVRoute, Left: map[string]decodelog.Count{}, Other: map[string]decodelog.Count{}, HasHeld: true},
		opt:  opt,
		runs: map[string]*recordedRun{},
	}
	err := rd.read(ctx, sources)
	if err == nil {
		err = rd.hand(ctx, each)
	}
	slices.Sort(rd.rep.Ranks)
	if err == nil && rd.rep.Used == 0 {
		e := &decodelog.Error{Why: "no request of the recording tells how long its steps were", Hint: "record streamed answers of more than 16 tokens whose length the engine tells: kvroute serve --record FILE --stream-usage"}
		if len(sources) > 0 {
			e.File = sources[0].Name
		}
		err = e
	}
	return &rd.rep, err
}

type recordings struct {
	rep  decodelog.Report
	opt  decodelog.Options
	runs map[string]*recordedRun
	all  []*recordedRun // in the order of sources
}

// recordedRun is one run of a router: one clock.
type recordedRun struct {
	source   int32
	last     int64 // ns, of anything
	byNumber map[uint64]int
	jobs     []job
}

// job is one reservation on a worker that decodes.
type job struct {
	number               uint64 // of the decision
	rank                 int32
	line                 int32
	file                 string
	mixed                bool
	decided, first, done int64 // ns; -1: not seen
	input, output        int64 // output -1: not known
	sequences            int64
}

// part is an open file.
type part struct {
	src *decodelog.Source
	r   *record.Reader
	pos int32
}

func (rd *recordings) read(ctx context.Context, sources []decodelog.Source) error {
	var parts []part
	var counters []*decodelog.Counter
	for i := range sources {
		rd.rep.Inputs = append(rd.rep.Inputs, sources[i].Name)
		c := decodelog.NewCounter(sources[i].R)
		counters = append(counters, c)
		r, err := record.Open(c, sources[i].Name)
		if err != nil {
			return recordError(err)
		}
		parts = append(parts, part{&sources[i], r, int32(i)})
	}
	// Parts of a run share numbers of decisions, so they are read in their order.
	slices.SortStableFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.r.Header().Run, b.r.Header().Run), cmp.Compare(a.r.Header().Part, b.r.Header().Part))
	})
	for i, p := range parts {
		id := p.r.Header().Run
		if i > 0 && id == parts[i-1].r.Header().Run && p.r.Header().Part == parts[i-1].r.Header().Part {
			return &decodelog.Error{
				Place: decodelog.Place{File: p.src.Name}, Why: "holds the same part of the same run as " + parts[i-1].src.Name + ", so that all requests count twice",
				Hint: "name each part once, packed or not",
			}
		}
		run := rd.runs[id]
		if run == nil {
			run = &recordedRun{source: p.pos, byNumber: map[uint64]int{}}
			rd.runs[id] = run
			rd.all = append(rd.all, run)
		}
		run.source = min(run.source, p.pos)
		if err := rd.part(ctx, run, &p); err != nil {
			return err
		}
	}
	for _, c := range counters {
		rd.rep.Bytes += c.N
	}
	rd.rep.Digest = decodelog.Digest(counters...)
	return nil
}

func recordError(err error) error {
	var e *record.Error
	if !errors.As(err, &e) {
		return err
	}
	out := &decodelog.Error{Place: decodelog.Place{File: e.File, Line: int64(e.Line)}, Why: e.Why, Hint: e.Hint}
	switch {
	case e.Damaged:
		out.Err = err
	case e.Hint == "" && e.Line == 1:
		out.Hint = "leave --engine out to have it found"
	case e.Hint == "" && e.Line == 0:
		out.Hint = "record with kvroute serve --record FILE --stream-usage"
	}
	return out
}

func (rd *recordings) part(ctx context.Context, run *recordedRun, p *part) error {
	var rec record.Record
	line := 1
	for n := 0; ; n++ {
		if n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		err := p.r.Read(&rec)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return recordError(err)
		}
		line = rec.Line
		switch rec.Kind {
		case record.Decision:
			if err := rd.decision(run, &rec); err != nil {
				return err
			}
		case record.Load:
			rd.load(run, &rec)
		}
	}
	rd.rep.Lines += int64(line)
	if p.r.Cut() {
		rd.rep.Notes = append(rd.rep.Notes, fmt.Sprintf("%s breaks off in the middle of a record; what came before is used", p.src.Name))
	}
	return nil
}

func (rd *recordings) decision(run *recordedRun, rec *record.Record) error {
	var d struct {
		Seq    uint64 `json:"seq"`
		Picked int    `json:"picked_index"`
	}
	d.Picked = -1
	if err := json.Unmarshal(rec.JSON, &d); err != nil {
		return &decodelog.Error{Place: decodelog.Place{File: rec.File, Line: int64(rec.Line)}, Why: "the decision cannot be read: " + err.Error()}
	}
	run.last = max(run.last, rec.Req.At)
	if d.Picked < 0 || d.Picked >= len(rec.Candidates) {
		rd.other("decisions for no worker", rec)
		return nil
	}
	c := &rec.Candidates[d.Picked]
	if rec.Req.Role == score.Prefill || c.Role == score.Prefill {
		rd.other("prefills", rec)
		return nil
	}
	sequences := min(max(rec.Req.N, 1), 1<<20) * int64(1+len(rec.Req.More))
	run.byNumber[d.Seq] = len(run.jobs)
	run.jobs = append(run.jobs, job{
		number: d.Seq, rank: int32(c.Target), line: int32(rec.Line), file: rec.File, mixed: c.Role != score.Decode,
		decided: rec.Req.At, first: -1, done: -1, input: max(rec.Req.InputTokens, 0), output: -1, sequences: sequences,
	})
	return nil
}

func (rd *recordings) load(run *recordedRun, rec *record.Record) {
	i, ok := run.byNumber[rec.Seq]
	if !ok {
		return // of a prefill, or of a part that is not here
	}
	j := &run.jobs[i]
	switch rec.Load {
	case record.FirstToken:
		if j.first < 0 {
			j.first = rec.At
		}
		run.last = max(run.last, rec.At)
	case record.Release:
		j.done, j.output = rec.At, rec.Output
		run.last = max(run.last, rec.At)
		delete(run.byNumber, rec.Seq)
	}
}

func (rd *recordings) other(what string, rec *record.Record) {
	c := rd.rep.Other[what]
	if c.N++; c.N == 1 {
		c.First = decodelog.Place{File: rec.File, Line: int64(rec.Line)}
	}
	rd.rep.Other[what] = c
}

func (rd *recordings) leave(j *job, why string) {
	c := rd.rep.Left[why]
	if c.N++; c.N == 1 {
		c.First = decodelog.Place{File: j.file, Line: int64(j.line)}
	}
	rd.rep.Left[why] = c
}

// hand sweeps every worker's time and hands the samples of all over in the order of time.
func (rd *recordings) hand(ctx context.Context, each func(*decodelog.Sample) error) error {
	var out []decodelog.Sample
	mixed := false
	ranks := map[int32]bool{}
	for _, run := range rd.all {
		byRank := map[int32][]*job{}
		for i := range run.jobs {
			j := &run.jobs[i]
			byRank[j.rank] = append(byRank[j.rank], j)
			mixed = mixed || j.mixed
		}
		for rank, jobs := range byRank { // samples are sorted below
			s := sweepRank(jobs, run.last)
			for _, j := range jobs {
				if smp, why := rd.sample(run, j, s); why == "" {
					out = append(out, smp)
					ranks[rank] = true
				}
			}
		}
		for i := range run.jobs { // in their order, so that the first one is named
			if why := rd.unusable(&run.jobs[i]); why != "" {
				rd.leave(&run.jobs[i], why)
			}
		}
	}
	for rank := range ranks {
		rd.rep.Ranks = append(rd.rep.Ranks, rank)
	}
	slices.SortFunc(out, func(a, b decodelog.Sample) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Held, b.Held))
	})
	rd.rep.Notes = append(rd.rep.Notes,
		"step times are the router's, from first token to release: the network and the client's reading are in them",
		"a request's tokens are its prompt's and, growing evenly, its answer's; speculation is not seen: a step is taken as one token")
	if mixed {
		rd.rep.Notes = append(rd.rep.Notes, "workers compute prompts, too: requests during which another one began are marked as having prefill in them")
	}
	for i := range out {
		if i%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		rd.rep.Used++
		if err := each(&out[i]); err != nil {
			return err
		}
	}
	return nil
}

// unusable says why a request is no sample; "": it is.
func (rd *recordings) unusable(j *job) string {
	lo, hi := rd.opt.MinStep, rd.opt.MaxStep
	if lo <= 0 {
		lo = 0.005
	}
	if hi <= 0 {
		hi = 0.25
	}
	switch {
	case j.done < 0:
		return "not ended when the recording did"
	case j.first < 0 || j.first >= j.done:
		return "no first token seen: not streamed, or failed"
	case j.output < 0:
		return "the engine did not tell the answer's length"
	case j.sequences != 1:
		return "several answers in one"
	case j.output < minAnswer:
		return "an answer of less than 16 tokens"
	case j.step() < lo:
		return "a token took less than the least step allowed"
	case j.step() > hi:
		return "a token took more than the longest step allowed"
	}
	return ""
}

func (j *job) step() float64 { return float64(j.done-j.first) / 1e9 / float64(j.output-1) }

func (rd *recordings) sample(run *recordedRun, j *job, s *sweep) (decodelog.Sample, string) {
	if why := rd.unusable(j); why != "" {
		return decodelog.Sample{}, why
	}
	r0, t0, p0 := s.at(j.first)
	r1, t1, p1 := s.at(j.done)
	d := float64(j.done - j.first)
	return decodelog.Sample{
		At: j.first + (j.done-j.first)/2, Source: run.source, Rank: j.rank,
		Step: j.step(), Running: (r1 - r0) / d, Held: (t1 - t0) / d, Accept: 1, Measured: true, Meanwhile: true,
		// Its own first token is at the very start and does not count.
		Prefill: j.mixed && p1 > p0, Weight: float64(j.output - 1),
	}, ""
}

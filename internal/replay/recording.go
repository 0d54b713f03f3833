package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// Recording is the files of one run of a router, opened, in order.
type Recording struct {
	Header record.Header // of the first file
	files  []*record.Reader
}

// OrderRecording puts opened files in order. They must be all files of one run, from the first one on:
// decisions depend on everything before them. The error is a *record.Error.
func OrderRecording(names []string, files []*record.Reader) (*Recording, error) {
	if len(files) == 0 || len(names) != len(files) {
		return nil, &record.Error{Why: "no files"}
	}
	order := make([]int, len(files))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return files[a].Header().Part - files[b].Header().Part })
	rec := &Recording{Header: files[order[0]].Header()}
	for part, i := range order {
		h := files[i].Header()
		fail := func(hint, format string, args ...any) (*Recording, error) {
			return nil, &record.Error{File: names[i], Why: fmt.Sprintf(format, args...), Hint: hint}
		}
		switch {
		case h.Run != rec.Header.Run:
			return fail("give the files of one run", "another run of the router than %s", names[order[0]])
		case h.Part == part: // as the one before
			return fail("", "part %d of the run, as %s is", h.Part, names[order[part-1]])
		case h.Part != part+1:
			return fail("give all files of the run, from the first one on", "part %d of its run, and part %d is not given", h.Part, part+1)
		case h.BlockSize != rec.Header.BlockSize || h.Model != rec.Header.Model:
			return fail("", "part %d of the run has another model or block size than the first", h.Part)
		}
		rec.files = append(rec.files, files[i])
	}
	return rec, nil
}

// Extent is how much of a recording was read, and whether it is whole.
type Extent struct {
	Parts      int    `json:"parts"`
	Records    int    `json:"records"`
	Decisions  int    `json:"decisions"`
	Changes    int    `json:"block_changes"`
	Notes      int    `json:"notes"`
	Foreign    int    `json:"unknown_records"` // of types that this program does not know
	Ended      bool   `json:"ended"`           // the router closed it
	Cut        bool   `json:"cut"`             // the last record breaks off
	Incomplete string `json:"incomplete"`      // why the router stopped recording early; "" it did not
}

// fold carries a scorer through a recording.
type fold struct {
	cfg      score.Config
	led      *load.Ledger
	mirrors  *holdings
	scorer   *score.Scorer
	present  map[target.ID]bool
	held     map[uint64]load.Handle // by recorded number of the decision
	extent   Extent
	line     []byte
	dec      score.Decision
	decided  func(rec *record.Record) (seq uint64, err error) // after dec was made; seq is the recorded one
	released func(rec *record.Record)                         // nil: nobody asks
}

// foldEvery is how many records pass between two looks at the context and the progress.
const foldEvery = 1024

// errStop ends a fold early without being an error.
var errStop = errors.New("stop")

func newFold(cfg score.Config) (*fold, error) {
	f := &fold{cfg: cfg, led: load.New(), mirrors: newHoldings(), present: map[target.ID]bool{}, held: map[uint64]load.Handle{}}
	var err error
	f.scorer, err = score.New(cfg, f.mirrors, f.led)
	return f, err
}

// run reads all files.
func (f *fold) run(ctx context.Context, r *Recording, progress func(records int)) error {
	var rec record.Record
	for i, file := range r.files {
		f.extent.Parts++
		if f.extent.Cut || f.extent.Ended {
			return &record.Error{File: rec.File, Line: rec.Line, Why: "it ends here, and yet another part follows", Damaged: true}
		}
		if h := file.Header(); !sameConfig(h.Config, r.Header.Config) {
			return &record.Error{Why: fmt.Sprintf("part %d has another configuration than part 1", i+1), Damaged: true}
		}
		for {
			err := file.Read(&rec)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if f.extent.Records++; f.extent.Records%foldEvery == 0 {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if progress != nil {
					progress(f.extent.Records)
				}
			}
			if f.extent.Ended {
				return damaged(&rec, "a record after the end of the recording")
			}
			if err := f.step(&rec); err != nil {
				return err
			}
		}
		f.extent.Cut = file.Cut()
	}
	return nil
}

func sameConfig(x, y score.Config) bool {
	same := func(x, y *float64) bool { return (x == nil) == (y == nil) && (x == nil || *x == *y) }
	if !same(x.PrefillOverlapWeight, y.PrefillOverlapWeight) || !same(x.DecodeOverlapWeight, y.DecodeOverlapWeight) {
		return false
	}
	x.PrefillOverlapWeight, x.DecodeOverlapWeight, y.PrefillOverlapWeight, y.DecodeOverlapWeight = nil, nil, nil, nil
	return x == y
}

func damaged(rec *record.Record, format string, args ...any) error {
	return &record.Error{File: rec.File, Line: rec.Line, Why: fmt.Sprintf(format, args...), Damaged: true}
}

// step takes one record.
func (f *fold) step(rec *record.Record) error {
	switch rec.Kind {
	case record.Worker:
		return f.worker(rec)
	case record.Event:
		f.event(rec)
	case record.Decision:
		return f.decide(rec)
	case record.Load:
		h, ok := f.held[rec.Seq]
		if !ok {
			return damaged(rec, "the reservation of decision %d, which is not held", rec.Seq)
		}
		switch rec.Load {
		case record.FirstToken:
			f.scorer.FirstToken(h, rec.At)
		case record.Unbind:
			f.scorer.Unbind(h)
		case record.Release:
			f.scorer.Release(h, rec.At)
			delete(f.held, rec.Seq)
			if f.released != nil {
				f.released(rec)
			}
		}
	case record.Note:
		f.extent.Notes++
	case record.End:
		f.extent.Ended = true
		if !rec.Complete {
			f.extent.Incomplete = rec.Text
			if rec.Text == "" {
				f.extent.Incomplete = "the reason is not recorded"
			}
		}
	case record.Other:
		f.extent.Foreign++
	}
	return nil
}

func (f *fold) worker(rec *record.Record) error {
	t := rec.Target
	switch rec.Op {
	case record.Join:
		if f.present[t] {
			return damaged(rec, "target %d joins, and has not left", t)
		}
		f.present[t] = true
		f.mirrors.widen(t)
		f.led.Join(t, 1)
	case record.Leave:
		delete(f.present, t)
		f.led.Leave(t)
	case record.Forget:
		delete(f.present, t)
		f.scorer.Forget(t)
	}
	return nil
}

func (f *fold) event(rec *record.Record) {
	t := rec.Target
	f.mirrors.widen(t)
	f.extent.Changes += len(rec.Blocks)
	switch {
	case rec.Emptied:
		f.mirrors.empty(t)
	case rec.Held:
		for _, h := range rec.Blocks {
			f.mirrors.set(t, h, index.Tier(rec.Tier))
		}
	default:
		for _, h := range rec.Blocks {
			f.mirrors.drop(t, h)
		}
	}
}

func (f *fold) decide(rec *record.Record) error {
	f.extent.Decisions++
	if err := f.scorer.Pick(&rec.Req, rec.Candidates, &f.dec); err != nil {
		return damaged(rec, "a decision that cannot be made: %v", err)
	}
	seq, err := f.decided(rec)
	if err != nil {
		return err
	}
	if _, ok := f.held[seq]; ok {
		return damaged(rec, "decision %d a second time", seq)
	}
	f.held[seq] = f.dec.Handle
	return nil
}

// Verification is what became of making a recording's decisions again.
type Verification struct {
	Extent
	Difference *Difference `json:"difference"` // nil: every decision is equal, byte for byte
}

// Difference is the first decision that is not the recorded one.
type Difference struct {
	File  string `json:"file"`
	Line  int    `json:"line"`
	Seq   uint64 `json:"seq"`
	ID    string `json:"id"`
	Terms []Term `json:"terms"`
	// Recorded and Replayed are the decisions in canonical form.
	Recorded []byte `json:"-"`
	Replayed []byte `json:"-"`
}

// Verify makes every decision of a recording again, with the recorded configuration, from the recorded
// requests, events and load, and compares the bytes. It stops at the first difference. The error is about
// the recording (*record.Error) or the context's.
func Verify(ctx context.Context, r *Recording, progress func(records int)) (*Verification, error) {
	f, err := newFold(r.Header.Config)
	if err != nil {
		return nil, err
	}
	v := &Verification{}
	f.decided = func(rec *record.Record) (uint64, error) {
		f.line = f.dec.AppendJSON(f.line[:0])
		if bytes.Equal(f.line, rec.JSON) {
			return f.dec.Seq, nil
		}
		v.Difference = &Difference{
			File: rec.File, Line: rec.Line, Seq: f.dec.Seq, ID: f.dec.RequestID, Terms: differences(rec.JSON, f.line),
			Recorded: bytes.Clone(rec.JSON), Replayed: bytes.Clone(f.line),
		}
		return 0, errStop
	}
	err = f.run(ctx, r, progress)
	v.Extent = f.extent
	if errors.Is(err, errStop) {
		err = nil
	}
	return v, err
}

package tui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// Track is something recorded that can be played: snapshots in the order of their times.
type Track interface {
	// Next returns the next snapshot; io.EOF at the end. Damage is an error that says where.
	Next() (*snapshot.Snapshot, error)
	// SeekTo makes Next return the last snapshot at or before a time, or the first one.
	SeekTo(ms int64) error
	// Span is the time of the first and the last snapshot.
	Span() (from, to int64)
	// Explain returns the record of a decision that was shown lately.
	Explain(pick uint64) ([]byte, error)
}

// Speeds of a player.
const (
	leastSpeed = 1.0 / 16
	mostSpeed  = 1024.0
)

// Playback plays a Track.
type Playback struct {
	name  string
	track Track
	mu    sync.Mutex // guards what is asked of Run
	speed float64
	pause bool
	skip  int64
	wake  chan struct{}
	use   sync.Mutex // guards track
}

// NewPlayback makes a player of t at a speed.
func NewPlayback(name string, t Track, speed float64) *Playback {
	p := &Playback{name: name, track: t, wake: make(chan struct{}, 1)}
	p.speed = min(max(speed, leastSpeed), mostSpeed)
	return p
}

// Name implements Source.
func (p *Playback) Name() string { return p.name }

// Explain implements Source.
func (p *Playback) Explain(_ context.Context, pick uint64) ([]byte, error) {
	p.use.Lock()
	defer p.use.Unlock()
	return p.track.Explain(pick)
}

func (p *Playback) change(f func()) {
	p.mu.Lock()
	f()
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Pause implements Player.
func (p *Playback) Pause(paused bool) { p.change(func() { p.pause = paused }) }

// SetSpeed implements Player.
func (p *Playback) SetSpeed(x float64) {
	p.change(func() { p.speed = min(max(x, leastSpeed), mostSpeed) })
}

// Skip implements Player.
func (p *Playback) Skip(byMS int64) { p.change(func() { p.skip += byMS }) }

// Run implements Source.
func (p *Playback) Run(ctx context.Context, send func(Update)) {
	from, to := p.track.Span()
	at := from // the played time
	var shown, ahead *snapshot.Snapshot
	var over error
	state := Play{FromMS: from, ToMS: to}
	for ctx.Err() == nil {
		p.mu.Lock()
		skip := p.skip
		p.skip = 0
		state.Speed, state.Paused = p.speed, p.pause
		p.mu.Unlock()
		if skip != 0 {
			at = min(max(at+skip, from), to)
			p.use.Lock()
			over = p.track.SeekTo(at)
			p.use.Unlock()
			ahead, shown = nil, nil
		}
		for over == nil && (ahead == nil || ahead.AtMS <= at) {
			if ahead != nil {
				shown = ahead
			}
			p.use.Lock()
			ahead, over = p.track.Next()
			p.use.Unlock()
			if shown == nil && over == nil { // the first one shows at once
				shown = ahead
				at = max(at, shown.AtMS)
			}
		}
		to = max(to, at) // a file may still be written
		state.AtMS, state.ToMS = at, to
		play := state
		u := Update{Snap: shown, Link: Live, Play: &play}
		if over != nil {
			u.Link, u.Reason = Ended, "the recording ends here"
			if !errors.Is(over, io.EOF) {
				u.Reason, u.Notice = over.Error(), over.Error()
			}
		}
		send(u)
		began := time.Now()
		p.rest(ctx, ahead, at, &state, over != nil)
		if !state.Paused && over == nil {
			at += int64(float64(time.Since(began).Milliseconds()) * state.Speed)
			if ahead != nil {
				at = min(at, max(ahead.AtMS, state.AtMS))
			}
		}
	}
}

// rest waits for the next snapshot's time, or until something is asked for.
func (p *Playback) rest(ctx context.Context, ahead *snapshot.Snapshot, at int64, s *Play, over bool) {
	var due <-chan time.Time
	if !s.Paused && !over && ahead != nil {
		// No oftener than the screen is drawn: what lies between is passed over.
		d := max(time.Duration(float64(ahead.AtMS-at)/s.Speed*float64(time.Millisecond)), time.Second/FPS)
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
	case <-p.wake:
	case <-due:
	}
}

// ErrNotKept says that a played decision cannot be explained.
var ErrNotKept = errors.New("the recording has no full record of it")

// noExplain words ErrNotKept for a decision.
func noExplain(pick uint64) error { return fmt.Errorf("decision %d: %w", pick, ErrNotKept) }

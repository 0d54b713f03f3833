package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
)

const (
	defaultInterval = 250 * time.Millisecond
	leastInterval   = 100 * time.Millisecond
	mostInterval    = time.Minute
	// heartbeat is the longest silence of a stream, so that its reader can tell a quiet router from a lost one.
	heartbeat = 5 * time.Second
	// stuckFor is how long a write may wait for a watcher that does not read.
	stuckFor = 30 * time.Second
)

func (a *api) snapshot(w http.ResponseWriter, _ *http.Request) { reply(w, a.Hub.Fresh()) }

// decision returns the full record of a decision that was shown.
func (a *api) decision(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_id", fmt.Sprintf("%q is not the number of a decision", r.PathValue("id")))
		return
	}
	record, err := a.Hub.Explain(r.Context(), id)
	if err != nil {
		fail(w, http.StatusNotFound, "not_kept", err.Error())
		return
	}
	send(w, append(record, '\n'))
}

// settings are the query of a stream.
type settings struct {
	interval time.Duration
	changes  bool          // of known workers, only what changed
	calm     time.Duration // between deltas in which nothing turned
}

// settingsOf reads the query of a stream, which may name these and nothing else.
func settingsOf(q url.Values) (s settings, err error) {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if name != "interval" && name != "changes" && name != "calm" {
			return s, fmt.Errorf("%q is not known here: a stream takes interval, changes and calm", name)
		}
		if n := len(q[name]); n > 1 {
			return s, fmt.Errorf("%s is there %d times", name, n)
		}
	}
	s.interval = defaultInterval
	if q.Has("interval") {
		v := q.Get("interval")
		if s.interval, err = time.ParseDuration(v); err != nil || s.interval < leastInterval || s.interval > mostInterval {
			return s, fmt.Errorf("interval %q is not a time from %v to %v, as in 250ms", v, leastInterval, mostInterval)
		}
	}
	if q.Has("changes") {
		if v := q.Get("changes"); v != "1" {
			return s, fmt.Errorf("changes %q is not 1", v)
		}
		s.changes = true
	}
	if q.Has("calm") {
		v := q.Get("calm")
		if s.calm, err = time.ParseDuration(v); err != nil || s.calm < 0 || s.calm > mostInterval {
			return s, fmt.Errorf("calm %q is not a time up to %v, as in 1s", v, mostInterval)
		}
	}
	return s, nil
}

// stream sends a snapshot and then, at every interval, what has changed.
func (a *api) stream(w http.ResponseWriter, r *http.Request) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_query", "the query cannot be read: "+err.Error())
		return
	}
	set, err := settingsOf(q)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_query", err.Error())
		return
	}
	interval := set.interval
	calm := (set.calm - interval/2).Milliseconds() // ticks come early and late
	leave, ok := a.Hub.Watch()
	if !ok {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "too_many_watchers", fmt.Sprintf("%d watch already, which is the limit", MaxWatchers))
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	out := &events{w: w, ctl: http.NewResponseController(w), m: a.Hub.m, stuckFor: stuckFor}
	if a.stuckFor > 0 {
		out.stuckFor = a.stuckFor
	}
	sent := a.Hub.Current(interval / 2)
	if first, err := a.Hub.frames.whole(sent); err != nil || out.send("snapshot", first) != nil {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		// A write that waited has let ticks pass: the delta is from what was sent last, however long ago.
		maxAge, ended := interval/2, a.Hub.ended()
		if ended { // the last that is told says why
			maxAge = 0
		}
		if now := a.Hub.Current(maxAge); now != sent && (ended || now.AtMS-sent.AtMS >= calm || snapshot.Turned(sent, now)) {
			d, err := a.Hub.frames.delta(sent, now, set.changes)
			if err != nil {
				return
			}
			sent = now
			if d != nil {
				began := time.Now()
				if out.send("delta", d) != nil {
					return
				}
				if time.Since(began) > interval {
					out.m.resyncs.Inc()
				}
			}
		}
		if out.idle() != nil || ended {
			return
		}
	}
}

// events writes server-sent events.
type events struct {
	w        http.ResponseWriter
	ctl      *http.ResponseController
	m        *metrics
	stuckFor time.Duration
	last     time.Time
}

// idle sends a comment if nothing was sent for long.
func (e *events) idle() error {
	if time.Since(e.last) < heartbeat {
		return nil
	}
	return e.send("heartbeat", []byte(": nothing has changed\n\n"))
}

func (e *events) send(kind string, p []byte) error {
	err := e.write(p)
	switch {
	case err == nil:
		e.m.events.WithLabelValues(kind).Inc()
		e.m.bytes.Add(float64(len(p)))
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.m.cut.Inc()
	}
	return err
}

func (e *events) write(p []byte) error {
	e.last = time.Now()
	if err := e.ctl.SetWriteDeadline(e.last.Add(e.stuckFor)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := e.w.Write(p); err != nil {
		return err
	}
	return e.ctl.Flush()
}

// frames are events as they are sent, made once for all who are sent the same.
type frames struct {
	mu   sync.Mutex
	made map[frame][]byte // nil: nothing to send
	last *snapshot.Delta  // to the latest snapshot from the one before; nil: not known
}

// step takes what led to the latest snapshot, which is what those who are up to date are sent.
func (f *frames) step(d *snapshot.Delta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = d
}

// frame names one: what changed between two snapshots of a run, or from 0 the whole of one.
type frame struct {
	from, to uint64
	changes  bool // of known workers, only what changed
}

// maxFrames bounds those kept: watchers in step share them, those who are behind have their own.
const maxFrames = 16

func (f *frames) whole(s *snapshot.Snapshot) ([]byte, error) {
	return f.get(frame{to: s.Seq}, "snapshot", func() (any, error) { return s, nil })
}

// delta returns nil where nothing changed.
func (f *frames) delta(from, to *snapshot.Snapshot, changes bool) ([]byte, error) {
	return f.get(frame{from.Seq, to.Seq, changes}, "delta", func() (any, error) {
		d := f.last
		if d == nil || d.From != from.Seq || d.Seq != to.Seq {
			d = snapshot.Diff(from, to)
		}
		if d == nil {
			return nil, nil
		}
		if changes {
			short := *d
			return &short, short.Shorten(from)
		}
		return d, nil
	})
}

func (f *frames) get(name frame, event string, of func() (any, error)) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p, ok := f.made[name]; ok {
		return p, nil
	}
	if len(f.made) >= maxFrames || f.made == nil {
		f.made = map[frame][]byte{}
	}
	var p []byte
	v, err := of()
	if err != nil {
		return nil, err
	}
	if v != nil {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encoding a %s: %w", event, err)
		}
		p = slices.Concat([]byte("event: "+event+"\ndata: "), data, []byte("\n\n"))
	}
	f.made[name] = p
	return p, nil
}

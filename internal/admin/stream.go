package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
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

// stream sends a snapshot and then, at every interval, what has changed.
func (a *api) stream(w http.ResponseWriter, r *http.Request) {
	interval := defaultInterval
	if v := r.URL.Query().Get("interval"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d < leastInterval || d > mostInterval {
			fail(w, http.StatusBadRequest, "invalid_interval", fmt.Sprintf("interval %q is not a time from %v to %v, as in 250ms", v, leastInterval, mostInterval))
			return
		}
		interval = d
	}
	// Of known workers, only what changed: for those who say that they read it.
	short := r.URL.Query().Get("changes") != ""
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
	out := &events{w: w, ctl: http.NewResponseController(w)}
	sent := a.Hub.Current(interval / 2)
	if out.event("snapshot", sent) != nil {
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
		if now := a.Hub.Current(interval / 2); now != sent {
			d := snapshot.Diff(sent, now)
			if d != nil && short && d.Shorten(sent) != nil {
				return
			}
			sent = now
			if d != nil && out.event("delta", d) != nil {
				return
			}
		}
		if out.idle() != nil || a.Hub.ended() {
			return
		}
	}
}

// events writes server-sent events.
type events struct {
	w    http.ResponseWriter
	ctl  *http.ResponseController
	last time.Time
}

func (e *events) event(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a %s: %w", name, err)
	}
	return e.write([]byte("event: " + name + "\ndata: " + string(data) + "\n\n"))
}

// idle sends a comment if nothing was sent for long.
func (e *events) idle() error {
	if time.Since(e.last) < heartbeat {
		return nil
	}
	return e.write([]byte(": nothing has changed\n\n"))
}

func (e *events) write(p []byte) error {
	e.last = time.Now()
	if err := e.ctl.SetWriteDeadline(e.last.Add(stuckFor)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := e.w.Write(p); err != nil {
		return err
	}
	return e.ctl.Flush()
}

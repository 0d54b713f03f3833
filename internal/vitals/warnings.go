package vitals

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// maxWarnings bounds the list. What goes on stays in it before what is over.
const maxWarnings = 100

// warnings says what is wrong, from when on and until when, by comparing snapshots: whether something goes on shows
// in their states, and what began and ended between two of them in their counters.
type warnings struct {
	open    map[string]*snapshot.Warning
	since   map[string]int64 // when a condition was first seen that is not told yet
	over    []snapshot.Warning
	gaps    map[string]uint64 // counters as last seen, by route key
	bad     map[string]uint64
	resets  map[string]uint64
	watched bool
}

func newWarnings() warnings {
	return warnings{open: map[string]*snapshot.Warning{}, since: map[string]int64{}, gaps: map[string]uint64{}, bad: map[string]uint64{}, resets: map[string]uint64{}}
}

// condition is something wrong now.
type condition struct {
	kind, severity, key, text string
	after                     int64 // ms that it must last to be told
}

// How long states last that come and go by themselves before they are worth a warning, in ms.
const (
	passing   = 10 * second
	unevenFor = 30 * second
)

// Watch looks at a snapshot for what is wrong. It is to be called about once a second, watched or not.
func (v *Vitals) Watch(s *snapshot.Snapshot) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.warnings.look(s)
}

func (w *warnings) look(s *snapshot.Snapshot) {
	now := s.AtMS
	seen := map[string]bool{}
	for _, c := range w.conditions(s) {
		id := c.kind + " " + c.key
		seen[id] = true
		if o := w.open[id]; o != nil {
			o.Text, o.Severity = c.text, c.severity
			continue
		}
		first, ok := w.since[id]
		if !ok {
			first = now
			w.since[id] = now
		}
		if now-first >= c.after {
			w.open[id] = &snapshot.Warning{ID: fmt.Sprintf("%s %d", id, first), AtMS: first, Severity: c.severity, Kind: c.kind, RouteKey: c.key, Text: c.text}
			delete(w.since, id)
		}
	}
	for id := range w.since {
		if !seen[id] {
			delete(w.since, id)
		}
	}
	for id, o := range w.open {
		if !seen[id] {
			o.OverMS = &now
			w.end(*o)
			delete(w.open, id)
		}
	}
	w.counters(s)
}

// end keeps what is over, newest end last.
func (w *warnings) end(o snapshot.Warning) {
	w.over = append(w.over, o)
	if len(w.over) > maxWarnings {
		w.over = slices.Delete(w.over, 0, len(w.over)-maxWarnings)
	}
}

// counters tells of what happened between two looks and left no state behind.
func (w *warnings) counters(s *snapshot.Snapshot) {
	now := s.AtMS
	alive := map[string]bool{}
	for i := range s.Workers {
		x := &s.Workers[i]
		alive[x.RouteKey] = true
		for _, c := range []struct {
			kind, text string
			was        map[string]uint64
			is         uint64
		}{
			{"gap", "events were missed and fetched again", w.gaps, x.Stream.Gaps},
			{"malformed", "a batch of events could not be read", w.bad, x.Stream.Bad},
			{"restart", "the engine started anew", w.resets, x.Stream.Restarts},
		} {
			was, known := c.was[x.RouteKey]
			c.was[x.RouteKey] = c.is
			if (known || w.watched) && c.is > was && w.open[c.kind+" "+x.RouteKey] == nil {
				w.end(snapshot.Warning{
					ID: fmt.Sprintf("%s %s %d", c.kind, x.RouteKey, now), AtMS: now, OverMS: &now, Severity: "warning", Kind: c.kind, RouteKey: x.RouteKey, Text: c.text,
				})
			}
		}
	}
	w.watched = true
	for _, m := range []map[string]uint64{w.gaps, w.bad, w.resets} {
		for key := range m {
			if !alive[key] {
				delete(m, key)
			}
		}
	}
}

// conditions lists all that is wrong now.
func (w *warnings) conditions(s *snapshot.Snapshot) (list []condition) {
	add := func(kind, severity, key string, after int64, text string, args ...any) {
		list = append(list, condition{kind, severity, key, fmt.Sprintf(text, args...), after})
	}
	if s.Router.Draining {
		add("draining", "warning", "", 0, "the router is ending: it takes no new requests")
	} else if !s.Router.Ready {
		add("not-ready", "warning", "", passing, "not ready: %s", strings.Join(s.Router.NotReady, "; "))
	}
	for i := range s.Workers {
		x := &s.Workers[i]
		key := x.RouteKey
		switch x.Health {
		case "unhealthy":
			add("health", "error", key, 0, "does not answer: %s", x.HealthReason)
		case "starting":
			add("health", "warning", key, passing, "cannot be used yet: %s", x.HealthReason)
		}
		switch x.Breaker {
		case "open", "half-open":
			add("breaker", "error", key, 0, "breaker %s: requests to it failed", x.Breaker)
		}
		w.stream(x, add)
		for _, p := range x.Parity {
			if p.Verdict == "diverged" {
				add("parity", "error", key, 0, "the engine makes other tokens than we do (%s): %s", p.Case, p.Detail)
				break
			}
		}
	}
	w.uneven(s, add)
	return list
}

func (w *warnings) stream(x *snapshot.Worker, add func(kind, severity, key string, after int64, text string, args ...any)) {
	switch x.Trust {
	case "gap":
		add("gap", "warning", x.RouteKey, 0, "%s", x.TrustReason)
	case "silent":
		add("silent", "error", x.RouteKey, 0, "%s", x.TrustReason)
	case "malformed":
		add("malformed", "error", x.RouteKey, 0, "%s", x.TrustReason)
	case "diverged":
		add("predictions", "warning", x.RouteKey, 0, "%s", x.TrustReason)
	case "unverifiable":
		add("unverifiable", "warning", x.RouteKey, 0, "%s", x.TrustReason)
	case "connecting", "resync":
		if x.Health == "healthy" {
			add("stream", "warning", x.RouteKey, passing, "events do not come: %s", x.TrustReason)
		}
	case "no-events":
		if x.Health == "healthy" {
			add("approximate", "warning", x.RouteKey, 0, "its cache is guessed from what was sent there: %s", x.TrustReason)
		}
	}
}

// Uneven: one target holds more than unevenFrom times its peers' mean for unevenFor, until less than unevenTo.
const (
	unevenFrom  = 3.0
	unevenTo    = 2.0
	unevenLeast = 4 // requests
)

func (w *warnings) uneven(s *snapshot.Snapshot, add func(kind, severity, key string, after int64, text string, args ...any)) {
	type group struct{ model, role string }
	type sum struct{ n, held, requests int64 }
	sums := map[group]sum{}
	for i := range s.Workers {
		if x := &s.Workers[i]; x.Health == "healthy" {
			g := sums[group{x.Model, x.Role}]
			sums[group{x.Model, x.Role}] = sum{g.n + 1, g.held + x.HeldTokens, g.requests + x.HeldRequests}
		}
	}
	for i := range s.Workers {
		x := &s.Workers[i]
		g := sums[group{x.Model, x.Role}]
		if x.Health != "healthy" || g.n < 2 || x.HeldRequests < unevenLeast {
			continue
		}
		others := float64(g.held-x.HeldTokens) / float64(g.n-1)
		bound := unevenFrom
		if w.open["imbalance "+x.RouteKey] != nil {
			bound = unevenTo
		}
		if float64(x.HeldTokens) > bound*others {
			add("imbalance", "warning", x.RouteKey, unevenFor, "holds %d tokens of requests, the others %.0f on average", x.HeldTokens, others)
		}
	}
}

// list is what to show: what goes on, then what is over, each newest first.
func (w *warnings) list() []snapshot.Warning {
	out := make([]snapshot.Warning, 0, min(len(w.open)+len(w.over), maxWarnings))
	for _, o := range w.open {
		out = append(out, *o)
	}
	newest := func(a, b snapshot.Warning) int {
		if a.AtMS != b.AtMS {
			return int(b.AtMS - a.AtMS)
		}
		return strings.Compare(a.ID, b.ID)
	}
	slices.SortFunc(out, newest)
	over := slices.Clone(w.over)
	slices.Reverse(over)
	out = append(out, over...)
	return out[:min(len(out), maxWarnings)]
}

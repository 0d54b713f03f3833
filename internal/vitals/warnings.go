package vitals

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// maxWarnings bounds the list. What goes on stays in it before what is over.
const maxWarnings = 100

// Fact is something wrong that no entry of a snapshot shows.
type Fact struct {
	Kind     string // as in snapshot.Warning
	Severity string // "": warning
	RouteKey string // of the target it is about; "": none
	Worker   string // of a worker as a whole: its id. RouteKey may then be left to the next look
	Name     string // tells facts of one kind about the same apart; "": there is one
	Text     string // in words; where it is counted, with %d for how often
	Counted  bool   // it is so as long as Count grows, and some seconds more
	Count    uint64
	After    int64 // ms that it must last to be told
}

func (f *Fact) id() string {
	of := f.RouteKey
	if f.Worker != "" {
		of = f.Worker
	}
	if f.Name == "" {
		return f.Kind + " " + of
	}
	return f.Kind + " " + of + " " + f.Name
}

// warnings says what is wrong, from when on and until when: states that go on show when they are looked at, what
// grows in counters, and what came and went between two looks is told as it happens.
type warnings struct {
	open    map[string]*snapshot.Warning
	since   map[string]int64 // when a condition was first seen that is not told yet
	over    []snapshot.Warning
	counts  map[string]*tally
	moments []moment // since the last look
	missed  int      // moments that found no room
	watched bool
}

// tally is a counter as last seen.
type tally struct {
	n     uint64
	base  uint64 // when the warning about it began
	grown int64  // ms
	seen  bool   // in this look
}

// moment is something that happened.
type moment struct {
	fact        Fact
	first, last int64 // ms
	times       int
}

// maxMoments bounds what can happen between two looks, each thing counted once.
const maxMoments = 256

func newWarnings() warnings {
	return warnings{open: map[string]*snapshot.Warning{}, since: map[string]int64{}, counts: map[string]*tally{}}
}

// How long things last, in ms.
const (
	passing   = 10 * second // states that come and go by themselves, before they are worth a warning
	unevenFor = 30 * second
	growing   = 10 * second // what is counted goes on for so long after it was counted last
)

// Watch looks at a snapshot, and at facts beside it, for what is wrong. It is to be called about once a second,
// watched or not.
func (v *Vitals) Watch(s *snapshot.Snapshot, facts ...Fact) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.warnings.look(s, facts)
}

// Warnings counts the warnings that go on.
func (v *Vitals) Warnings() (warnings, errors int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.warnings.open {
		if o.Severity == "error" {
			errors++
		} else {
			warnings++
		}
	}
	return warnings, errors
}

// Happened takes something that may be over before anybody looks. The next look tells of it, unless it goes on then
// and is told as that.
func (v *Vitals) Happened(ms int64, f Fact) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := &v.warnings
	id := f.id()
	for i := range w.moments {
		if m := &w.moments[i]; m.fact.id() == id {
			m.fact, m.last = f, max(m.last, ms)
			m.times++
			return
		}
	}
	if len(w.moments) == maxMoments {
		w.missed++
		return
	}
	w.moments = append(w.moments, moment{f, ms, ms, 1})
}

func (w *warnings) look(s *snapshot.Snapshot, facts []Fact) {
	now := s.AtMS
	seen := map[string]bool{}
	look := func(f *Fact) {
		id := f.id()
		if seen[id] || f.Counted && !w.grows(id, f, now) {
			return
		}
		seen[id] = true
		if o := w.open[id]; o != nil {
			o.Text, o.Severity = f.Text, f.Severity
			return
		}
		first, ok := w.since[id]
		if !ok {
			first = now
			w.since[id] = now
		}
		if now-first >= f.After {
			w.open[id] = &snapshot.Warning{ID: fmt.Sprintf("%s %d", id, first), AtMS: first, Severity: f.Severity, Kind: f.Kind, RouteKey: f.RouteKey, Text: f.Text}
			delete(w.since, id)
		}
	}
	for _, f := range append(w.conditions(s), facts...) {
		if f.Severity == "" {
			f.Severity = "warning"
		}
		look(&f)
	}
	for id := range w.since {
		if !seen[id] {
			delete(w.since, id)
		}
	}
	var ended []string
	for id := range w.open {
		if !seen[id] {
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	for _, id := range ended {
		o := w.open[id]
		o.OverMS = &now
		w.end(*o)
		delete(w.open, id)
	}
	w.events(s)
	w.tell(s)
	for id, c := range w.counts {
		if !c.seen {
			delete(w.counts, id)
		}
		c.seen = false
	}
	w.watched = true
}

// grows says whether a counter has grown lately, and puts into the text how much since that began.
func (w *warnings) grows(id string, f *Fact, now int64) bool {
	c := w.counter(id, f.Count)
	if f.Count > c.n {
		if w.open[id] == nil && w.since[id] == 0 {
			c.base = c.n
		}
		c.grown = now
	}
	c.n = f.Count
	if c.grown == 0 || now-c.grown >= growing {
		return false
	}
	f.Text = strings.Replace(f.Text, "%d", fmt.Sprint(c.n-c.base), 1)
	return true
}

// counter returns what is known of one. One that comes after the first look has grown from zero: it is of a target
// that has joined.
func (w *warnings) counter(id string, n uint64) *tally {
	c := w.counts[id]
	if c == nil {
		c = &tally{}
		if !w.watched {
			c.n = n
		}
		w.counts[id] = c
	}
	c.seen = true
	return c
}

// end keeps what is over, newest end last.
func (w *warnings) end(o snapshot.Warning) {
	w.over = append(w.over, o)
	if len(w.over) > maxWarnings {
		w.over = slices.Delete(w.over, 0, len(w.over)-maxWarnings)
	}
}

// events tells of what streams counted between two looks, where no state that goes on does.
func (w *warnings) events(s *snapshot.Snapshot) {
	now := s.AtMS
	for i := range s.Workers {
		x := &s.Workers[i]
		for _, e := range []struct {
			kind, text string
			n          uint64
		}{
			{"gap", "events were missed and fetched again", x.Stream.Gaps},
			{"malformed", "a batch of events could not be read", x.Stream.Bad},
			{"restart", "the engine started anew", x.Stream.Restarts},
		} {
			if e.n == 0 {
				continue
			}
			id := e.kind + " " + x.RouteKey
			c := w.counter(id+" events", e.n)
			was := c.n
			c.n = e.n
			if e.n > was && w.open[id] == nil {
				w.end(snapshot.Warning{
					ID: fmt.Sprintf("%s %d", id, now), AtMS: now, OverMS: &now, Severity: "warning", Kind: e.kind, RouteKey: x.RouteKey, Text: e.text,
				})
			}
		}
	}
}

// tell tells of what happened since the last look and does not go on.
func (w *warnings) tell(s *snapshot.Snapshot) {
	var later []moment // than the snapshot: it may go on in the next one
	for i := range w.moments {
		m := &w.moments[i]
		f := &m.fact
		if m.last > s.AtMS {
			later = append(later, *m)
			continue
		}
		if w.open[f.id()] != nil {
			continue
		}
		if f.Severity == "" {
			f.Severity = "warning"
		}
		for k := range s.Workers {
			if f.RouteKey == "" && f.Worker != "" && s.Workers[k].WorkerID == f.Worker {
				f.RouteKey = s.Workers[k].RouteKey
			}
		}
		text, over := f.Text, m.last
		if m.times > 1 {
			text = fmt.Sprintf("%s (%d times)", text, m.times)
		}
		w.end(snapshot.Warning{
			ID: fmt.Sprintf("%s %d", f.id(), m.first), AtMS: m.first, OverMS: &over, Severity: f.Severity, Kind: f.Kind, RouteKey: f.RouteKey, Text: text,
		})
	}
	if w.missed > 0 {
		last := s.AtMS
		w.end(snapshot.Warning{
			ID: fmt.Sprintf("many %d", last), AtMS: last, OverMS: &last, Severity: "warning", Kind: "many",
			Text: fmt.Sprintf("%d more things happened at once than can be told", w.missed),
		})
	}
	w.moments, w.missed = append(w.moments[:0], later...), 0
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
	if n := len(out) - maxWarnings; n > 0 {
		slices.SortFunc(out, func(a, b snapshot.Warning) int {
			if a.Severity != b.Severity {
				return strings.Compare(a.Severity, b.Severity) // errors before warnings
			}
			return newest(a, b)
		})
		out = out[:maxWarnings-1]
		first := slices.MaxFunc(out, newest).AtMS
		out = append(out, snapshot.Warning{
			ID: "many", AtMS: first, Severity: "warning", Kind: "many", Text: fmt.Sprintf("%d more warnings go on than can be listed: listed are errors and the latest", n+1),
		})
	}
	slices.SortFunc(out, newest)
	over := slices.Clone(w.over)
	slices.Reverse(over)
	out = append(out, over...)
	return out[:min(len(out), maxWarnings)]
}

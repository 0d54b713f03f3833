package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Diff returns what changed from old to now, snapshots of one run; nil if nothing did but the time. The numbers of
// the delta and of now are the caller's to set: Diff takes From from old and Seq from now.
func Diff(old, now *Snapshot) *Delta {
	d := &Delta{Run: now.Run, From: old.Seq, Seq: now.Seq, AtMS: now.AtMS}
	changed := false
	if !reflect.DeepEqual(old.Router, now.Router) {
		r := now.Router
		d.Router, changed = &r, true
	}
	d.Workers, d.Gone = diffWorkers(old.Workers, now.Workers)
	if !old.Cache.same(&now.Cache) {
		c := now.Cache
		d.Cache = &c
	}
	d.Picks = newPicks(old.Picks, now.Picks)
	if !reflect.DeepEqual(old.Warnings, now.Warnings) {
		d.Warnings, d.WarningsChanged = now.Warnings, true
	}
	if !changed && len(d.Workers) == 0 && len(d.Gone) == 0 && d.Cache == nil && len(d.Picks) == 0 && !d.WarningsChanged {
		return nil
	}
	return d
}

// diffWorkers returns the workers of now that are new or changed, and the route keys of those gone.
func diffWorkers(old, now []Worker) (changed []Worker, gone []string) {
	if sameKeys(old, now) { // the usual case
		for i := range now {
			if !old[i].same(&now[i]) {
				changed = append(changed, now[i])
			}
		}
		return changed, nil
	}
	was := make(map[string]*Worker, len(old))
	for i := range old {
		was[old[i].RouteKey] = &old[i]
	}
	for i := range now {
		w := &now[i]
		if o := was[w.RouteKey]; o == nil || !o.same(w) {
			changed = append(changed, *w)
		}
		delete(was, w.RouteKey)
	}
	for i := range old {
		if key := old[i].RouteKey; was[key] != nil {
			gone = append(gone, key)
		}
	}
	return changed, gone
}

func sameKeys(old, now []Worker) bool {
	if len(old) != len(now) {
		return false
	}
	for i := range old {
		if old[i].RouteKey != now[i].RouteKey {
			return false
		}
	}
	return true
}

// newPicks are those of now that came after the last of old.
func newPicks(old, now []Pick) []Pick {
	if len(old) == 0 {
		return now
	}
	last := old[len(old)-1].ID
	i, _ := slices.BinarySearchFunc(now, last+1, func(p Pick, id uint64) int {
		switch {
		case p.ID < id:
			return -1
		case p.ID > id:
			return 1
		}
		return 0
	})
	return now[i:]
}

// ErrGap says that a delta does not belong to the snapshot: some in between did not come, or it is of another run.
var ErrGap = errors.New("the delta does not follow the snapshot")

// Apply returns the snapshot after d. s stays as it is; both share what did not change.
func (s *Snapshot) Apply(d *Delta) (*Snapshot, error) {
	if d.Run != s.Run || d.From != s.Seq {
		return nil, fmt.Errorf("%w: it follows number %d of run %q, the snapshot is number %d of run %q", ErrGap, d.From, d.Run, s.Seq, s.Run)
	}
	n := *s
	n.Seq, n.AtMS = d.Seq, d.AtMS
	if d.Router != nil {
		n.Router = *d.Router
	}
	if len(d.Workers) > 0 || len(d.Gone) > 0 {
		n.Workers = patch(s.Workers, d.Workers, d.Gone)
	}
	if d.Cache != nil {
		n.Cache = *d.Cache
	}
	if len(d.Picks) > 0 {
		all := slices.Concat(s.Picks, d.Picks)
		n.Picks = all[max(0, len(all)-MaxPicks):]
	}
	if d.WarningsChanged {
		n.Warnings = d.Warnings
	}
	return &n, nil
}

// patch puts changed workers over old ones and takes those gone out; the order is that of SortWorkers.
func patch(old, changed []Worker, gone []string) []Worker {
	over := make(map[string]*Worker, len(changed))
	for i := range changed {
		over[changed[i].RouteKey] = &changed[i]
	}
	out := make([]Worker, 0, len(old)+len(changed))
	for i := range old {
		switch w := over[old[i].RouteKey]; {
		case w != nil:
			out = append(out, *w)
			delete(over, w.RouteKey)
		case !slices.Contains(gone, old[i].RouteKey):
			out = append(out, old[i])
		}
	}
	for i := range changed {
		if over[changed[i].RouteKey] != nil {
			out = append(out, changed[i])
		}
	}
	SortWorkers(out)
	return out
}

// SortWorkers puts workers into the order of a Snapshot: by model, role and route key.
func SortWorkers(ws []Worker) {
	slices.SortStableFunc(ws, func(a, b Worker) int {
		return Compare([3]string{a.Model, a.Role, a.RouteKey}, [3]string{b.Model, b.Role, b.RouteKey})
	})
}

// Compare is the order of workers in a Snapshot, each by its model, role and route key.
func Compare(a, b [3]string) int {
	if c := strings.Compare(a[0], b[0]); c != 0 {
		return c
	}
	if c := strings.Compare(a[1], b[1]); c != 0 {
		return c
	}
	return compareKeys(a[2], b[2])
}

// compareKeys orders route keys with numbers in them by their value: w2 before w10, ranks of one worker in order.
func compareKeys(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == 0 || y == 0 {
			if a[0] != b[0] {
				return int(a[0]) - int(b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
		if len(m) != len(n) {
			return len(m) - len(n)
		}
		if c := strings.Compare(m, n); c != 0 {
			return c
		}
		if x != y {
			return x - y
		}
		a, b = a[x:], b[y:]
	}
	return len(a) - len(b)
}

// digits is the length of the number that s begins with.
func digits(s string) (n int) {
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// MaxBytes bounds the JSON form of a snapshot or delta that Decode and DecodeDelta read: some 20,000 workers.
const MaxBytes = 64 << 20

// SchemaError says that a snapshot is of a form that this program does not read.
type SchemaError struct{ Got string }

// Error names both forms and what to do.
func (e *SchemaError) Error() string {
	if e.Got == "" {
		return "this is no snapshot of a router: it has no schema"
	}
	return fmt.Sprintf("the router tells %q, this program reads %q: use a kvroute of the router's version", e.Got, Schema)
}

// Decode reads a whole snapshot. Fields that it does not know are ignored, missing ones are zero or nil; another
// schema is a SchemaError.
func Decode(data []byte) (*Snapshot, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("reading a snapshot: it has %d bytes, more than %d", len(data), MaxBytes)
	}
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("reading a snapshot: %w", err)
	}
	if head.Schema != Schema {
		return nil, &SchemaError{head.Schema}
	}
	var s Snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("reading a snapshot: %w", err)
	}
	for i := 1; i < len(s.Picks); i++ {
		if s.Picks[i].ID <= s.Picks[i-1].ID {
			return nil, fmt.Errorf("reading a snapshot: decision %d comes after %d", s.Picks[i].ID, s.Picks[i-1].ID)
		}
	}
	return &s, nil
}

// DecodeDelta reads a delta.
func DecodeDelta(data []byte) (*Delta, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("reading a delta: it has %d bytes, more than %d", len(data), MaxBytes)
	}
	var d Delta
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("reading a delta: %w", err)
	}
	if d.Run == "" || d.Seq <= d.From {
		return nil, fmt.Errorf("reading a delta: number %d after %d of run %q", d.Seq, d.From, d.Run)
	}
	return &d, nil
}

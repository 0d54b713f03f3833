package snapshot

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// A worker's entry is some 1,200 bytes of JSON of which a tick changes a tenth, so that whole entries are most of
// what a watcher of many workers has to read. Those who ask for it are told the changed fields instead.

// Shorten replaces the workers of d that old has, which d leads on from, by what has changed of them. Readers need
// Follow for it.
func (d *Delta) Shorten(old *Snapshot) error {
	was := make(map[string]*Worker, len(old.Workers))
	for i := range old.Workers {
		was[old.Workers[i].RouteKey] = &old.Workers[i]
	}
	var whole []Worker
	changes := make(map[string]json.RawMessage, len(d.Workers))
	for i := range d.Workers {
		w := &d.Workers[i]
		o := was[w.RouteKey]
		if o == nil {
			whole = append(whole, *w)
			continue
		}
		c, err := appendChanges(nil, reflect.ValueOf(o).Elem(), reflect.ValueOf(w).Elem(), workerFields)
		if err != nil {
			return fmt.Errorf("telling what changed of %s: %w", w.RouteKey, err)
		}
		changes[w.RouteKey] = c
	}
	d.Workers, d.Changes = whole, changes
	return nil
}

// Follow returns the snapshot that a delta in JSON leads to from s, which stays as it is. s may be nil, which nothing follows.
func Follow(s *Snapshot, data []byte) (*Snapshot, error) {
	d, err := DecodeDelta(data)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fmt.Errorf("%w: there is none", ErrGap)
	}
	if err := d.widen(s); err != nil {
		return nil, err
	}
	return s.Apply(d)
}

// widen undoes Shorten.
func (d *Delta) widen(s *Snapshot) error {
	if len(d.Changes) == 0 {
		return nil
	}
	found := 0
	for i := range s.Workers {
		c, ok := d.Changes[s.Workers[i].RouteKey]
		if !ok {
			continue
		}
		found++
		w, err := s.Workers[i].with(c)
		if err != nil {
			return fmt.Errorf("reading what changed of %q: %w", s.Workers[i].RouteKey, err)
		}
		d.Workers = append(d.Workers, w)
	}
	if found < len(d.Changes) {
		return fmt.Errorf("%w: it changes %d workers, of which the snapshot has %d", ErrGap, len(d.Changes), found)
	}
	d.Changes = nil
	return nil
}

// told is an entry as changes are read into it. What decoding would mix with what was there before is taken apart.
type told struct {
	*Worker
	Parity json.RawMessage `json:"parity"`
	Stream struct {
		*Stream
		Skipped json.RawMessage `json:"skipped_events"`
	} `json:"stream"`
}

// with is the entry with changes, which shares nothing with w that decoding could write to.
func (w *Worker) with(changes json.RawMessage) (Worker, error) {
	n := *w
	n.detach()
	t := told{Worker: &n}
	t.Stream.Stream = &n.Stream
	if err := json.Unmarshal(changes, &t); err != nil {
		return n, err
	}
	if t.Parity != nil {
		n.Parity = nil
		if err := json.Unmarshal(t.Parity, &n.Parity); err != nil {
			return n, err
		}
	}
	if t.Stream.Skipped != nil {
		n.Stream.Skipped = nil
		if err := json.Unmarshal(t.Stream.Skipped, &n.Stream.Skipped); err != nil {
			return n, err
		}
	}
	n.RouteKey = w.RouteKey
	return n, nil
}

// detach makes a copy's own everything that decoding writes through, which TestChanges looks for in all fields.
func (w *Worker) detach() {
	w.TrustSinceMS, w.PoolBlocks, w.PageSize = own(w.TrustSinceMS), own(w.PoolBlocks), own(w.PageSize)
	w.Fill, w.HitShare, w.ReportedShare = own(w.Fill), own(w.HitShare), own(w.ReportedShare)
	w.History = slices.Clone(w.History)
	s := &w.Stream
	s.Sequence, s.LastEventMS = own(s.Sequence), own(s.LastEventMS)
	s.StoredHist, s.RemovedHist = slices.Clone(s.StoredHist), slices.Clone(s.RemovedHist)
}

func own[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// jsonField is a field of a struct under its name in JSON.
type jsonField struct {
	name   string
	index  int
	fields []jsonField // of a struct of which parts are told; nil: it is told whole
}

var workerFields = fieldsOf(reflect.TypeFor[Worker]())

func fieldsOf(t reflect.Type) (fs []jsonField) {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		f := jsonField{name: name, index: i}
		if t.Field(i).Type.Kind() == reflect.Struct {
			f.fields = fieldsOf(t.Field(i).Type)
		}
		fs = append(fs, f)
	}
	return fs
}

// appendChanges appends an object of the fields that differ.
func appendChanges(b []byte, old, now reflect.Value, fields []jsonField) ([]byte, error) {
	begin := byte('{')
	for _, f := range fields {
		o, n := old.Field(f.index), now.Field(f.index)
		if equalValues(o, n) {
			continue
		}
		b = append(append(append(b, begin, '"'), f.name...), '"', ':')
		begin = ','
		var err error
		if f.fields != nil {
			b, err = appendChanges(b, o, n, f.fields)
		} else {
			var v []byte
			v, err = json.Marshal(n.Interface())
			b = append(b, v...)
		}
		if err != nil {
			return nil, err
		}
	}
	if begin == '{' {
		b = append(b, '{')
	}
	return append(b, '}'), nil
}

func equalValues(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || a.Elem().Equal(b.Elem()))
	case reflect.Slice:
		switch x := a.Interface().(type) {
		case []uint32:
			return (x == nil) == b.IsNil() && slices.Equal(x, b.Interface().([]uint32))
		case []Parity:
			return (x == nil) == b.IsNil() && slices.Equal(x, b.Interface().([]Parity))
		}
	case reflect.Map:
		if x, ok := a.Interface().(map[string]uint64); ok {
			return maps.Equal(x, b.Interface().(map[string]uint64))
		}
	case reflect.Struct:
		for i := range a.NumField() {
			if !equalValues(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	default:
		return a.Equal(b)
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

package cli

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kvroute/kvroute/internal/vitals"
)

// facts are what is wrong with serve beside its workers and requests, for those who watch. The zero value has none.
type facts struct {
	mu sync.Mutex
	by map[string]vitals.Fact
}

// set notes a fact until it is cleared; name tells it apart from others of its kind.
func (f *facts) set(kind, severity, name, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[string]vitals.Fact{}
	}
	f.by[kind+" "+name] = vitals.Fact{Kind: kind, Severity: severity, Name: name, Text: text}
}

func (f *facts) clear(kind, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.by, kind+" "+name)
}

func (f *facts) list() []vitals.Fact {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]vitals.Fact, 0, len(f.by))
	for _, k := range slices.Sorted(maps.Keys(f.by)) {
		list = append(list, f.by[k])
	}
	return list
}

// troubles lists the facts of a server: those noted, recordings that ended, and files that cannot be read again.
func (s *server) troubles() []vitals.Fact {
	list := s.facts.list()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.recorders {
		if err := r.Stats().Err; err != nil {
			list = append(list, vitals.Fact{Kind: "recording", Severity: "error", Name: fmt.Sprint(i), Text: err.Error() + ": nothing more is recorded until a restart"})
		}
	}
	for i, stale := range s.stale {
		if err := stale(); err != nil {
			list = append(list, vitals.Fact{Kind: "files", Severity: "error", Name: fmt.Sprint(i), Text: "a changed file of keys or certificates cannot be read, its former contents stand: " + err.Error()})
		}
	}
	return list
}

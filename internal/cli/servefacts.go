package cli

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/vitals"
)

// recording is that of a model.
type recording struct {
	model string
	*recorder.Recorder
}

var (
	recordingBytes = prometheus.NewDesc("kvroute_recording_bytes_total", "Bytes written by --record.", []string{"model"}, nil)
	recordingEnded = prometheus.NewDesc("kvroute_recording_ended", "1 once a recording has ended early.", []string{"model"}, nil)
)

// Describe implements prometheus.Collector.
func (s *server) Describe(ch chan<- *prometheus.Desc) { ch <- recordingBytes; ch <- recordingEnded }

// Collect implements prometheus.Collector.
func (s *server) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.recorders {
		st, ended := r.Stats(), 0.0
		if st.Err != nil {
			ended = 1
		}
		ch <- prometheus.MustNewConstMetric(recordingBytes, prometheus.CounterValue, float64(st.Bytes), r.model)
		ch <- prometheus.MustNewConstMetric(recordingEnded, prometheus.GaugeValue, ended, r.model)
	}
}

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
	for _, r := range s.recorders {
		if err := r.Stats().Err; err != nil {
			list = append(list, vitals.Fact{Kind: "recording", Severity: "error", Name: r.model, Text: fmt.Sprintf("model %s is not recorded any more, until a restart: %v", r.model, err)})
		}
	}
	for i, stale := range s.stale {
		if err := stale(); err != nil {
			list = append(list, vitals.Fact{Kind: "files", Severity: "error", Name: fmt.Sprint(i), Text: "a changed file of keys or certificates cannot be read, its former contents stand: " + err.Error()})
		}
	}
	return list
}

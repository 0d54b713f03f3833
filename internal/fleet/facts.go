package fleet

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvroute/kvroute/internal/vitals"
)

// Facts lists what is wrong with models, workers and shared event streams beyond what States tell.
func (f *Fleet) Facts() (list []vitals.Fact) {
	for _, m := range f.modelsNow() {
		list = append(list, m.facts()...)
	}
	for _, w := range f.all() {
		list = append(list, w.facts()...)
	}
	return append(list, f.shared.facts()...)
}

func (m *model) facts() (list []vitals.Fact) {
	if m.tok == nil {
		list = append(list, vitals.Fact{
			Kind: "tokenizer", Name: m.name,
			Text: fmt.Sprintf("there is no tokenizer for model %s: prompts are compared by their bytes, caches guessed from what was sent where", m.name),
		})
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, why := range slices.Sorted(maps.Keys(m.untokenized)) {
		list = append(list, vitals.Fact{
			Kind: "untokenized", Name: m.name + " " + why, Counted: true, Count: m.untokenized[why],
			Text: fmt.Sprintf("%%d requests for model %s could not be tokenized and were routed by load: %s", m.name, why),
		})
	}
	return list
}

// noTokens counts a request that could not be tokenized.
func (m *model) noTokens(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.untokenized == nil {
		m.untokenized = map[string]uint64{}
	}
	m.untokenized[why]++
}

// odd is what a worker says of itself that is not as it was told to be.
type odd struct {
	page  string // about the size of its blocks; "": nothing
	model string // about the models that it lists
}

func (w *worker) facts() (list []vitals.Fact) {
	w.mu.Lock()
	o := w.odd
	w.mu.Unlock()
	if o.page != "" {
		list = append(list, vitals.Fact{Kind: "block-size", Worker: w.spec.ID, Severity: "error", Text: o.page})
	}
	if o.model != "" {
		list = append(list, vitals.Fact{Kind: "model", Worker: w.spec.ID, Text: o.model})
	}
	return list
}

// happened tells those who watch of something that may be over before they look.
func (w *worker) happened(kind, severity, text string) {
	w.f.cfg.Vitals.Happened(time.Now().UnixMilli(), vitals.Fact{Kind: kind, Severity: severity, Worker: w.spec.ID, Text: text})
}

func (g *tgt) happened(kind, severity, text string) {
	g.f.cfg.Vitals.Happened(time.Now().UnixMilli(), vitals.Fact{Kind: kind, Severity: severity, RouteKey: g.key, Text: text})
}

func (s *shared) facts() (list []vitals.Fact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, endpoint := range slices.Sorted(maps.Keys(s.by)) {
		if st := s.by[endpoint]; st.ended() != nil {
			list = append(list, vitals.Fact{
				Kind: "stream", Severity: "error", Name: endpoint, Text: fmt.Sprintf("events from %s are not followed any more: %v", endpoint, st.ended()),
			})
		}
	}
	return list
}

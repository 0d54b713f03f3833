package fleet

import (
	"encoding/json"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/vitals"
)

// Size adds up the indexes of all models.
func (f *Fleet) Size() (s index.Size) {
	for _, m := range f.modelsNow() {
		o := m.pool.Size()
		s.Members += o.Members
		s.Handles += o.Handles
		s.Blocks += o.Blocks
		s.Sets += o.Sets
	}
	return s
}

// Holders tells which targets of a model hold how many leading blocks of a chain.
func (f *Fleet) Holders(name string, chain []block.Hash, each func(routeKey string, blocks int)) {
	f.mu.RLock()
	m := f.models[name]
	f.mu.RUnlock()
	if m != nil {
		m.pool.Holders(chain, each)
	}
}

func (f *Fleet) modelsNow() []*model {
	f.mu.RLock()
	defer f.mu.RUnlock()
	list := make([]*model, 0, len(f.models))
	for _, m := range f.models {
		list = append(list, m)
	}
	return list
}

// text is the beginning of what a prompt ends with, where it may be shown: its last message, or the prompt itself.
func (t *ticket) text() string {
	if !t.f.cfg.Text {
		return ""
	}
	var s string
	if t.call.Prompt != nil && json.Unmarshal(t.call.Prompt, &s) == nil {
		return vitals.Clip(s)
	}
	var messages []struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(t.call.Messages, &messages) != nil || len(messages) == 0 {
		return ""
	}
	last := messages[len(messages)-1].Content
	if json.Unmarshal(last, &s) == nil {
		return vitals.Clip(s)
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(last, &parts) == nil {
		for _, p := range parts {
			if p.Text != "" {
				return vitals.Clip(p.Text)
			}
		}
	}
	return ""
}

package cli

import (
	"errors"
	"os"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/tokenize/hf"
)

// openModel loads a model directory, or its tokenizer.json, with its encoder, templates and caches.
// template, if not "", is a file to take the chat template from.
func (a *app) openModel(path, template string, lim tokenize.Limits) (*tokenize.Model, *hf.Model, error) {
	m, err := hf.Open(path, hf.Options{ChatTemplate: template, MaxText: int(max(lim.MaxText, 0)), Concurrent: lim.Concurrent})
	switch {
	case errors.Is(err, hf.ErrNotBuilt):
		return nil, nil, failed("cannot load a tokenizer", path, err)
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, usage("no model", path, pathWhy(err), "name a directory with tokenizer.json; kvroute model write DIR makes one to try")
	case err != nil:
		return nil, nil, usage("bad model", path, err.Error(), "")
	}
	meta := tokenize.Meta{ToolTemplate: m.ToolTemplate()} // models have more ids than their tokenizers, so those say nothing of prompts given as ids
	for _, s := range m.Special {
		meta.Special = append(meta.Special, tokenize.Special{Name: s.Name, Text: s.Text})
	}
	t, err := tokenize.New(m.Encoder(), m.Template(), meta, lim)
	if err != nil {
		return nil, nil, failed("cannot use the tokenizer", path, err)
	}
	return t, m, nil
}

// readable is a tokenizer that can also tell what tokens say.
type readable struct {
	*tokenize.Model
	words *hf.Model
}

// Decode is the text of ids, for those who may see it.
func (r readable) Decode(ids []block.Token) (string, error) { return r.words.Decode(ids) }

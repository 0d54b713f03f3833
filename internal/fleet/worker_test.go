package fleet

import (
	"testing"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/probe"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// TestTemplateArguments: what was configured stands above what the engine says of itself.
func TestTemplateArguments(t *testing.T) {
	f, err := New(Config{Score: score.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tt := range []struct{ worker, told, want string }{
		{"http://w:1,engine=vllm", "", ""},
		{"http://w:1,engine=vllm", `{"a":1}`, `{"a":1}`},
		{`http://w:1,engine=vllm,meta.chat_template_kwargs={"enable_thinking":false}`, `{"a":1}`, `{"enable_thinking":false}`},
	} {
		spec, err := discovery.ParseWorker(tt.worker)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorker(f, spec, 1)
		w.info = &probe.Info{Engine: probe.VLLM, TemplateKwargs: []byte(tt.told)}
		if v := w.variant(); string(v.Kwargs) != tt.want || v.Prepare != tokenize.PrepareVLLM {
			t.Errorf("%s, told %s: variant %s %s, want %s", tt.worker, tt.told, v.Prepare, v.Kwargs, tt.want)
		}
	}
}

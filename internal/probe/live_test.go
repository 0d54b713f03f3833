package probe

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
)

// TestLiveEngines asks engines that run: KVROUTE_ENGINES holds their addresses, separated by blanks. Their
// /tokenize is compared with what they make of the same request themselves, which shows that Parity asks
// for the right thing.
func TestLiveEngines(t *testing.T) {
	list := strings.Fields(os.Getenv("KVROUTE_ENGINES"))
	if len(list) == 0 {
		t.Skip("KVROUTE_ENGINES names no engines")
	}
	client := &http.Client{}
	for _, text := range list {
		base, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		info, err := Probe(t.Context(), client, base, "")
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s: %s %s, models %d, blocks of %d, %d of them, %d ranks, events %+v, sources %+v, unknown %q", text, info.Engine, info.Version,
			len(info.Models), info.BlockSize, info.PoolBlocks, info.DPSize, info.Events, info.Sources, info.Unknown)
		if info.Version == "" || info.BlockSize == 0 || info.PoolBlocks == 0 || info.DPSize == 0 || info.BaseModel() == "" || info.Models[0].MaxModelLen == 0 {
			t.Errorf("%s: something an engine says was not found: %+v", text, info)
		}
		if err := Health(t.Context(), client, base); err != nil {
			t.Error(err)
		}
		a := api{client: client, base: base}
		own := Local{Body: func(ctx context.Context, path string, body []byte) ([]block.Token, error) {
			var b map[string]any
			if err := json.Unmarshal(body, &b); err != nil {
				return nil, err
			}
			if b["tools"] != nil && info.Engine == VLLM {
				b["tool_choice"] = "none" // else it wants a parser for calls; the prompt is the same
			}
			return a.generate(ctx, path, b)
		}}
		all, err := Parity(t.Context(), client, base, info.Engine, info.BaseModel(), own)
		if err != nil {
			t.Error(err)
		}
		for _, v := range all {
			t.Logf("%s: %s: %v, %s", text, v.Case, v.Outcome, v.Detail)
			if v.Outcome != Confirmed {
				t.Errorf("%s: %s: %v, %s", text, v.Case, v.Outcome, v.Detail)
			}
		}
		// Counters of an engine are there once it has served something.
		loads, err := Scrape(t.Context(), client, base)
		if err != nil || !loads[0].Running.Known || !loads[0].Queries.Known {
			t.Errorf("%s: loads %+v, error %v", text, loads, err)
		}
	}
}

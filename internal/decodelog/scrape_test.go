package decodelog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/plantedlog"
)

// scrapeText is one scrape of two engines with given counters; stamp is put behind every value.
func scrapeText(stamp string, running, usage float64, sum, count, steps, prompts, generated float64) string {
	var b strings.Builder
	b.WriteString("# HELP python_gc_objects_collected_total Objects\npython_gc_objects_collected_total{generation=\"0\"} 9.0\n")
	for e := range 2 {
		for _, m := range []struct {
			name string
			v    float64
		}{
			{"vllm:num_requests_running", running + float64(e)},
			{"vllm:kv_cache_usage_perc", usage},
			{"vllm:inter_token_latency_seconds_sum", sum},
			{"vllm:inter_token_latency_seconds_count", count},
			{"vllm:iteration_tokens_total_count", steps},
			{"vllm:prompt_tokens_total", prompts},
			{"vllm:generation_tokens_total", generated},
		} {
			fmt.Fprintf(&b, "%s{engine=\"%d\",model_name=\"a, \\\"b\\\" {c}\"} %v%s\n", m.name, e, m.v, stamp)
		}
		fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"16\",engine=\"%d\",num_gpu_blocks=\"1000\"} 1.0\n", e)
	}
	return b.String()
}

// Two scrapes 10 s apart: 400 steps of 25 ms with 8 requests each, the pool of 16,000 tokens filled by a quarter to a half.
func TestScrapes(t *testing.T) {
	text := func(stamp string, second bool) string {
		if second {
			return scrapeText(stamp, 8, 0.5, 110, 4200, 1400, 5, 3200)
		}
		return scrapeText(stamp, 8, 0.25, 30, 1000, 1000, 5, 0)
	}
	const t0, t1 = 1767225600, 1767225610
	want := []Sample{
		{At: t1 * 1e9, Rank: 0, Step: 0.025, Running: 8, Held: 6000, Accept: 1, Weight: 400, Measured: true, Meanwhile: true},
		{At: t1 * 1e9, Rank: 1, Step: 0.025, Running: 8, Held: 6000, Accept: 1, Weight: 400, Measured: true, Meanwhile: true},
	}
	dated := func(form func(n int) string) string { return form(t0) + text("", false) + form(t1) + text("", true) }
	tests := map[string]string{
		"comment":     dated(func(n int) string { return fmt.Sprintf("# scraped_at %d\n", n) }),
		"date +%s":    dated(func(n int) string { return fmt.Sprintf("%d\n", n) }),
		"date":        dated(func(n int) string { return fmt.Sprintf("Thu Jan  1 00:00:%02d UTC 2026\n", n-t0) }),
		"date, 12 h":  dated(func(n int) string { return fmt.Sprintf("Thu Jan  1 12:00:%02d AM UTC 2026\n", n-t0) }),
		"ISO":         dated(func(n int) string { return fmt.Sprintf("2026-01-01T00:00:%02d+00:00\n", n-t0) }),
		"ms":          dated(func(n int) string { return fmt.Sprintf("%d000\n", n) }),
		"behind":      text("", false) + fmt.Sprintln(t0) + text("", true) + fmt.Sprintln(t1),
		"in samples":  text(" 1767225600000", false) + text(" 1767225610000", true),
		"OpenMetrics": text(" 1767225600.0", false) + "# EOF\n" + text(" 1767225610.0", true) + "# EOF\n",
		"empty one":   fmt.Sprintln(t0) + text("", false) + fmt.Sprintln(t0+5) + fmt.Sprintln(t1) + text("", true),
	}
	for name, log := range tests {
		got, rep := must(t, Options{}, "scrapes", log)
		if diff := cmp.Diff(want, got, near); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if rep.PoolFrom != "vllm:cache_config_info" || rep.PoolTokens[1] != 16000 {
			t.Errorf("%s: pool %v from %q", name, rep.PoolTokens, rep.PoolFrom)
		}
	}
}

func TestScrapesThatSayLess(t *testing.T) {
	two := func(a, b string) string { return "1767225600\n" + a + "1767225610\n" + b + "1767225620\n" + b }
	base := scrapeText("", 8, 0.25, 30, 1000, 1000, 5, 1000)
	_, rep, err := read(t, Options{}, "s", two(base, scrapeText("", 8, 0.25, 1, 40, 5, 0, 40)))
	if err == nil || rep.Left[reasonWords[leftRestart]].N != 2 || rep.Left[reasonWords[leftNoSteps]].N != 2 {
		t.Errorf("a restart: left out %v, error %v; want two restarts and two without steps", rep.Left, err)
	}
	got, _ := must(t, Options{}, "s", two(base, scrapeText("", 8, 0.25, 110, 4200, 1400, 900, 3200)))
	if len(got) != 2 || !got[0].Prefill || got[0].Running != 8 {
		t.Errorf("prompts meanwhile: %+v, want two samples with prefill", got)
	}
	without := func(s string) string {
		var out []string
		for _, l := range strings.SplitAfter(s, "\n") {
			if !strings.Contains(l, "latency") && !strings.Contains(l, "iteration") {
				out = append(out, l)
			}
		}
		return strings.Join(out, "")
	}
	got, rep = must(t, Options{}, "s", two(without(base), without(scrapeText("", 8, 0.25, 0, 0, 0, 5, 4200))))
	if len(got) != 2 || got[0].Step != 8*10/3200. || got[0].Measured || !strings.Contains(strings.Join(rep.Notes, ""), "no histogram") {
		t.Errorf("without latencies: %+v, notes %q", got, rep.Notes)
	}
}

// What is read from planted logs of every form obeys their truth: step = a + b R + c T, as well as the form can tell.
func TestPlantedFormsAreRead(t *testing.T) {
	truth := plantedlog.Truth{A: 0.018, B: 0.0004, C: 4e-8, Accept: 1.8}
	for _, form := range plantedlog.Forms() {
		for _, ranks := range []int{1, 4} {
			truth := truth
			truth.Ranks = ranks
			if ranks > 1 && form.OneRank() {
				continue
			}
			truth.Independent = true
			var b strings.Builder
			if err := plantedlog.Write(&b, form, truth, plantedlog.Design{Seconds: 1200, Output: 4000}, 3); err != nil {
				t.Fatal(err)
			}
			got, rep := must(t, Options{}, "log", b.String())
			seen := map[int32]bool{}
			off := 0
			for _, s := range got {
				seen[s.Rank] = true
				want := truth.A + truth.B*s.Running + truth.C*s.Held
				if s.Step < want*0.9 || s.Step > want*1.1 {
					off++
				}
			}
			if off*10 > len(got) || len(got) < 100*ranks || len(seen) != ranks || !rep.HasHeld || !rep.Accepting || len(rep.Left) > 1 {
				t.Errorf("%s, %d ranks: %d of %d samples are off by more than 10 %%, ranks %v, left out %v", form, ranks, off, len(got), seen, rep.Left)
			}
		}
	}
}

package plantedlog

import (
	"bufio"
	"fmt"
	"math"
	"strings"
	"time"
)

// clock is the wall clock at now.
func (e *engine) clock(now float64) time.Time {
	return time.Unix(e.design.Start, 0).UTC().Add(time.Duration(now * 1e9))
}

// pool of a rank that preShare is a share of.
func (r *rank) preallocated(pool int64) int64 {
	return int64(math.Min(math.Abs(r.preShare), 0.2) * float64(pool))
}

// sglangLog prints a line every 40 decode steps of a rank.
type sglangLog struct {
	w    *bufio.Writer
	form Form
	last []mark
}

// mark is where a rank was when it printed last.
type mark struct {
	now                    float64
	tokens, steps, outputs int64
	prompts                int64
}

const decodeInterval = 40

func (p *sglangLog) begin(e *engine) {
	p.last = make([]mark, len(e.ranks))
	for _, r := range e.ranks {
		fmt.Fprintf(p.w, "%smax_total_num_tokens=%d, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=256, context_len=262144\n",
			p.prefix(e, r, 0), e.truth.Pool)
	}
}

// prefix is everything before "Decode batch".
func (p *sglangLog) prefix(e *engine, r *rank, stage int) string {
	at := e.clock(r.now)
	ranks := fmt.Sprintf("DP%d TP%d EP%d", r.id, r.id, r.id)
	date := at.Format("2006-01-02 15:04:05")
	switch p.form {
	case SGLang2024:
		return ""
	case SGLang2025:
		return fmt.Sprintf("[%s DP%d TP%d] ", date, r.id, r.id)
	case SGLangHours:
		return fmt.Sprintf("[%s DP%d TP%d] ", at.Format("15:04:05"), r.id, r.id)
	case SGLangMillis:
		return fmt.Sprintf("[%s %s] ", at.Format("2006-01-02 15:04:05.000"), ranks)
	case SGLangCustom:
		return fmt.Sprintf("%s INFO 31223 [%s scheduler_metrics_mixin.py:222] ", date, ranks)
	case SGLangColumns:
		return fmt.Sprintf("%d\t%s\t[%s %s] ", at.UnixMilli(), at.Format("2006-01-02T15:04:05.000Z"), date, ranks)
	case SGLangDynamo:
		return fmt.Sprintf("\x1b[2m%s\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mscheduler_metrics_mixin.log_decode_stats\x1b[0m\x1b[2m:\x1b[0m ", at.Format("2006-01-02T15:04:05.000000Z"))
	case SGLangStages:
		return fmt.Sprintf("[%s PP%d %s] ", date, stage, ranks)
	default:
		return fmt.Sprintf("[%s %s] ", date, ranks)
	}
}

func (p *sglangLog) prefilled(e *engine, r *rank, tokens int64) {
	step := ""
	if p.form == SGLangMillis {
		step = fmt.Sprintf(" [%d]", r.forwards)
	}
	fmt.Fprintf(p.w, "%sPrefill batch%s, #new-seq: 1, #new-token: %d, #cached-token: 0, token usage: 0.10, #running-req: %d, #queue-req: 0, cuda graph: False, input throughput (token/s): 559.53\n",
		p.prefix(e, r, 0), step, tokens, len(r.reqs))
}

func (p *sglangLog) ticked(*engine) {}

func (p *sglangLog) stepped(e *engine, r *rank) {
	if r.steps%decodeInterval != 0 {
		return
	}
	m := &p.last[r.id]
	produced := r.tokens - m.tokens
	throughput := float64(produced) / (r.now - m.now)
	accept := float64(produced) / float64(r.outputs-m.outputs)
	*m = mark{now: r.now, tokens: r.tokens, steps: r.steps, outputs: r.outputs}

	held, pool := r.held(), e.truth.Pool
	comma, spec, pre, graph, end := ",", "", "", "cuda graph: True, ", ""
	if e.truth.Accept > 1 {
		spec = fmt.Sprintf("accept len: %.2f, accept rate: %.2f, ", accept, (accept-1)/3)
	}
	usage := func(n int64) string { return fmt.Sprintf("%.2f", float64(n)/float64(pool)) }
	switch p.form {
	case SGLang2024:
		comma, graph = ".", ""
	case SGLang2025:
		comma, end = ".", ", "
	case SGLangPD:
		n := r.preallocated(pool)
		held += n
		pre = fmt.Sprintf("pre-allocated usage: %s, #prealloc-req: 3, #transfer-req: 1, #retracted-req: 0, ", usage(n))
	case SGLangMillis:
		comma = fmt.Sprintf(" [%d],", r.forwards)
	}
	tokens := fmt.Sprintf("#token: %d, token usage: %s, ", held, usage(held))
	if p.form == SGLangHybrid {
		tokens = fmt.Sprintf("#full token: %d, full token usage: %s, mamba num: %d, mamba usage: 0.60, ", held, usage(held), 4*len(r.reqs))
	}
	stages := 1
	if p.form == SGLangStages {
		stages = 2
	}
	for s := range stages {
		fmt.Fprintf(p.w, "%sDecode batch%s #running-req: %d, %s%s%s%sgen throughput (token/s): %.2f, #queue-req: 0%s\n",
			p.prefix(e, r, s), comma, len(r.reqs), tokens, spec, pre, graph, throughput, end)
	}
}

// vllmLog prints a line for every engine every 10 s.
type vllmLog struct {
	w     *bufio.Writer
	form  Form
	every float64
	last  []mark
}

func (p *vllmLog) begin(e *engine) {
	p.last = make([]mark, len(e.ranks))
	for _, r := range e.ranks {
		if p.form == VLLMV0 {
			fmt.Fprintf(p.w, "INFO %s executor_base.py:115] Maximum concurrency for 1000 tokens per request: %.2fx\n", p.date(e, r.now), float64(e.truth.Pool)/1000)
			continue
		}
		fmt.Fprintf(p.w, "(EngineCore_DP%d pid=%d) INFO %s [kv_cache_utils.py:1087] GPU KV cache size: %s tokens\n", r.id, 100+r.id, p.date(e, r.now), thousands(e.truth.Pool))
	}
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

func (p *vllmLog) date(e *engine, now float64) string {
	return e.clock(now).Format("01-02 15:04:05")
}

func (p *vllmLog) prefilled(*engine, *rank, int64) {}
func (p *vllmLog) stepped(*engine, *rank)          {}

func (p *vllmLog) ticked(e *engine) {
	for _, r := range e.ranks {
		m := &p.last[r.id]
		if r.now-m.now < p.every {
			continue
		}
		gap := r.now - m.now
		produced, outputs := r.tokens-m.tokens, r.outputs-m.outputs
		prompt := float64(r.prompts-m.prompts) / gap
		*m = mark{now: r.now, tokens: r.tokens, steps: r.steps, outputs: r.outputs, prompts: r.prompts}
		usage := 100 * float64(r.held()) / float64(e.truth.Pool)
		if p.form == VLLMV0 {
			fmt.Fprintf(p.w, "INFO %s metrics.py:396] Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: %.1f%%, CPU KV cache usage: 0.0%%.\n",
				p.date(e, r.now), prompt, float64(produced)/gap, len(r.reqs), usage)
			if e.truth.Accept > 1 && outputs > 0 {
				fmt.Fprintf(p.w, "INFO %s metrics.py:455] Speculative metrics: Draft acceptance rate: %.3f, System efficiency: %.3f, Number of speculative tokens: 3, Number of accepted tokens: %d, Number of draft tokens: %d, Number of emitted tokens: %d.\n",
					p.date(e, r.now), float64(produced-outputs)/float64(3*outputs), float64(produced)/float64(4*outputs), produced-outputs, 3*outputs, produced)
			}
			continue
		}
		fmt.Fprintf(p.w, "(APIServer pid=58) INFO %s [v1/metrics/loggers.py:259] Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d reqs, Waiting: 0 reqs, GPU KV cache usage: %.1f%%, Prefix cache hit rate: 0.0%%\n",
			p.date(e, r.now), r.id, prompt, float64(produced)/gap, len(r.reqs), usage)
		if e.truth.Accept > 1 && outputs > 0 {
			fmt.Fprintf(p.w, "(APIServer pid=58) INFO %s [metrics.py:120] SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: 0.12 tokens/s, Drafted throughput: 0.34 tokens/s, Accepted: %d tokens, Drafted: %d tokens, Per-position acceptance rate: 0.757, 0.622, Avg Draft acceptance rate: 35.5%%\n",
				p.date(e, r.now), float64(produced)/float64(outputs), produced-outputs, 3*outputs)
		}
	}
}

// vllmMetrics prints what a scrape of /metrics every few seconds shows.
type vllmMetrics struct {
	w     *bufio.Writer
	every float64
	last  float64
}

func (p *vllmMetrics) begin(*engine)                   {}
func (p *vllmMetrics) prefilled(*engine, *rank, int64) {}
func (p *vllmMetrics) stepped(*engine, *rank)          {}

func (p *vllmMetrics) ticked(e *engine) {
	now := math.Inf(1)
	for _, r := range e.ranks {
		now = min(now, r.now)
	}
	if now-p.last < p.every {
		return
	}
	p.last = now
	fmt.Fprintf(p.w, "# scraped_at %.3f\n", float64(e.design.Start)+now)
	series := func(name, kind string, value func(r *rank) float64) {
		family := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
		fmt.Fprintf(p.w, "# HELP %s As the engine tells it.\n# TYPE %s %s\n", family, family, kind)
		for _, r := range e.ranks {
			fmt.Fprintf(p.w, "%s{engine=\"%d\",model_name=\"m\"} %v\n", name, r.id, value(r))
		}
	}
	series("vllm:num_requests_running", "gauge", func(r *rank) float64 { return float64(len(r.reqs)) })
	series("vllm:kv_cache_usage_perc", "gauge", func(r *rank) float64 { return float64(r.held()) / float64(e.truth.Pool) })
	fmt.Fprintf(p.w, "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n")
	for _, r := range e.ranks {
		fmt.Fprintf(p.w, "vllm:cache_config_info{block_size=\"16\",engine=\"%d\",gpu_memory_utilization=\"0.9\",num_gpu_blocks=\"%d\"} 1.0\n", r.id, e.truth.Pool/16)
	}
	series("vllm:prompt_tokens_total", "counter", func(r *rank) float64 { return float64(r.prompts) })
	series("vllm:generation_tokens_total", "counter", func(r *rank) float64 { return float64(r.tokens) })
	series("vllm:iteration_tokens_total_count", "histogram", func(r *rank) float64 { return float64(r.forwards) })
	series("vllm:inter_token_latency_seconds_sum", "histogram", func(r *rank) float64 { return r.decodeSum })
	series("vllm:inter_token_latency_seconds_count", "histogram", func(r *rank) float64 { return float64(r.outputs) })
	if e.truth.Accept > 1 {
		series("vllm:spec_decode_num_drafts_total", "counter", func(r *rank) float64 { return float64(r.outputs) })
		series("vllm:spec_decode_num_accepted_tokens_total", "counter", func(r *rank) float64 { return float64(r.tokens - r.outputs) })
	}
}

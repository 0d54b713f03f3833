// Package plantedlog writes decode logs of simulated engines whose step time is known, in every form that package
// decodelog reads: what a fit finds in them can be held against the truth. It serves tests only.
//
// The simulation goes step by step. A step takes a + b*R + c*T, with R and T the most requests and the most tokens on
// any rank (each rank's own where they are independent), times noise. Requests come and go; lines are printed as the
// engines do: SGLang's every 40 steps of a rank with the values of that moment and the throughput since the line
// before, vLLM's every 10 seconds, on clocks of whole seconds.
package plantedlog

import (
	"bufio"
	"fmt"
	"io"
	"slices"
)

// Truth is what a fit has to find, and what disturbs it.
type Truth struct {
	A float64 // s
	B float64 // s per request
	C float64 // s per token

	Noise       float64 // standard deviation of a step, relative
	Drift       float64 // the same, of a slow change (10 s)
	Outliers    float64 // share of the steps that take 5 times as long
	Pauses      float64 // stops of 0.5 to 2.5 s, a second
	Accept      float64 // mean accepted tokens a step and request; 0 or 1: no speculation
	Ranks       int     // 0: 1
	Independent bool    // ranks do not wait for each other
	Straggler   float64 // above 1: rank 0 takes so many times as long for the same work
	Window      float64 // above 0: contexts cost up to so many tokens
	Pool        int64   // KV pool of a rank, tokens; 0: four times of what is held in the mean
}

// Weight is the decode request weight, in tokens.
func (t Truth) Weight() float64 { return t.B / t.C }

// Design is the traffic. Zero values stand for the usual.
type Design struct {
	Seconds float64 // length; 0: 1200
	Load    float64 // mean requests on a rank; 0: 16. It wanders between a third and twice of it.
	Context float64 // median tokens of a prompt; 0: 8000. It wanders, too, by a factor of two.
	Spread  float64 // standard deviation of the log of prompts' lengths; 0: 0.8
	Output  float64 // mean tokens of an answer; 0: 400
	Fixed   bool    // all prompts and answers are equally long
	Flat    bool    // the number of requests is constant
	Even    bool    // ranks get equal shares of the load; else 0.7, 1 and 1.3 of its mean in turn
	Idle    int     // ranks without requests, the last ones
	Mixed   bool    // prompts are computed on the same engine: 50 us a token, between decode steps
	Start   int64   // s since the epoch; 0: 2026-08-01 22:50 UTC, so that midnight is passed after 70 minutes
}

// Form is a way of printing.
type Form string

// The forms.
const (
	SGLang        Form = "sglang"         // 2026
	SGLang2024    Form = "sglang-2024"    // no time at all, no rank, full stop
	SGLang2025    Form = "sglang-2025"    // full stop, trailing comma
	SGLangHours   Form = "sglang-hours"   // [HH:MM:SS DPn TPn]
	SGLangPD      Form = "sglang-pd"      // pre-allocated tokens in #token
	SGLangMillis  Form = "sglang-millis"  // clock with milliseconds, step counter
	SGLangCustom  Form = "sglang-custom"  // time outside the bracket, module inside
	SGLangColumns Form = "sglang-columns" // two collectors' columns before the line
	SGLangDynamo  Form = "sglang-dynamo"  // ISO time, colours, no rank
	SGLangHybrid  Form = "sglang-hybrid"  // #full token
	SGLangStages  Form = "sglang-stages"  // two lines, one per pipeline stage, for the same batch
	VLLM          Form = "vllm"           // V1
	VLLMV0        Form = "vllm-v0"        // one engine
	VLLMMetrics   Form = "vllm-metrics"   // scraped every 5 s, dated by a comment
)

// Recording is what kvroute serve --record would have written of the same requests. It is none of Forms: it is no log.
const Recording Form = "recording"

var forms = []Form{
	SGLang, SGLang2024, SGLang2025, SGLangHours, SGLangPD, SGLangMillis, SGLangCustom, SGLangColumns,
	SGLangDynamo, SGLangHybrid, SGLangStages, VLLM, VLLMV0, VLLMMetrics,
}

// Forms returns all forms.
func Forms() []Form { return slices.Clone(forms) }

// OneRank says whether lines of a form name no rank, so that several in one input could not be told apart.
func (f Form) OneRank() bool { return f == SGLang2024 || f == SGLangDynamo || f == VLLMV0 }

// Write simulates and prints. The same arguments make the same bytes.
func Write(w io.Writer, form Form, truth Truth, design Design, seed uint64) error {
	truth, design = defaults(truth, design)
	if form.OneRank() && truth.Ranks > 1 {
		return fmt.Errorf("form %s does not name ranks: it can have one, not %d", form, truth.Ranks)
	}
	bw := bufio.NewWriterSize(w, 64<<10)
	var p printer
	switch form {
	case VLLM, VLLMV0:
		p = &vllmLog{w: bw, form: form, every: 10}
	case Recording:
		p = &recording{w: bw, from: map[int64]int64{}}
	case VLLMMetrics:
		p = &vllmMetrics{w: bw, every: 5}
	default:
		if !slices.Contains(forms, form) {
			return fmt.Errorf("unknown form %q", form)
		}
		p = &sglangLog{w: bw, form: form}
	}
	e := newEngine(truth, design, seed)
	p.begin(e)
	e.run(p)
	return bw.Flush()
}

func defaults(t Truth, d Design) (Truth, Design) {
	def := func(v *float64, to float64) {
		if *v == 0 {
			*v = to
		}
	}
	def(&d.Seconds, 1200)
	def(&d.Load, 16)
	def(&d.Context, 8000)
	def(&d.Spread, 0.8)
	def(&d.Output, 400)
	def(&t.Accept, 1)
	def(&t.Straggler, 1)
	t.Ranks = max(t.Ranks, 1)
	if d.Start == 0 {
		d.Start = 1785624600
	}
	if t.Pool == 0 {
		t.Pool = int64(4*d.Load*(d.Context+d.Output)/1000)*1000 + 64000
	}
	return t, d
}

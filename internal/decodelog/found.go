package decodelog

import (
	"fmt"
	"strings"
)

// found says why there is no sample, and what would print some.
func (st *state) found() (why, hint string) {
	const sglang = "SGLang prints them every --decode-log-interval steps, unless --log-level is warning or above"
	const vllm = "vLLM prints them every 10 s unless --disable-log-stats is set or nothing runs; its /metrics can be scraped instead"
	var left int64
	most := reasons
	for r := range reasons {
		if n := st.left[r].N; n > 0 {
			left += n
			if most == reasons || n > st.left[most].N {
				most = r
			}
		}
	}
	has := func(k kind) bool { return st.kind[k].N > 0 }
	first := func(k kind) string {
		return fmt.Sprintf("%d %s, first at %s", st.kind[k].N, kindWords[k], st.kind[k].First)
	}
	switch {
	case left > 0:
		c := st.left[most]
		return fmt.Sprintf("none of %d lines about decode steps can be used; most, %d, because: %s (first at %s)", left, c.N, reasonWords[most], c.First), leftHint(most)
	case st.scraped:
		return "there are not two scrapes of metrics with decode steps between them", "scrape every few seconds, with a time before each: while sleep 5; do date +%s; curl -s http://HOST:PORT/metrics; done > FILE"
	case has(kindForeign):
		return fmt.Sprintf("no line of %s, but %s", st.engine, first(kindForeign)), "leave --engine out to have it found"
	case has(kindPrefill):
		return "no decode batches, only prefill: " + first(kindPrefill), "this is a prefill leg: take the log of a decode leg; " + sglang
	case st.rep.Bytes == 0:
		return "there is nothing in it", st.hint(sglang, vllm)
	case has(kindBinary) && st.kind[kindBinary].N*2 > st.kind[kindOther].N:
		return "this is not a log but binary data: " + first(kindBinary), "give the engine's log as text, gzip or zstd"
	case has(kindATOM) || st.engine == ATOM:
		return "ATOM prints nothing about decode steps" + in(has(kindATOM), first(kindATOM)), "record with kvroute serve --record in front of it and fit the recording, or run the model under SGLang or vLLM to take a log"
	case has(kindSGLangMetrics):
		return "metrics of SGLang are gauges without step times: " + first(kindSGLangMetrics), "give its log: " + sglang
	case has(kindRequest):
		return "statistics of requests, but no decode batches: " + first(kindRequest), sglang
	}
	return "no line about decode steps; found: " + st.list(), st.hint(sglang, vllm)
}

func in(ok bool, text string) string {
	if !ok {
		return ""
	}
	return " (" + text + ")"
}

func (st *state) hint(sglang, vllm string) string {
	switch st.engine {
	case SGLang:
		return sglang
	case VLLM:
		return vllm
	}
	return sglang + "; " + vllm
}

// list names what was found, most first as the kinds are ordered.
func (st *state) list() string {
	var parts []string
	for k := range kinds {
		if c := st.kind[k]; c.N > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.N, kindWords[k]))
		}
	}
	return strings.Join(parts, ", ")
}

func leftHint(r reason) string {
	switch r {
	case leftCut, leftTorn:
		return "give the log as the engine wrote it"
	case leftPool:
		return "give --pool-tokens, or the start-up line that has max_total_num_tokens"
	case leftIdle, leftStill, leftNoSteps:
		return "take the log while requests are decoded"
	case leftLong:
		return "take the log while requests are decoded, or raise --max-step if decode steps do take so long"
	case leftShort:
		return "lower --min-step if decode steps do take so little"
	case leftBare:
		return "use a version of the engine that prints gen throughput"
	}
	return ""
}

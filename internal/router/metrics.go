package router

import (
	"github.com/prometheus/client_golang/prometheus"
)

// outcome is how a request ended, a label of metrics and a field of the log.
type outcome string

const (
	outcomeOK          outcome = "ok"
	outcomeClientError outcome = "client_error" // the request was at fault, by our judgement or the worker's
	outcomeUnauthd     outcome = "unauthorized"
	outcomeRejected    outcome = "rejected"  // admission: too many in flight
	outcomeNoWorker    outcome = "no_worker" // there was nobody to ask
	outcomeUpstream    outcome = "upstream_error"
	outcomeMidStream   outcome = "mid_stream_error" // the worker failed after the first byte had reached the client
	outcomeTimeout     outcome = "timeout"
	outcomeAborted     outcome = "aborted"        // the client left
	outcomeStalled     outcome = "client_stalled" // the client took nothing for too long
	outcomeStopped     outcome = "stopped"        // cut because the router ends
	outcomeInternal    outcome = "internal_error"
)

// outcomes are all of them, so that every series exists from the start.
var outcomes = []outcome{
	outcomeOK, outcomeClientError, outcomeUnauthd, outcomeRejected, outcomeNoWorker, outcomeUpstream, outcomeMidStream,
	outcomeTimeout, outcomeAborted, outcomeStalled, outcomeStopped, outcomeInternal,
}

// routerLabel is the value of the label router: the kind of fleet in front of which we are.
const routerLabel = "mixed"

// metrics of the data plane. Names starting with infera_ are those of the router whose dashboards our
// users have. Labels: worker_id is a worker that the fleet named, model one that it serves, never what a
// client wrote.
type metrics struct {
	requests   *prometheus.CounterVec   // router, outcome
	duration   *prometheus.HistogramVec // router, outcome; to the end of the answer
	inFlight   *prometheus.GaugeVec     // router
	ttft       *prometheus.HistogramVec // router, model, prefill_worker
	itl        *prometheus.HistogramVec // router, model, decode_worker
	inTokens   *prometheus.HistogramVec // router, model
	outTokens  *prometheus.HistogramVec // router, model
	prompt     *prometheus.CounterVec   // router, model
	generation *prometheus.CounterVec   // router, model
	breaker    *prometheus.GaugeVec     // worker_id
	trips      *prometheus.CounterVec   // worker_id

	attempts   *prometheus.CounterVec // worker_id, result
	retries    *prometheus.CounterVec // reason
	noRetry    *prometheus.CounterVec // reason
	rejected   *prometheus.CounterVec // scope
	forced     prometheus.Counter
	firstChunk prometheus.Histogram // router's own time before a worker is asked
	body       prometheus.Histogram
	draining   prometheus.Gauge
	unusable   *prometheus.CounterVec // reason
	panics     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		reg.MustRegister(g)
		return g
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		reg.MustRegister(h)
		return h
	}
	seconds := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	tokens := prometheus.ExponentialBuckets(1, 4, 11) // to 1 Mi
	m := &metrics{
		requests:   counter("infera_requests_total", "Requests, by how they ended.", "router", "outcome"),
		duration:   histogram("infera_request_duration_seconds", "Time from a request to the end of its answer.", seconds, "router", "outcome"),
		inFlight:   gauge("infera_request_inflight", "Requests whose answer has not ended.", "router"),
		ttft:       histogram("infera_time_to_first_token_seconds", "Time from a request to the first of what was generated.", seconds, "router", "model", "prefill_worker"),
		itl:        histogram("infera_inter_token_latency_seconds", "Time between records of a stream that bring something generated.", []float64{.001, .0025, .005, .01, .015, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5}, "router", "model", "decode_worker"),
		inTokens:   histogram("infera_input_sequence_tokens", "Prompt tokens of a request, as engines report them.", tokens, "router", "model"),
		outTokens:  histogram("infera_output_sequence_tokens", "Generated tokens of a request, as engines report them.", tokens, "router", "model"),
		prompt:     counter("infera_prompt_tokens_total", "Prompt tokens that engines reported.", "router", "model"),
		generation: counter("infera_generation_tokens_total", "Generated tokens that engines reported.", "router", "model"),
		breaker:    gauge("infera_router_worker_breaker_state", "State of a worker's breaker: 0 closed, 1 half-open, 2 open.", "worker_id"),
		trips:      counter("infera_router_worker_breaker_trips_total", "Times that a worker's breaker opened from closed.", "worker_id"),
		attempts:   counter("kvroute_attempts_total", "Requests sent to workers, by what came of it: answered, refused (4xx), busy, failed, no_connection, timeout, cut, cancelled.", "worker_id", "result"),
		retries:    counter("kvroute_retries_total", "Requests that moved on to another worker, by why.", "reason"),
		noRetry:    counter("kvroute_retries_denied_total", "Failed attempts that were not tried elsewhere, by why: budget, attempts, late, nobody.", "reason"),
		rejected:   counter("kvroute_admission_rejected_total", "Requests turned away for want of room, in total or on all workers.", "scope"),
		unusable:   counter("kvroute_bad_requests_total", "Requests refused before a worker was sought, by reason.", "reason"),
	}
	m.forced = prometheus.NewCounter(prometheus.CounterOpts{Name: "kvroute_doubtful_dispatch_total", Help: "Requests sent to a worker with an open breaker or a busy one because there was no other."})
	m.firstChunk = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kvroute_dispatch_seconds", Help: "Time from the end of a request's body to its first dispatch: scanning, tokenizing, choosing.", Buckets: prometheus.ExponentialBuckets(16e-6, 4, 10)})
	m.body = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kvroute_request_body_bytes", Help: "Size of request bodies.", Buckets: prometheus.ExponentialBuckets(256, 4, 10)})
	m.draining = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kvroute_draining", Help: "1 once the router has begun to end."})
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{Name: "kvroute_panics_total", Help: "Requests that ended in a fault of the router's own."})
	reg.MustRegister(m.forced, m.firstChunk, m.body, m.draining, m.panics)
	for _, o := range outcomes {
		m.requests.WithLabelValues(routerLabel, string(o))
	}
	m.inFlight.WithLabelValues(routerLabel)
	return m
}

// forget drops the series of a worker that has left.
func (m *metrics) forget(worker string) {
	m.breaker.DeleteLabelValues(worker)
	m.trips.DeleteLabelValues(worker)
	m.attempts.DeletePartialMatch(prometheus.Labels{"worker_id": worker})
	m.ttft.DeletePartialMatch(prometheus.Labels{"prefill_worker": worker})
	m.itl.DeletePartialMatch(prometheus.Labels{"decode_worker": worker})
}

package admin

import "github.com/prometheus/client_golang/prometheus"

// metrics of those who watch.
type metrics struct {
	events    *prometheus.CounterVec // event
	bytes     prometheus.Counter
	resyncs   prometheus.Counter
	cut       prometheus.Counter
	refused   prometheus.Counter
	snapshots prometheus.Counter
	warnings  *prometheus.GaugeVec // severity
}

func newMetrics(h *Hub, reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		events:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kvroute_watch_events_total", Help: "Events sent to watchers over HTTP: snapshot, delta, heartbeat."}, []string{"event"}),
		bytes:     counter("kvroute_watch_bytes_total", "Bytes of events sent to watchers over HTTP."),
		resyncs:   counter("kvroute_watch_resyncs_total", "Times that a watcher over HTTP had not taken an event within its interval: its next delta was made from there to the present."),
		cut:       counter("kvroute_watch_cut_total", "Watchers over HTTP that were cut off because they took nothing for too long."),
		refused:   counter("kvroute_watch_refused_total", "Watchers that were turned away because there were too many."),
		snapshots: counter("kvroute_watch_snapshots_total", "Snapshots made for those who watch or ask."),
		warnings:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kvroute_warnings", Help: "Warnings that go on, as those who watch see them."}, []string{"severity"}),
	}
	for _, e := range []string{"snapshot", "delta", "heartbeat"} {
		m.events.WithLabelValues(e)
	}
	if reg != nil {
		reg.MustRegister(m.events, m.bytes, m.resyncs, m.cut, m.refused, m.snapshots, m.warnings, prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "kvroute_watch_watchers", Help: "Those who watch now, over HTTP and SSH."}, func() float64 { return float64(h.Watchers()) }))
	}
	return m
}

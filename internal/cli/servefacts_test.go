package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/score"
)

// fullDisk takes some bytes.
type fullDisk struct{ left int }

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.left -= len(p); d.left < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(p), nil
}

func (*fullDisk) Close() error { return nil }

// TestTroubles: what goes wrong beside workers and requests is told as long as it is so.
func TestTroubles(t *testing.T) {
	s := &server{reg: prometheus.NewRegistry()}
	s.reg.MustRegister(s)
	told := func() string {
		var all []string
		for _, f := range s.troubles() {
			all = append(all, f.Kind+": "+f.Text)
		}
		return strings.Join(all, "\n")
	}
	r, err := recorder.Start(recorder.Options{
		Header: record.Header{BlockSize: 16, Config: score.Defaults()},
		Create: func(int) (io.WriteCloser, error) { return &fullDisk{left: 2000}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.recorders = append(s.recorders, recording{"m", r})
	if got := told(); got != "" {
		t.Fatalf("while all is well: %q", got)
	}
	for end := time.Now().Add(30 * time.Second); told() == ""; {
		r.Note(0, 0, strings.Repeat("x", 1000))
		if time.Now().After(end) {
			t.Fatal("the end of the recording is not told")
		}
	}
	if got := told(); !strings.Contains(got, "recording: model m is not recorded any more") || !strings.Contains(got, "no space left on device") {
		t.Errorf("got %q", got)
	}
	families, err := s.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ended := 0.0
	for _, f := range families {
		if f.GetName() == "kvroute_recording_ended" {
			ended = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	if ended != 1 {
		t.Errorf("kvroute_recording_ended is %v, want 1", ended)
	}
	s.facts.set("mirror-file", "error", "write", "not written")
	s.facts.set("mirror-file", "", "read", "not read")
	var stale error
	s.stale = append(s.stale, func() error { return stale })
	stale = errors.New("no key in it")
	if got := told(); !strings.Contains(got, "not written") || !strings.Contains(got, "not read") || !strings.Contains(got, "no key in it") {
		t.Errorf("got %q", got)
	}
	s.facts.clear("mirror-file", "write")
	stale = nil
	if got := told(); strings.Contains(got, "not written") || !strings.Contains(got, "not read") || strings.Contains(got, "no key in it") {
		t.Errorf("after some of it is over: %q", got)
	}
	if err := r.Close(); err == nil {
		t.Error("closing a recording that ended early: no error")
	}
}

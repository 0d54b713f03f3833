package admin

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// TestCalmWatcher: one that asks for calm is not told of numbers, and at once of what turned.
func TestCalmWatcher(t *testing.T) {
	x := watch(t)
	x.hub.cfg.InFlight = func() int64 { return 1 } // so that a drain does not end the streams
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	restless, calm := x.follow(t, ctx, "interval=100ms"), x.follow(t, ctx, "interval=100ms&calm=1m&changes=1")
	<-restless
	<-calm
	x.pick()
	until(t, restless, func(s *snapshot.Snapshot) bool { return s.Router.Requests == 1 })
	x.pick()
	until(t, restless, func(s *snapshot.Snapshot) bool { return s.Router.Requests == 2 })
	x.draining.Store(true)
	if s := until(t, calm, func(*snapshot.Snapshot) bool { return true }); !s.Router.Draining || s.Router.Requests != 2 {
		t.Errorf("the first delta leads to %+v, want a router that drains after two decisions", s)
	}
}

func TestSettings(t *testing.T) {
	for _, tt := range []struct {
		query string
		want  settings
		err   string
	}{
		{"", settings{interval: defaultInterval}, ""},
		{"interval=2s&changes=1&calm=1s", settings{2 * time.Second, true, time.Second}, ""},
		{"interval=", settings{}, "not a time from"},
		{"interval=1ms", settings{}, "not a time from"},
		{"interval=1s&interval=2s", settings{}, "interval is there 2 times"},
		{"changes=yes", settings{}, `changes "yes" is not 1`},
		{"calm=-1s", settings{}, "not a time up to"},
		{"calm=2m", settings{}, "not a time up to"},
		{"calms=1s", settings{}, `"calms" is not known here`},
	} {
		q, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := settingsOf(q)
		switch {
		case tt.err == "" && (err != nil || got != tt.want):
			t.Errorf("%q: got %+v, %v; want %+v", tt.query, got, err, tt.want)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%q: got %v, want %q in it", tt.query, err, tt.err)
		}
	}
}

// TestFramesOfChanges: what one watcher is sent whole and another by fields are kept apart.
func TestFramesOfChanges(t *testing.T) {
	a := &snapshot.Snapshot{Run: "r", Seq: 1, Workers: []snapshot.Worker{{RouteKey: "w", URL: "u"}}}
	b := &snapshot.Snapshot{Run: "r", Seq: 2, Workers: []snapshot.Worker{{RouteKey: "w", URL: "u", BlockCount: 2}}}
	var f frames
	for range 2 {
		for changes, want := range map[bool]string{true: `"changes":{"w":{"block_count":2}}`, false: `"workers":[{`} {
			got, err := f.delta(a, b, changes)
			if err != nil || !strings.Contains(string(got), want) || strings.Contains(string(got), `"changes"`) != changes {
				t.Errorf("changes %v: %s, %v; want %s in it", changes, got, err, want)
			}
		}
	}
	if len(f.made) != 2 {
		t.Errorf("%d made, want 2", len(f.made))
	}
}

package tui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
)

func told(run string, seq uint64, ms int64) *snapshot.Snapshot {
	return &snapshot.Snapshot{Schema: snapshot.Schema, Run: run, Seq: seq, AtMS: ms}
}

func raw(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func remoteOf(t *testing.T, h http.Handler) *Remote {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return NewRemote(RemoteConfig{URL: u, Interval: 100 * time.Millisecond})
}

// watchUntil runs a source until an update satisfies done, and returns all that came.
func watchUntil(t *testing.T, src Source, done func(Update) bool) (all []Update) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	found := false
	src.Run(ctx, func(u Update) {
		if found {
			return
		}
		if all = append(all, u); done(u) {
			found = true
			cancel()
		}
	})
	if !found {
		t.Fatalf("what is waited for never came; %d updates, the last: %+v", len(all), all[len(all)-1])
	}
	return all
}

// TestRemoteOutlivesRestarts: the picture stays while the router is away, and another run begins anew.
func TestRemoteOutlivesRestarts(t *testing.T) {
	var calls atomic.Int32
	r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch calls.Add(1) {
		case 1:
			fmt.Fprintf(w, "event: snapshot\ndata: %s\n\n: alive\n\nevent: delta\ndata: %s\n\n", raw(t, told("a", 1, 1000)), raw(t, snapshot.Delta{Run: "a", From: 1, Seq: 2, AtMS: 2000}))
		case 2:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		default:
			fmt.Fprintf(w, "event: snapshot\ndata: %s\n\n", raw(t, told("b", 1, 3000)))
		}
	}))
	all := watchUntil(t, r, func(u Update) bool { return u.Link == Live && u.Snap.Run == "b" })
	var got []string
	for _, u := range all {
		s := fmt.Sprint(u.Link)
		if u.Snap != nil {
			s += fmt.Sprintf(" %s%d", u.Snap.Run, u.Snap.Seq)
		}
		if len(got) == 0 || got[len(got)-1] != s {
			got = append(got, s)
		}
		if u.Link == Lost && u.Reason == "" {
			t.Error("lost without a reason")
		}
	}
	want := fmt.Sprintf("%d|%d a1|%d a2|%d a2|%d b1", Connecting, Live, Live, Lost, Live)
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("updates %s, want %s", s, want)
	}
}

// TestRemoteSaysWhatIsWrong: garbage, other versions and refusals become words, and the source goes on trying.
func TestRemoteSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"garbage", "data: <html>\n\n", 200, "no stream of a router"},
		{"a newer form", `data: {"schema":"kvroute.snapshot/v9"}` + "\n\n", 200, "kvroute.snapshot/v9"},
		{"a delta first", `data: {"run":"a","from":1,"seq":2}` + "\n\n", 200, "begins with a delta"},
		{"no token", `{"error":{"message":"a token is needed"}}`, 401, "--token-file"},
		{"forbidden", "", 403, "--token-file"},
		{"no such page", "", 404, "a kvroute router?"},
		{"the stream ends", "", 200, "ended the stream"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				io.WriteString(w, c.body) //nolint:errcheck // the client may have gone
			}))
			var last string
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			r.Run(ctx, func(u Update) {
				if u.Link == Live {
					t.Errorf("live, with %+v", u.Snap)
				}
				if strings.Contains(u.Reason, "trying again") {
					last = u.Reason
					cancel()
				}
			})
			if !strings.Contains(last, c.want) {
				t.Errorf("reason %q, want %q in it", last, c.want)
			}
		})
	}
}

// TestRemotePollsRoutersWithoutStream: one snapshot after the other.
func TestRemotePollsRoutersWithoutStream(t *testing.T) {
	var n atomic.Uint64
	r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v1/admin/snapshot" {
			http.NotFound(w, req)
			return
		}
		w.Write(raw(t, told("old", n.Add(1), 1000))) //nolint:errcheck // the client may have gone
	}))
	watchUntil(t, r, func(u Update) bool { return u.Link == Live && u.Snap.Seq == 2 })
}

// TestRemoteAsksForLess: a router is asked for changed fields and calm, unless what it tells is recorded; one that
// refuses to hear of that is asked for an interval alone.
func TestRemoteAsksForLess(t *testing.T) {
	tape, err := NewTape(io.Discard, "http://router", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	const less = "interval=100ms&changes=1&calm=1s"
	for _, c := range []struct {
		name    string
		tape    *Tape
		refuses bool
		want    []string
	}{
		{"a router of today", nil, false, []string{less}},
		{"an older router", nil, true, []string{less, "interval=100ms"}},
		{"recorded", tape, false, []string{"interval=100ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := make(chan string, 10)
			r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				select {
				case asked <- req.URL.RawQuery:
				default: // it asks without end
				}
				if c.refuses && req.URL.Query().Has("calm") {
					http.Error(w, `{"error":{"message":"calm is not known here"}}`, http.StatusBadRequest)
					return
				}
				s := told("a", 1, 1000)
				s.Workers = []snapshot.Worker{{RouteKey: "w", BlockCount: 1, Fill: ptr(0.5)}}
				fmt.Fprintf(w, "event: snapshot\ndata: %s\n\n", raw(t, s))
				io.WriteString(w, `data: {"run":"a","from":1,"seq":2,"at_unix_ms":2000,"changes":{"w":{"block_count":7}}}`+"\n\n") //nolint:errcheck // the client may have gone
			}))
			r.tape = c.tape
			all := watchUntil(t, r, func(u Update) bool { return u.Link == Live && u.Snap.Seq == 2 })
			if w := all[len(all)-1].Snap.Workers[0]; w.BlockCount != 7 || w.Fill == nil {
				t.Errorf("the changed entry is %+v", w)
			}
			for _, want := range c.want {
				if got := <-asked; got != want {
					t.Errorf("asked for %q, want %q", got, want)
				}
			}
		})
	}
}

// TestTapeIsPlayed: what was recorded comes back, from any time, up to where the file is damaged.
func TestTapeIsPlayed(t *testing.T) {
	var file bytes.Buffer
	tape, err := NewTape(&file, "http://router", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	s := told("a", 1, 1000)
	if err := tape.Write(s, raw(t, s)); err != nil {
		t.Fatal(err)
	}
	const n = 200 // of a second each: some whole snapshots in between
	for i := uint64(2); i <= n; i++ {
		d := snapshot.Delta{Run: "a", From: i - 1, Seq: i, AtMS: int64(i) * 1000}
		if s, err = s.Apply(&d); err != nil {
			t.Fatal(err)
		}
		if err := tape.Write(s, raw(t, d)); err != nil {
			t.Fatal(err)
		}
	}
	track, err := OpenTape("t", bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if from, to := track.Span(); from != 1000 || to != n*1000 {
		t.Errorf("span %d to %d, want 1000 to %d", from, to, n*1000)
	}
	for i := uint64(1); i <= n; i++ {
		got, err := track.Next()
		if err != nil || got.Seq != i {
			t.Fatalf("snapshot %d: %+v, %v", i, got, err)
		}
	}
	if _, err := track.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v, want EOF", err)
	}
	for _, ms := range []int64{150_500, 1000, 61_000, 199_999, 0, 10_000_000} {
		want := uint64(min(max(ms/1000, 1), n))
		if err := track.SeekTo(ms); err != nil {
			t.Fatalf("seeking %d: %v", ms, err)
		}
		if got, err := track.Next(); err != nil || got.Seq != want {
			t.Errorf("at %d ms: %+v, %v; want number %d", ms, got, err, want)
		}
	}
	cut := file.Bytes()[:file.Len()-5]
	if track, err = OpenTape("t", bytes.NewReader(cut)); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for {
		if _, err = track.Next(); err != nil {
			break
		}
		seen++
	}
	if seen != n-1 || !strings.Contains(err.Error(), "breaks off") {
		t.Errorf("cut file: %d snapshots, then %v; want %d, then that it breaks off", seen, err, n-1)
	}
}

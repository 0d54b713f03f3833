package playback

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/testtraces"
)

const bundled = "traces/golden/recording.jsonl.gz"

func open(t *testing.T) *Track {
	t.Helper()
	data, err := os.ReadFile(testtraces.Bundled(bundled))
	if err != nil {
		t.Fatal(err)
	}
	track, err := Open(bundled, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return track
}

func all(t *testing.T, track *Track) (list []*snapshot.Snapshot) {
	t.Helper()
	for {
		s, err := track.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
}

// TestAgainstTheFile holds the last snapshot against sums over the records themselves.
func TestAgainstTheFile(t *testing.T) {
	list := all(t, open(t))
	data, err := os.ReadFile(testtraces.Bundled(bundled))
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.Open(bytes.NewReader(data), bundled)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[uint16]string{}
	blocks := map[string]map[uint64]uint8{}
	decisions, open := uint64(0), int64(0)
	var rec record.Record
	for r.Read(&rec) == nil {
		key := keys[uint16(rec.Target)]
		switch rec.Kind {
		case record.Worker:
			switch rec.Op {
			case record.Join:
				keys[uint16(rec.Target)] = rec.Candidate.Key
				blocks[rec.Candidate.Key] = map[uint64]uint8{}
			case record.Leave:
				delete(blocks, key)
			}
		case record.Event:
			if rec.Emptied {
				clear(blocks[key])
			}
			for _, h := range rec.Blocks {
				if delete(blocks[key], uint64(h)); rec.Held {
					blocks[key][uint64(h)] = rec.Tier
				}
			}
		case record.Decision:
			decisions++
			open++
		case record.Load:
			if rec.Load == record.Release {
				open--
			}
		}
	}
	last := list[len(list)-1]
	if last.Router.Requests != decisions || last.Router.InFlight != open || decisions == 0 {
		t.Errorf("%d requests, %d in flight; want %d, %d", last.Router.Requests, last.Router.InFlight, decisions, open)
	}
	if len(last.Workers) != len(blocks) {
		t.Fatalf("%d workers, want %d", len(last.Workers), len(blocks))
	}
	distinct := map[uint64]bool{}
	for _, w := range last.Workers {
		var tiers [index.NumTiers]int
		for h, tier := range blocks[w.RouteKey] {
			tiers[tier]++
			distinct[h] = true
		}
		if w.BlockCount != len(blocks[w.RouteKey]) || w.Tiers != tiers {
			t.Errorf("%s: %d blocks %v, want %d %v", w.RouteKey, w.BlockCount, w.Tiers, len(blocks[w.RouteKey]), tiers)
		}
	}
	if last.Cache.Distinct != int64(len(distinct)) {
		t.Errorf("%d distinct blocks, want %d", last.Cache.Distinct, len(distinct))
	}
}

// TestSeekIsPlaying: jumping to a time, from anywhere, shows what playing up to it shows, but for the number.
func TestSeekIsPlaying(t *testing.T) {
	want := all(t, open(t))
	track := open(t)
	n := len(want)
	for _, i := range []int{n / 2, n - 1, 0, n / 3, n / 3, 2 * n / 3} {
		if err := track.SeekTo(want[i].AtMS); err != nil {
			t.Fatal(err)
		}
		got, err := track.Next()
		if err != nil {
			t.Fatal(err)
		}
		// Warnings depend on the looks taken on the way.
		a, b := *want[i], *got
		a.Seq, b.Seq, a.Warnings, b.Warnings = 0, 0, nil, nil
		if d := cmp.Diff(a, b); d != "" {
			t.Errorf("snapshot %d of %d (-played +jumped):\n%.2000s", i, n, d)
		}
	}
}

func TestDamage(t *testing.T) {
	data, err := os.ReadFile(testtraces.Bundled(bundled))
	if err != nil {
		t.Fatal(err)
	}
	track, err := Open("cut", bytes.NewReader(data[:len(data)*2/3]))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		_, err = track.Next()
		if err != nil {
			break
		}
		n++
	}
	if errors.Is(err, io.EOF) || n == 0 || !strings.HasPrefix(err.Error(), "cut") {
		t.Errorf("after %d snapshots: %v, want where the damage is", n, err)
	}
	for _, text := range []string{"", "junk\n", `{"kvroute":"watch/v1"}` + "\n"} {
		if _, err := Open("x", strings.NewReader(text)); err == nil {
			t.Errorf("%q was taken for a recording", text)
		}
	}
}

// TestQuietTimes: a night without requests is not played in quarters of a second, and what comes after it is.
func TestQuietTimes(t *testing.T) {
	lines := someLines(t, 1000)
	at := regexp.MustCompile(`"ns":([0-9]+)`)
	const night = int64(8 * time.Hour)
	for i := range lines {
		if i >= len(lines)/2 {
			lines[i] = at.ReplaceAllFunc(lines[i], func(b []byte) []byte {
				ns, err := strconv.ParseInt(string(b[len(`"ns":`):]), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Appendf(nil, `"ns":%d`, ns+night)
			})
		}
	}
	shifted, err := Open("night", bytes.NewReader(bytes.Join(lines, nil)))
	if err != nil {
		t.Fatal(err)
	}
	plain, got := all(t, open(t)), all(t, shifted)
	if n := len(got) - len(plain); n < 50 || n > 250 {
		t.Errorf("%d snapshots, %d without the night: want some hundred more", len(got), len(plain))
	}
	longest, behind := int64(0), false
	for i := 1; i < len(got); i++ {
		gap := got[i].AtMS - got[i-1].AtMS
		longest = max(longest, gap)
		if behind = behind || got[i].AtMS-got[0].AtMS > night/1e6; behind && got[i].Router.Requests > got[i-1].Router.Requests && gap > step {
			t.Errorf("behind the night a snapshot comes after %d ms, want %d", gap, step)
		}
	}
	if longest < 10*60*1000 {
		t.Errorf("the longest step is %d ms, want minutes", longest)
	}
	if a, b := plain[len(plain)-1].Router.Requests, got[len(got)-1].Router.Requests; a != b {
		t.Errorf("%d requests at the end, want %d", b, a)
	}
}

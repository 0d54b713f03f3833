package router

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestBreakerTable walks a breaker with threshold 3, cool-down 5 s up to 60 s, through steps:
// S, F, N a request that succeeds, fails or says nothing; s, f, n the same where the breaker must be
// forced; B, M one that begins to answer, then succeeds or fails in the middle; X a request that must be
// refused; +n n seconds pass; then the state, c, h or o, and the fails in a row.
func TestBreakerTable(t *testing.T) {
	tests := []struct{ name, steps string }{
		{"two failures are none", "F c1 F c2 S c0 F c1 F c2"},
		{"three open it", "F F F o X +4 X +1"},
		{"neutral neither counts nor forgives", "F N F N c2 F o"},
		{"a probe that succeeds closes it", "F F F o +5 S c0 F c1"},
		{"a probe that fails doubles the cool-down", "F F F +5 F o +9 X +1 F o +19 X +1 F o +39 X +1 F o +59 X +1 F o +59 X +1 S c0 F F F o +4 X +1 S c0"},
		{"a neutral probe gives the slot back", "F F F +5 N h N h S c0"},
		{"failures in the middle of answers count", "M c1 M c2 M o"},
		{"a probe on parole", "F F F +5 M o +9 X +1 B c0"},
		{"all open, tried anyway: it works", "F F F o s c0"},
		{"all open, tried anyway: it does not", "F F F o f o +9 X +1 S c0"},
		{"all open, tried anyway: nothing learned", "F F F o n h S c0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Unix(0, 0)
			h := newHealth(Defaults().Breaker, 0, func(string, breakerState, bool) {})
			for i, step := range strings.Fields(tt.steps) {
				at := fmt.Sprintf("step %d (%s) of %q", i, step, tt.steps)
				if d, ok := strings.CutPrefix(step, "+"); ok {
					s, err := time.ParseDuration(d + "s")
					if err != nil {
						t.Fatal(err)
					}
					now = now.Add(s)
					continue
				}
				if state := strings.IndexByte("cho", step[0]); state >= 0 {
					w := h.workers["w"]
					got := fmt.Sprintf("%c%d", "cho"[w.state], w.fails)
					if !strings.HasPrefix(got, step) {
						t.Fatalf("%s: state is %s", at, got)
					}
					continue
				}
				force := step[0] >= 'a'
				want := good
				if force || step == "X" {
					want = doubtful
				}
				if got := h.standing("w", now); got != want {
					t.Fatalf("%s: standing is %v, want %v", at, got, want)
				}
				c := h.claim("w", now, force)
				if (c == nil) != (step == "X") {
					t.Fatalf("%s: claimed: %v", at, c != nil)
				}
				switch strings.ToUpper(step) {
				case "S":
					c.end(now, success)
				case "F":
					c.end(now, failure)
				case "N":
					c.end(now, neutral)
				case "B":
					c.alive()
					c.end(now, success)
				case "M":
					c.alive()
					c.end(now, failure)
				}
			}
		})
	}
}

func TestOnlyOneProbe(t *testing.T) {
	now := time.Unix(0, 0)
	trips := 0
	h := newHealth(BreakerConfig{Threshold: 1, Cooldown: time.Second, MaxCooldown: time.Second}, 0, func(_ string, _ breakerState, tripped bool) {
		if tripped {
			trips++
		}
	})
	late := h.claim("w", now, false)
	h.claim("w", now, false).end(now, failure)
	now = now.Add(time.Second)
	for range 3 {
		if got := h.standing("w", now); got != good {
			t.Fatalf("looking at a worker takes its probe: standing is %v", got)
		}
	}
	probe := h.claim("w", now, false)
	if probe == nil || h.claim("w", now, false) != nil {
		t.Fatal("want one probe and no second")
	}
	late.end(now, failure) // from before the breaker opened
	if got := h.workers["w"].state; got != halfOpen {
		t.Fatalf("a late failure moved the breaker to %v", got)
	}
	second := h.claim("w", now.Add(probeExpiry), false)
	if second == nil {
		t.Fatal("a probe that never comes back keeps the worker out")
	}
	second.end(now, success)
	probe.end(now, failure)
	if got := h.workers["w"].state; got != closed || trips != 1 {
		t.Fatalf("breaker %v after %d trips, want closed after 1", got, trips)
	}
	h.claim("w", now, false)
	h.forget("w")
	if h.inFlight() != 0 || h.standing("w", now) != good {
		t.Error("a forgotten worker is remembered")
	}
}

func TestBusy(t *testing.T) {
	now := time.Unix(0, 0)
	h := newHealth(Defaults().Breaker, 0, func(string, breakerState, bool) {})
	for _, tt := range []struct{ after, avoided time.Duration }{{0, time.Second}, {3 * time.Second, 3 * time.Second}, {time.Hour, 10 * time.Second}} {
		for range 5 { // however often, it never opens
			c := h.claim("w", now, true)
			c.busy(now, tt.after)
			c.end(now, neutral)
		}
		if h.standing("w", now.Add(tt.avoided-1)) != doubtful || h.standing("w", now.Add(tt.avoided)) != good {
			t.Errorf("busy with Retry-After %v: not avoided for just %v", tt.after, tt.avoided)
		}
		now = now.Add(time.Minute)
	}
	if h.workers["w"].state != closed {
		t.Error("being busy opened the breaker")
	}
}

// TestHealthHistories holds the invariants of health after every step of random histories.
func TestHealthHistories(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := time.Unix(0, 0)
		limit := rng.IntN(4)
		h := newHealth(BreakerConfig{Threshold: rng.IntN(4), Cooldown: time.Second, MaxCooldown: 4 * time.Second, BusyPenalty: time.Second, MaxBusy: 2 * time.Second}, limit, func(string, breakerState, bool) {})
		var out []*claim
		for step := range 200 {
			id := string(rune('a' + rng.IntN(3)))
			switch rng.IntN(8) {
			case 0, 1, 2:
				force := rng.IntN(3) == 0
				s := h.standing(id, now)
				c := h.claim(id, now, force)
				if want := s == good || s == doubtful && force; (c != nil) != want {
					t.Fatalf("seed %d step %d: standing %v, force %v: claimed %v", seed, step, s, force, c != nil)
				}
				if c != nil {
					out = append(out, c)
				}
			case 3, 4:
				if len(out) > 0 {
					i := rng.IntN(len(out))
					c := out[i]
					out = append(out[:i], out[i+1:]...)
					v := verdict(rng.IntN(3))
					c.end(now, v)
					c.end(now, failure) // does nothing
				}
			case 5:
				if len(out) > 0 {
					c := out[rng.IntN(len(out))]
					c.alive()
					if rng.IntN(4) == 0 {
						c.busy(now, time.Duration(rng.IntN(5))*time.Second)
					}
				}
			case 6:
				now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			case 7:
				if rng.IntN(10) == 0 {
					h.forget(id)
				}
			}
			for id, w := range h.workers {
				n := 0
				for _, c := range out {
					if c.w == w {
						n++
					}
				}
				if n != w.inFlight || limit > 0 && n > limit {
					t.Fatalf("seed %d step %d: H1: %s has %d in flight, counts %d (limit %d)", seed, step, id, n, w.inFlight, limit)
				}
				if w.probe != nil && w.state == open {
					t.Fatalf("seed %d step %d: H2: %s is open and has a probe out", seed, step, id)
				}
				if h.cfg.Threshold == 0 && w.state != closed {
					t.Fatalf("seed %d step %d: H3: %s is %v without a threshold", seed, step, id, w.state)
				}
			}
		}
	}
}

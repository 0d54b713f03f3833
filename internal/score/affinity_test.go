package score_test

import (
	"fmt"
	"testing"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

const second = int64(1e9)

func affinity(a score.Affinity) func(*score.Config) {
	return func(c *score.Config) { c.SessionAffinity = a }
}

func sessionReq(session string, role score.Role, at int64) score.Request {
	req := prompt(chain(1, 4))
	req.Session, req.Role, req.At = session, role, at
	return req
}

func TestSessionAffinityByRole(t *testing.T) {
	for _, tc := range []struct {
		mode  score.Affinity
		bound map[score.Role]bool
	}{
		{score.AffinityOff, map[score.Role]bool{}},
		{score.AffinityPrefill, map[score.Role]bool{score.Prefill: true}},
		{score.AffinityBoth, map[score.Role]bool{score.Prefill: true, score.Decode: true, score.Mixed: true}},
	} {
		for _, role := range []score.Role{score.Mixed, score.Prefill, score.Decode} {
			r := newRig(t, 2, config(score.KVAware, affinity(tc.mode)))
			first := r.pick(sessionReq("s", role, 0)) // a, and stays busy, so that the policy would choose b
			second := r.pick(sessionReq("s", role, 0))
			if bound := first == second; bound != tc.bound[role] {
				t.Errorf("%s, role %s: bound %v, want %v", tc.mode, role, bound, tc.bound[role])
			}
			if !tc.bound[role] {
				continue
			}
			if d := r.dec; d.Session != score.BoundHit || d.TieRule != score.BySession || d.Basis != score.BasisAffinity || d.Terms[1].Eligible {
				t.Errorf("decision = %+v, want a session hit that leaves out the others", d)
			}
			if got := r.led.Load(0).HeldRequests; got != 2 {
				t.Errorf("held = %d, want the hit to be booked too", got)
			}
			if r.pick(sessionReq("t", role, 0)) != "b" || r.dec.Session != score.BoundNew {
				t.Errorf("another session: %s, want new on b", r.dec.Session)
			}
		}
	}
}

func TestSessionTimeToLive(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware, affinity(score.AffinityBoth)))
	step := func(at int64, want string, found score.Bound) {
		t.Helper()
		if got := r.pick(sessionReq("s", score.Mixed, at)); got != want || r.dec.Session != found {
			t.Errorf("at %d s: %s, %s; want %s, %s", at/second, got, r.dec.Session, want, found)
		}
	}
	step(0, "a", score.BoundNew)
	old := r.dec.Handle
	r.busy(0, 50) // from here on the policy alone chooses b
	// In use, it never expires.
	step(9000*second, "a", score.BoundHit)
	r.end(r.dec.Handle, 9001*second)
	step(20000*second, "a", score.BoundHit)
	r.end(r.dec.Handle, 20001*second)
	r.end(old, 20002*second)
	// The time runs from the last release.
	step(23601*second, "a", score.BoundHit)
	r.end(r.dec.Handle, 23601*second)
	step(23601*second+3600*second, "b", score.BoundExpired)
	r.end(r.dec.Handle, 30000*second)
	step(30001*second, "b", score.BoundHit)
}

func TestSessionInvalid(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(r *rig)
	}{
		{"target forgotten", func(r *rig) { r.sc.Forget(0); r.led.Join(0, 1) }},
		{"target restarted", func(r *rig) { r.led.Join(0, 2) }},
		{"no candidate", func(r *rig) { r.cands = r.cands[1:] }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 3, config(score.KVAware, affinity(score.AffinityBoth)))
			if got := r.pick(sessionReq("s", score.Mixed, 0)); got != "a" {
				t.Fatalf("first pick %s, want a", got)
			}
			old := r.dec.Handle
			r.busy(0, 30)
			r.busy(1, 30)
			tc.lose(r)
			if tc.name != "no candidate" {
				r.busy(0, 30)
			}
			if got := r.pick(sessionReq("s", score.Mixed, 1)); got != "c" || r.dec.Session != score.BoundInvalid {
				t.Errorf("pick %s, session %s; want c, invalid", got, r.dec.Session)
			}
			// A late failure under the old binding does not touch the new one.
			r.sc.Unbind(old)
			r.sc.Release(old, 2)
			if got := r.pick(sessionReq("s", score.Mixed, 3)); got != "c" || r.dec.Session != score.BoundHit {
				t.Errorf("pick %s, session %s; want c, hit", got, r.dec.Session)
			}
			r.sc.Unbind(r.dec.Handle)
			if r.pick(sessionReq("s", score.Mixed, 4)); r.dec.Session != score.BoundNew {
				t.Errorf("after a failure: session %s, want new", r.dec.Session)
			}
		})
	}
}

func TestSessionCapacity(t *testing.T) {
	const capacity = 65536
	r := newRig(t, 2, config(score.KVAware, affinity(score.AffinityBoth)))
	handles := make([]load.Handle, capacity)
	pick := func(i int, at int64) score.Bound {
		req := score.Request{Session: fmt.Sprint("s", i), At: at, InputTokens: 1}
		if err := r.sc.Pick(&req, r.cands, &r.dec); err != nil {
			t.Fatal(err)
		}
		return r.dec.Session
	}
	for i := range capacity {
		if got := pick(i, 0); got != score.BoundNew {
			t.Fatalf("session %d: %s, want new", i, got)
		}
		handles[i] = r.dec.Handle
	}
	if got := pick(capacity, second); got != score.BoundFull || r.dec.Reason == "" {
		t.Errorf("one more: %s (%s), want full with a reason", got, r.dec.Reason)
	}
	r.end(handles[7], 2*second)
	if got := pick(capacity, 3*second); got != score.BoundFull {
		t.Errorf("one idle but young: %s, want full", got)
	}
	if got := pick(capacity, 3590*second); got != score.BoundFull { // sweeps
		t.Errorf("one idle, still young: %s, want full", got)
	}
	if got := pick(capacity, 3602*second); got != score.BoundNew { // before the next regular sweep
		t.Errorf("one idle for the time to live: %s, want new in its place", got)
	}
	if got := pick(7, 3602*second); got != score.BoundFull {
		t.Errorf("the dropped one: %s, want full", got)
	}
	if got := pick(8, 3602*second); got != score.BoundHit {
		t.Errorf("one in use: %s, want hit", got)
	}
	r.sc.Forget(0) // half of them sat there
	r.led.Join(0, 1)
	if got := pick(7, 3603*second); got != score.BoundNew || r.sc.Sessions() >= capacity {
		t.Errorf("after a target went: %s with %d bindings, want new and its bindings gone", got, r.sc.Sessions())
	}
}

// The sweep drops idle bindings long before the set is full.
func TestSessionSweep(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware, affinity(score.AffinityBoth)))
	for i := range 100 {
		r.serve(sessionReq(fmt.Sprint(i), score.Mixed, int64(i)*second))
	}
	if r.serve(sessionReq("late", score.Mixed, 3640*second)); r.sc.Sessions() > 61 {
		t.Errorf("%d bindings, want those idle for an hour gone", r.sc.Sessions())
	}
}

// The session policy has no time to live; at the bound the sessions unused longest make room.
func TestSessionPolicyIsBounded(t *testing.T) {
	r := newRig(t, 2, config(score.Session))
	for i := range 100_000 {
		req := score.Request{Session: fmt.Sprint(i), InputTokens: 1}
		if err := r.sc.Pick(&req, r.cands, &r.dec); err != nil {
			t.Fatal(err)
		}
		r.sc.Release(r.dec.Handle, 0)
	}
	if n := r.sc.Sessions(); n > 65536 || n < 30000 {
		t.Errorf("%d bindings, want at most 65536 and no more than half of them dropped at once", n)
	}
	req := score.Request{Session: "99999"}
	if r.pick(req); r.dec.Session != score.BoundHit {
		t.Errorf("the last session: %s, want hit", r.dec.Session)
	}
}

// A full set takes new sessions as soon as bindings are void because targets restarted, and however far
// the clock went back.
func TestFullSessionsMakeRoom(t *testing.T) {
	const capacity = 65536
	both := config(score.KVAware, affinity(score.AffinityBoth))
	for _, tc := range []struct {
		name    string
		cfg     score.Config
		release bool
		change  func(r *rig)
		at      []int64 // of new sessions; the last must find room
	}{
		{"restarted in use", both, false, func(r *rig) { r.led.Join(0, 2); r.led.Join(1, 2) }, []int64{1}},
		{"restarted, session policy", config(score.Session), false, func(r *rig) { r.led.Join(0, 2); r.led.Join(1, 2) }, []int64{1}},
		{"forgotten, session policy", config(score.Session), false, func(r *rig) {
			for i := range target.ID(2) {
				r.sc.Forget(i)
				r.led.Join(i, 1)
			}
		}, []int64{1}},
		{"clock went back", both, true, func(*rig) {}, []int64{0, 3600 * second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 2, tc.cfg)
			pick := func(name string, at int64) {
				req := score.Request{Session: name, At: at, InputTokens: 1}
				if err := r.sc.Pick(&req, r.cands, &r.dec); err != nil {
					t.Fatal(err)
				}
			}
			const start = 1_000_000 * second
			for i := range capacity {
				if pick(fmt.Sprint(i), start); tc.release {
					r.sc.Release(r.dec.Handle, start)
				}
			}
			tc.change(r)
			for i, at := range tc.at {
				pick(fmt.Sprint("new", i), at)
			}
			if r.dec.Session != score.BoundNew || r.sc.Sessions() > capacity {
				t.Errorf("a new session: %q with %d bindings, want new within %d", r.dec.Session, r.sc.Sessions(), capacity)
			}
		})
	}
}

// Refusing a session costs no look at all of them.
func TestFullSessionsRefuseCheaply(t *testing.T) {
	r := newRig(t, 2, config(score.Session))
	for i := range 65536 {
		req := score.Request{Session: fmt.Sprint(i)}
		if err := r.sc.Pick(&req, r.cands, &r.dec); err != nil {
			t.Fatal(err)
		}
	}
	req := score.Request{Session: "one more"}
	allocs := testing.AllocsPerRun(100, func() {
		if err := r.sc.Pick(&req, r.cands, &r.dec); err != nil || r.dec.Session != score.BoundFull {
			t.Fatalf("%v, session %s; want full", err, r.dec.Session)
		}
		r.sc.Release(r.dec.Handle, 0)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

// Scorers may share a ledger; a handle given to the wrong one must not bring it down.
func TestReleaseByAnotherScorer(t *testing.T) {
	r := newRig(t, 2, config(score.Session))
	other, err := score.New(config(score.Session), r.view, r.led)
	if err != nil {
		t.Fatal(err)
	}
	r.pick(score.Request{Session: "s"})
	other.Unbind(r.dec.Handle)
	if !other.Release(r.dec.Handle, 0) {
		t.Error("Release = false, want the reservation ended")
	}
}

// With affinity both, demand decides a session's first decode target only; with prefill, every pick.
func TestSessionsAndDemand(t *testing.T) {
	for mode, want := range map[score.Affinity]string{score.AffinityBoth: "aaa", score.AffinityPrefill: "aba"} {
		r := newRig(t, 2, config(score.KVAware, affinity(mode), demand(score.DemandOn, 0)))
		got := ""
		for i := range 3 {
			got += r.pick(sessionReq("s", score.Decode, int64(i)))
			if hit := r.dec.Session == score.BoundHit; hit != (r.dec.Suggested < 0) || hit != (r.dec.Original < 0) {
				t.Errorf("affinity %s: session %s with suggestion %d, original %d; want none on a hit", mode, r.dec.Session, r.dec.Suggested, r.dec.Original)
			}
		}
		if got != want {
			t.Errorf("affinity %s: picks %s, want %s", mode, got, want)
		}
	}
}

// A session hit takes no turn and no draw from the policy below it, and stands even where the policy
// did not draw the target.
func TestSessionHitsDoNotDisturb(t *testing.T) {
	for _, policy := range []string{score.Random, score.PowerOfTwo, score.RoundRobin} {
		plain, with := newRig(t, 5, config(policy)), newRig(t, 5, config(policy, affinity(score.AffinityBoth)))
		for i := range 100 {
			req := prompt(chain(i, 2))
			a, b := plain.serve(req), with.serve(req)
			if a != b {
				t.Fatalf("%s, pick %d: %s without hits between, %s with", policy, i, a, b)
			}
			if i == 0 {
				with.serve(sessionReq("s", score.Mixed, 0)) // takes a turn or draw, as any request does
				plain.serve(prompt(nil))
			}
			home := with.serve(sessionReq("s", score.Mixed, 0))
			tm := with.dec.PickedTerms()
			if with.dec.Session != score.BoundHit || tm.Candidate.Key != home || !tm.Eligible || tm.Note != "" {
				t.Fatalf("%s, pick %d: decision %+v, want a session hit on an eligible target", policy, i, with.dec)
			}
		}
	}
}

package vitals

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// conditions lists all that a snapshot shows to be wrong.
func (w *warnings) conditions(s *snapshot.Snapshot) (list []Fact) {
	add := func(f Fact, args ...any) {
		if len(args) > 0 {
			f.Text = fmt.Sprintf(f.Text, args...)
		}
		list = append(list, f)
	}
	switch {
	case s.Router.Draining:
		add(Fact{Kind: "draining", Text: "the router is ending: it takes no new requests"})
	case !s.Router.Ready:
		add(Fact{Kind: "not-ready", After: passing, Text: "not ready: %s"}, strings.Join(s.Router.NotReady, "; "))
	}
	last := ""
	for i := range s.Workers {
		x := &s.Workers[i]
		if x.WorkerID != last || last == "" { // ranks of one worker stand together
			last = x.WorkerID
			ofWorker(x, add)
		}
		ofStream(x, add)
		ofMirror(x, add)
	}
	w.uneven(s, add)
	return list
}

type adder func(f Fact, args ...any)

// ofWorker is about a worker as a whole; x is its first target.
func ofWorker(x *snapshot.Worker, add adder) {
	key, id := x.RouteKey, x.WorkerID
	switch x.Health {
	case "unhealthy":
		add(Fact{Kind: "health", Severity: "error", RouteKey: key, Worker: id, Text: "does not answer: %s"}, x.HealthReason)
	case "starting":
		add(Fact{Kind: "health", RouteKey: key, Worker: id, After: passing, Text: "cannot be used yet: %s"}, x.HealthReason)
	}
	switch x.Breaker {
	case "open", "half-open":
		add(Fact{Kind: "breaker", Severity: "error", RouteKey: key, Worker: id, Text: "breaker %s: requests to it failed"}, x.Breaker)
	}
	unknown := ""
	for _, p := range x.Parity {
		switch p.Verdict {
		case "diverged":
			add(Fact{Kind: "parity", Severity: "error", RouteKey: key, Worker: id, Text: "the engine makes other tokens than we do (%s): %s"}, p.Case, p.Detail)
			return
		case "confirmed":
			unknown = "confirmed"
		case "unknown":
			if unknown == "" {
				unknown = p.Detail
			}
		}
	}
	if len(x.Parity) > 0 && unknown != "confirmed" {
		add(Fact{Kind: "parity", RouteKey: key, Worker: id, After: passing, Text: "whether the engine makes the tokens we do could not be found out: %s"}, unknown)
	}
}

func ofStream(x *snapshot.Worker, add adder) {
	healthy := x.Health == "healthy"
	switch x.Trust {
	case "gap":
		add(Fact{Kind: "gap", RouteKey: x.RouteKey, Text: x.TrustReason})
	case "silent":
		add(Fact{Kind: "silent", Severity: "error", RouteKey: x.RouteKey, Text: x.TrustReason})
	case "malformed":
		add(Fact{Kind: "malformed", Severity: "error", RouteKey: x.RouteKey, Text: x.TrustReason})
	case "diverged":
		add(Fact{Kind: "predictions", RouteKey: x.RouteKey, Text: x.TrustReason})
	case "unverifiable":
		add(Fact{Kind: "unverifiable", RouteKey: x.RouteKey, Text: x.TrustReason})
	case "warming":
		add(Fact{Kind: "warming", RouteKey: x.RouteKey, After: passing, Text: "not all that its cache holds is known: %s"}, x.TrustReason)
	case "connecting", "resync":
		if healthy {
			add(Fact{Kind: "stream", RouteKey: x.RouteKey, After: passing, Text: "events do not come: %s"}, x.TrustReason)
		}
	case "no-events":
		if healthy {
			add(Fact{Kind: "approximate", RouteKey: x.RouteKey, Text: "its cache is guessed from what was sent there: %s"}, x.TrustReason)
		}
	}
	if len(x.Stream.Skipped) > 0 {
		for _, why := range slices.Sorted(maps.Keys(x.Stream.Skipped)) {
			add(Fact{Kind: "skipped", RouteKey: x.RouteKey, Name: why, Counted: true, Count: x.Stream.Skipped[why], Text: "%d of its events were left out: " + why})
		}
	}
}

func ofMirror(x *snapshot.Worker, add adder) {
	if x.Health == "healthy" && !x.Approximate && x.PageSize == nil {
		add(Fact{Kind: "block-size", RouteKey: x.RouteKey, After: passing, Text: "how large its blocks are is not known before its first event: its cache counts for nothing"})
	}
	for _, c := range []struct {
		kind, text string
		n          uint64
	}{
		{"index-full", "the index is full (--index-limit): %d blocks of its cache were not taken into the mirror", x.Stream.Refused},
		{"orphans", "%d blocks of its cache were given up: the blocks they hang on never came", x.Stream.Dropped},
		{"conflicts", "%d blocks of its cache were not taken: they are known under another parent", x.Stream.Conflicts},
	} {
		if c.n == 0 {
			continue
		}
		add(Fact{Kind: c.kind, RouteKey: x.RouteKey, Counted: true, Count: c.n, Text: c.text})
	}
}

// Uneven: one target holds more than unevenFrom times its peers' mean for unevenFor, until less than unevenTo.
const (
	unevenFrom  = 3.0
	unevenTo    = 2.0
	unevenLeast = 4 // requests
)

func (w *warnings) uneven(s *snapshot.Snapshot, add adder) {
	type group struct{ model, role string }
	type sum struct{ n, held int64 }
	sums := map[group]sum{}
	for i := range s.Workers {
		if x := &s.Workers[i]; x.Health == "healthy" {
			g := sums[group{x.Model, x.Role}]
			sums[group{x.Model, x.Role}] = sum{g.n + 1, g.held + x.HeldTokens}
		}
	}
	for i := range s.Workers {
		x := &s.Workers[i]
		if x.Health != "healthy" || x.HeldRequests < unevenLeast {
			continue
		}
		g := sums[group{x.Model, x.Role}]
		if g.n < 2 {
			continue
		}
		others := float64(g.held-x.HeldTokens) / float64(g.n-1)
		bound := unevenFrom
		if w.open["imbalance "+x.RouteKey] != nil {
			bound = unevenTo
		}
		if float64(x.HeldTokens) > bound*others {
			add(Fact{Kind: "imbalance", RouteKey: x.RouteKey, After: unevenFor, Text: "holds %d tokens of requests, the others %.0f on average"}, x.HeldTokens, others)
		}
	}
}

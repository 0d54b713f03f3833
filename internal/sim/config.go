// Package sim runs a trace through a simulated fleet in virtual time: engine models (package engine)
// behind one or several routers, each of which is the scorer that serves live requests, with its own
// ledger and a mirror of the caches that hears of changes as a live router does, late if so wished.
//
// A run is one goroutine and deterministic: same workload, same Config, same bytes.
package sim

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
)

// Names of the engine models.
const (
	SerialEngine = "serial"
	BatchEngine  = "batch"
)

// SerialParams are the constants of the serial engine, in integer microseconds.
type SerialParams struct {
	PrefillUSPerToken int64
	DecodeUSPerToken  int64
}

// DefaultSerial returns the serial engine's default constants.
func DefaultSerial() SerialParams {
	return SerialParams{PrefillUSPerToken: 50, DecodeUSPerToken: 10000}
}

// Slow sets the speed of one worker: 1 is normal, 0.5 takes twice as long.
type Slow struct {
	Worker int
	Speed  float64
}

// Kill ends one worker for good: its cache is lost, and what it had in flight is sent again, once, to
// those that remain.
type Kill struct {
	Worker int
	At     time.Duration
}

// Config describes a fleet and its routers. Workers are numbered from 0; in a disaggregated fleet the
// prefill workers come first.
type Config struct {
	Workers        int // aggregated workers; 0 in a disaggregated fleet
	PrefillWorkers int
	DecodeWorkers  int
	Engine         string          // SerialEngine or BatchEngine
	Serial         SerialParams    // serial only
	Profile        *engine.Profile // batch: nil is engine.DefaultProfile; serial: only its transfer time is used, nil is free
	Capacity       int             // blocks per worker; 0: without limit (serial), the profile's pool (batch)
	Score          score.Config
	Routers        int           // 0 counts as 1. Request i goes through router i mod Routers
	EventDelay     time.Duration // from a change of a cache until the routers know of it
	Slow           []Slow
	Kill           []Kill
	Seed           uint64 // of random policies; 0 leaves Score.Seed as it is
	Decisions      io.Writer
	Progress       func(done, total int) // now and then, with the requests routed so far; may be nil
}

// Limits of a fleet.
const (
	maxRouters  = 1024
	maxSpeed    = 1000
	minSpeed    = 0.001
	maxTokenUS  = 1_000_000_000
	maxCapacity = 1 << 31
)

// fleetSize is the number of workers of all roles.
func (c *Config) fleetSize() int { return c.Workers + c.PrefillWorkers + c.DecodeWorkers }

// disaggregated tells a fleet of prefill and decode workers.
func (c *Config) disaggregated() bool { return c.PrefillWorkers > 0 || c.DecodeWorkers > 0 }

// Validate returns nil or score.FieldErrors with every fault, named by the flags that set the fields.
func (c *Config) Validate() error {
	var es score.FieldErrors
	fault := func(field, value, reason, hint string) {
		es = append(es, &score.FieldError{Field: field, Value: value, Reason: reason, Hint: hint})
	}
	c.validateFleet(fault)
	switch c.Engine {
	case SerialEngine:
		if v := c.Serial.PrefillUSPerToken; v < 0 || v > maxTokenUS {
			fault("prefill-us-per-token", strconv.FormatInt(v, 10), fmt.Sprintf("must be 0 to %d", maxTokenUS), "")
		}
		if v := c.Serial.DecodeUSPerToken; v < 0 || v > maxTokenUS {
			fault("decode-us-per-token", strconv.FormatInt(v, 10), fmt.Sprintf("must be 0 to %d", maxTokenUS), "")
		}
	case BatchEngine:
	default:
		fault("engine", strconv.Quote(c.Engine), "no such engine model", "choose serial or batch")
	}
	if c.Profile != nil {
		if err := c.Profile.Validate(); err != nil {
			fault("profile", c.Profile.Name, err.Error(), "")
		}
	}
	if c.Capacity < 0 || c.Capacity > maxCapacity {
		fault("capacity", strconv.Itoa(c.Capacity), fmt.Sprintf("must be 0 to %d blocks", maxCapacity), "")
	}
	if c.Routers < 0 || c.Routers > maxRouters {
		fault("routers", strconv.Itoa(c.Routers), fmt.Sprintf("must be 1 to %d", maxRouters), "")
	}
	if c.EventDelay < 0 || c.EventDelay > time.Hour {
		fault("event-delay", c.EventDelay.String(), "must be 0 to 1h", "")
	}
	c.validateSlow(fault)
	c.validateKills(fault)
	return es.With(c.Score.Validate())
}

type faulter func(field, value, reason, hint string)

func (c *Config) validateFleet(fault faulter) {
	count := func(field string, n int) {
		if n < 0 || n > target.MaxTargets {
			fault(field, strconv.Itoa(n), fmt.Sprintf("must be 0 to %d", target.MaxTargets), "")
		}
	}
	count("workers", c.Workers)
	count("prefill-workers", c.PrefillWorkers)
	count("decode-workers", c.DecodeWorkers)
	switch {
	case c.Workers > 0 && c.disaggregated():
		fault("workers", strconv.Itoa(c.Workers), "cannot be combined with --prefill-workers and --decode-workers", "leave one or the other out")
	case c.Workers == 0 && !c.disaggregated():
		fault("workers", "0", "a fleet needs at least one worker", "")
	case c.disaggregated() && c.PrefillWorkers == 0:
		fault("prefill-workers", "0", "--decode-workers needs prefill workers beside them", "")
	case c.disaggregated() && c.DecodeWorkers == 0:
		fault("decode-workers", "0", "--prefill-workers needs decode workers beside them", "")
	case c.fleetSize() > target.MaxTargets:
		fault("workers", strconv.Itoa(c.fleetSize()), fmt.Sprintf("at most %d workers of all roles", target.MaxTargets), "")
	}
}

func (c *Config) validateSlow(fault faulter) {
	seen := make(map[int]bool)
	for _, s := range c.Slow {
		value := fmt.Sprintf("%d:%v", s.Worker, s.Speed)
		if s.Worker < 0 || s.Worker >= c.fleetSize() {
			fault("slow-worker", value, c.noWorker(s.Worker), "")
		}
		if !(s.Speed >= minSpeed && s.Speed <= maxSpeed) || math.IsInf(s.Speed, 0) {
			fault("slow-worker", value, fmt.Sprintf("speed must be %v to %v (1 is normal, 0.5 half as fast)", minSpeed, maxSpeed), "")
		}
		if seen[s.Worker] {
			fault("slow-worker", value, fmt.Sprintf("worker %d has a speed already", s.Worker), "")
		}
		seen[s.Worker] = true
	}
}

func (c *Config) validateKills(fault faulter) {
	seen := make(map[int]bool)
	pools := []struct {
		name string
		size int
		kill []string
	}{{name: "worker", size: c.Workers}, {name: "decode worker", size: c.DecodeWorkers}}
	if c.disaggregated() {
		pools[0].name, pools[0].size = "prefill worker", c.PrefillWorkers
	}
	for _, k := range c.Kill {
		value := fmt.Sprintf("%d@%v", k.Worker, k.At)
		if k.Worker < 0 || k.Worker >= c.fleetSize() {
			fault("kill-worker", value, c.noWorker(k.Worker), "")
			continue
		}
		if k.At < 0 {
			fault("kill-worker", value, "the time must not be negative", "")
		}
		if seen[k.Worker] {
			fault("kill-worker", value, fmt.Sprintf("worker %d is killed already", k.Worker), "")
			continue
		}
		seen[k.Worker] = true
		p := &pools[0]
		if c.disaggregated() && k.Worker >= c.PrefillWorkers {
			p = &pools[1]
		}
		p.kill = append(p.kill, value)
	}
	for _, p := range pools {
		if p.size > 0 && len(p.kill) >= p.size {
			fault("kill-worker", strings.Join(p.kill, " "), "no "+p.name+" would be left", "leave at least one of each role alive")
		}
	}
}

func (c *Config) noWorker(w int) string {
	if n := c.fleetSize(); n > 0 {
		return fmt.Sprintf("there is no worker %d: they are numbered 0 to %d", w, n-1)
	}
	return fmt.Sprintf("there is no worker %d", w)
}

// maxArrival keeps arrivals well inside the batch engine's clock (106 days of picoseconds).
const maxArrival = 80 * 24 * 3600 * 1_000_000

// checkWorkload finds what a run cannot do with a workload.
func (c *Config) checkWorkload(w *trace.Workload) error {
	if len(w.Requests) == 0 {
		return fmt.Errorf("simulating trace %s: it has no requests", w.Name)
	}
	if last := w.Requests[len(w.Requests)-1].Arrival; c.Engine == BatchEngine && last > maxArrival {
		return fmt.Errorf("simulating trace %s: it is longer than 80 days (%d s); --speedup makes it shorter", w.Name, last/1_000_000)
	}
	return nil
}

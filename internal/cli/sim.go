package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sim"
	"github.com/kvroute/kvroute/internal/sweep"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
)

// simFlags are the flags of sim.
type simFlags struct {
	experiment
	prefillWorkers, decodeWorkers int
	engine                        string
	serial                        sim.SerialParams
	profile                       string
	routers                       int
	eventDelay                    time.Duration
	slow                          []sim.Slow
	kill                          []sim.Kill

	loaded *engine.Profile
}

func (a *app) newSim() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim [FILE…]",
		Short: "Simulate a fleet of engines on recorded traffic, with the scorer that serves",
		Long: `Requests arrive as recorded, are placed by the scorer on what the router knows,
and queue, prefill and decode on modelled engines. Time is virtual: the same
trace, flags and seed give the same bytes.

Engines:
  serial  prefill first come first served, decode without contention, in whole
          microseconds a token; quick, exact, and without batching
  batch   continuous batching: steps of a + b·running + c·context, chunked
          prefill, a KV pool with admission, preemption and LRU prefix reuse;
          constants from --profile (see kvroute profiles)

--prefill-workers and --decode-workers make a disaggregated fleet; its prefill
workers have the lower numbers. --sweep takes any scorer flag, workers,
capacity, routers or event-delay, several times for all combinations, and ends
in a recommendation: flags to paste, and what they gain over the default.` + metricsHelp(true),
		Example: `  # one run
  kvroute sim --trace traces/golden/sessions80-serial.jsonl.gz --workers 4
  # weights of the formula against round robin and the default, with a plot
  kvroute sim --trace traces/golden/sessions80-serial.jsonl.gz --workers 4 --router-policy kv-aware --sweep kv-overlap-weight=0,1,20 --plot weights.svg
  # two prefill and two decode workers, one of them at half speed, late events
  kvroute sim --trace traces/golden/sessions80-inter16.jsonl.gz --engine batch --prefill-workers 2 --decode-workers 2 --slow-worker 3:0.5 --event-delay 50ms
  # a check for scripts: exit code 3 if the condition holds
  kvroute sim traces/golden/sessions80-serial.jsonl.gz --workers 4 --fail-if 'ttft_p99>10s' -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.traffic.take(cmd, args); err != nil {
				return err
			}
			d, err := a.simDriver(&f)
			if err != nil {
				return err
			}
			return a.perform(cmd.Context(), &f.experiment, d)
		},
	}
	fs := cmd.Flags()
	bindExperiment(cmd, &f.experiment, "blocks a worker can cache; 0: no limit (serial), the profile's pool (batch)")
	bind(cmd, fs, spec{name: "prefill-workers", arg: "N", group: groupFleet, usage: "prefill workers of a disaggregated fleet"}, &f.prefillWorkers, intBetween(1, target.MaxTargets))
	bind(cmd, fs, spec{name: "decode-workers", arg: "N", group: groupFleet, usage: "decode workers of a disaggregated fleet"}, &f.decodeWorkers, intBetween(1, target.MaxTargets))
	bind(cmd, fs, spec{name: "routers", arg: "N", def: "1", group: groupFleet, usage: "routers that take turns and do not talk to each other"}, &f.routers, intBetween(1, 1024))
	bind(cmd, fs, spec{name: "event-delay", arg: "TIME", def: "0s", group: groupFleet, usage: "from a change of a cache until the routers know of it"}, &f.eventDelay, parseSpan)
	bindList(cmd, fs, spec{name: "slow-worker", arg: "I:SPEED", group: groupFleet, usage: "speed of worker I, as in 3:0.5 for half speed; repeatable"}, ",", &f.slow, parseSlow)
	bindList(cmd, fs, spec{name: "kill-worker", arg: "I@TIME", group: groupFleet, usage: "end worker I for good, as in 2@600s; repeatable"}, ",", &f.kill, parseKill)
	engines := []string{sim.SerialEngine, sim.BatchEngine}
	bind(cmd, fs, spec{name: "engine", arg: "NAME", def: sim.SerialEngine, group: groupEngine, values: engines, usage: "serial, batch"}, &f.engine, oneOf(engines...))
	serial := sim.DefaultSerial()
	bind(cmd, fs, spec{
		name: "prefill-us-per-token", arg: "US", def: strconv.FormatInt(serial.PrefillUSPerToken, 10), group: groupEngine,
		usage: "serial: microseconds to compute a prompt token",
	}, &f.serial.PrefillUSPerToken, parseCount)
	bind(cmd, fs, spec{
		name: "decode-us-per-token", arg: "US", def: strconv.FormatInt(serial.DecodeUSPerToken, 10), group: groupEngine,
		usage: "serial: microseconds between two tokens of an answer",
	}, &f.serial.DecodeUSPerToken, parseCount)
	bind(cmd, fs, spec{
		name: "profile", arg: "NAME|FILE", group: groupEngine, values: engine.ProfileNames(),
		usage: "batch: constants of the engine, built in or a YAML file (default " + engine.DefaultProfile + "); serial: the transfer time between two pools (default none)",
	}, &f.profile, parseText)
	bindResults(cmd, &f.experiment, simSweeps(), "measure all these values of a scorer flag, workers, capacity, routers or event-delay; repeatable, all combinations")
	return cmd
}

// parseSlow reads I:SPEED.
func parseSlow(s string) (sim.Slow, error) {
	const form = "a slow worker looks like 3:0.5"
	w, speed, ok := strings.Cut(s, ":")
	if !ok {
		return sim.Slow{}, &valueError{"no : in it", form}
	}
	i, err := intBetween(0, target.MaxTargets-1)(w)
	if err != nil {
		return sim.Slow{}, &valueError{fmt.Sprintf("worker %q: %s", w, err), form}
	}
	x, err := parsePositive(speed)
	if err != nil {
		return sim.Slow{}, &valueError{fmt.Sprintf("speed %q: %s", speed, err), form}
	}
	return sim.Slow{Worker: i, Speed: x}, nil
}

// parseKill reads I@TIME.
func parseKill(s string) (sim.Kill, error) {
	const form = "a killed worker looks like 2@600s"
	w, at, ok := strings.Cut(s, "@")
	if !ok {
		return sim.Kill{}, &valueError{"no @ in it", form}
	}
	i, err := intBetween(0, target.MaxTargets-1)(w)
	if err != nil {
		return sim.Kill{}, &valueError{fmt.Sprintf("worker %q: %s", w, err), form}
	}
	t, err := parseSpan(at)
	if err != nil {
		return sim.Kill{}, &valueError{fmt.Sprintf("time %q: %s", at, err), form}
	}
	return sim.Kill{Worker: i, At: t}, nil
}

// simDriver is sim's part of an experiment.
func (a *app) simDriver(f *simFlags) (*driver, error) {
	pd := f.prefillWorkers > 0 || f.decodeWorkers > 0
	if f.workers == 0 && !pd && !sweeps(f.sweeps, "workers") {
		return nil, usage("no fleet", "kvroute sim", "the number of workers is not given", "add --workers N, or --prefill-workers P --decode-workers D")
	}
	for _, name := range []string{"prefill-us-per-token", "decode-us-per-token"} {
		if f.engine != sim.SerialEngine && a.given(name) {
			return nil, usage("--"+name+" with --engine "+f.engine, "--"+name, "only the serial engine has it", "constants of the batch engine come from --profile")
		}
	}
	var inputs []named
	if f.profile != "" {
		if f.engine == sim.SerialEngine && !pd {
			return nil, usage("--profile with --engine "+f.engine, "--profile",
				"of a profile the serial engine uses the transfer time only, which this fleet has none of", "add --engine batch")
		}
		if _, builtIn := engine.Lookup(f.profile); !builtIn {
			inputs = []named{{f.profile, "the profile"}}
		}
		p, err := loadProfile(f.profile)
		if err != nil {
			return nil, err
		}
		f.loaded = p
	}
	flags := map[string]any{
		"capacity": f.capacity, "engine": f.engine, "routers": f.routers, "event-delay": f.eventDelay.String(), "repeat": f.repeat,
	}
	if f.workers > 0 { // else the pools or a sweep say how many
		flags["workers"] = f.workers
	}
	if pd {
		flags["prefill-workers"], flags["decode-workers"] = f.prefillWorkers, f.decodeWorkers
	}
	if f.engine == sim.SerialEngine {
		flags["prefill-us-per-token"], flags["decode-us-per-token"] = f.serial.PrefillUSPerToken, f.serial.DecodeUSPerToken
	} else {
		flags["profile"] = engine.DefaultProfile
	}
	a.addGiven(flags, "profile", "slow-worker", "kill-worker")
	a.addGiven(flags, trafficFlags...)
	return &driver{
		sim: true, flags: flags, inputs: inputs,
		sweep: simSweeps(),
		check: func(cfg score.Config, p *sweep.Point) error {
			c := f.config(cfg, p)
			return c.Validate()
		},
		run: func(ctx context.Context, w *trace.Workload, cfg score.Config, p *sweep.Point, decisions io.Writer, progress func(done, total int)) (*report.Run, error) {
			c := f.config(cfg, p)
			c.Decisions, c.Progress = decisions, progress
			return sim.Run(ctx, w, c)
		},
	}, nil
}

// config is the simulation at a point of a sweep.
func (f *simFlags) config(cfg score.Config, p *sweep.Point) sim.Config {
	return sim.Config{
		Workers: int(p.Int("workers", int64(f.workers))), PrefillWorkers: f.prefillWorkers, DecodeWorkers: f.decodeWorkers,
		Engine: f.engine, Serial: f.serial, Profile: f.loaded,
		Capacity: int(p.Int("capacity", f.capacity)), Score: cfg,
		Routers: int(p.Int("routers", int64(f.routers))), EventDelay: p.Duration("event-delay", f.eventDelay),
		Slow: f.slow, Kill: f.kill,
	}
}

// addGiven adds flags that the user set: numbers as numbers, everything else as typed.
func (a *app) addGiven(flags map[string]any, names ...string) {
	for _, n := range names {
		if !a.given(n) {
			continue
		}
		flags[n] = a.texts[n]
		if x, err := parseReal(a.texts[n]); err == nil {
			flags[n] = x
		}
	}
}

// sweeps says whether a flag is among those swept. The texts are checked later.
func sweeps(texts []string, flag string) bool {
	for _, t := range texts {
		name, _, _ := strings.Cut(t, "=")
		if strings.TrimLeft(strings.TrimSpace(name), "-") == flag {
			return true
		}
	}
	return false
}

// loadProfile finds a built-in profile, or reads one from a file.
func loadProfile(name string) (*engine.Profile, error) {
	if p, ok := engine.Lookup(name); ok {
		return p, nil
	}
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(name, "./"):
		return nil, usage(fmt.Sprintf("unknown profile %q", name), "--profile", "neither built in nor a file", didYouMean(name, engine.ProfileNames()))
	case err != nil:
		return nil, usage("cannot read profile "+name, "--profile", pathWhy(err), didYouMean(name, engine.ProfileNames()))
	}
	p, err := engine.ParseProfile(bytes.NewReader(text), name)
	if err != nil {
		return nil, usage("bad profile", "--profile", err.Error(), "kvroute profiles NAME prints a built-in one to start from")
	}
	return p, nil
}

// simSweeps are the flags that sim can sweep.
func simSweeps() []sweep.Flag { return sweepable("workers", "capacity", "event-delay", "routers") }

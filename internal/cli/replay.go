package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sweep"
	"github.com/kvroute/kvroute/internal/trace"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	experiment
	outstanding int
	verify      bool
}

func (a *app) newReplay() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay [FILE…]",
		Short: "Replay a trace, or a recording of serve, through the scorer without a clock",
		Long: `One request after the other; each worker is an LRU prefix cache of --capacity
blocks. Before a pick the oldest of --outstanding requests is released, so one
fewer are in flight; prefill counts as done at once. For times, see sim.

Without --workers the files are a recording of serve --record: all parts of one
run, in any order. --verify makes every decision again from the recorded
requests, cache events and load, and exits with 3 unless all are equal, byte for
byte. Scorer flags instead show which decisions they change, and what that does
to predicted hits and load; caches fill, and requests end, as they did. As a
trace a recording can be given to sim, and to replay with --workers.` + metricsHelp(false),
		Example: `  kvroute replay --trace traces/golden/sessions80-serial.jsonl.gz --workers 4 --capacity 1000
  # policies side by side, eight requests outstanding
  kvroute replay traces/golden/sessions80-inter16.jsonl.gz --workers 4 --outstanding 8 --sweep router-policy=least-work,kv-aware,prefix,session
  # does the scorer decide as the live router did? what would another policy do?
  kvroute replay --verify traces/golden/recording.jsonl.gz
  kvroute replay traces/golden/recording.jsonl.gz --router-policy kv-aware
  # every decision, for explain
  kvroute replay traces/golden/sessions80-serial.jsonl.gz --workers 2 --decisions d.jsonl && kvroute explain --decisions d.jsonl --id 100`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.traffic.take(cmd, args); err != nil {
				return err
			}
			if f.onRecording() {
				return a.replayRecording(cmd.Context(), &f)
			}
			d, err := a.replayDriver(&f)
			if err != nil {
				return err
			}
			return a.perform(cmd.Context(), &f.experiment, d)
		},
	}
	bindExperiment(cmd, &f.experiment, "blocks a worker can cache; 0: no limit")
	bind(cmd, cmd.Flags(), spec{
		name: "outstanding", arg: "K", def: "1", group: groupFleet,
		usage: "release the oldest of K requests before each pick",
	}, &f.outstanding, intBetween(1, replay.MaxOutstanding))
	bindSwitch(cmd, cmd.Flags(), spec{
		name: "verify", group: groupDecision, local: true,
		usage: "make every decision of a recording again and exit with 3 unless all are equal",
	}, &f.verify)
	bindResults(cmd, &f.experiment, replaySweeps(), "measure all these values of a scorer flag, workers, capacity or outstanding; repeatable, all combinations")
	return cmd
}

// replayDriver is replay's part of an experiment.
func (a *app) replayDriver(f *replayFlags) (*driver, error) {
	flags := map[string]any{"capacity": f.capacity, "outstanding": f.outstanding, "repeat": f.repeat}
	if f.workers > 0 { // else a sweep says how many
		flags["workers"] = f.workers
	}
	a.addGiven(flags, trafficFlags...)
	config := func(cfg score.Config, p *sweep.Point) replay.Config {
		return replay.Config{
			Workers: int(p.Int("workers", int64(f.workers))), Capacity: int(p.Int("capacity", f.capacity)),
			Outstanding: int(p.Int("outstanding", int64(f.outstanding))), Score: cfg,
		}
	}
	return &driver{
		flags: flags, sweep: replaySweeps(),
		check: func(cfg score.Config, p *sweep.Point) error {
			c := config(cfg, p)
			return c.Validate()
		},
		run: func(ctx context.Context, w *trace.Workload, cfg score.Config, p *sweep.Point, decisions io.Writer, progress func(done, total int)) (*report.Run, error) {
			c := config(cfg, p)
			c.Decisions, c.Progress = decisions, progress
			return replay.Run(ctx, w, c)
		},
	}, nil
}

// replaySweeps are the flags that replay can sweep.
func replaySweeps() []sweep.Flag { return sweepable("workers", "capacity", "outstanding") }

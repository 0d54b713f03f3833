package cli

import (
	"context"
	"os"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tui"
)

// faultVar makes this test binary a screen that fails in the way it names.
const faultVar = "KVROUTE_TEST_FAULT"

func init() {
	where := os.Getenv(faultVar)
	if where == "" {
		return
	}
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, outTerm: true, env: map[string]string{}, now: time.Now}
	err := a.screen(context.Background(), &faultySource{where: where}, &watchFlags{mouse: true})
	say(a.stderr, err)
	os.Exit(exitCode(err))
}

// faultySource fails in one of the goroutines that run while a screen is drawn.
type faultySource struct{ where string }

func (s *faultySource) Name() string { return "faulty" }

func (s *faultySource) Run(ctx context.Context, send func(tui.Update)) {
	at := int64(1_700_000_000_000)
	send(tui.Update{Link: tui.Live, Snap: &snapshot.Snapshot{
		Schema: snapshot.Schema, Run: "r", Seq: 1, AtMS: at, Router: snapshot.Router{Ready: true, Policy: "least-work"},
		Workers: []snapshot.Worker{{WorkerID: "worker-0", RouteKey: "worker-0", Health: "healthy", Trust: "trusted"}},
		Picks:   []snapshot.Pick{{ID: 1, AtMS: at, RouteKey: "worker-0", Basis: "exact"}},
	}})
	if s.where == "source" {
		wait := time.NewTimer(300 * time.Millisecond) // the screen is drawn meanwhile, or not: both must do
		defer wait.Stop()
		<-wait.C
		panic("planted fault")
	}
	<-ctx.Done()
}

func (s *faultySource) Explain(context.Context, uint64) ([]byte, error) { panic("planted fault") }

func (s *faultySource) Pause(bool)       { panic("planted fault") }
func (s *faultySource) SetSpeed(float64) {}
func (s *faultySource) Skip(int64)       {}

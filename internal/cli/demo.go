package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/trace"
	"github.com/kvroute/kvroute/traces"
)

// demoFlags are the flags of demo.
type demoFlags struct {
	length   time.Duration
	workers  int
	clients  int
	capacity int
	dialect  string
	listen   string
	scale    float64
	pd       bool
	scorer   scorerFlags
}

func (a *app) newDemo() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work: engines, router and real traffic in one process, beside round robin",
		Long: `Starts a fleet of stand-in engines with small caches, kvroute in front of it,
and the recorded sessions of a software agent as traffic; beside them a second
fleet like the first behind round robin, with the same traffic. Nothing else is
needed: no GPU, no download. Prompts are words put together from the recorded
blocks, so that what was shared is shared; step times come from a profile.

Every two seconds a line says what share of the prompt tokens was found cached,
by the engines' own account, and the time to the first token. The router can be
asked meanwhile, as the first lines say.`,
		Example: `  # two seconds of it
  kvroute demo --for 2s
  # the published formula on eight SGLang stand-ins
  kvroute demo --for 2s --workers 8 --dialect sglang --router-policy kv-aware`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), &f) },
	}
	fs := cmd.Flags()
	var dialects []string
	for _, d := range fakeengine.Dialects() {
		dialects = append(dialects, string(d))
	}
	bind(cmd, fs, spec{name: "for", arg: "TIME", def: "0s", group: groupFleet, usage: "end after this time; 0: with ^C"}, &f.length, parseSpan)
	bind(cmd, fs, spec{name: "workers", arg: "N", def: "4", group: groupFleet, usage: "engines of each fleet"}, &f.workers, intBetween(1, 64))
	bind(cmd, fs, spec{name: "clients", arg: "N", def: "8", group: groupFleet, usage: "sessions at a time, on each fleet"}, &f.clients, intBetween(1, 256))
	bind(cmd, fs, spec{name: "listen", arg: "ADDR", def: "127.0.0.1:0", group: groupFleet, usage: "address of the router; port 0: a free one"}, &f.listen, parseText)
	bindSwitch(cmd, fs, spec{name: "pd", group: groupFleet, usage: "a fleet with prefill and decode apart (not there yet)"}, &f.pd)
	bind(cmd, fs, spec{name: "dialect", arg: "NAME", def: dialects[0], group: groupEngine, values: dialects, usage: "the engines to be: " + strings.Join(dialects, ", ")}, &f.dialect, oneOf(dialects...))
	bind(cmd, fs, spec{name: "capacity", arg: "BLOCKS", def: "2500", group: groupEngine, usage: "blocks of 16 tokens that an engine can cache; at least 2500, as one session may need that"}, &f.capacity, intBetween(2500, 1<<20))
	bind(cmd, fs, spec{name: "time-scale", arg: "X", def: "0.25", group: groupEngine, usage: "multiply the step times of the profile " + engine.DefaultProfile}, &f.scale, parseReal)
	bindScorer(cmd, &f.scorer)
	return cmd
}

// maxDemoPrompt is the longest prompt and answer that the demo's engines take, in tokens; the longest
// session of the trace fits.
const maxDemoPrompt = 39_000

// side is one of the two fleets, with its router and its traffic.
type side struct {
	name    string
	engines []*fakeengine.Engine
	server  *server
	url     string
	traffic *demoTraffic
	stop    context.CancelFunc // of what looks for warnings
}

// demo runs both sides until it is time, or the first signal.
func (a *app) demo(ctx context.Context, f *demoFlags) (err error) {
	if f.pd {
		return usage("--pd", "kvroute demo", "fleets with prefill and decode apart are not there yet", "leave it out; kvroute sim has them")
	}
	if err := a.validateScorer(&f.scorer.cfg); err != nil {
		return err
	}
	w, err := trace.Load([]trace.Source{{Name: traces.AgentName, R: bytes.NewReader(traces.Agent)}}, trace.Options{})
	if err != nil {
		return failed("cannot read the bundled trace", traces.AgentName, err)
	}
	served, voc, model, err := a.engineModel("", "")
	if err != nil {
		return err
	}
	words, err := demoWords(voc)
	if err != nil {
		return failed("cannot make prompts", "", err)
	}
	rr := f.scorer.cfg
	rr.Policy = "round-robin"
	sides := []*side{{name: "kvroute"}, {name: "round-robin"}}
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.close())
		}
	}()
	for i, s := range sides {
		cfg, listen := f.scorer.cfg, f.listen
		if i == 1 {
			cfg, listen = rr, "127.0.0.1:0"
		}
		base := fakeengine.Config{
			Dialect: fakeengine.Dialect(f.dialect), Model: model, Tokenizer: served, Vocabulary: voc, Capacity: f.capacity,
			MaxModelLen: maxDemoPrompt, TimeScale: f.scale, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0",
		}
		if err := a.openSide(ctx, s, f.workers, base, scorerFlags{cfg}, listen); err != nil {
			return err
		}
		s.traffic = newDemoTraffic(w, words, s.url, model)
	}
	return a.play(ctx, f, sides)
}

// openSide starts the engines and the router of one side.
func (a *app) openSide(ctx context.Context, s *side, n int, base fakeengine.Config, scorer scorerFlags, listen string) error {
	var workers []discovery.Spec
	for range n {
		e, err := fakeengine.Start(base)
		if err != nil {
			return failed("cannot start an engine", "", err)
		}
		s.engines = append(s.engines, e)
		at := e.URL()
		if base.Dialect == fakeengine.ATOM || base.Dialect == fakeengine.TRTLLM { // they have no page that says where
			events, replay := e.Endpoints(0)
			at += ",engine=" + string(base.Dialect) + ",events=" + events + ",replay=" + replay + ",topic=kv-events"
		}
		w, err := parseWorker(at)
		if err != nil {
			return failed("cannot use an engine", at, err)
		}
		workers = append(workers, w)
	}
	sf := &serveFlags{
		workers: workers, backend: "static", blockSize: 16, scorer: scorer, router: router.Defaults(),
		connectTimeout: 5 * time.Second, logLevel: "error", logFormat: "text",
	}
	s.server = &server{a: a, f: sf, log: slog.New(slog.DiscardHandler), reg: prometheus.NewRegistry()}
	tok, _, _, err := a.engineModel("", "") // a cache of its own, as in a process of its own
	if err != nil {
		return err
	}
	if err := s.server.open(func(string) tokenize.Tokenizer { return tok }); err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return failed("cannot listen", listen, errors.New(listenWhy(err)))
	}
	s.url = "http://" + l.Addr().String()
	go s.server.router.Serve(l, nil) //nolint:errcheck // it ends with the demo
	s.server.fleet.Update(workers)
	looking, stop := context.WithCancel(ctx)
	s.stop = stop
	go s.server.hub.Run(looking) // so that those who watch are warned
	return s.ready(ctx)
}

// ready waits until all caches are mirrored.
func (s *side) ready(ctx context.Context) error {
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, why := s.server.fleet.Ready()
		if ok && s.server.fleet.ActiveWorkers() >= len(s.engines) {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return failed("the fleet does not get ready", s.name, errors.New(strings.Join(why, "; ")))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *side) close() error {
	var errs []error
	if s.stop != nil {
		s.stop()
	}
	if v := s.server; v != nil {
		if v.router != nil {
			errs = append(errs, v.router.Close())
		}
		if v.fleet != nil {
			v.fleet.Close()
		}
		if v.zmq != nil {
			errs = append(errs, v.zmq.Close())
		}
	}
	for _, e := range s.engines {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// play runs the traffic and prints how it goes.
func (a *app) play(ctx context.Context, f *demoFlags, sides []*side) error {
	print := func(format string, args ...any) error {
		return a.emit(func(w io.Writer) error {
			_, err := fmt.Fprintf(w, format, args...)
			return err
		})
	}
	kv, rr := sides[0], sides[1]
	err := print(`%d %s stand-ins behind kvroute (%s), %d more behind round robin; %d agent sessions at a time on each.

  the router          %s
  ask it              curl -s %s/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages":[{"role":"user","content":"Hello"}]}'
  watch it            kvroute watch %s
  what it believes    curl -s %s/v1/admin/workers
  how it goes         curl -s %s/metrics
  break an engine     curl -s %s/fault -d '{"crash":{"for":"5s"}}'

          prompt tokens found cached      mean time to first token      answers
    time        kvroute  round robin         kvroute  round robin       kvroute  round robin
`, f.workers, f.dialect, f.scorer.cfg.Policy, f.workers, f.clients, kv.url, kv.url, kv.url, kv.url, kv.url, kv.engines[0].URL())
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	if f.length > 0 {
		run, stop = context.WithTimeout(ctx, f.length)
		defer stop()
	}
	began := time.Now()
	var g errgroup.Group
	for _, s := range sides {
		for range f.clients {
			g.Go(func() error { return s.traffic.client(run) })
		}
	}
	lines := func() error {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		var before [2]demoCounts
		for {
			select {
			case <-run.Done():
				return nil
			case <-tick.C:
			}
			now := [2]demoCounts{kv.traffic.counts(), rr.traffic.counts()}
			if err := print("  %5.0fs", time.Since(began).Seconds()); err != nil {
				return err
			}
			if err := print("%s", demoLine(now[0].minus(before[0]), now[1].minus(before[1]))); err != nil {
				return err
			}
			before = now
		}
	}
	err = lines()
	stop()
	if werr := g.Wait(); err == nil {
		err = werr
	}
	if err != nil {
		return err
	}
	k, r := kv.traffic.counts(), rr.traffic.counts()
	if err := print("   total%s", demoLine(k, r)); err != nil {
		return err
	}
	if k.failed+r.failed > 0 {
		return print("\n%d answers behind kvroute and %d behind round robin were errors.\n", k.failed, r.failed)
	}
	return nil
}

// demoLine is one line of figures, a dash where there are none.
func demoLine(k, r demoCounts) string {
	share := func(c demoCounts) string {
		if c.prompt == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f %%", 100*float64(c.cached)/float64(c.prompt))
	}
	ttft := func(c demoCounts) string {
		if c.begun == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f ms", float64(c.ttft.Milliseconds())/float64(c.begun))
	}
	return fmt.Sprintf("  %13s %12s %15s %12s %13d %12d\n", share(k), share(r), ttft(k), ttft(r), k.answers, r.answers)
}

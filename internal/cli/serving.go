package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/kvroute/kvroute/internal/admin"
	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/feed/zmq"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/vitals"
	"github.com/kvroute/kvroute/internal/watchssh"
)

// server is a router that runs: everything serve opened, to be closed in order.
type server struct {
	a   *app
	f   *serveFlags
	log *slog.Logger
	reg *prometheus.Registry

	fleet  *fleet.Fleet
	router *router.Router
	hub    *admin.Hub
	ssh    *watchssh.Server // nil: not asked for
	zmq    *zmq.Transport   // nil: built without
	source discovery.Source

	facts     facts
	mu        sync.Mutex
	recorders []recording
	stale     []func() error // say why files that are read again could not be
}

// serve runs until ctx is done, then drains.
func (a *app) serve(ctx context.Context, f *serveFlags) error {
	if err := a.checkServe(f); err != nil {
		return err
	}
	if err := a.checkSSH(&f.ssh); err != nil {
		return err
	}
	if err := checkSurroundings(f); err != nil {
		return err
	}
	log := newLog(a, f)
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraryLog{log})
	s := &server{a: a, f: f, log: log, reg: prometheus.NewRegistry(), source: discovery.Static(f.workers)}
	s.reg.MustRegister(s, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if f.backend == "file" {
		s.source = &discovery.File{Path: f.workersFile, Bad: func(err error) {
			if err != nil {
				log.Error("the workers file cannot be used, the last good one stands", "file", f.workersFile, "error", err)
				s.facts.set("files", "error", f.workersFile, fmt.Sprintf("the workers file cannot be used, the last good one stands: %v", err))
			} else {
				s.facts.clear("files", f.workersFile)
				log.Info("the workers file can be used again", "file", f.workersFile)
			}
		}}
	}
	toks, err := a.openTokenizers(f.tokenizers, f.template, tokenize.Limits{MaxText: f.maxText, CacheBytes: f.tokenCache}, log, &s.facts)
	if err != nil {
		return err
	}
	if f.dryRun {
		return a.dryRun(ctx, f, toks)
	}
	if err := s.open(toks); err != nil {
		return err
	}
	return s.run(ctx)
}

// checkServe finds what is wrong with the flags as far as they tell.
func (a *app) checkServe(f *serveFlags) error {
	if err := a.validateScorer(&f.scorer.cfg); err != nil {
		return err
	}
	switch {
	case f.backend == "static" && len(f.workers) == 0 && f.workersFile == "":
		return usage("no workers", "kvroute serve", "none is named", "add --worker http://HOST:PORT, or --workers-file FILE")
	case f.workersFile != "" && len(f.workers) > 0:
		return usage("--worker and --workers-file", "kvroute serve", "workers come from one place", "put all of them into the file")
	case f.backend == "file" && f.workersFile == "":
		return usage("no workers", "--discovery-backend file", "the file is not named", "add --workers-file FILE")
	case f.template != "" && len(f.tokenizers) == 0:
		return usage("no model for the chat template", "--chat-template", "without a tokenizer prompts are not rendered", "add --router-tokenizer-path DIR")
	case (f.tlsCert == "") != (f.tlsKey == ""):
		return usage("half a certificate", "--tls-cert, --tls-key", "both are needed", "")
	case f.adminListen != "" && f.adminListen == f.listen:
		return usage("one address twice", "--admin-listen", "it is that of --listen", "leave it out to serve the admin API there for clients on this machine")
	}
	if f.workersFile != "" {
		f.backend = "file"
	}
	if err := discovery.CheckUnique(f.workers); err != nil {
		return usage("bad workers", "--worker", err.Error(), "data-parallel ranks behind one address are one worker with dp-size")
	}
	for _, w := range f.workers {
		if w.Role != discovery.Mixed {
			return usage("bad value "+string(w.Role), "--worker "+w.ID, "prefill and decode workers cannot be served apart yet", "leave role= out; kvroute sim has fleets of both")
		}
	}
	if len(f.sessionHeaders) > 0 {
		f.router.SessionHeaders = f.sessionHeaders
	}
	return nil
}

func newLog(a *app, f *serveFlags) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	opt := &slog.HandlerOptions{Level: levels[f.logLevel]}
	if f.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, opt))
	}
	return slog.New(slog.NewTextHandler(a.stderr, opt))
}

// open makes everything that has to be there before the first request.
func (s *server) open(toks func(model string) tokenize.Tokenizer) error {
	f := s.f
	client, err := router.NewHTTP(f.workerCA, f.connectTimeout)
	if err != nil {
		return usage("bad certificates", "--worker-ca", err.Error(), "")
	}
	cfg := fleet.Config{
		Model: f.model, Score: f.scorer.cfg, BlockSize: f.blockSize, Index: index.Options{Limit: int(f.indexLimit)},
		Tokenizer: toks, Client: &http.Client{Transport: roundTripper{client}}, Recorder: s.recorder,
		TokenizeTimeout: f.tokenizeTime, HealthInterval: f.health, Guess: f.guess, SilentAfter: f.silentAfter,
		Log: s.log, Registry: s.reg, Vitals: vitals.New(), Text: f.watchText,
		OnLeave: func(worker string) { s.router.Forget(worker) },
	}
	switch t, err := zmq.New(zmq.Options{}); {
	case errors.Is(err, zmq.ErrNoZMQ):
		s.log.Warn("cache events cannot be followed: caches are guessed from what was sent where (approximate)", "reason", err)
	case err != nil:
		return failed("cannot start ZeroMQ", "", err)
	default:
		s.zmq = t
		cfg.Transport = feed.Transport(t)
	}
	if f.snapshot != "" {
		cfg.Resume = s.readSnapshot()
	}
	if s.fleet, err = fleet.New(cfg); err != nil {
		return s.a.fieldFault(err)
	}
	rc := f.router
	rc.Log, rc.Registry, rc.Forwarder = s.log, s.reg, client
	if f.apiKeys != "" {
		if rc.Keys, err = router.OpenSecrets(f.apiKeys, s.log); err != nil {
			return usage("bad API keys", "--api-key-file", err.Error(), "")
		}
		s.stale = append(s.stale, rc.Keys.Stale)
	}
	if f.adminTokens != "" {
		if rc.AdminTokens, err = router.OpenSecrets(f.adminTokens, s.log); err != nil {
			return usage("bad admin tokens", "--admin-token-file", err.Error(), "")
		}
		s.stale = append(s.stale, rc.AdminTokens.Stale)
	}
	rc.AdminElsewhere = f.adminListen != ""
	s.hub = admin.NewHub(admin.HubConfig{
		Fleet: s.fleet, Vitals: cfg.Vitals, Version: version(), Policy: f.scorer.cfg.Policy, Flags: allFlags(&f.scorer.cfg), Text: f.watchText,
		Data:     func(id string) router.WorkerState { return s.router.WorkerState(id) },
		InFlight: func() int64 { return s.router.InFlight() },
		Draining: func() bool { return s.router.Draining() },
		Troubles: func() router.Troubles { return s.router.Troubles() },
		Facts:    s.troubles, Registry: s.reg,
	})
	rc.OnBreaker = func(worker string) {
		cfg.Vitals.Happened(time.Now().UnixMilli(), vitals.Fact{Kind: "breaker", Severity: "error", Worker: worker, Text: "its breaker opened: requests to it failed"})
	}
	rc.OnDispatch = func(own time.Duration) { cfg.Vitals.Dispatched(time.Now().UnixMilli(), int64(own)) }
	rc.Admin = admin.New(admin.Config{Fleet: s.fleet, Hub: s.hub, Version: version(), Flags: allFlags(&f.scorer.cfg), MaxBody: rc.MaxBody})
	if s.router, err = router.New(rc, s.fleet); err != nil {
		return usage("bad settings", "kvroute serve", err.Error(), "")
	}
	return s.openSSH()
}

// roundTripper lets probes use the connections of requests.
type roundTripper struct{ *router.HTTP }

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t.Do(r) }

// recorder starts the recording of a model.
func (s *server) recorder(model string, blockSize int) pool.Recorder {
	if s.f.record == "" {
		return nil
	}
	path := recorder.PathFor(s.f.record, model, s.severalModels())
	r, err := recorder.Start(recorder.Options{
		Header:  record.Header{Program: version(), Model: model, BlockSize: blockSize, Config: s.f.scorer.cfg},
		Create:  recorder.Files(path, s.f.recordKeep, func(name string) { s.log.Info("recording", "model", model, "file", name) }),
		MaxSize: s.f.recordMax,
		OnStop:  func(err error) { s.log.Error("the recording ended early", "model", model, "error", err) },
	})
	if err != nil {
		s.log.Error("cannot record", "model", model, "error", err)
		s.facts.set("recording", "error", model, fmt.Sprintf("model %s is not recorded: %v", model, err))
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorders = append(s.recorders, recording{model, r})
	return r
}

// severalModels says whether recordings need names of models: unless all workers are said to serve one.
func (s *server) severalModels() bool {
	names := map[string]bool{}
	for _, w := range s.f.workers {
		name := w.Model
		if name == "" {
			name = s.f.model
		}
		names[name] = true
	}
	return s.f.backend == "file" || len(names) > 1
}

// run listens until ctx is done, then drains. What was opened is closed again.
func (s *server) run(ctx context.Context) error {
	listener, err := s.listen(s.f.listen)
	if err != nil {
		return err
	}
	var adminListener net.Listener
	if s.f.adminListen != "" {
		if adminListener, err = s.listen(s.f.adminListen); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	var sshListener net.Listener
	if s.ssh != nil {
		if sshListener, err = net.Listen("tcp", s.f.ssh.listen); err != nil {
			err = failed("cannot listen", s.f.ssh.listen, errors.New(listenWhy(err)))
			if adminListener != nil {
				err = errors.Join(err, adminListener.Close())
			}
			return errors.Join(err, listener.Close())
		}
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var g errgroup.Group
	fail := make(chan error, 5)
	spawn := func(what string, work func() error) {
		g.Go(func() error {
			if err := work(); err != nil {
				fail <- failed(what, "", err)
			}
			return nil
		})
	}
	spawn("cannot follow the workers", func() error { return s.source.Watch(background, s.fleet.Update) })
	spawn("cannot serve", func() error { return s.router.Serve(listener, nil) })
	if s.f.watchText {
		s.log.Warn("the beginning of prompts is shown to those who watch (--watch-text)")
	}
	s.log.Info("serving", "address", listener.Addr().String(), "policy", s.f.scorer.cfg.Policy, "block_size", s.f.blockSize, "version", version())
	if adminListener != nil {
		spawn("cannot serve the admin API", func() error { return s.router.Serve(adminListener, s.router.AdminHandler()) })
		s.log.Info("serving the admin API", "address", adminListener.Addr().String())
	}
	if sshListener != nil {
		spawn("cannot serve screens over SSH", func() error { return s.ssh.Serve(sshListener) })
		s.log.Info("serving screens over ssh", "address", sshListener.Addr().String())
	}
	g.Go(func() error { s.tellReady(background); return nil })
	g.Go(func() error { s.hub.Run(background); return nil })
	if s.f.snapshot != "" {
		g.Go(func() error { s.keepSnapshots(background); return nil })
	}
	var result error
	select {
	case <-ctx.Done():
		if err := s.router.Drain(background); err != nil {
			s.log.Warn("the drain was not clean", "error", err)
		}
	case result = <-fail:
		if err := s.router.Close(); err != nil {
			s.log.Warn("closing connections", "error", err)
		}
	}
	if s.ssh != nil { // not before: a drain can be watched
		if err := s.ssh.Close(); err != nil {
			s.log.Warn("closing the screens over ssh", "error", err)
		}
	}
	if s.f.snapshot != "" {
		s.writeSnapshot()
	}
	stop()
	s.fleet.Close()
	if s.zmq != nil {
		result = errors.Join(result, s.zmq.Close())
	}
	result = errors.Join(result, g.Wait(), s.closeRecorders())
	s.log.Info("stopped")
	if result != nil {
		return afterSignal{result}
	}
	return nil
}

func (s *server) closeRecorders() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all error
	for _, r := range s.recorders {
		if err := r.Close(); err != nil {
			all = errors.Join(all, failed("the recording is not whole", s.f.record, err))
		}
	}
	return all
}

func (s *server) listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, failed("cannot listen", address, errors.New(listenWhy(err)))
	}
	if s.f.tlsCert == "" {
		return l, nil
	}
	conf, stale, err := router.LoadTLS(s.f.tlsCert, s.f.tlsKey, s.log)
	if err != nil {
		return nil, errors.Join(usage("bad certificate", "--tls-cert, --tls-key", err.Error(), ""), l.Close())
	}
	s.mu.Lock()
	s.stale = append(s.stale, stale)
	s.mu.Unlock()
	return tls.NewListener(l, conf), nil
}

// listenWhy is the reason without the address, which stands beside it already.
func listenWhy(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

// tellReady logs when requests can be served, and what keeps them from it meanwhile.
func (s *server) tellReady(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := ""
	said := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ok, why := s.fleet.Ready()
		if ok {
			s.log.Info("ready")
			return
		}
		if text := strings.Join(why, "; "); text != last && time.Since(said) > 2*time.Second {
			s.log.Info("not ready", "reason", text)
			last, said = text, time.Now()
		}
	}
}

func (s *server) readSnapshot() *fleet.Resume {
	file, err := os.Open(s.f.snapshot)
	if errors.Is(err, os.ErrNotExist) {
		s.log.Info("there is no snapshot yet", "file", s.f.snapshot)
		return nil
	}
	var r *fleet.Resume
	if err == nil {
		defer file.Close() // only read from
		r, err = fleet.ReadMirrors(file)
	}
	if err != nil {
		s.log.Warn("the snapshot is not used: mirrors are fetched from the engines", "file", s.f.snapshot, "error", err)
		s.facts.set("mirror-file", "", "read", fmt.Sprintf("the snapshot of mirrors was not used at the start: %v", err))
		return nil
	}
	s.log.Info("snapshot read", "file", s.f.snapshot, "mirrors", r.Targets())
	return r
}

func (s *server) keepSnapshots(ctx context.Context) {
	tick := time.NewTicker(s.f.snapshotEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.writeSnapshot()
		}
	}
}

// writeSnapshot replaces the snapshot as a whole, or leaves it as it was.
func (s *server) writeSnapshot() {
	n, err := s.replaceSnapshot()
	if err != nil {
		s.log.Error("the snapshot was not written", "file", s.f.snapshot, "error", err)
		s.facts.set("mirror-file", "error", "write", fmt.Sprintf("the snapshot of mirrors was not written: %v", err))
		return
	}
	s.facts.clear("mirror-file", "write")
	s.facts.clear("mirror-file", "read") // what could not be read has been replaced
	s.log.Debug("snapshot written", "file", s.f.snapshot, "mirrors", n)
}

func (s *server) replaceSnapshot() (n int, err error) {
	file, err := os.CreateTemp(filepath.Dir(s.f.snapshot), filepath.Base(s.f.snapshot)+".*") // readable by its owner only
	if err != nil {
		return 0, err
	}
	n, err = s.fleet.WriteMirrors(file)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), s.f.snapshot)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(file.Name()))
	}
	return n, nil
}

// splitTokenizer takes a value of --router-tokenizer-path apart. model is "" for all models.
func splitTokenizer(s string) (model, path string) {
	if m, p, ok := strings.Cut(s, "="); ok && m != "" && !strings.ContainsAny(m, "/\\") {
		return m, p
	}
	return "", s
}

// openTokenizers loads model directories. The function returned gives that of a model, nil for none.
func (a *app) openTokenizers(values []string, template string, lim tokenize.Limits, log *slog.Logger, wrong *facts) (func(model string) tokenize.Tokenizer, error) {
	byModel := map[string]tokenize.Tokenizer{}
	for _, v := range values {
		model, path := splitTokenizer(v)
		if byModel[model] != nil {
			return nil, usage("bad value "+v, "--router-tokenizer-path", "this model has a tokenizer already", "name the model: --router-tokenizer-path MODEL=DIR")
		}
		m, info, err := a.openModel(path, template, lim)
		if err != nil {
			return nil, err
		}
		byModel[model] = readable{m, info}
		log.Info("tokenizer loaded", "path", path, "encoder", info.Encoder().Name(), "digest", info.Digest, "vocabulary", info.VocabSize)
		if info.FastOff != "" {
			log.Warn("the fast encoder is off for this model", "path", path, "reason", info.FastOff)
			wrong.set("tokenizer", "", path, fmt.Sprintf("the fast encoder is off for %s, tokenizing costs many times as much: %s", path, info.FastOff))
		}
		for _, w := range info.Warnings {
			log.Warn("tokenizer", "path", path, "warning", w)
			wrong.set("tokenizer", "", path+" "+w, fmt.Sprintf("%s: %s", path, w))
		}
	}
	return func(model string) tokenize.Tokenizer {
		if m := byModel[model]; m != nil {
			return m
		}
		if m := byModel[""]; m != nil {
			return m
		}
		return nil
	}, nil
}

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/probe"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// worker is one life of a worker: from when discovery names it, or names it otherwise, until it goes.
type worker struct {
	f    *Fleet
	spec discovery.Spec
	url  *url.URL
	at   string // url without a password
	life target.Incarnation

	ctx  context.Context //nolint:containedctx // the worker's own life; ended by end
	stop context.CancelFunc

	up      atomic.Bool // health is Healthy and targets have joined
	reports atomic.Bool // it has reported cached tokens

	mu      sync.Mutex
	health  Health
	reason  string
	info    *probe.Info // nil: has not answered yet
	model   *model
	targets []*tgt
	page    int // tokens per block of the engine's cache; 0: unknown
	parity  []ParityState
	worst   probe.Outcome // of parity
	odd     odd
}

func newWorker(f *Fleet, s discovery.Spec, life target.Incarnation) *worker {
	w := &worker{f: f, spec: s, url: s.URL, at: s.URL.Redacted(), life: life, health: Starting, reason: "has not answered yet", page: s.BlockSize}
	w.ctx, w.stop = context.WithCancel(f.ctx)
	return w
}

// end ends the life; run then takes the targets out.
func (w *worker) end() {
	w.up.Store(false)
	w.stop()
}

// Pauses between attempts to reach a worker that has not answered yet.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 10 * time.Second
)

// run is the worker's goroutine: it meets the worker, joins its targets and watches its health.
func (w *worker) run() {
	defer w.leave()
	pause := firstPause
	for w.ctx.Err() == nil {
		err := w.meet()
		if err == nil {
			break
		}
		if errors.Is(err, pool.ErrFull) { // some ranks may have joined: trying again would join them twice
			w.f.log.Error("worker is not used", "worker", w.spec.ID, "error", err)
			w.setHealth(Unhealthy, err.Error())
			<-w.ctx.Done()
			return
		}
		w.f.log.Warn("worker cannot be used yet", "worker", w.spec.ID, "error", err, "again_in", pause)
		w.setHealth(Starting, err.Error())
		if !sleep(w.ctx, pause) {
			return
		}
		pause = min(2*pause, lastPause)
	}
	w.watch()
}

// meet asks the worker what it is and joins its targets.
func (w *worker) meet() error {
	ctx, cancel := context.WithTimeout(w.ctx, w.f.cfg.ProbeTimeout)
	defer cancel()
	info, err := probe.Probe(ctx, w.f.cfg.Client, w.url, w.spec.Engine)
	if err != nil {
		return err
	}
	name := w.spec.Model
	if name == "" {
		name = w.f.cfg.Model
	}
	if name == "" {
		if name = info.BaseModel(); name == "" {
			return errors.New("its model is not known: name it with model= or --model")
		}
	}
	m, err := w.f.modelFor(name)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.info, w.model = &info, m
	switch {
	case w.spec.BlockSize == 0:
		w.page = info.BlockSize
	case info.BlockSize != 0 && info.BlockSize != w.spec.BlockSize:
		w.f.log.Error("block size differs from what was configured; the engine's counts", "worker", w.spec.ID, "configured", w.spec.BlockSize, "engine", info.BlockSize)
		w.odd.page = fmt.Sprintf("its blocks have %d tokens, %d are configured: the engine's count", info.BlockSize, w.spec.BlockSize)
		w.page = info.BlockSize
	}
	w.mu.Unlock()
	if !slices.ContainsFunc(info.Models, func(e probe.Model) bool { return e.ID == name }) {
		w.f.log.Warn("worker does not list the model it is meant to serve: it may refuse requests for it", "worker", w.spec.ID, "model", name, "lists", info.BaseModel())
		w.mu.Lock()
		w.odd.model = fmt.Sprintf("it does not list model %s, which it is meant to serve, but %s: it may refuse requests", name, info.BaseModel())
		w.mu.Unlock()
	}
	for _, note := range info.Unknown {
		w.f.log.Info("not known of worker", "worker", w.spec.ID, "what", note)
	}
	return w.join(m, &info)
}

// join makes the worker's targets candidates.
func (w *worker) join(m *model, info *probe.Info) error {
	ranks := max(w.spec.DPSize, 1)
	if w.spec.DPSize == 0 && info.DPSize > 1 {
		ranks = info.DPSize
	}
	variant := m.variant(w.variant())
	guessed := w.guessed(m)
	for r := range ranks {
		g := &tgt{f: w.f, worker: w, model: m, rank: r, pending: map[*prediction]struct{}{}}
		if ranks == 1 {
			g.rank = target.NoRank
		}
		key := keyOf(w, g.rank)
		g.key = key.RouteKey()
		c := score.Candidate{Role: score.Mixed, Variant: variant, PageSize: w.pageNow()}
		if c.PageSize != 0 {
			c.BlockSize = w.f.cfg.BlockSize
		}
		guess := &w.f.cfg.Guess
		if guessed {
			c.BlockSize = w.f.cfg.BlockSize
		} else {
			guess = nil
		}
		if m.tok == nil {
			c.PageSize = 0
		}
		id, err := m.pool.Join(key, c, guess)
		if err != nil {
			return err
		}
		g.id, g.page = id, c.PageSize
		g.renewDoubt()
		if !guessed {
			g.follow(w.ctx, w.f.resume(m, g))
		}
		m.mu.Lock()
		m.targets[id] = g // from here on it can be picked
		m.mu.Unlock()
		w.mu.Lock()
		w.targets = append(w.targets, g)
		w.mu.Unlock()
	}
	m.adapt(info.Adapters(), 1)
	w.up.Store(true)
	w.setHealth(Healthy, "") // not before it can be picked: who waits for that would be refused
	w.f.log.Info("worker joins", "worker", w.spec.ID, "model", m.name, "engine", w.engine(), "version", info.Version, "ranks", ranks, "page_size", w.pageNow(), "approximate", guessed)
	w.f.wg.Go(func() { w.checkParity(m) })
	return nil
}

// leave takes the targets out.
func (w *worker) leave() {
	w.stop()
	w.up.Store(false)
	for _, g := range w.targetsNow() {
		g.leave()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.targets = nil
	if w.model != nil && w.info != nil {
		w.model.adapt(w.info.Adapters(), -1)
	}
}

// serves says whether requests may go to the worker.
func (w *worker) serves() bool { return w.up.Load() }

func (w *worker) setHealth(h Health, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health, w.reason = h, reason
}

func (w *worker) healthNow() (Health, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health, w.reason
}

func (w *worker) targetsNow() []*tgt {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.targets[:len(w.targets):len(w.targets)]
}

func (w *worker) pageNow() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.page
}

// sawPage takes the page size that events show, which is the truth.
func (w *worker) sawPage(page int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.page != 0 && w.page != page {
		w.f.log.Error("events show another block size than was known; the events' counts", "worker", w.spec.ID, "known", w.page, "events", page)
		w.odd.page = fmt.Sprintf("its events have blocks of %d tokens, %d were known: the events' count", page, w.page)
	}
	w.page = page
}

// engine is what the worker runs: as configured, else as it says; "" where neither is known.
func (w *worker) engine() string {
	if w.spec.Engine != "" {
		return w.spec.Engine
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.info != nil {
		return w.info.Engine
	}
	return ""
}

// events are the endpoints of the events of a rank and their topic: as configured, else as the worker says.
// bind says that the engine dials and we listen.
func (w *worker) events(rank int) (e probe.Events, bind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.info != nil {
		e = w.info.Events
		e.Live, _ = discovery.RankEndpoint(e.Live, rank)
		e.Replay, _ = discovery.RankEndpoint(e.Replay, rank)
		for _, s := range w.info.Sources {
			if s.Rank == rank {
				e = s.Events
			}
		}
	}
	if w.spec.Events != "" {
		e = probe.Events{Topic: e.Topic}
		e.Live, bind = discovery.RankEndpoint(w.spec.Events, rank)
	}
	if w.spec.Replay != "" {
		e.Replay, _ = discovery.RankEndpoint(w.spec.Replay, rank)
	}
	if w.spec.HasTopic {
		e.Topic = w.spec.Topic
	}
	return e, bind
}

// variant is how the worker makes tokens of a body.
func (w *worker) variant() tokenize.Variant {
	v := tokenize.Variant{Prepare: prepareOf(w.engine())}
	if text := w.spec.Meta[discovery.TemplateKwargs]; text != "" {
		v.Kwargs = json.RawMessage(text)
		return v
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.info != nil {
		v.Kwargs = w.info.TemplateKwargs
	}
	return v
}

// servedModel is the name the worker serves its model under.
func (w *worker) servedModel() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.info != nil {
		return w.info.BaseModel()
	}
	return ""
}

// guessed says whether the mirrors of the worker's targets have to be made of what was sent there.
func (w *worker) guessed(m *model) bool { return m.tok == nil || w.whyNoEvents() != "" }

// whyNoEvents says why the worker's events are not followed; "" if they are.
func (w *worker) whyNoEvents() string {
	e, _ := w.events(0)
	switch {
	case e.Live == pollEvents:
	case w.f.cfg.Transport == nil:
		return "this program was built without ZeroMQ"
	case e.Live == "":
		return "the worker names no event endpoint, and none is configured"
	}
	return ""
}

// sameTokens compares a prediction with a report. Where pages are no multiple of blocks, the engine may
// rightly have part of a block more.
func (w *worker) sameTokens(predicted, reported int64, size int) bool {
	if page := w.pageNow(); page%size != 0 {
		return reported/int64(size)*int64(size) == predicted
	}
	return predicted == reported
}

// countsOtherwise says why the cached tokens that the engine reports for a request are not those of all its
// prompts: vLLM reports one prompt of a batch and one sample of several, which finds what the first has just
// stored; SGLang computes the prompt of several samples once ahead of them. "": they are.
func (w *worker) countsOtherwise(req *score.Request, variant int) string {
	batch := len(req.More) > 0
	if variant > 0 && variant <= len(req.Variants) {
		batch = len(req.Variants[variant-1].More) > 0
	}
	switch {
	case req.N > 1:
		return "several samples"
	case batch && w.engine() != "sglang":
		return "batch"
	}
	return ""
}

// entry is a served model as the worker lists it.
type entry = struct {
	ID  string
	Raw json.RawMessage
}

func (w *worker) modelEntries() []entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.info == nil {
		return nil
	}
	var list []entry
	for _, m := range w.info.Models {
		list = append(list, entry{m.ID, m.Raw})
	}
	return list
}

func prepareOf(engine string) tokenize.Prepare {
	switch engine {
	case "sglang":
		return tokenize.PrepareSGLang
	case "vllm", "atom":
		return tokenize.PrepareVLLM
	}
	return tokenize.PrepareNone
}

// sleep waits and says whether there is a life after it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

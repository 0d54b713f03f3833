package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/kvevent"
	"github.com/kvroute/kvroute/internal/probe"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// tgt is one cache of a worker that has joined: the worker itself, or one of its data-parallel ranks.
type tgt struct {
	f      *Fleet
	worker *worker
	model  *model
	key    string // route key
	rank   int
	id     targetID
	stream *feed.Stream    // nil: no events
	mapper *kvevent.Mapper // owned by the stream's goroutine
	page   int             // tokens of an engine block, as the pool knows it; owned by the stream's goroutine
	// unshare gives back the target's part of a subscription that others have a part in; nil: it has none.
	unshare func()

	mu      sync.Mutex
	pending map[*prediction]struct{} // picked, no first token yet
	drift   drift

	lastTrust feed.Trust
}

// renewDoubt brings up to date why decisions for the target are not exact.
func (g *tgt) renewDoubt() {
	doubt := ""
	g.worker.mu.Lock()
	diverged := g.worker.worst == probe.Diverged
	g.worker.mu.Unlock()
	g.mu.Lock()
	trust := g.lastTrust
	g.mu.Unlock()
	switch guessed := g.worker.guessed(g.model); {
	case guessed:
		doubt = "approximate: caches are guessed from what was sent where"
	case diverged:
		doubt = "the engine makes other tokens"
	case trust != feed.Trusted:
		doubt = doubtOf(trust)
	}
	g.model.pool.Update(g.id, func(c *score.Candidate) { c.Doubt = doubt })
}

// follow starts to follow the target's events, where there are any to follow.
func (g *tgt) follow(ctx context.Context, resume *feed.Resume) {
	events, bind := g.worker.events(max(g.rank, 0))
	if events.Live == "" || g.f.cfg.Transport == nil && events.Live != pollEvents {
		return
	}
	dialect := kvevent.Dialect(g.worker.engine())
	copies := kvevent.CopiesByDialect
	if g.worker.spec.Meta["kv_cache_report_mode"] == "full" {
		copies = kvevent.CopiesOne // blocks used again are announced again
	}
	g.mapper = kvevent.NewMapper(g.id, dialect, copies)
	via, at := g.source(events.Live, events.Topic, bind)
	decode := g.decode()
	if events.Live == pollEvents {
		decode = g.decodePolled()
	}
	g.stream = feed.Follow(ctx, feed.Config{
		Endpoint: at, Topic: events.Topic, Replay: events.Replay, Target: g.id, Rank: g.rank, Limit: g.f.replays,
		Rules: feed.Rules{Bind: bind, From1: dialect == kvevent.SGLang, SilentAfter: g.f.cfg.SilentAfter, Resume: resume},
	}, via, decode, g)
	g.f.log.Info("following events", "worker", g.key, "endpoint", events.Live, "replay", events.Replay, "topic", events.Topic, "bind", bind)
}

// decode returns the decoder of the target's stream.
func (g *tgt) decode() feed.Decode {
	var d kvevent.Decoder
	var b kvevent.Batch
	return func(payload []byte) (feed.Decoded, error) {
		if err := d.Decode(payload, &b); err != nil {
			return feed.Decoded{}, err
		}
		ops := g.mapper.Map(&b)
		return feed.Decoded{Ops: ops, Rank: b.Rank, HasRank: b.HasRank, PageSize: g.mapper.PageSize(), Skipped: b.Skipped, Lost: lost(b.Skipped)}, nil
	}
}

// Apply implements feed.Sink.
func (g *tgt) Apply(ops []index.Op) index.Result {
	for i := range ops {
		if ops[i].Kind == index.Epoch {
			g.mapper.Reset()
			g.mu.Lock()
			g.drift.reset()
			g.mu.Unlock()
		}
	}
	cleared := slices.ContainsFunc(ops, func(op index.Op) bool { return op.Kind == index.Clear || op.Kind == index.Epoch })
	r, err := g.model.pool.Apply(g.id, ops)
	g.f.cfg.Vitals.Applied(time.Now().UnixMilli(), g.key, &r, cleared)
	if err != nil {
		g.f.log.Error("an event could not be applied", "worker", g.key, "error", err)
		g.happened("malformed", "error", "an event could not be applied to the mirror: "+err.Error())
	}
	if p := g.mapper.PageSize(); p != 0 && p != g.page {
		g.page = p
		g.sawPage(p)
	}
	return r
}

// doubtOf is the doubt that a state of the event stream leaves.
func doubtOf(t feed.Trust) string { return "events: " + t.String() }

// State implements feed.Sink.
func (g *tgt) State(s feed.State) {
	g.mu.Lock()
	g.lastTrust = s.Trust
	g.mu.Unlock()
	g.renewDoubt()
	g.model.pool.Note(time.Now().UnixNano(), g.id, fmt.Sprintf("trust %s: %s", s.Trust, s.Reason))
	switch s.Trust { // what is over before anybody looks leaves no other trace
	case feed.Silent:
		g.happened("silent", "error", s.Reason)
	case feed.Diverged:
		g.happened("predictions", "", s.Reason)
	}
	switch {
	case s.Trust == feed.Trusted:
		g.f.log.Info("mirror is trusted", "worker", g.key, "sequence", s.Seq, "replayed", s.Replayed)
	case s.Trust == feed.Connecting, s.Trust == feed.Resync, s.Trust == feed.Warming && s.Batches == 0: // on the way
		g.f.log.Info("mirror is being built", "worker", g.key, "trust", s.Trust.String(), "reason", s.Reason)
	default:
		g.f.log.Warn("mirror is not trusted fully", "worker", g.key, "trust", s.Trust.String(), "reason", s.Reason)
	}
}

// sawPage notes the page size that the target's events show, for the worker too. Each rank tells its own
// candidate: another may have told the worker first.
func (g *tgt) sawPage(page int) {
	g.worker.sawPage(page)
	g.model.pool.Update(g.id, func(c *score.Candidate) { c.BlockSize, c.PageSize = g.f.cfg.BlockSize, page })
}

// settled says whether all that can be learned of what the target cached before is in its mirror.
func (g *tgt) settled() (bool, string) {
	if g.stream == nil {
		return true, ""
	}
	ok, why := g.stream.Settled()
	if why == "" {
		why = "its events have not been read yet"
	}
	return ok, why
}

// trust is the state of the target's stream.
func (g *tgt) trust() feed.State {
	if g.stream != nil {
		return g.stream.State()
	}
	why := g.worker.whyNoEvents()
	if why == "" {
		why = "there is no tokenizer for its model, so that its events say nothing"
	}
	return feed.State{Trust: feed.NoEvents, Reason: why}
}

// leave takes the target out, once its stream's context is done. Requests in flight stay releasable.
func (g *tgt) leave() {
	g.model.mu.Lock()
	delete(g.model.targets, g.id)
	g.model.mu.Unlock()
	if g.stream != nil { // before the ID is given away, so that nothing late lands on another target
		if err := g.stream.Wait(); err != nil {
			g.f.log.Warn("events could not be followed", "worker", g.key, "error", err)
		}
	}
	if g.unshare != nil {
		g.unshare()
	}
	g.model.pool.Leave(g.id)
	g.f.count.forget(g.key)
	g.f.cfg.Vitals.Forget(g.key)
}

// ended takes what the answer to a request tells about the prediction made for it.
func (g *tgt) ended(l *lease, o router.Outcome) {
	p := &l.before
	if g.stream != nil && o.Delivered && len(p.chain) > p.hits {
		g.stream.Served(1)
	}
	switch {
	case o.CachedTokens >= 0:
		g.worker.reports.Store(true)
	case o.PromptTokens >= 0 && g.worker.reports.Load():
		o.CachedTokens = 0 // vLLM up to 0.23 says null for it
	}
	g.tellEnd(l, o)
	if o.CachedTokens < 0 {
		g.model.pool.Unwatch(&p.watch)
		if o.Delivered && o.Status < 300 {
			g.f.count.predictions.WithLabelValues(g.key, "unreported").Inc()
		}
		return
	}
	if p.clean && p.unlike == "" && p.tokens > o.CachedTokens && !g.model.pool.Lost(&p.watch) {
		// An answer may be ahead of the events that belong to it: what vLLM cleared is published with the first
		// batch of the next request.
		time.AfterFunc(eventsLag, func() {
			if g.worker.ctx.Err() != nil {
				g.model.pool.Unwatch(&p.watch)
				return
			}
			g.compare(l.dec.RequestID, p, o.CachedTokens)
		})
		return
	}
	g.compare(l.dec.RequestID, p, o.CachedTokens)
}

// tellEnd tells the end of a request to those who watch.
func (g *tgt) tellEnd(l *lease, o router.Outcome) {
	if !o.Delivered || o.Status >= 300 {
		return
	}
	prompt := o.PromptTokens
	if prompt < 0 {
		prompt = l.dec.Tokens
	}
	g.f.cfg.Vitals.Ended(time.Now().UnixMilli(), g.key, prompt, l.before.tokens, o.CachedTokens)
}

// eventsLag is how much later than an answer the events of its prefill may be.
const eventsLag = 500 * time.Millisecond

// compare holds a prediction against what the engine reported.
func (g *tgt) compare(requestID string, p *prediction, reported int64) {
	// Neither engine drops blocks that a request under way uses, so that what went by now went before its prefill.
	lost := g.model.pool.Unwatch(&p.watch)
	g.mu.Lock()
	if lost && p.clean {
		p.clean, p.why = false, overtakenByEviction
	}
	g.mu.Unlock()
	equal := g.worker.sameTokens(p.tokens, reported, g.f.cfg.BlockSize)
	outcome, why := "equal", p.why
	switch {
	case p.unlike != "":
		outcome, why = "incomparable", p.unlike
	case !p.clean:
		outcome = "overtaken"
	case !equal:
		outcome = "differing"
	}
	g.f.count.predictions.WithLabelValues(g.key, outcome).Inc()
	g.f.count.predictedTokens.WithLabelValues(g.key).Add(float64(p.tokens))
	g.f.count.reportedTokens.WithLabelValues(g.key).Add(float64(reported))
	g.f.log.Debug("cached tokens", "request_id", requestID, "worker", g.key, "predicted", p.tokens, "reported", reported, "outcome", outcome, "why", why)
	g.mu.Lock()
	if p.unlike != "" {
		g.drift.unlike++
		g.mu.Unlock()
		return
	}
	changed := g.drift.note(p.tokens, reported, p.clean, equal)
	diverged, bad, n := g.drift.diverged, g.drift.bad, g.drift.n
	g.mu.Unlock()
	if !changed || g.stream == nil {
		return
	}
	why = ""
	if diverged {
		why = fmt.Sprintf("cached tokens differ from the prediction in %d of the last %d answers", bad, n)
		g.f.log.Warn("predictions and the engine's reports drift apart", "worker", g.key, "differing", bad, "of", n)
	}
	g.stream.Drift(why)
}

// keyOf names a target of a worker.
func keyOf(w *worker, rank int) target.Key {
	return target.Key{Worker: w.spec.ID, Rank: rank, Incarnation: w.life}
}

package fleet

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/probe"
)

// failuresToDown is how many health checks in a row must fail. Requests go on meanwhile: the breaker of
// the router judges by them.
const failuresToDown = 3

// watch checks the worker's health until its life ends. A worker that was away, or whose publisher started
// anew, is asked again what it is: behind an address may be another engine now.
func (w *worker) watch() {
	failures, lives, again := 0, w.restarts(), false
	for sleep(w.ctx, w.f.cfg.HealthInterval) {
		ctx, cancel := context.WithTimeout(w.ctx, w.f.cfg.ProbeTimeout)
		err := probe.Health(ctx, w.f.cfg.Client, w.url)
		cancel()
		switch {
		case w.ctx.Err() != nil:
			return
		case err != nil:
			again = true
			if failures++; failures == failuresToDown {
				w.setHealth(Unhealthy, err.Error())
				w.up.Store(false)
				w.happened("health", "error", "did not answer: "+err.Error())
				w.f.log.Warn("worker does not answer", "worker", w.spec.ID, "checks", failures, "error", err)
			}
			continue
		}
		if n := w.restarts(); n != lives {
			lives, again = n, true
		}
		if again || w.unconnected() {
			changed, err := w.lookAgain(again)
			if err != nil && again {
				continue // the next check tries again
			}
			if again = false; changed {
				w.f.renew(w)
				return
			}
		}
		failures = 0
		if !w.up.Swap(true) {
			w.setHealth(Healthy, "")
			w.f.log.Info("worker serves again", "worker", w.spec.ID)
		}
	}
}

// restarts counts how often the publishers of the worker's targets started anew.
func (w *worker) restarts() (n uint64) {
	for _, g := range w.targetsNow() {
		if g.stream != nil {
			n += g.stream.State().Restarts
		}
	}
	return n
}

// unconnected says whether a stream has not been in order for a whole interval of checks, as happens where an
// engine has started anew between two of them and publishes elsewhere.
func (w *worker) unconnected() bool {
	for _, g := range w.targetsNow() {
		if g.stream == nil {
			continue
		}
		s := g.stream.State()
		if (s.Trust == feed.Resync || s.Trust == feed.Connecting) && time.Since(s.Since) >= w.f.cfg.HealthInterval {
			return true
		}
	}
	return false
}

// lookAgain asks the worker what it is and says whether that is something else than before. If it is not,
// and compare says so, its tokens are compared once more.
func (w *worker) lookAgain(compare bool) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(w.ctx, w.f.cfg.ProbeTimeout)
	defer cancel()
	now, err := probe.Probe(ctx, w.f.cfg.Client, w.url, w.spec.Engine)
	if err != nil {
		return false, err
	}
	w.mu.Lock()
	was, m := w.info, w.model
	w.mu.Unlock()
	if what := difference(was, &now); what != "" {
		w.f.log.Warn("worker is another one than before: it begins another life", "worker", w.spec.ID, "differs", what)
		w.happened("restart", "", "it is another engine than before and begins anew: another "+what)
		return true, nil
	}
	if compare {
		w.f.wg.Go(func() { w.checkParity(m) })
	}
	return false, nil
}

// difference names what of an engine is not as it was; "" if everything that matters here is.
func difference(was, now *probe.Info) string {
	switch {
	case was.Engine != now.Engine:
		return "engine"
	case was.Version != now.Version:
		return "version"
	case was.BlockSize != now.BlockSize:
		return "block size"
	case was.PoolBlocks != now.PoolBlocks:
		return "size of the cache"
	case was.DPSize != now.DPSize:
		return "data-parallel ranks"
	case was.Events != now.Events || !slices.Equal(was.Sources, now.Sources):
		return "event endpoints"
	case !bytes.Equal(was.TemplateKwargs, now.TemplateKwargs):
		return "arguments of the chat template"
	case !slices.EqualFunc(was.Models, now.Models, func(a, b probe.Model) bool { return a.ID == b.ID && a.Parent == b.Parent }):
		return "models"
	}
	return ""
}

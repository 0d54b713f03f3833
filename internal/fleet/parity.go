package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/probe"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// parityTime bounds the comparison of one worker.
const parityTime = time.Minute

// checkParity has the worker tokenize a fixed set of prompts and compares with ours, once in its life.
func (w *worker) checkParity(m *model) {
	if m.tok == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, parityTime)
	defer cancel()
	variant := w.variant()
	local := probe.Local{Body: func(ctx context.Context, path string, body []byte) ([]block.Token, error) {
		ep := tokenize.Chat
		if path == "/v1/completions" {
			ep = tokenize.Completions
		}
		res := m.tok.Tokenize(ctx, ep, body, tokenize.Options{Variant: variant, BlockSize: w.f.cfg.BlockSize, Now: time.Now()})
		if res.Unhashable != "" {
			return nil, errors.Join(errors.New(res.Unhashable), res.Err)
		}
		if len(res.Prompts) != 1 {
			return nil, fmt.Errorf("%d prompts", len(res.Prompts))
		}
		return res.Prompts[0].Tokens, nil
	}}
	served := w.servedModel()
	verdicts, err := probe.Parity(ctx, w.f.cfg.Client, w.url, w.engine(), served, local)
	if err != nil && w.ctx.Err() == nil {
		w.f.log.Warn("tokens were not compared to the end", "worker", w.spec.ID, "error", err)
	}
	states := make([]ParityState, len(verdicts))
	for i, v := range verdicts {
		states[i] = ParityState{Name: v.Case, Verdict: v.Outcome.String(), Detail: v.Detail, At: time.Now()}
		level, text := w.f.log.Debug, "tokens compared with the engine's"
		if v.Outcome == probe.Diverged {
			level, text = w.f.log.Error, "tokens differ from the engine's: predictions for this worker are estimates"
		}
		level(text, "worker", w.spec.ID, "case", v.Case, "verdict", v.Outcome.String(), "detail", v.Detail)
	}
	worst := probe.Worst(verdicts)
	w.mu.Lock()
	w.parity, w.worst = states, worst
	w.mu.Unlock()
	w.f.count.parity.WithLabelValues(w.spec.ID, m.name).Set(float64(parityNumber(worst)))
	if worst == probe.Confirmed {
		w.f.log.Info("tokens equal the engine's", "worker", w.spec.ID, "cases", len(verdicts))
	}
	for _, g := range w.targetsNow() {
		g.renewDoubt()
	}
}

// parityNumber is what the metric shows: 1 confirmed, 0 diverged, -1 unknown.
func parityNumber(o probe.Outcome) int {
	switch o {
	case probe.Confirmed:
		return 1
	case probe.Diverged:
		return 0
	}
	return -1
}

package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// ticket is a call with everything that picking needs, made once for all attempts.
type ticket struct {
	f       *Fleet
	m       *model
	call    *router.Call
	adapter string // "": none
	req     score.Request
	// exact says that the blocks are the engine's own, so that predictions can be held against reports.
	exact bool
	// tokens are those of the first prompt by variant, if they may be shown.
	tokens [][]block.Token
}

// Place implements router.Fleet.
func (f *Fleet) Place(ctx context.Context, c *router.Call) (router.Ticket, error) {
	m, adapter, ok := f.model(c.Model)
	if !ok {
		return nil, fmt.Errorf("%w: %q", router.ErrUnknownModel, c.Model)
	}
	if c.Model == "" {
		c.Model = m.name
	}
	t := &ticket{f: f, m: m, call: c, adapter: adapter}
	t.prepare(ctx)
	return t, nil
}

// prepare tokenizes the call in each way its candidates do.
func (t *ticket) prepare(ctx context.Context) {
	c, m := t.call, t.m
	t.tokens = nil
	t.req = score.Request{
		ID: c.ID, Model: m.name, Role: score.Mixed, At: c.At.UnixNano(),
		BlockSize: m.pool.BlockSize(), N: c.N, Session: c.Session, Retention: c.Retention,
		Images: c.Images, Multimodal: c.Multimodal,
	}
	root := block.Namespace(t.adapter, c.Salt)
	if m.tok == nil {
		t.rough(root)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.f.cfg.TokenizeTimeout)
	defer cancel()
	began := time.Now()
	for k, v := range m.variantsNow() {
		res := m.tok.Tokenize(ctx, c.Endpoint, c.Body, tokenize.Options{
			Variant: v, BlockSize: t.req.BlockSize, Root: root, Now: c.At,
		})
		t.f.count.tokenized(m.name, &res)
		if res.Unhashable != "" && k == 0 {
			m.noTokens(res.Unhashable)
		}
		if res.Unhashable != "" && res.Err != nil {
			t.f.log.Debug("request has no tokens", "request_id", c.ID, "model", m.name, "reason", res.Unhashable, "error", res.Err)
		}
		t.keepTokens(&res)
		sv := variantOf(&res)
		if k > 0 {
			t.req.Variants = append(t.req.Variants, sv)
			continue
		}
		t.req.Blocks, t.req.More, t.req.Lengths = sv.Blocks, sv.More, sv.Lengths
		t.req.InputTokens, t.req.TokensExact, t.req.Unhashable = sv.InputTokens, sv.TokensExact, sv.Unhashable
		t.req.Multimodal = t.req.Multimodal || res.Multimodal
		t.req.LastComputed = len(sv.Lengths) > 0
		t.exact = res.Exact && !t.req.Multimodal && res.Unhashable == ""
	}
	t.f.count.tokenizeSeconds.Observe(time.Since(began).Seconds())
}

// length is the number of tokens of the first prompt of a variant, as far as it is known.
func (t *ticket) length(variant int) int64 {
	lengths, tokens := t.req.Lengths, t.req.InputTokens
	if variant > 0 && variant <= len(t.req.Variants) {
		v := &t.req.Variants[variant-1]
		lengths, tokens = v.Lengths, v.InputTokens
	}
	if len(lengths) > 0 {
		return lengths[0]
	}
	return tokens
}

// variantOf turns a tokenization into what the scorer takes.
func variantOf(res *tokenize.Result) score.Variant {
	v := score.Variant{InputTokens: res.Tokens, TokensExact: res.Exact, Unhashable: res.Unhashable}
	for i := range res.Prompts {
		p := &res.Prompts[i]
		if i == 0 {
			v.Blocks = p.Blocks
		} else {
			v.More = append(v.More, p.Blocks)
		}
		v.Lengths = append(v.Lengths, int64(len(p.Tokens)))
	}
	return v
}

// Pick implements router.Ticket.
func (t *ticket) Pick(skip func(worker string) bool) (router.Lease, error) {
	l := &lease{t: t}
	pick := func(skip func(*score.Candidate) bool) error {
		return t.m.pool.Pick(&t.req, skip, &l.dec, &l.before.watch)
	}
	err := t.m.choosing(skip, pick)
	if err != nil && t.outdated() {
		t.prepare(context.Background())
		err = t.m.choosing(skip, pick)
	}
	if errors.Is(err, score.ErrNoCandidates) {
		return nil, fmt.Errorf("%w: model %q: %s", router.ErrNoWorker, t.m.name, t.m.whyNone(skip))
	}
	if err != nil {
		return nil, fmt.Errorf("choosing a worker for model %q: %w", t.m.name, err)
	}
	term := l.dec.PickedTerms()
	tg := t.m.target(term.Candidate.Target)
	if tg == nil { // it left between the pick and here: its reservation must not stay
		t.m.pool.Unwatch(&l.before.watch)
		t.m.pool.Release(l.dec.Handle, time.Now().UnixNano(), -1)
		return nil, fmt.Errorf("%w: model %q: %s has just left", router.ErrNoWorker, t.m.name, term.Candidate.Key)
	}
	l.target = tg
	tg.predict(&l.before, t, term)
	t.f.logPick(&t.req, &l.dec)
	t.f.count.picked(t.m.name, &l.dec)
	t.f.cfg.Vitals.Picked(time.Now().UnixMilli(), &t.req, &l.dec, t.text(term.Candidate.Variant))
	return l, nil
}

// outdated says that a worker has joined since the call was tokenized which makes tokens in a way of its own: the
// call cannot be scored with it among the candidates.
func (t *ticket) outdated() bool {
	return t.m.tok != nil && len(t.m.variantsNow()) > 1+len(t.req.Variants)
}

// logPick writes the pick line; its fields and their order are what scripts read.
func (f *Fleet) logPick(req *score.Request, d *score.Decision) {
	t := d.PickedTerms()
	id := req.ID
	if id == "" {
		id = "-"
	}
	f.log.Info("pick",
		"policy", d.Policy, "role", d.Role.String(), "retention", retention(req.Retention), "request_id", id,
		"picked", t.Candidate.Key, "cache_hits", t.Hits, "request_blocks", t.Blocks, "active_blocks", t.Load.ActiveBlocks,
		"w_overlap", fmt.Sprintf("%.2f", d.Weight), "mm_images", d.Images, "mm_affinity_hits", t.ImageHits,
		"basis", string(d.Basis), "reason", d.Reason)
}

func retention(r score.Retention) string {
	switch r {
	case score.RetainLong:
		return "long"
	case score.RetainShort:
		return "short"
	default:
		return "none"
	}
}

// Explain returns the decision that would be made about a call, as its JSON record. Nothing is sent or booked.
func (f *Fleet) Explain(ctx context.Context, c *router.Call) (record []byte, err error) {
	m, adapter, ok := f.model(c.Model)
	if !ok {
		return nil, fmt.Errorf("%w: %q", router.ErrUnknownModel, c.Model)
	}
	t := &ticket{f: f, m: m, call: c, adapter: adapter}
	t.prepare(ctx)
	err = m.choosing(nil, func(skip func(*score.Candidate) bool) error {
		return m.pool.Peek(&t.req, skip, func(d *score.Decision) { record = d.AppendJSON(nil) })
	})
	if errors.Is(err, score.ErrNoCandidates) {
		return nil, fmt.Errorf("%w: model %q: %s", router.ErrNoWorker, m.name, m.whyNone(nil))
	}
	return record, err
}

// BlockSize is the number of tokens in a block of the mirrors.
func (f *Fleet) BlockSize() int { return f.cfg.BlockSize }

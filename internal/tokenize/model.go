package tokenize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/kvroute/kvroute/internal/block"
)

// Limits bound what tokenizing may cost. Zero values are the defaults.
type Limits struct {
	// MaxText is the largest prompt in bytes that is rendered and encoded; default 32 MiB.
	MaxText int64
	// CacheBytes bounds what is remembered of earlier prompts; default 256 MiB, negative: nothing.
	CacheBytes int64
	// Concurrent bounds the prompts that are rendered and encoded at once: each holds an OS thread while
	// it is in C. Default: as many as there are processors.
	Concurrent int
	// Waiting bounds those that wait for their turn; beyond it the reason is ReasonBusy. Default 1,024.
	Waiting int
}

// Defaults of Limits.
const (
	DefaultMaxText    = 32 << 20
	DefaultCacheBytes = 256 << 20
	DefaultWaiting    = 1024
)

func (l *Limits) setDefaults() {
	if l.MaxText <= 0 {
		l.MaxText = DefaultMaxText
	}
	if l.CacheBytes == 0 {
		l.CacheBytes = DefaultCacheBytes
	}
	if l.Concurrent <= 0 {
		l.Concurrent = runtime.GOMAXPROCS(0)
	}
	if l.Waiting <= 0 {
		l.Waiting = DefaultWaiting
	}
}

// reasons in the order of Stats.Unhashable.
var reasons = [...]string{
	ReasonNoTokenizer, ReasonTemplate, ReasonEncode, ReasonBody, ReasonUTF8, ReasonTooLarge, ReasonDeadline, ReasonBusy,
}

// ReasonCount is how many bodies had no tokens for one reason.
type ReasonCount struct {
	Reason string
	Count  int64
}

// Stats are counts since the model was made, and what its caches hold now.
type Stats struct {
	Requests   int64         // bodies
	Unhashable []ReasonCount // one entry for each reason, zeros too

	Pieces, PieceBytes    int64 // texts remembered with their tokens
	Chains, ChainBytes    int64 // states of chains of blocks remembered
	PieceHits, PieceMiss  int64 // lookups of texts
	ChainHits, ChainMiss  int64 // lookups of chains
	HitTokens, MissTokens int64 // tokens remembered, and encoded
	Evicted               int64 // entries that had to make room
	CacheMax              int64 // bytes
	Running, Waiting      int64 // at this moment
}

// Model is the one Tokenizer there is: an encoder and a template with caches around them.
type Model struct {
	enc      Encoder
	tpl      Template
	meta     Meta
	lim      Limits
	specials specials
	split    *splitter
	cache    *cache
	bos      block.Token
	bosKnown bool

	slots    chan struct{}
	waiting  atomic.Int64
	requests atomic.Int64
	failed   [len(reasons)]atomic.Int64
}

// New makes a model. Without an encoder (nil) it renders only, and every body has ReasonNoTokenizer;
// without a template (nil) conversations have ReasonTemplate. It fails where the encoder does.
func New(enc Encoder, tpl Template, meta Meta, lim Limits) (*Model, error) {
	lim.setDefaults()
	m := &Model{enc: enc, tpl: tpl, meta: meta, lim: lim, slots: make(chan struct{}, lim.Concurrent)}
	m.cache = newCache(max(lim.CacheBytes, 0))
	if enc == nil {
		return m, nil
	}
	var err error
	if m.specials, err = findSpecials(enc); err != nil {
		return nil, err
	}
	added := enc.Added()
	m.split = newSplitter(added, enc.NormalizerEmpty())
	for i := range added {
		if added[i].Content != "" && added[i].Content == meta.bos() {
			m.bos, m.bosKnown = added[i].ID, true
		}
	}
	return m, nil
}

// template is the template of a request with or without tools.
func (m *Model) template(tools bool) Template {
	if tools && m.meta.ToolTemplate != nil {
		return m.meta.ToolTemplate
	}
	return m.tpl
}

// source is the text of that template; "" if it does not tell.
func (m *Model) source(tools bool) string {
	if t, ok := m.template(tools).(interface{ Source() string }); ok {
		return t.Source()
	}
	return ""
}

// wantsParts says whether the engine hands contents to the template as lists of parts. Engines find that
// out in their own ways; a template that does not know them has one answer for all.
func (c *chat) wantsParts() bool {
	switch t := c.model.template(c.tooled).(type) {
	case nil:
		return false
	case interface{ WantsPartsFor(Prepare) bool }:
		return t.WantsPartsFor(c.kind)
	default:
		return t.WantsParts()
	}
}

// EncoderName says what encodes; "" if nothing does.
func (m *Model) EncoderName() string {
	if m == nil || m.enc == nil {
		return ""
	}
	return m.enc.Name()
}

// Tokenize implements Tokenizer. It may go on reading a copy of the body after ctx has ended: C code
// cannot be stopped. Then its result is only remembered for the next time.
func (m *Model) Tokenize(ctx context.Context, ep Endpoint, body []byte, opt Options) Result {
	res := m.tokenize(ctx, ep, body, opt)
	if m != nil {
		m.requests.Add(1)
		for i, r := range reasons {
			if r == res.Unhashable {
				m.failed[i].Add(1)
			}
		}
	}
	return res
}

func (m *Model) tokenize(ctx context.Context, ep Endpoint, body []byte, opt Options) Result {
	var res Result
	if !utf8.Valid(body) {
		res.Tokens = int64(len(body) / 4)
		return res.refuse(&refusal{ReasonUTF8, errors.New("the body is not UTF-8")})
	}
	v, err := parseJSON(body)
	if err != nil || v.kind != kindObject {
		res.Tokens = int64(len(body) / 4)
		if err == nil {
			err = errors.New("the body is not a JSON object")
		}
		return res.refuse(unsupported("%w", err))
	}
	text, ids := promptSize(&v)
	res.Tokens = text/4 + ids
	switch {
	case m == nil:
		return res.refuse(&refusal{ReasonNoTokenizer, errors.New("no model directory was given")})
	case text > m.lim.MaxText || 4*ids > m.lim.MaxText:
		return res.refuse(&refusal{ReasonTooLarge, fmt.Errorf("the prompt has %d bytes and %d token ids, at most %d bytes are tokenized", text, ids, m.lim.MaxText)})
	}
	if err := m.acquire(ctx); err != nil {
		return res.refuse(err)
	}
	return m.within(ctx, ep, &v, opt, res)
}

// inlineBody is the length of bodies that are worked on at once, whatever the deadline: it takes less
// than a millisecond or so.
const inlineBody = 32 << 10

// within does the work in a slot, which it gives back, but waits no longer than ctx allows.
func (m *Model) within(ctx context.Context, ep Endpoint, v *value, opt Options, res Result) Result {
	if ctx.Done() == nil || len(v.raw) <= inlineBody {
		defer m.release()
		return m.work(ctx, ep, v, &opt, res)
	}
	v.move(v.raw, bytes.Clone(v.raw)) // nobody may touch the caller's body after we return
	done := make(chan Result, 1)
	go func() {
		defer m.release()
		done <- m.work(ctx, ep, v, &opt, res)
	}()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
		return res.refuse(&refusal{ReasonDeadline, ctx.Err()})
	}
}

// acquire waits for a slot.
func (m *Model) acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return &refusal{ReasonDeadline, ctx.Err()}
	}
	select {
	case m.slots <- struct{}{}:
		return nil
	default:
	}
	if m.waiting.Add(1) > int64(m.lim.Waiting) {
		m.waiting.Add(-1)
		return &refusal{ReasonBusy, fmt.Errorf("%d prompts wait to be tokenized", m.lim.Waiting)}
	}
	defer m.waiting.Add(-1)
	select {
	case m.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &refusal{ReasonDeadline, ctx.Err()}
	}
}

func (m *Model) release() { <-m.slots }

// refuse fills in why there are no tokens; the estimate stays.
func (res Result) refuse(err error) Result {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{ReasonBody, err}
	}
	res.Prompts, res.Exact, res.Reused = nil, false, 0
	res.Unhashable, res.Err = r.reason, r.err
	return res
}

// work tokenizes a body. Res has the estimate.
func (m *Model) work(ctx context.Context, ep Endpoint, v *value, opt *Options, res Result) Result {
	var runs []*run
	var err error
	if images, audio := v.get("images"), v.get("audio"); images.kind == kindArray && len(images.kids)+images.nums > 0 || len(audio.kids)+audio.nums > 0 {
		res.Multimodal = true
	}
	switch ep {
	case Chat:
		runs, err = m.chatRuns(ctx, v, opt, &res)
	case Completions:
		runs, err = m.completionRuns(ctx, v, opt, &res)
	default:
		err = unsupported("unknown endpoint %d", ep)
	}
	if err != nil {
		return res.refuse(err)
	}
	res.Tokens, res.Exact = 0, !res.Multimodal
	res.Prompts = make([]Prompt, len(runs))
	for i, r := range runs {
		res.Prompts[i] = r.out
		res.Tokens += int64(len(r.out.Tokens))
		res.Reused += r.reused
	}
	return res
}

func (m *Model) chatRuns(ctx context.Context, v *value, opt *Options, res *Result) ([]*run, error) {
	if ids := v.get("input_ids"); opt.Variant.Prepare == PrepareSGLang && ids.has() {
		if ids.kind != kindArray || ids.nums == 0 {
			return nil, unsupported("input_ids is not a list of token ids")
		}
		if m.enc == nil {
			return nil, errNoEncoder
		}
		r, err := m.ids(ids, opt)
		return []*run{r}, err
	}
	if opt.Variant.Prepare == PrepareVLLM && v.get("truncate_prompt_tokens").has() {
		return nil, unsupported("truncate_prompt_tokens")
	}
	c, err := m.prepareChat(v, opt.Variant)
	if c != nil {
		res.Multimodal = res.Multimodal || c.multimodal
	}
	if err != nil {
		return nil, err
	}
	text, err := m.render(c, opt.Now)
	if err != nil {
		return nil, err
	}
	if opt.KeepText {
		res.Text = append(bytes.Clone(text), c.prefix...)
	}
	if int64(len(text)) > m.lim.MaxText {
		return nil, &refusal{ReasonTooLarge, fmt.Errorf("the rendered prompt has %d bytes, at most %d are tokenized", len(text), m.lim.MaxText)}
	}
	if m.enc == nil {
		return nil, errNoEncoder
	}
	r, err := m.text(ctx, text, c.addSpecial, opt)
	if err == nil && len(c.prefix) > 0 {
		err = r.suffix(c.prefix)
	}
	return []*run{r}, err
}

var errNoEncoder = &refusal{ReasonNoTokenizer, errors.New("no tokenizer was loaded")}

// varsPool is memory for the variables of templates, as large as their bodies.
var varsPool = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled bounds what is kept in it.
const maxPooled = 4 << 20

// render renders a prepared conversation.
func (m *Model) render(c *chat, now time.Time) ([]byte, error) {
	tpl := m.template(c.tooled)
	if tpl == nil {
		return nil, templateFailed(errors.New("the model has no chat template"))
	}
	vars := varsPool.Get().(*[]byte)
	*vars = c.text((*vars)[:0])
	text, err := tpl.Render(nil, *vars, now)
	if err != nil && c.flatTools != nil {
		c.vars.set("tools", c.flatTools)
		*vars = c.text((*vars)[:0])
		text, err = tpl.Render(nil, *vars, now)
	}
	if cap(*vars) <= maxPooled {
		varsPool.Put(vars)
	}
	if err != nil {
		return nil, templateFailed(err)
	}
	if !utf8.Valid(text) {
		return nil, &refusal{ReasonUTF8, errors.New("the rendered prompt is not UTF-8")}
	}
	return c.cutContinued(text)
}

// completionRuns tokenizes the prompt or prompts of /v1/completions.
func (m *Model) completionRuns(ctx context.Context, v *value, opt *Options, res *Result) ([]*run, error) {
	special := true
	if opt.Variant.Prepare != PrepareSGLang {
		var err error
		if special, err = flag(v, "add_special_tokens", true); err != nil {
			return nil, err
		}
	}
	if opt.Variant.Prepare == PrepareVLLM && v.get("truncate_prompt_tokens").has() {
		return nil, unsupported("truncate_prompt_tokens")
	}
	if v.get("prompt_embeds").has() {
		return nil, unsupported("prompt_embeds")
	}
	p := v.get("prompt")
	prompts := []value{*p}
	if p.kind == kindArray && p.nums == 0 {
		if prompts = p.kids; len(prompts) == 0 {
			return nil, unsupported("prompt is an empty list")
		}
	}
	var runs []*run
	for i := range prompts {
		p := &prompts[i]
		if opt.KeepText && len(prompts) == 1 && p.kind == kindString {
			s, err := p.str()
			if err != nil {
				return nil, &refusal{ReasonUTF8, err}
			}
			res.Text = bytes.Clone(s)
		}
		r, err := m.prompt(ctx, p, special, opt)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

func (m *Model) prompt(ctx context.Context, p *value, special bool, opt *Options) (*run, error) {
	switch {
	case p.kind == kindString:
		s, err := p.str()
		if err != nil {
			return nil, &refusal{ReasonUTF8, err}
		}
		if m.enc == nil {
			return nil, errNoEncoder
		}
		return m.text(ctx, s, special, opt)
	case p.kind == kindArray && p.nums > 0:
		if m.enc == nil {
			return nil, errNoEncoder
		}
		return m.ids(p, opt)
	}
	return nil, unsupported("prompt is neither text nor token ids")
}

// promptSize counts the bytes of a prompt's strings, without inline binary data, and its token ids.
func promptSize(body *value) (text, ids int64) {
	for _, k := range [...]string{"messages", "prompt", "tools", "documents", "input_ids"} {
		t, n := stringBytes(body.get(k))
		text, ids = text+t, ids+n
	}
	return text, ids
}

func stringBytes(v *value) (text, ids int64) {
	switch v.kind {
	case kindString:
		return textLen(v), 0
	case kindArray, kindObject:
		for i := range v.kids {
			if v.kind == kindObject && string(v.kids[i].key) == "data" {
				continue
			}
			t, n := stringBytes(&v.kids[i])
			text, ids = text+t, ids+n
		}
		ids += int64(v.nums)
	}
	return text, ids
}

// textLen is the length of a string; 0 for inline data.
func textLen(v *value) int64 {
	if bytes.HasPrefix(v.raw[1:], []byte("data:")) {
		return 0
	}
	if !v.esc {
		return int64(len(v.raw) - 2)
	}
	n := 0
	for s := v.raw[1 : len(v.raw)-1]; ; n++ {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return int64(n + len(s))
		}
		n += i
		if s = s[i+1:]; s[0] == 'u' {
			r, _ := hex4(s[1:])
			if size := utf8.RuneLen(r); size > 0 {
				n += size - 1
			} else {
				n++ // half of a pair counts 2, the pair 4
			}
			s = s[4:]
		}
		s = s[1:]
	}
}

// Stats returns a snapshot.
func (m *Model) Stats() Stats {
	var s Stats
	if m == nil {
		return s
	}
	s.Requests, s.Running, s.Waiting = m.requests.Load(), int64(len(m.slots)), m.waiting.Load()
	for i, r := range reasons {
		s.Unhashable = append(s.Unhashable, ReasonCount{r, m.failed[i].Load()})
	}
	c := m.cache
	for i := range shards {
		n, b := c.pieces[i].held()
		s.Pieces, s.PieceBytes = s.Pieces+n, s.PieceBytes+b
		n, b = c.chains[i].held()
		s.Chains, s.ChainBytes = s.Chains+n, s.ChainBytes+b
	}
	s.PieceHits, s.PieceMiss, s.ChainHits, s.ChainMiss = c.hits.Load(), c.misses.Load(), c.chainHits.Load(), c.chainMisses.Load()
	s.HitTokens, s.MissTokens, s.Evicted = c.hitTokens.Load(), c.missTokens.Load(), c.evicted.Load()
	s.CacheMax = max(m.lim.CacheBytes, 0)
	return s
}

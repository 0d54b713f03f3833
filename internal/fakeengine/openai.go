package fakeengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// maxBody bounds what a request may hold.
const maxBody = 256 << 20

// ask is what the engine reads of a request's body. Fields it does not know are accepted and ignored, as
// engines do.
type ask struct {
	Model       *string         `json:"model"`
	Prompt      json.RawMessage `json:"prompt"`
	Messages    json.RawMessage `json:"messages"`
	MaxTokens   *int            `json:"max_tokens"`
	MaxNew      *int            `json:"max_completion_tokens"`
	N           *int            `json:"n"`
	Stream      bool            `json:"stream"`
	Options     *streamOptions  `json:"stream_options"`
	Salt        string          `json:"cache_salt"`
	Seed        *int64          `json:"seed"`
	Rank        *int            `json:"data_parallel_rank"`
	RoutedRank  *int            `json:"routed_dp_rank"`
	ReturnToken bool            `json:"return_token_ids"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// refusal is an answer that is an error.
type refusal struct {
	status  int
	kind    string
	param   string
	message string
}

func bad(param, format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, "BadRequestError", param, fmt.Sprintf(format, args...)}
}

// job is one request at work.
type job struct {
	e       *Engine
	ep      tokenize.Endpoint
	ask     ask
	model   string
	id      string
	created int64
	n       int
	seqs    []*seq // by prompt, then by sample
	prompts [][]block.Token
	stop    bool // answers end by themselves: no limit was asked for
	rank    *rank
	notify  chan struct{}
	cut     int // tokens of the whole answer after which the connection breaks; negative: never
}

// generate serves /v1/chat/completions and /v1/completions.
func (e *Engine) generate(ep tokenize.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		errs, slow, cutAt := e.faults.request()
		if errs.Status != 0 {
			e.wait(r.Context(), time.Duration(errs.After))
			e.refuse(w, injected(errs.Status))
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			e.refuse(w, bad("", "reading the body: %v", err))
			return
		}
		j, no := e.newJob(r, ep, body)
		if no != nil {
			e.refuse(w, no)
			return
		}
		j.cut = cutAt
		if err := j.start(r.Context()); err != nil {
			return // the client has gone before anything was drawn
		}
		defer j.leave()
		e.wait(r.Context(), slow)
		if j.ask.Stream {
			j.stream(w, r)
		} else {
			j.whole(w, r)
		}
	}
}

// injected is the error of a fault.
func injected(status int) *refusal {
	kind := "InternalServerError"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "TooManyRequestsError"
	case status < 500:
		kind = "BadRequestError"
	case status == http.StatusServiceUnavailable:
		kind = "ServiceUnavailableError"
	}
	return &refusal{status, kind, "", "fault on command"}
}

// wait passes time, unless the client leaves or the engine ends.
func (e *Engine) wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// newJob reads a request and checks it.
func (e *Engine) newJob(r *http.Request, ep tokenize.Endpoint, body []byte) (*job, *refusal) {
	j := &job{e: e, ep: ep, n: 1, created: time.Now().Unix(), notify: make(chan struct{}, 1)}
	if no := readJSON(body, &j.ask); no != nil {
		return nil, no
	}
	a := &j.ask
	sp, no := e.namespace(a)
	if no != nil {
		return nil, no
	}
	j.model = e.cfg.Model
	if a.Model != nil && *a.Model != "" {
		j.model = *a.Model
	}
	if a.N != nil {
		j.n = *a.N
	}
	if j.n < 1 || j.n > 128 {
		return nil, bad("n", "n must be 1 to 128, got %d.", j.n)
	}
	if j.rank, no = e.pickRank(r, a); no != nil {
		return nil, no
	}
	if j.prompts, no = e.prompts(r.Context(), ep, body, a); no != nil {
		return nil, no
	}
	limit := a.MaxTokens
	if ep == tokenize.Chat && a.MaxNew != nil {
		limit = a.MaxNew
	}
	j.id = e.newID(ep, body)
	for i, p := range j.prompts {
		answer, no := e.answerLength(len(p), limit, ep, body)
		if no != nil {
			return nil, no
		}
		j.stop = limit == nil && ep == tokenize.Chat
		for k := range j.n {
			seed := promptSeed(p, i, k)
			if a.Seed != nil {
				seed = mix(seed, uint64(*a.Seed))
			}
			s := newSeq(p, answer, sp, seed)
			s.notify = j.notify
			j.seqs = append(j.seqs, s)
		}
	}
	return j, nil
}

// readJSON reads a body the way the engines' web frameworks do: one JSON object, of the right types.
func readJSON(body []byte, to any) *refusal {
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := dec.Decode(to); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return bad(kind.Field, "Input should be a valid %s, got a JSON %s. (parameter=%s)", kind.Type, kind.Value, kind.Field)
		}
		return bad("", "The body is not valid JSON: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("", "The body holds more than one JSON value.")
	}
	return nil
}

// namespace is what separates a request's prompt from others: adapter and salt. vLLM knows its models,
// SGLang takes any name for its own.
func (e *Engine) namespace(a *ask) (space, *refusal) {
	sp := space{salt: a.Salt}
	if a.Model == nil || *a.Model == "" || *a.Model == e.cfg.Model {
		return sp, nil
	}
	if slices.Contains(e.cfg.Adapters, *a.Model) {
		sp.adapter = *a.Model
		return sp, nil
	}
	if e.cfg.Dialect == SGLang {
		return sp, nil
	}
	return sp, &refusal{http.StatusNotFound, "NotFoundError", "model", fmt.Sprintf("The model `%s` does not exist.", *a.Model)}
}

// pickRank takes the rank that header or body name, else the one with the least to do.
func (e *Engine) pickRank(r *http.Request, a *ask) (*rank, *refusal) {
	want := a.RoutedRank
	if want == nil {
		want = a.Rank
	}
	if h := r.Header.Get("X-Data-Parallel-Rank"); h != "" {
		n, err := strconv.Atoi(h)
		if err != nil {
			return nil, bad("", "X-data-parallel-rank must be a number, got %q.", h)
		}
		want = &n
	}
	if want != nil {
		if *want < 0 || *want >= len(e.ranks) {
			return nil, bad("", "data_parallel_rank %d is out of range [0, %d).", *want, len(e.ranks))
		}
		return e.ranks[*want], nil
	}
	e.mu.Lock()
	e.turn++
	turn := e.turn
	e.mu.Unlock()
	best, least := e.ranks[0], math.MaxInt
	for i := range e.ranks {
		k := e.ranks[(i+turn)%len(e.ranks)]
		s := k.snapshot()
		if n := s.Running + s.Waiting; n < least {
			best, least = k, n
		}
	}
	return best, nil
}

// prompts turns a body into token ids.
func (e *Engine) prompts(ctx context.Context, ep tokenize.Endpoint, body []byte, a *ask) ([][]block.Token, *refusal) {
	if ep == tokenize.Completions {
		if ids, ok := idsOf(a.Prompt); ok {
			return ids, e.checkPrompts(ids)
		}
		if len(a.Prompt) == 0 || string(a.Prompt) == "null" {
			return nil, bad("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
		}
	} else if len(a.Messages) == 0 || string(a.Messages) == "null" {
		return nil, bad("messages", "Field required. (parameter=messages)")
	}
	if e.cfg.Tokenizer == nil {
		return nil, bad("", "This engine has no tokenizer: only prompts of token ids are served.")
	}
	res := e.cfg.Tokenizer.Tokenize(ctx, ep, body, tokenize.Options{
		Variant: tokenize.Variant{Prepare: e.prepare()}, BlockSize: e.cfg.BlockSize, Now: time.Now(),
	})
	if res.Unhashable != "" {
		return nil, bad("", "The prompt cannot be tokenized: %s: %v", res.Unhashable, res.Err)
	}
	var out [][]block.Token
	for _, p := range res.Prompts {
		out = append(out, p.Tokens)
	}
	return out, e.checkPrompts(out)
}

func (e *Engine) prepare() tokenize.Prepare {
	switch e.cfg.Dialect {
	case VLLM:
		return tokenize.PrepareVLLM
	case SGLang:
		return tokenize.PrepareSGLang
	}
	return tokenize.PrepareNone
}

func (e *Engine) checkPrompts(prompts [][]block.Token) *refusal {
	if len(prompts) == 0 {
		return bad("prompt", "The prompt is empty.")
	}
	for _, p := range prompts {
		if len(p) == 0 {
			return bad("prompt", "The prompt is empty.")
		}
	}
	return nil
}

// idsOf reads a prompt that is a list of ids, or a list of such lists.
func idsOf(prompt json.RawMessage) ([][]block.Token, bool) {
	var one []block.Token
	if json.Unmarshal(prompt, &one) == nil && len(one) > 0 {
		return [][]block.Token{one}, true
	}
	var many [][]block.Token
	if json.Unmarshal(prompt, &many) == nil && len(many) > 0 {
		return many, true
	}
	return nil, false
}

// answerLength is how many tokens a prompt's answer gets. Where none are asked for, a completion gets 16
// as the API says, and a chat ends by itself after a length that depends on the request.
func (e *Engine) answerLength(prompt int, limit *int, ep tokenize.Endpoint, body []byte) (int, *refusal) {
	room := e.cfg.MaxModelLen - prompt
	if room < 1 {
		if e.cfg.Dialect == SGLang {
			return 0, bad("", "The input (%d tokens) is longer than the model's context length (%d tokens).", prompt, e.cfg.MaxModelLen)
		}
		return 0, bad("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, "+
			"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)",
			e.cfg.MaxModelLen, prompt, prompt)
	}
	switch {
	case limit == nil && ep == tokenize.Completions:
		return min(16, room), nil
	case limit == nil:
		return min(room, 16+int(promptHash(body)%48)), nil
	case *limit < 1:
		return 0, bad("max_tokens", "max_tokens must be at least 1, got %d.", *limit)
	case *limit > room && e.cfg.Dialect != SGLang:
		return 0, bad("max_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt "+
			"contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=max_tokens, value=%d)",
			e.cfg.MaxModelLen, *limit, prompt, *limit+prompt, *limit)
	}
	return min(*limit, room), nil
}

// newID makes the id of an answer, in the engine's form.
func (e *Engine) newID(ep tokenize.Endpoint, body []byte) string {
	e.mu.Lock()
	e.ids++
	n := mix(e.cfg.Seed+e.ids, promptHash(body))
	e.mu.Unlock()
	if e.cfg.Dialect == SGLang {
		return fmt.Sprintf("%016x%016x", n, mix(n, 1))
	}
	if ep == tokenize.Chat {
		return fmt.Sprintf("chatcmpl-%016x", n)
	}
	return fmt.Sprintf("cmpl-%016x", n)
}

// promptHash is FNV-1a over bytes.
func promptHash(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// promptSeed makes answers depend on the prompt, and samples of it differ.
func promptSeed(tokens []block.Token, prompt, sample int) uint64 {
	h := uint64(14695981039346656037)
	for _, t := range tokens {
		h = (h ^ uint64(t)) * 1099511628211
	}
	return mix(h, uint64(prompt)<<16|uint64(sample))
}

// start hands the sequences to the rank. SGLang computes a prompt once before it draws several samples.
func (j *job) start(ctx context.Context) error {
	if j.e.cfg.Dialect != SGLang || j.n == 1 {
		j.rank.submit(j.seqs...)
		return nil
	}
	var first []*seq
	for i, p := range j.prompts {
		s := newSeq(p, 0, j.seqs[i*j.n].sp, 0)
		s.notify = j.notify
		first = append(first, s)
	}
	j.rank.submit(first...)
	for _, s := range first {
		for {
			if _, done, _ := j.rank.progress(s, 0); done {
				break
			}
			select {
			case <-j.notify:
			case <-ctx.Done():
				for _, s := range first {
					j.rank.abort(s)
				}
				return ctx.Err()
			}
		}
	}
	j.rank.submit(j.seqs...)
	return nil
}

// leave ends what is not done: the client has gone, or its connection was cut.
func (j *job) leave() {
	for _, s := range j.seqs {
		if _, done, _ := j.rank.progress(s, 0); !done {
			j.rank.abort(s)
		}
	}
}

// piece is one new token of one sequence.
type piece struct {
	index int // of the choice
	id    block.Token
	text  string
	last  bool
}

// errGone says that the answer cannot be finished.
var errGone = errors.New("the request is gone")

// each calls f for every token as it comes, until all sequences are done.
func (j *job) each(ctx context.Context, f func(piece) error) error {
	seen := make([]int, len(j.seqs))
	over := make([]bool, len(j.seqs))
	total := 0
	for left := len(j.seqs); left > 0; {
		for i, s := range j.seqs {
			if over[i] {
				continue
			}
			ids, done, _ := j.rank.progress(s, seen[i])
			for k, id := range ids {
				if total == j.cut {
					return errGone
				}
				total++
				seen[i]++
				if err := f(piece{i, id, j.e.speak.text(&j.e.cfg, id), done && k == len(ids)-1}); err != nil {
					return err
				}
			}
			if done {
				if seen[i] < s.max {
					return errGone // the engine died
				}
				over[i] = true
				left--
			}
		}
		if left == 0 {
			break
		}
		select {
		case <-j.notify:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// cached is how many cached prompt tokens the usage states: SGLang adds up its prompts, vLLM says those
// of one of them, the last in a whole answer and the first in a stream.
func (j *job) cached() int {
	of := func(s *seq) int {
		_, _, c := j.rank.progress(s, 0)
		return max(c, 0)
	}
	switch {
	case j.e.cfg.Dialect == SGLang:
		sum := 0
		for i := 0; i < len(j.seqs); i += j.n {
			sum += of(j.seqs[i])
		}
		return sum
	case j.ask.Stream:
		return of(j.seqs[0])
	}
	return of(j.seqs[len(j.seqs)-1])
}

package fakeengine

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/kvevent"
)

// session is a recorded run of a real engine: requests, answers, and the frames that came with them.
type session struct {
	Meta struct {
		Engine   string
		EnvExtra map[string]string `json:"env_extra"`
	}
	Steps []struct {
		Step    string
		Request struct {
			Path string
			Body struct {
				Prompt    json.RawMessage
				Messages  json.RawMessage
				MaxTokens int    `json:"max_tokens"`
				Salt      string `json:"cache_salt"`
				N         int
			}
		}
		Response struct {
			Status int
			JSON   json.RawMessage
		}
		Frames []struct {
			Parts   []string `json:"parts_hex"`
			Decoded []json.RawMessage
		}
	}
}

func readSessions(t *testing.T) []session {
	t.Helper()
	f, err := os.Open("../kvevent/testdata/live-engines-cpu.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Runs []session }
	if err := json.NewDecoder(z).Decode(&all); err != nil {
		t.Fatal(err)
	}
	if len(all.Runs) != 3 {
		t.Fatalf("%d sessions, want 3", len(all.Runs))
	}
	return all.Runs
}

// tokensOf returns the ids that the engine itself said it uses for a step's text.
func (s *session) tokensOf(t *testing.T, step string) []block.Token {
	t.Helper()
	for _, x := range s.Steps {
		if x.Step == step {
			var a struct{ Tokens []block.Token }
			if err := json.Unmarshal(x.Response.JSON, &a); err != nil || len(a.Tokens) == 0 {
				t.Fatalf("step %s: no tokens: %v", step, err)
			}
			return a.Tokens
		}
	}
	t.Fatalf("no step %s", step)
	return nil
}

// drive runs a rank until it is idle and returns the batches that it publishes.
func drive(t *testing.T, r *rank) [][]event {
	t.Helper()
	var out [][]event
	publish := func(idle bool) {
		if idle && r.cfg.Dialect == SGLang {
			r.flush = true
		}
		if !r.flush {
			return
		}
		r.flush = false
		if e := r.kv.take(); len(e) > 0 {
			out = append(out, e)
		}
	}
	for range 100000 {
		if !r.schedule() {
			publish(true)
			return out
		}
		r.finish()
		publish(false)
		if err := r.kv.check(r.running); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the rank does not come to rest")
	return nil
}

// TestSessions puts the requests of recorded sessions to the cache and the scheduler, and wants the same
// events, batch by batch and byte by byte, and the same count of cached tokens.
func TestSessions(t *testing.T) {
	for i, c := range []Config{
		{Dialect: VLLM, Version: "0.32.0", BlockSize: 32, Capacity: 40, MaxSeqs: 16, MaxModelLen: 1024},
		{Dialect: VLLM, Version: "0.23.0", BlockSize: 16, Capacity: 40, MaxSeqs: 16, MaxModelLen: 608},
		{Dialect: SGLang, Version: "0.5.23", BlockSize: 16, Capacity: 64, MaxSeqs: 8, MaxModelLen: 512},
	} {
		t.Run(string(c.Dialect)+" "+c.Version, func(t *testing.T) {
			s := readSessions(t)[i]
			c.HashSeed = s.Meta.EnvExtra["PYTHONHASHSEED"]
			c.Profile, _ = engine.Lookup(engine.DefaultProfile)
			playSession(t, c.withDefaults(), &s)
		})
	}
}

func playSession(t *testing.T, c Config, s *session) {
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	v, err := parseVersion(c.Version)
	if err != nil {
		t.Fatal(err)
	}
	w := wireOf(c.Dialect, v)
	r := newRank(0, &c, w, nil)
	names := &renamed{hasher: newHasher(&c, w), to: map[digest]uint64{}, from: map[uint64]digest{}}
	enc := encoder{wire: w, h: names, size: c.BlockSize}
	drive(t, r) // what an engine says at its start is not in the recording
	batches, hits := 0, 0
	for _, step := range s.Steps {
		answers := map[int]block.Token{} // by position, from what the engine stored
		var want [][]byte
		for _, f := range step.Frames {
			b, err := hex.DecodeString(f.Parts[len(f.Parts)-1])
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, b)
		}
		var prompts [][]block.Token
		switch {
		case step.Request.Path == "/reset_prefix_cache" || step.Request.Path == "/flush_cache":
			if err := r.reset(); err != nil {
				t.Fatalf("step %s: %v", step.Step, err)
			}
		case step.Response.Status != 200 || step.Request.Path != "/v1/completions" && step.Request.Path != "/v1/chat/completions":
			continue
		case len(step.Request.Body.Messages) > 0:
			prompts = [][]block.Token{s.tokensOf(t, "tokenize_chat")}
		default:
			var ok bool
			if prompts, ok = idsOf(step.Request.Body.Prompt); !ok {
				prompts = [][]block.Token{s.tokensOf(t, "tokenize_text")}
			}
		}
		if step.Step == "decode_crosses_blocks" {
			at := 32
			for _, f := range step.Frames {
				var events []json.RawMessage
				if err := json.Unmarshal(f.Decoded[1], &events); err != nil {
					t.Fatal(err)
				}
				for _, tok := range storedTokens(t, events) {
					answers[at] = tok
					at++
				}
			}
		}
		r.sample = func(q *seq) block.Token { return answers[len(q.tokens)] }
		seqs := submit(r, c.Dialect, prompts, step.Request.Body.MaxTokens, max(1, step.Request.Body.N), step.Request.Body.Salt)
		var batched [][]event
		if c.Version == "0.23.0" && step.Request.Body.N > 1 {
			// There the second sample came a step after the first.
			r.waiting = r.waiting[:1]
			r.schedule()
			r.finish()
			batched = append(batched, r.kv.take())
			r.waiting = slices.Clone(seqs[1:])
		}
		var got [][]byte
		for k, batch := range append(batched, drive(t, r)...) {
			if c.Dialect == VLLM && k < len(want) {
				names.learn(t, step.Step, batch, want[k])
			}
			b := enc.batch(0, batch)
			if k < len(want) {
				copy(b[1:10], want[k][1:10]) // the time
			}
			got = append(got, b)
		}
		batches += len(got)
		if len(got) != len(want) {
			t.Errorf("step %s: %d batches, want %d", step.Step, len(got), len(want))
			for _, b := range got {
				t.Logf("got %x", b)
			}
			continue
		}
		for k := range got {
			if !bytes.Equal(got[k], want[k]) {
				t.Errorf("step %s, batch %d:\n got %x\nwant %x", step.Step, k, got[k], want[k])
			}
		}
		if len(seqs) > 0 {
			hits += checkCached(t, step.Step, &c, seqs, step.Response.JSON)
		}
	}
	if batches < 15 || hits < 300 {
		t.Errorf("%d batches and %d cached tokens: the session is too tame", batches, hits)
	}
}

// renamed gives blocks the names that a recorded engine gave them. The vLLM sessions were recorded with
// hashes over Python's pickles, which nothing but Python can make; their structure must be equal all the
// same, one name for one block. TestHashes has the hashes themselves.
type renamed struct {
	hasher
	to   map[digest]uint64
	from map[uint64]digest
}

func (n *renamed) handle(d digest) uint64 {
	if h, ok := n.to[d]; ok {
		return h
	}
	return n.hasher.handle(d)
}

// learn takes the names of a recorded batch's stores.
func (n *renamed) learn(t *testing.T, step string, got []event, payload []byte) {
	t.Helper()
	var d kvevent.Decoder
	var b kvevent.Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	var blocks []digest
	for _, e := range got {
		if e.kind == stored {
			blocks = append(blocks, e.blocks...)
		}
	}
	i := 0
	for _, e := range b.Events {
		if e.Kind != kvevent.Stored {
			continue
		}
		for _, h := range e.Handles {
			if i == len(blocks) {
				t.Errorf("step %s: the engine stored more than the %d blocks here", step, i)
				return
			}
			old, known := n.to[blocks[i]]
			other, taken := n.from[uint64(h)]
			if known && old != uint64(h) || taken && other != blocks[i] {
				t.Errorf("step %s: block %d has another name than before", step, i)
			}
			n.to[blocks[i]], n.from[uint64(h)] = uint64(h), blocks[i]
			i++
		}
	}
}

// storedTokens are the tokens of the stores among decoded events, map or array form.
func storedTokens(t *testing.T, events []json.RawMessage) []block.Token {
	t.Helper()
	var out []block.Token
	for _, e := range events {
		var m struct {
			Tokens []block.Token `json:"token_ids"`
		}
		if json.Unmarshal(e, &m) == nil {
			out = append(out, m.Tokens...)
			continue
		}
		var a []json.RawMessage
		if err := json.Unmarshal(e, &a); err != nil {
			t.Fatal(err)
		}
		if string(a[0]) == `"BlockStored"` {
			var toks []block.Token
			if err := json.Unmarshal(a[3], &toks); err != nil {
				t.Fatal(err)
			}
			out = append(out, toks...)
		}
	}
	return out
}

// submit queues the sequences of one request as the HTTP side does.
func submit(r *rank, d Dialect, prompts [][]block.Token, answer, n int, salt string) []*seq {
	var seqs, first []*seq
	for _, p := range prompts {
		if d == SGLang && n > 1 {
			first = append(first, newSeq(p, 0, space{salt: salt}, 0))
		}
		for range n {
			seqs = append(seqs, newSeq(p, answer, space{salt: salt}, 0))
		}
	}
	if len(first) > 0 {
		r.submit(first...)
		for r.schedule() {
			r.finish()
		}
	}
	r.submit(seqs...)
	return seqs
}

// checkCached compares the cached tokens with the usage of the recorded answer; it returns them.
func checkCached(t *testing.T, step string, c *Config, seqs []*seq, answer json.RawMessage) int {
	t.Helper()
	var a struct {
		Usage *struct {
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if len(answer) == 0 || json.Unmarshal(answer, &a) != nil || a.Usage == nil {
		return 0 // a stream
	}
	want := 0
	if a.Usage.Details != nil {
		want = a.Usage.Details.Cached
	}
	if got := seqs[len(seqs)-1].cached; got != want {
		t.Errorf("step %s: %d cached tokens, the engine had %d", step, got, want)
	}
	return want
}

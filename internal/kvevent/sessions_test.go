package kvevent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
)

// session is one recorded run of a real engine.
type session struct {
	Meta  struct{ Engine string }
	Steps []struct {
		Step    string
		Request struct {
			Method, Path string
			Body         struct {
				Prompt    json.RawMessage `json:"prompt"`
				CacheSalt string          `json:"cache_salt"`
				N         int             `json:"n"`
			}
		}
		Response struct {
			Status int
			JSON   json.RawMessage
		}
		Frames []frames
	}
	Replay map[string]json.RawMessage
}

type frames struct {
	Parts []string `json:"parts_hex"`
}

func (f frames) bytes(t testing.TB) [][]byte {
	t.Helper()
	var parts [][]byte
	for _, p := range f.Parts {
		parts = append(parts, unhex(t, p))
	}
	return parts
}

func sessions(t testing.TB) []session {
	t.Helper()
	var all struct{ Runs []session }
	readJSON(t, "live-engines-cpu.json.gz", &all)
	if len(all.Runs) != 3 {
		t.Fatalf("%d sessions, want 3", len(all.Runs))
	}
	return all.Runs
}

func (s *session) dialect() Dialect {
	if strings.HasPrefix(s.Meta.Engine, "sglang") {
		return SGLang
	}
	return VLLM
}

// mirror is an index fed with one stream.
type mirror struct {
	t   testing.TB
	d   Decoder
	b   Batch
	m   *Mapper
	x   *index.Index
	sum index.Result
}

func newMirror(t testing.TB, blockSize int, d Dialect) *mirror {
	x := index.New(blockSize, index.Options{})
	x.Join(0)
	return &mirror{t: t, m: NewMapper(0, d, CopiesByDialect), x: x}
}

func (m *mirror) apply(payload []byte) {
	m.t.Helper()
	if err := m.d.Decode(payload, &m.b); err != nil {
		m.t.Fatal(err)
	}
	if len(m.b.Skipped) > 0 {
		m.t.Fatalf("skipped %v of a batch", m.b.Skipped)
	}
	if m.b.Fields > 0 {
		m.t.Fatalf("%d fields of a batch are not known", m.b.Fields)
	}
	for _, op := range m.m.Map(&m.b) {
		r, err := m.x.Apply(op)
		if err != nil {
			m.t.Fatal(err)
		}
		m.sum.Unknown += r.Unknown // a salted handle is removed as an unsalted one as well
		if r.Orphaned > 0 || r.Conflict > 0 || r.Refused > 0 || r.ViewOnly > 0 || m.sum.Unknown > int(m.m.Stats().Salted) || r.Rebound > 0 {
			m.t.Fatalf("applying %+v: %+v", op, r)
		}
		m.sum.Stored += r.Stored
		m.sum.Removed += r.Removed
	}
	if err := m.x.Check(); err != nil {
		m.t.Fatal(err)
	}
}

// cached predicts the engine's cached_tokens for a prompt.
func (m *mirror) cached(prompt []block.Token, salt string, size, page int) int {
	chain := block.AppendChain(nil, block.Namespace("", salt), prompt, size)
	var found index.Matches
	m.x.Match(chain, &found)
	hits := int(found.Hits[target.ID(0)]) * size / page * page
	return min(hits, (len(prompt)-1)/page*page)
}

// TestSessionsPredictCachedTokens replays the recorded sessions: before each request, what the mirror says is
// cached must be what the engine then said.
func TestSessionsPredictCachedTokens(t *testing.T) {
	for _, s := range sessions(t) {
		t.Run(s.Meta.Engine, func(t *testing.T) {
			texts := s.texts(t)
			for _, d := range []Dialect{s.dialect(), Unknown} {
				m := newMirror(t, 16, d)
				checked, hits := 0, 0
				for _, step := range s.Steps {
					var answer struct {
						Usage *struct {
							Details *struct {
								Cached int `json:"cached_tokens"`
							} `json:"prompt_tokens_details"`
						}
					}
					_ = json.Unmarshal(step.Response.JSON, &answer) // some answers are no JSON
					prompts := texts[step.Step]
					if prompts == nil {
						prompts = idPrompts(step.Request.Body.Prompt)
					}
					// vLLM tells of a reset with the next batch; a second sample hits what the first made.
					late := step.Step == "prompt100_after_reset" && s.dialect() == VLLM
					if answer.Usage != nil && prompts != nil && !late && step.Request.Body.N < 2 {
						want, got := 0, 0
						if answer.Usage.Details != nil {
							want = answer.Usage.Details.Cached
						}
						for _, p := range prompts {
							got += m.cached(p, step.Request.Body.CacheSalt, 16, max(m.m.PageSize(), 16))
						}
						if got != want {
							t.Errorf("step %s, dialect %q: mirror says %d cached tokens, the engine %d", step.Step, d, got, want)
						}
						checked++
						hits += want
					}
					for _, f := range step.Frames {
						live, err := feed.ParseLive(f.bytes(t))
						if err != nil {
							t.Fatal(err)
						}
						m.apply(live.Payload)
					}
				}
				if checked < 12 || hits < 200 {
					t.Errorf("dialect %q: %d requests and %d cached tokens checked, want at least 12 and 200", d, checked, hits)
				}
				if got := m.m.Dialect(); got != s.dialect() {
					t.Errorf("dialect told by events: %q, want %q", got, s.dialect())
				}
			}
		})
	}
}

// texts are the token ids of prompts given as text, which the engine itself told.
func (s *session) texts(t *testing.T) map[string][][]block.Token {
	t.Helper()
	out := map[string][][]block.Token{}
	for _, step := range s.Steps {
		var answer struct{ Tokens []block.Token }
		if step.Request.Path == "/tokenize" && json.Unmarshal(step.Response.JSON, &answer) == nil {
			switch step.Step {
			case "tokenize_text":
				out["completion_text"] = [][]block.Token{answer.Tokens}
			case "tokenize_chat":
				out["chat"] = [][]block.Token{answer.Tokens}
				out["chat_return_token_ids"] = [][]block.Token{answer.Tokens}
			}
		}
	}
	if len(out) != 3 {
		t.Fatalf("token ids of %d prompts, want 3", len(out))
	}
	return out
}

func idPrompts(raw json.RawMessage) [][]block.Token {
	var one []block.Token
	if json.Unmarshal(raw, &one) == nil && one != nil {
		return [][]block.Token{one}
	}
	var many [][]block.Token
	if json.Unmarshal(raw, &many) == nil {
		return many
	}
	return nil
}

// TestSessionsReplay holds the mirror made of a replay from 0 against that of the live frames.
func TestSessionsReplay(t *testing.T) {
	for _, s := range sessions(t) {
		t.Run(s.Meta.Engine, func(t *testing.T) {
			live, replayed := newMirror(t, 16, s.dialect()), newMirror(t, 16, s.dialect())
			var seq []uint64
			for _, step := range s.Steps {
				for _, f := range step.Frames {
					frame, err := feed.ParseLive(f.bytes(t))
					if err != nil {
						t.Fatal(err)
					}
					if !frame.HasSeq || string(frame.Topic) != "kv-events" {
						t.Fatalf("frame %+v, want a number and the topic kv-events", frame)
					}
					seq = append(seq, frame.Seq)
					live.apply(frame.Payload)
				}
			}
			var answer struct{ Answers []frames }
			if err := json.Unmarshal(s.Replay["from_0"], &answer); err != nil {
				t.Fatal(err)
			}
			var got []uint64
			for i, f := range answer.Answers {
				frame, end, err := feed.ParseReplay(f.bytes(t))
				if err != nil {
					t.Fatal(err)
				}
				if last := i == len(answer.Answers)-1; end != last {
					t.Fatalf("answer %d of %d: end %v", i, len(answer.Answers), end)
				} else if last {
					break
				}
				got = append(got, frame.Seq)
				replayed.apply(frame.Payload)
			}
			// A start-up clear of SGLang is in the replay only.
			if n := len(got) - len(seq); n < 0 || n > 1 || cmp.Diff(seq, got[n:]) != "" {
				t.Errorf("numbers live %v, replayed %v", seq, got)
			}
			if a, b := live.x.ContentHash(0), replayed.x.ContentHash(0); a != b || live.x.Stats(0).Blocks == 0 {
				t.Errorf("content hash live %x, replayed %x, %d blocks", a, b, live.x.Stats(0).Blocks)
			}
			var beyond struct{ Answers []frames }
			if err := json.Unmarshal(s.Replay["beyond_end"], &beyond); err != nil || len(beyond.Answers) != 1 {
				t.Fatalf("%d answers beyond the end, error %v, want 1", len(beyond.Answers), err)
			}
			if f, end, err := feed.ParseReplay(beyond.Answers[0].bytes(t)); err != nil || !end {
				t.Errorf("answer beyond the end: %+v, error %v, want the end", f, err)
			}
		})
	}
}

// TestRealEngines reads single batches of engines with a real model.
func TestRealEngines(t *testing.T) {
	var all []struct {
		Engine  string
		Seq     int
		Payload string `json:"payload_hex"`
	}
	readJSON(t, "real-engines.json", &all)
	if len(all) != 4 {
		t.Fatalf("%d batches, want 4", len(all))
	}
	for _, c := range all {
		var d Decoder
		var b Batch
		if err := d.Decode(unhex(t, c.Payload), &b); err != nil {
			t.Fatalf("%s %d: %v", c.Engine, c.Seq, err)
		}
		if len(b.Skipped) > 0 || b.Fields > 0 || !b.HasRank {
			t.Errorf("%s %d: skipped %v, %d unknown fields, rank %v", c.Engine, c.Seq, b.Skipped, b.Fields, b.HasRank)
		}
		switch c.Seq {
		case 0, 1:
			e := b.Events[0]
			if len(b.Events) != 1 || e.Kind != Stored || len(e.Handles) != 40 || len(e.Tokens) != 640 || e.HasParent || e.PageSize != 16 || e.Incomplete {
				t.Errorf("%s %d: %d events, first with %d handles and %d tokens of pages of %d; want a whole root of 40 blocks", c.Engine, c.Seq, len(b.Events), len(e.Handles), len(e.Tokens), e.PageSize)
			}
		case 48:
			if n := len(b.Events); n != 9 || b.Events[8].Kind != Stored || len(b.Events[8].Handles) != 8 || len(b.Events[0].Handles) != 1 {
				t.Errorf("%s %d: %d events, want eight removals of one and a store of eight", c.Engine, c.Seq, n)
			}
		case 27:
			if len(b.Events) != 1 || b.Events[0].Kind != Cleared || b.Rank != 1 {
				t.Errorf("%s %d: %+v, want a clear of rank 1", c.Engine, c.Seq, b)
			}
		}
	}
}

// TestSimulatorFrames reads another code base's frames, live and replayed, in both forms.
func TestSimulatorFrames(t *testing.T) {
	for _, name := range []string{"array-frames.json", "map-dp2-frames.json"} {
		t.Run(name, func(t *testing.T) {
			var c struct {
				Frames []struct {
					Hex []string `json:"frames_hex"`
				}
				Replay []struct{ Replies [][]string }
			}
			readJSON(t, name, &c)
			var d Decoder
			var b Batch
			stores, live := 0, map[string]string{}
			for _, f := range c.Frames {
				frame, err := feed.ParseLive(frames{f.Hex}.bytes(t))
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Decode(frame.Payload, &b); err != nil {
					t.Fatal(err)
				}
				if !frame.HasSeq || frame.Seq == 0 || len(b.Skipped) > 0 || b.Fields > 0 {
					t.Errorf("number %d, skipped %v, %d unknown fields", frame.Seq, b.Skipped, b.Fields)
				}
				for _, e := range b.Events {
					if e.Kind == Stored {
						stores++
						if e.PageSize != 8 || e.Incomplete {
							t.Errorf("store %+v, want whole blocks of 8", e)
						}
					}
				}
				live[f.Hex[0]+f.Hex[1]] = f.Hex[2]
			}
			ends, same := 0, 0
			for _, r := range c.Replay {
				for _, parts := range r.Replies {
					frame, end, err := feed.ParseReplay(frames{parts}.bytes(t))
					if err != nil {
						t.Fatal(err)
					}
					if end {
						ends++
						continue
					}
					if payload, ok := live[parts[1]+parts[2]]; ok {
						if payload != parts[3] {
							t.Errorf("replay of %d differs from what was live", frame.Seq)
						}
						same++
					}
				}
			}
			if stores == 0 || ends != len(c.Replay) || same == 0 {
				t.Errorf("%d stores, %d ends of %d replays, %d replayed batches that were live", stores, ends, len(c.Replay), same)
			}
		})
	}
}

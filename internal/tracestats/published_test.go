package tracestats_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/kvroute/kvroute/internal/prefixcache"
	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

// fifo keeps the blocks stored last, whatever is used in between. It is here to compare with published
// figures only. Blocks of a request are stored first block first; a hit is the leading run.
type fifo struct {
	capacity int
	held     []bool // by block
	queue    []trace.NodeID
}

func (c *fifo) request(path []trace.NodeID) (hits int) {
	for hits < len(path) && c.held[path[hits]] {
		hits++
	}
	for _, b := range path {
		if c.held[b] {
			continue
		}
		if len(c.queue) == c.capacity {
			c.held[c.queue[0]] = false
			c.queue = c.queue[1:]
		}
		c.held[b] = true
		c.queue = append(c.queue, b)
	}
	return hits
}

// TestPublishedRAGPulseHits compares with figures that are not ours: the 202 rows KVCache.AI publishes
// for chained blocks of RAGPulse, from the raw file with its even split of each prompt.
func TestPublishedRAGPulseHits(t *testing.T) {
	data, err := os.ReadFile(testtraces.Bundled("testdata/ragpulse-published-hits.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Requests int        `json:"requests"`
		First    int        `json:"first_measured_request"`
		Tokens   int64      `json:"measured_tokens"`
		Infinite int64      `json:"infinite_hit_tokens"`
		Rows     [][4]int64 `json:"rows"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Rows) != 202 {
		t.Fatalf("%d rows in the file, want 202", len(doc.Rows))
	}
	w := load(t, trace.Options{}, "ragpulse/0_trace.jsonl.gz")
	if len(w.Requests) != doc.Requests {
		t.Fatalf("%d requests, want %d", len(w.Requests), doc.Requests)
	}
	weight := func(i int) int64 { return int64(w.Requests[i].Even) }
	measured := int64(0)
	for i := doc.First; i < len(w.Requests); i++ {
		measured += weight(i) * int64(w.BlocksOf(&w.Requests[i]))
	}
	if measured != doc.Tokens {
		t.Errorf("%d tokens measured, want %d", measured, doc.Tokens)
	}
	lru := func(capacity int) (tokens int64) {
		c := prefixcache.NewLRU(w.Forest, capacity)
		for i := range w.Requests {
			if i >= doc.First {
				tokens += weight(i) * int64(c.Hits(w.Requests[i].Leaf))
			}
			c.Touch(w.Requests[i].Leaf, nil, nil)
		}
		return tokens
	}
	if got := lru(0); got != doc.Infinite {
		t.Errorf("unlimited: %d hit tokens, want %d", got, doc.Infinite)
	}
	paths := make([][]trace.NodeID, len(w.Requests))
	for i := range w.Requests {
		for n := w.Requests[i].Leaf; n != trace.NoNode; n = w.Forest.Parent[n] {
			paths[i] = append([]trace.NodeID{n}, paths[i]...)
		}
	}
	optimal := int64(0)
	for _, row := range doc.Rows {
		capacity := int(row[0])
		f, first := &fifo{capacity: capacity, held: make([]bool, w.Forest.Len())}, int64(0)
		for i, p := range paths {
			if hits := f.request(p); i >= doc.First {
				first += weight(i) * int64(hits)
			}
		}
		if first != row[1] {
			t.Errorf("FIFO of %d blocks: %d hit tokens, want %d", capacity, first, row[1])
		}
		if got := lru(capacity); got != row[2] {
			t.Errorf("LRU of %d blocks: %d hit tokens, want %d", capacity, got, row[2])
		}
		if row[2] > row[3] {
			t.Errorf("LRU of %d blocks: %d hit tokens are more than the optimal %d", capacity, row[2], row[3])
		}
		optimal = max(optimal, row[3])
	}
	if got := lru(0); got != optimal {
		t.Errorf("unlimited: %d hit tokens, the largest optimal count is %d", got, optimal)
	}
}

// TestRAGPulseForms checks that the raw file with its size files is the derived chained file.
func TestRAGPulseForms(t *testing.T) {
	raw := load(t, trace.Options{}, "ragpulse/1_sys_prompt.jsonl.gz", "ragpulse/2_passages.jsonl.gz", "ragpulse/3_history.jsonl.gz",
		"ragpulse/4_user_input.jsonl.gz", "ragpulse/5_web_search.jsonl.gz", "ragpulse/0_trace.jsonl.gz")
	chained := load(t, trace.Options{}, "ragpulse/ragpulse_chained.jsonl.gz")
	if len(raw.Requests) != len(chained.Requests) || raw.Forest.Len() != chained.Forest.Len() {
		t.Fatalf("raw %d requests, %d blocks; chained %d, %d", len(raw.Requests), raw.Forest.Len(), len(chained.Requests), chained.Forest.Len())
	}
	for i := range raw.Requests {
		a, b := raw.Requests[i], chained.Requests[i]
		if x, y := raw.PrefixTokens(&a, raw.BlocksOf(&a)), chained.PrefixTokens(&b, chained.BlocksOf(&b)); x != y {
			t.Fatalf("request %d: %d tokens in blocks, chained has %d", i, x, y)
		}
		if raw.Sessions[a.Session] != chained.Sessions[b.Session] {
			t.Fatalf("request %d: session %s, chained has %s", i, raw.Sessions[a.Session], chained.Sessions[b.Session])
		}
		a.Leaf, b.Leaf = 0, 0
		if a != b {
			t.Fatalf("request %d: %+v, chained has %+v", i, a, b)
		}
	}
}

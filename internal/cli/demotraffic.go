package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/trace"
)

// demoCounts is what came back.
type demoCounts struct {
	answers, begun, failed int
	prompt, cached         int64 // tokens, by the engines' usage
	ttft                   time.Duration
}

func (c demoCounts) minus(o demoCounts) demoCounts {
	return demoCounts{c.answers - o.answers, c.begun - o.begun, c.failed - o.failed, c.prompt - o.prompt, c.cached - o.cached, c.ttft - o.ttft}
}

// demoTraffic plays the sessions of a trace: each client takes the next session and sends its requests
// one after the other, each when the one before has been answered. When all sessions have been played
// they begin again with other words, except for what all sessions share.
type demoTraffic struct {
	w        *trace.Workload
	words    []string
	url      string
	model    string
	http     *http.Client
	sessions [][]int // requests, by session
	common   map[block.Hash]bool

	mu   sync.Mutex
	next int
	sum  demoCounts
}

// demoAnswer is the most tokens that the demo asks for: long answers would only make it slow.
const demoAnswer = 32

func newDemoTraffic(w *trace.Workload, words []string, url, model string) *demoTraffic {
	d := &demoTraffic{
		w: w, words: words, url: url, model: model, common: map[block.Hash]bool{},
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
	}
	d.sessions = make([][]int, len(w.Sessions))
	seen := map[block.Hash]int32{}
	var path []block.Hash
	for i := range w.Requests {
		q := &w.Requests[i]
		if q.Session < 0 || q.Leaf == trace.NoNode {
			continue
		}
		d.sessions[q.Session] = append(d.sessions[q.Session], i)
		path = w.Path(q.Leaf, path[:0])
		for _, h := range path {
			if s, ok := seen[h]; ok && s != q.Session {
				d.common[h] = true
			}
			seen[h] = q.Session
		}
	}
	return d
}

// demoWords are words of the vocabulary that are one token each.
func demoWords(voc fakeengine.Vocabulary) ([]string, error) {
	var out []string
	for id := block.Token(0); id < 1<<16 && len(out) < 1024; id++ {
		t, err := voc.Decode([]block.Token{id})
		if err != nil {
			break // there are no more
		}
		if len(t) > 2 && t[0] == ' ' && strings.Trim(t[1:], "abcdefghijklmnopqrstuvwxyz") == "" {
			out = append(out, t)
		}
	}
	if len(out) < 16 {
		return nil, fmt.Errorf("the vocabulary has %d words only", len(out))
	}
	return out, nil
}

// prompt writes the text of a request: a word for each token of each block, drawn by the block's hash.
func (d *demoTraffic) prompt(i, round int) string {
	q := &d.w.Requests[i]
	var b strings.Builder
	for _, h := range d.w.Path(q.Leaf, nil) {
		x := uint64(h)
		if !d.common[h] {
			x ^= uint64(round) * 0x9e3779b97f4a7c15
		}
		for range d.w.BlockSize {
			x = x*6364136223846793005 + 1442695040888963407
			b.WriteString(d.words[(x>>33)%uint64(len(d.words))])
		}
	}
	return b.String()
}

// client plays sessions until ctx is done.
func (d *demoTraffic) client(ctx context.Context) error {
	for ctx.Err() == nil {
		d.mu.Lock()
		n := d.next
		d.next++
		d.mu.Unlock()
		for _, i := range d.sessions[n%len(d.sessions)] {
			if ctx.Err() != nil {
				break
			}
			err := d.ask(ctx, d.prompt(i, n/len(d.sessions)), int(min(max(1, d.w.Requests[i].Output), demoAnswer)))
			if err != nil && ctx.Err() == nil {
				d.mu.Lock()
				d.sum.failed++
				d.mu.Unlock()
				select { // a router or a fleet that is down is not asked in a tight loop
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
	}
	return nil
}

// ask sends one request and counts its answer.
func (d *demoTraffic) ask(ctx context.Context, prompt string, answer int) error {
	body, err := json.Marshal(map[string]any{
		"model": d.model, "messages": []map[string]string{{"role": "user", "content": prompt}},
		"max_tokens": answer, "stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	res, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // read to its end, or given up
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	begun := false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if !begun {
			begun = true
			d.mu.Lock()
			d.sum.begun++
			d.sum.ttft += time.Since(began)
			d.mu.Unlock()
		}
		if string(data) == "[DONE]" {
			d.mu.Lock()
			d.sum.answers++
			d.mu.Unlock()
			return nil
		}
		d.usage(data)
	}
	return errors.Join(lines.Err(), errors.New("the answer broke off"))
}

// usage counts the tokens of the last record of an answer.
func (d *demoTraffic) usage(data []byte) {
	if !bytes.Contains(data, []byte(`"prompt_tokens"`)) {
		return
	}
	var r struct {
		Usage *struct {
			Prompt  int64 `json:"prompt_tokens"`
			Details *struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if json.Unmarshal(data, &r) != nil || r.Usage == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.prompt += r.Usage.Prompt
	if r.Usage.Details != nil {
		d.sum.cached += r.Usage.Details.Cached
	}
}

func (d *demoTraffic) counts() demoCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sum
}

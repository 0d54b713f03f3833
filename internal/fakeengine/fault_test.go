package fakeengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/kvevent"
)

// TestAnswerFaults: errors, late and broken answers on command.
func TestAnswerFaults(t *testing.T) {
	e := start(t, Config{Tokenizer: letters{}})
	post := func(body m) (int, []byte, error) {
		res, err := client.Post(e.URL()+"/v1/completions", "application/json", strings.NewReader(string(encodeJSON(body))))
		if err != nil {
			return 0, nil, err
		}
		defer res.Body.Close() //nolint:errcheck // read as far as it goes
		b := make([]byte, 1<<16)
		n := 0
		for {
			k, err := res.Body.Read(b[n:])
			n += k
			if err != nil {
				if err.Error() == "EOF" {
					err = nil
				}
				return res.StatusCode, b[:n], err
			}
		}
	}
	fault := func(body string) {
		t.Helper()
		if status, _, out := call(t, "POST", e.URL()+"/fault", body); status != 200 {
			t.Fatalf("%s: %d %s", body, status, out)
		}
	}
	ask := m{"prompt": "hello", "max_tokens": 8}
	fault(`{"errors":{"status":503,"count":2}}`)
	for i, want := range []int{503, 503, 200} {
		status, out, err := post(ask)
		if err != nil || status != want || (want != 200) != strings.Contains(string(out), `"error":{"message":"fault on command"`) {
			t.Errorf("request %d: got %d %s %v, want %d", i, status, out, err, want)
		}
	}
	fault(`{"errors":{"status":429,"count":1}}`)
	status, header, _ := call(t, "POST", e.URL()+"/v1/completions", ask)
	if status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("got %d, Retry-After %q", status, header.Get("Retry-After"))
	}
	fault(`{"errors":{"status":500,"ratio":0.5}}`)
	failed := 0
	for range 200 {
		if status, _, _ := post(ask); status == 500 {
			failed++
		}
	}
	if failed < 60 || failed > 140 {
		t.Errorf("%d of 200 failed, want about half", failed)
	}
	fault(`{"clear":true,"slow_first_byte":{"delay":"150ms","count":1}}`)
	for _, slow := range []bool{true, false} {
		began := time.Now()
		if status, out, err := post(ask); status != 200 {
			t.Fatalf("%d %s %v", status, out, err)
		}
		if took := time.Since(began); slow && took < 150*time.Millisecond {
			t.Errorf("took %v, slower was asked for", took)
		}
	}
	fault(`{"cut_stream":{"after":3,"count":2}}`)
	for _, stream := range []bool{true, false} {
		ask["stream"] = stream
		_, out, err := post(ask)
		if err == nil {
			t.Errorf("stream %v: the answer ended well: %s", stream, out)
		}
		if n := strings.Count(string(out), `"text":`); stream && n != 3 || !stream && n != 0 {
			t.Errorf("stream %v: %d tokens came: %s", stream, n, out)
		}
	}
	ask["stream"] = false
	if status, out, err := post(ask); status != 200 || err != nil {
		t.Errorf("after the faults: %d %s %v", status, out, err)
	}
	eventually(t, "cut answers hold nothing", func() bool { s := e.Stats(); return s.Running+s.UsedBlocks == 0 })
}

// TestFaultPage refuses what it does not understand.
func TestFaultPage(t *testing.T) {
	e := start(t, Config{})
	for _, body := range []string{
		"", "{", `{"drop":3}`, `{"drop_events":-1}`, `{"rank":1}`, `{"errors":{"status":200}}`, `{"errors":{"status":500,"ratio":2}}`,
		`{"stall_events":"soon"}`, `{"cut_stream":{"after":-1}}`,
	} {
		if status, _, out := call(t, "POST", e.URL()+"/fault", body); status != http.StatusBadRequest {
			t.Errorf("%s: got %d %s, want 400", body, status, out)
		}
	}
	if status, _, out := call(t, "GET", e.URL()+"/fault", nil); status != 200 || !strings.Contains(string(out), `"Aborted":0`) {
		t.Errorf("got %d %s", status, out)
	}
	_, _, out := call(t, "GET", e.URL()+"/metrics", nil)
	if want := `vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="65536",num_gpu_blocks="4096"`; !strings.Contains(string(out), want) {
		t.Errorf("metrics lack %s", want)
	}
	call(t, "POST", e.URL()+"/fault", `{"block_size":64}`)
	_, _, out = call(t, "GET", e.URL()+"/metrics", nil)
	if want := `vllm:cache_config_info{block_size="64"`; !strings.Contains(string(out), want) {
		t.Errorf("after the fault metrics lack %s", want)
	}
}

// TestParseFault: flags say the same as the page.
func TestParseFault(t *testing.T) {
	for in, want := range map[string]string{
		"drop-events=3":       `{"drop_events":3}`,
		"lose-events=1":       `{"lose_events":1}`,
		"duplicate-events=1":  `{"duplicate_events":1}`,
		"reorder-events=2":    `{"reorder_events":2}`,
		"garble-events=2":     `{"garble_events":2}`,
		"stall-events=2s":     `{"stall_events":"2s"}`,
		"silent=true":         `{"silent":true}`,
		"block-size=32":       `{"block_size":32}`,
		"errors=500:0.25":     `{"errors":{"status":500,"ratio":0.25}}`,
		"errors=429x5":        `{"errors":{"status":429,"count":5}}`,
		"slow-first-byte=1s":  `{"slow_first_byte":{"delay":"1s"}}`,
		"cut-stream=10":       `{"cut_stream":{"after":10}}`,
		"drop-events=-1":      "",
		"drop-events=3x":      "",
		"drop-events":         "",
		"errors=500":          "",
		"errors=200x1":        "",
		"errors=500:2":        "",
		"errors=500:0.1more":  "",
		"silent=yes":          "",
		"stall-events=-1s":    "",
		"nothing=1":           "",
		"slow-first-byte=now": "",
	} {
		var f Fault
		err := ParseFault(&f, in)
		if (err != nil) != (want == "") {
			t.Errorf("%s: error %v, want one: %v", in, err, want == "")
			continue
		}
		if got, _ := json.Marshal(f); err == nil && string(got) != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// TestPolledEvents: what TensorRT-LLM hands out over HTTP, read by the decoder of that form.
func TestPolledEvents(t *testing.T) {
	e := start(t, Config{Dialect: TRTLLM, BlockSize: 4, Capacity: 16, MaxModelLen: 60})
	var p kvevent.Polled
	poll := func() (got []string) {
		t.Helper()
		_, _, out := call(t, "POST", e.URL()+"/kv_cache_events", "")
		batches, err := p.Decode(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		for _, b := range batches {
			for _, ev := range b.Events {
				got = append(got, fmt.Sprint(ev.Kind, len(ev.Handles), ev.HasParent, len(ev.Tokens)))
			}
		}
		return got
	}
	stores := fmt.Sprint(kvevent.Stored, 2, false, 8)
	complete(t, e, m{"prompt": ids(1, 9), "max_tokens": 1})
	if got := poll(); fmt.Sprint(got) != "["+stores+"]" {
		t.Errorf("got %s, want %s", got, stores)
	}
	if pool := p.Pool(); len(pool) != 2 || pool[0] != 16 {
		t.Errorf("the pool is said to be %v, want 16 blocks", pool)
	}
	if got := poll(); len(got) > 0 {
		t.Errorf("polled twice: %s", got)
	}
	complete(t, e, m{"prompt": ids(100, 55), "max_tokens": 1})
	complete(t, e, m{"prompt": ids(200, 9), "max_tokens": 1})
	want := []string{fmt.Sprint(kvevent.Stored, 13, false, 52), fmt.Sprint(kvevent.Removed, 1, false, 0), stores}
	got := poll()
	if len(got) < 3 || got[0] != want[0] || got[1] != want[1] || got[len(got)-1] != want[2] {
		t.Errorf("got %s, want first %s, last %s", got, want[:2], want[2])
	}
}

// FuzzFault: no command, however odd, breaks the page or the state.
func FuzzFault(f *testing.F) {
	f.Add(`{"drop_events":3,"errors":{"status":500,"ratio":0.5}}`)
	f.Add(`{"rank":0,"stall_events":"1s","clear":true}`)
	f.Fuzz(func(t *testing.T, body string) {
		var c Fault
		if json.Unmarshal([]byte(body), &c) != nil || c.validate(2) != nil {
			return
		}
		s := newFaults(2, 1)
		s.apply(&c)
		for i := range 8 {
			s.batch(i % 2)
			s.request()
		}
		if s.blockSize(16) <= 0 {
			t.Errorf("%s: block size %d", body, s.blockSize(16))
		}
	})
}

// FuzzRequest: any body gets an answer, and a refusal is valid JSON.
func FuzzRequest(f *testing.F) {
	e, err := Start(Config{Tokenizer: letters{}, Capacity: 64})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := e.Close(); err != nil {
			f.Error(err)
		}
	})
	for _, s := range []string{`{"prompt":"a"}`, `{"prompt":[1,2],"n":2,"max_tokens":3}`, `{"messages":[{"role":"user","content":"x"}],"stream":true}`, `{"prompt":[[1],[2,3]]}`, `{`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, ep := range []string{"/v1/completions", "/v1/chat/completions"} {
			status, _, out := call(t, "POST", e.URL()+ep, body)
			if status != 200 && !json.Valid(out) {
				t.Errorf("%q: %d %q", body, status, out)
			}
		}
		if err := e.Check(); err != nil {
			t.Error(err)
		}
	})
}

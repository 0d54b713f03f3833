package router

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// randomBody is valid JSON as no printer would print it again.
func randomBody(rng *rand.Rand) string {
	var b strings.Builder
	space := func() {
		b.WriteString([]string{"", " ", "\n", "\t \r\n"}[rng.IntN(4)])
	}
	fields := []string{
		`"n":1.0e0`, `"x":-0.00`, `"y":123456789012345678901234567890`, `"z":"\u00e9\ud83d\ude00\/é"`, `"x":[ ]`, `"deep":{"a":[{},[[]],null,true]}`,
		`"messages":[{"role":"user","content":"` + strings.Repeat("text ", rng.IntN(20000)) + `"}]`, `"stream":false`,
	}
	space()
	b.WriteString("{")
	for range rng.IntN(12) {
		space()
		b.WriteString(fields[rng.IntN(len(fields))] + ",")
	}
	b.WriteString(`"model" :"m"`)
	space()
	b.WriteString("}")
	space()
	return b.String()
}

func TestBytesPassUntouched(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	type exchanged struct {
		body, query string
		length      int64
		header      http.Header
	}
	var got exchanged
	var reply struct {
		status  int
		header  http.Header
		pieces  []string
		trailer string
	}
	s := serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("the worker reads its request: %v", err)
		}
		got = exchanged{string(body), r.URL.RawQuery, r.ContentLength, r.Header.Clone()}
		for k, v := range reply.header {
			w.Header()[k] = v
		}
		w.WriteHeader(reply.status)
		if reply.header.Get("Content-Length") == "" {
			w.(http.Flusher).Flush()
		}
		for _, p := range reply.pieces {
			io.WriteString(w, p)
			if reply.header.Get("Content-Length") == "" {
				w.(http.Flusher).Flush()
			}
		}
		if reply.trailer != "" {
			w.Header().Set(http.TrailerPrefix+"X-Sum", reply.trailer)
		}
	})
	f := newMemory(t, "m")
	f.add("A", s.URL)
	b := start(t, f, nil)
	for i := range 150 {
		reply.status = []int{200, 200, 201, 400, 404, 422}[rng.IntN(6)]
		reply.pieces, reply.trailer = nil, ""
		reply.header = http.Header{"Server": {"uvicorn"}, "X-Twice": {"a", "b"}, "Date": {"Thu, 01 Jan 1970 00:00:00 GMT"}, "Content-Type": {"application/json"}}
		kind := rng.IntN(4)
		for range rng.IntN(10) {
			piece := make([]byte, rng.IntN(1+1<<(4*rng.IntN(5))))
			for j := range piece {
				piece[j] = byte(rng.Uint32())
			}
			reply.pieces = append(reply.pieces, string(piece))
		}
		switch kind {
		case 0:
			reply.header["Content-Length"] = []string{fmt.Sprint(len(strings.Join(reply.pieces, "")))}
		case 1: // a stream of arbitrary bytes, whatever they mean
			reply.header["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
			reply.pieces = append(reply.pieces, "data: x\r\n\r", "\n: y\n", "data: unfinished")
		case 2:
			reply.trailer = fmt.Sprint(i)
		}
		path, query := chatPath, []string{"", "?a=b%20c&a=d"}[rng.IntN(2)]
		if rng.IntN(2) == 0 {
			path = "/v1/completions"
		}
		body := randomBody(rng)
		resp := b.post(path+query, body)
		if answer := all(t, resp); answer != strings.Join(reply.pieces, "") {
			t.Fatalf("request %d: the client got %d bytes, the worker sent %d others", i, len(answer), len(strings.Join(reply.pieces, "")))
		}
		if got.body != body || got.length != int64(len(body)) || "?"+got.query != query && query != "" {
			t.Fatalf("request %d: the worker got %d bytes (length %d, query %q), the client sent %d others (query %q)", i, len(got.body), got.length, got.query, len(body), query)
		}
		if resp.StatusCode != reply.status {
			t.Fatalf("request %d: status %d, want %d", i, resp.StatusCode, reply.status)
		}
		h := resp.Header.Clone()
		h.Del("X-Request-Id")
		if d := cmp.Diff(reply.header, h); d != "" {
			t.Fatalf("request %d: headers of the answer (-worker's +client's):\n%s", i, d)
		}
		if got := resp.Trailer.Get("X-Sum"); got != reply.trailer {
			t.Fatalf("request %d: trailer %q, want %q", i, got, reply.trailer)
		}
	}
}

func TestHeaders(t *testing.T) {
	var got http.Header
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		w.Header()["Connection"] = []string{"X-Hop"}
		w.Header().Set("X-Hop", "1")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("X-Request-Id", "the engine's")
		w.Header().Set("X-Kept", "1")
		answerOK("A")(w, r)
	}).URL)
	f.ranks["A"] = 3
	b := start(t, f, func(c *Config) { c.ForwardHeaders = []string{"x-tenant"}; c.Explain = true })
	resp := b.post(chatPath, good1, "Authorization", "Bearer secret", "Cookie", "c", "X-Tenant", "t1", "X-Tenant", "t2", "Accept", "*/*",
		"X-Request-Id", "abc-1", "X-Data-Parallel-Rank", "9", "Traceparent", "00-1", "X-Other", "o", "Accept-Encoding", "gzip")
	got.Del("Content-Length")
	want := http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}, "X-Tenant": {"t1", "t2"}, "Traceparent": {"00-1"}, "X-Request-Id": {"abc-1"}, "X-Data-Parallel-Rank": {"3"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("headers the worker gets (-want +got):\n%s", d)
	}
	for k, v := range map[string]string{"X-Hop": "", "Keep-Alive": "", "X-Kept": "1", "X-Request-Id": "abc-1", "X-Kvroute-Worker": ""} {
		if got := resp.Header.Get(k); got != v {
			t.Errorf("answer's %s is %q, want %q", k, got, v)
		}
	}
	resp = b.post(chatPath, good1, "X-Request-Id", "not\tan id", "X-Kvroute-Explain", "1")
	if id := resp.Header.Get("X-Request-Id"); len(id) != 32 {
		t.Errorf("request id %q, want a new one", id)
	}
	for k, v := range map[string]string{"X-Kvroute-Worker": "A#dp3", "X-Kvroute-Basis": "exact", "X-Kvroute-Hits": "3", "X-Kvroute-Blocks": "5"} {
		if got := resp.Header.Get(k); got != v {
			t.Errorf("explained answer's %s is %q, want %q", k, got, v)
		}
	}
	if resp = b.post(chatPath, good1, "X-Infera-Request-Id", "inf-1"); resp.Header.Get("X-Infera-Request-Id") != "inf-1" || got.Get("X-Request-Id") != "inf-1" {
		t.Errorf("X-Infera-Request-Id is not carried: answer %v, worker %v", resp.Header, got)
	}
}

func TestUsage(t *testing.T) {
	twice := strings.Replace(recUsage, `"choices":[]`, `"choices":[{"delta":{"content":"c"}}]`, 1)
	tests := []struct {
		name string
		h    http.HandlerFunc
		want Outcome
	}{
		{"whole answer", answerOK("A"), Outcome{Status: 200, Delivered: true, PromptTokens: 9, CachedTokens: 8, CompletionTokens: 3}},
		{
			"stream", func(w http.ResponseWriter, _ *http.Request) { stream(w, recRole, recA+recB+recUsage, recDone) },
			Outcome{Status: 200, Delivered: true, PromptTokens: 9, CachedTokens: 8, CompletionTokens: 2},
		},
		{"last block wins", func(w http.ResponseWriter, _ *http.Request) {
			stream(w, recRole, strings.Replace(twice, `"prompt_tokens":9`, `"prompt_tokens":7`, 1), twice, recDone)
		}, Outcome{Status: 200, Delivered: true, PromptTokens: 9, CachedTokens: 8, CompletionTokens: 2}},
		{
			"none", func(w http.ResponseWriter, _ *http.Request) { stream(w, recRole, recA, recDone) },
			Outcome{Status: 200, Delivered: true, PromptTokens: -1, CachedTokens: -1, CompletionTokens: -1},
		},
		{"refused", status(400), Outcome{Status: 400, Delivered: true, PromptTokens: -1, CachedTokens: -1, CompletionTokens: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newMemory(t, "m")
			f.add("A", serveWorker(t, tt.h).URL)
			b := start(t, f, nil)
			all(t, b.post(chatPath, good1))
			b.idle()
			if d := cmp.Diff(tt.want, f.lastOutcome()); d != "" {
				t.Errorf("outcome (-want +got):\n%s", d)
			}
			firsts := 1
			if tt.want.Status != 200 {
				firsts = 0
			}
			if f.firsts != firsts {
				t.Errorf("first token told %d times, want %d", f.firsts, firsts)
			}
		})
	}
}

// TestStreamUsage has the router ask for usage on its own account: the worker is asked, the client sees
// the stream as if it had not been.
func TestStreamUsage(t *testing.T) {
	for _, tt := range []struct{ body, sent, answer string }{
		{`{"model":"m","stream":true}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, recRole + recA + recB + recDone},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, recRole + recA + recB + recUsage + recDone},
		{`{"model":"m"}`, `{"model":"m"}`, recRole + recA + recB + recUsage + recDone},
	} {
		for _, cut := range []int{1, 7, 50, 1 << 20} {
			var sent string
			f := newMemory(t, "m")
			f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				sent = string(body)
				var pieces []string
				for rest := recRole + recA + recB + recUsage + recDone; rest != ""; {
					n := min(cut, len(rest))
					pieces, rest = append(pieces, rest[:n]), rest[n:]
				}
				stream(w, pieces...)
			}).URL)
			b := start(t, f, func(c *Config) { c.StreamUsage = true })
			if answer := all(t, b.post(chatPath, tt.body)); answer != tt.answer {
				t.Errorf("%s cut at %d: answer\n%s\nwant\n%s", tt.body, cut, answer, tt.answer)
			}
			if sent != tt.sent {
				t.Errorf("%s: the worker got %s, want %s", tt.body, sent, tt.sent)
			}
			b.idle()
			if got := f.lastOutcome().CachedTokens; got != 8 {
				t.Errorf("%s cut at %d: %d cached tokens, want 8", tt.body, cut, got)
			}
		}
	}
}

// TestMidStreamFailures has a worker fail after the first byte in every way there is.
func TestMidStreamFailures(t *testing.T) {
	release := make(chan struct{})
	silent := func(w http.ResponseWriter, r *http.Request) {
		stream(w, recRole, recA, "data: {\"choices\":[{\"del")
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	cut := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { hijack(w, head+text) }
	}
	whole := func(text string) http.HandlerFunc { // no length, no chunks
		return func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"+text)
		}
	}
	long := `data: {"x":"` + strings.Repeat("y", maxHeld+100)
	engines := "data: {\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":500}}\n\n"
	tests := []struct {
		name    string
		h       http.HandlerFunc
		change  func(*Config)
		want    string // what comes whole before the error
		code    string // of the error record; "" none
		outcome outcome
		fails   int // of the breaker
	}{
		{"cut between records", cut(chunk(recRole) + chunk(recA)), nil, recRole + recA, "worker_failed", outcomeMidStream, 1},
		{"cut inside a record", cut(chunk(recRole) + chunk(recA+"data: {\"choi")), nil, recRole + recA, "worker_failed", outcomeMidStream, 1},
		{"cut inside a chunk", cut(chunk(recRole) + "ff\r\n" + recA[:20]), nil, recRole, "worker_failed", outcomeMidStream, 1},
		{"cut inside a long record", cut(chunk(recRole) + chunk(long)), nil, recRole + long + "\n\n", "worker_failed", outcomeMidStream, 1},
		{"cut after the end", cut(chunk(recA) + chunk(recDone)), nil, recA + recDone, "", outcomeOK, 0},
		{"closed where only that ends it", whole(recRole + recA), nil, recRole + recA, "worker_failed", outcomeMidStream, 1},
		{"closed inside a record", whole(recRole + recA + recB[:20]), nil, recRole + recA, "worker_failed", outcomeMidStream, 1},
		{"closed after the end", whole(recA + recDone), nil, recA + recDone, "", outcomeOK, 0},
		{"silent", silent, func(c *Config) { c.IdleTimeout = 20 * time.Millisecond }, recRole + recA, "timeout", outcomeTimeout, 1},
		{"too long in all", silent, func(c *Config) { c.TotalTimeout = 50 * time.Millisecond }, recRole + recA, "timeout", outcomeTimeout, 0},
		{"the engine's own error record", cut(chunk(recA) + chunk(engines) + "0\r\n\r\n"), nil, recA + engines, "", outcomeUpstream, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newMemory(t, "m")
			f.add("A", serveWorker(t, tt.h).URL)
			b := start(t, f, tt.change)
			resp := b.post(chatPath, good1)
			body := all(t, resp)
			rest, ok := strings.CutPrefix(body, tt.want)
			if !ok || resp.StatusCode != 200 {
				t.Fatalf("got %d %q, want 200 %q and an error record", resp.StatusCode, body, tt.want)
			}
			if tt.code == "" {
				if rest != "" {
					t.Errorf("%q behind the stream, want nothing", rest)
				}
			} else {
				data, ok := strings.CutPrefix(rest, "data: ")
				data, ok2 := strings.CutSuffix(data, "\n\n")
				if !ok || !ok2 || strings.Contains(data, "\n") {
					t.Fatalf("%q is not one record", rest)
				}
				checkSchema(t, data, tt.code)
			}
			b.idle()
			if got := b.metric(fmt.Sprintf(`infera_requests_total{outcome=%q,router="mixed"}`, tt.outcome)); got != "1" {
				t.Errorf("requests that ended as %s: %s, want 1\n%s", tt.outcome, got, b.log)
			}
			b.r.health.mu.Lock()
			if got := b.r.health.workers["A"].fails; got != tt.fails {
				t.Errorf("failures of the worker in a row: %d, want %d", got, tt.fails)
			}
			b.r.health.mu.Unlock()
			if got, want := f.lastOutcome().Delivered, tt.code == ""; got != want {
				t.Errorf("outcome says delivered: %v, want %v", got, want)
			}
		})
	}
	close(release)
}

func TestCutAnswersThatAreNoStreamAreCutForTheClientToo(t *testing.T) {
	for name, text := range map[string]string{
		"length":               "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"id\":",
		"stream with a length": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n" + recA,
		"compressed stream":    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{\"id\":\r\n",
		"chunked":              "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{\"id\":\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := newMemory(t, "m")
			f.add("A", serveWorker(t, func(w http.ResponseWriter, _ *http.Request) { hijack(w, text) }).URL)
			b := start(t, f, nil)
			req, err := http.NewRequest("POST", b.url+chatPath, strings.NewReader(good1))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := b.http.Do(req)
			if err == nil {
				var body []byte
				body, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if !bytes.HasPrefix([]byte(`{"id":`), body) && !bytes.HasPrefix([]byte(recA), body) {
					t.Errorf("client got %q, want the beginning of what the worker sent", body)
				}
			}
			if err == nil {
				t.Error("the client saw a complete answer, the worker's was cut")
			}
		})
	}
}

func TestFirstByteTimeoutMovesOn(t *testing.T) {
	release := make(chan struct{})
	wait := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}
	defer close(release)
	slow := serveWorker(t, wait)
	headOnly := serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		wait(w, r)
	})
	for name, s := range map[string]string{"no head": slow.URL, "a head and no byte": headOnly.URL} {
		f := newMemory(t, "m")
		f.add("A", s)
		b := start(t, f, func(c *Config) { c.FirstByteTimeout = 20 * time.Millisecond })
		wantError(t, b.post(chatPath, good1), 504, "timeout")
		f.add("B", serveWorker(t, answerOK("B")).URL)
		if body := all(t, b.post(chatPath, good1)); !strings.Contains(body, `"id":"B"`) {
			t.Errorf("%s: answered %s, want B", name, body)
		}
	}
	f := newMemory(t, "m")
	f.add("A", slow.URL)
	b := start(t, f, nil)
	wantError(t, b.post(chatPath, good1, "X-Request-Timeout", "0.02"), 504, "timeout")
	wantError(t, b.post(chatPath, good1, "X-Request-Timeout", "20ms"), 504, "timeout")
	for _, bad := range []string{"x", "-1", "0", "NaN"} {
		wantError(t, b.post(chatPath, good1, "X-Request-Timeout", bad), 400, "invalid_timeout")
	}
}

// TestStreamsArePassedOnAtOnce has the worker wait for the client's receipt of each record.
func TestStreamsArePassedOnAtOnce(t *testing.T) {
	next := make(chan struct{})
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		for range 20 {
			stream(w, recA)
			select {
			case <-next:
			case <-r.Context().Done():
				t.Error("the client left")
				return
			}
		}
		stream(w, recDone)
	}).URL)
	b := start(t, f, nil)
	resp := b.post(chatPath, `{"model":"m","stream":true}`)
	in := bufio.NewReader(resp.Body)
	for i := range 20 {
		for range 2 {
			if _, err := in.ReadString('\n'); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
		next <- struct{}{}
	}
	if rest, err := io.ReadAll(in); err != nil || string(rest) != recDone {
		t.Errorf("end of the stream %q, %v", rest, err)
	}
}

var errAny = errors.New("any")

func TestErrorsNameWorkersNotAddresses(t *testing.T) {
	err := withoutURL(fmt.Errorf("x: %w", &url.Error{Op: "Post", URL: "http://10.0.0.1/secret", Err: errAny}))
	if !errors.Is(err, errAny) || strings.Contains(err.Error(), "10.0.0.1") {
		t.Errorf("error %v", err)
	}
}

func TestModelsHealthReady(t *testing.T) {
	f := newMemory(t, "m")
	b := start(t, f, nil)
	if code, body := b.get("/v1/models"); code != 200 || body != `{"object":"list","data":[{"id":"org/m","object":"model","extra":{"k":[1,2]}}]}`+"\n" {
		t.Errorf("/v1/models: %d %s", code, body)
	}
	if code, body := b.get("/v1/models/org/m"); code != 200 || !json.Valid([]byte(body)) || !strings.Contains(body, `"extra"`) {
		t.Errorf("/v1/models/org/m: %d %s", code, body)
	}
	if code, body := b.get("/v1/models/none"); code != 404 || !strings.Contains(body, "model_not_found") {
		t.Errorf("/v1/models/none: %d %s", code, body)
	}
	if code, body := b.get("/health"); code != 200 || !strings.Contains(body, `"status":"ok"`) {
		t.Errorf("/health: %d %s", code, body)
	}
	if code, body := b.get("/ready"); code != 200 || body != `{"ready":true,"reasons":[]}`+"\n" {
		t.Errorf("/ready: %d %s", code, body)
	}
	f.mu.Lock()
	f.ready = []string{"A: warming"}
	f.mu.Unlock()
	if code, body := b.get("/ready"); code != 503 || !strings.Contains(body, "A: warming") {
		t.Errorf("/ready: %d %s", code, body)
	}
	if err := b.r.Drain(context.Background()); err != nil {
		t.Errorf("draining an idle router: %v", err)
	}
}

// TestFaultsOfOurOwn has the fleet panic: the request is cut, everything is given back, and it is counted.
func TestFaultsOfOurOwn(t *testing.T) {
	f := newMemory(t, "m")
	f.add("A", "http://[::1]:1")
	b := start(t, f, nil)
	f.mu.Lock()
	f.urls["A"] = nil // the attempt's request cannot be made
	f.mu.Unlock()
	if resp, err := b.http.Post(b.url+chatPath, "application/json", strings.NewReader(good1)); err == nil {
		resp.Body.Close()
		t.Errorf("answered %s, want a cut connection", resp.Status)
	}
	b.settled()
	if got := b.metric("kvroute_panics_total"); got != "1" {
		t.Errorf("faults counted: %s, want 1", got)
	}
	if got := b.metric(`infera_requests_total{outcome="internal_error",router="mixed"}`); got != "1" {
		t.Errorf("requests that ended in a fault: %s, want 1", got)
	}
}

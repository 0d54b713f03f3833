package feed

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestPoll(t *testing.T) {
	answers := make(chan func(http.ResponseWriter), 10)
	say := func(text string) {
		answers <- func(w http.ResponseWriter) { fmt.Fprint(w, text) }
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/kv_cache_events" {
			t.Errorf("got %s %s", r.Method, r.URL.Path)
		}
		select {
		case f := <-answers:
			f(w)
		default:
			fmt.Fprint(w, "[]")
		}
	}))
	defer srv.Close()
	answers <- func(w http.ResponseWriter) { http.Error(w, "starting", http.StatusServiceUnavailable) }
	say(`[{"event_id": 0, "data": {"type": "created"}}, {"event_id": 1, "data": {}}]`)
	say("")
	say(`[{"event_id": 2`)
	say(`[{"event_id": 4, "attention_dp_rank": 1}, {"event_id": "five"}]`)

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	p := &Poll{Client: client, Every: time.Millisecond}
	s, err := p.Subscribe(t.Context(), srv.URL+"/", "", false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i, want := range []Message{
		{Event: Disconnected, Reason: "503"},
		{Event: Connected},
		{HasSeq: true, Seq: 0, Payload: []byte(`[{"event_id": 0, "data": {"type": "created"}}]`)},
		{HasSeq: true, Seq: 1, Payload: []byte(`[{"event_id": 1, "data": {}}]`)},
		{Event: Garbled, Reason: "unexpected end of JSON"},
		{Topic: "rank 1", Payload: []byte(`[{"event_id": 4, "attention_dp_rank": 1}]`)},
		{Event: Garbled, Reason: "reading an event"},
	} {
		m, err := s.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if m.Event != want.Event || m.Topic != want.Topic || m.Seq != want.Seq || m.HasSeq != want.HasSeq ||
			string(m.Payload) != string(want.Payload) || !strings.Contains(m.Reason, want.Reason) {
			t.Errorf("message %d: got %+v, want %+v", i, m, want)
		}
	}
	short, stop := context.WithTimeout(ctx, 5*time.Millisecond)
	defer stop()
	if m, err := s.Receive(short); err == nil {
		t.Errorf("got %+v from an idle engine", m)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestPollEndpoints(t *testing.T) {
	for _, tt := range []struct {
		endpoint string
		bind     bool
	}{{"tcp://host:1", false}, {"http://", false}, {"://", false}, {"http://host", true}} {
		if s, err := (&Poll{}).Subscribe(t.Context(), tt.endpoint, "", tt.bind); err == nil {
			t.Errorf("Subscribe(%q, bind %v): no error", tt.endpoint, tt.bind)
			s.Close()
		}
	}
}

func FuzzPolledEvent(f *testing.F) {
	f.Add([]byte(`{"event_id": 3, "data": {"type": "removed", "block_hashes": [7]}, "attention_dp_rank": 1}`))
	f.Add([]byte(`{"event_id": -1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := event(raw)
		if m.Event == Batch && (!json.Valid(m.Payload) || m.HasSeq && m.Topic != "") {
			t.Errorf("%q: got %+v", raw, m)
		}
	})
}

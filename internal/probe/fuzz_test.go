package probe

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// anything answers every request with bytes that depend on the path only.
type anything map[string][]byte

func (a anything) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Request: r, Body: io.NopCloser(bytes.NewReader(a[r.URL.Path]))}, nil
}

// FuzzEngine holds for whatever an engine answers: no panic, and nothing that is 0 without a reason.
func FuzzEngine(f *testing.F) {
	f.Add([]byte(list("vllm")), []byte(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:1"}}`), []byte("vllm:cache_config_info{block_size=\"16\"} 1\n"))
	f.Add([]byte(list("sglang")), []byte(`{"version":"1","page_size":16,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":1}}`), []byte("sglang:num_running_reqs{dp_rank=\"1\"} 3\n"))
	f.Add([]byte(list("x")), []byte(`{"internal_states":[]}`), []byte("x 1\n"))
	base, err := url.Parse("http://worker:1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, models, info, metrics []byte) {
		client := &http.Client{Transport: anything{"/v1/models": models, "/server_info": info, "/kv_event_sources": info, "/metrics": metrics, "/version": info, "/tokenize": info}}
		_, _ = Scrape(t.Context(), client, base)
		got, err := Probe(t.Context(), client, base, "")
		if err != nil {
			return
		}
		unknown := strings.Join(got.Unknown, "\n")
		if got.BlockSize < 0 || got.PoolBlocks < 0 || got.DPSize < 0 || got.BlockSize == 0 && !strings.Contains(unknown, "block size:") || got.PoolBlocks == 0 && !strings.Contains(unknown, "size of the cache:") {
			t.Fatalf("info %+v", got)
		}
		if e := got.Events; e.Live != "" && !strings.HasPrefix(e.Live, "tcp://worker:") {
			t.Fatalf("events at %q", e.Live)
		}
	})
}

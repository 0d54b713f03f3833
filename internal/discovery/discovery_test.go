package discovery

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func spec(t testing.TB, id, address string, change func(*Spec)) Spec {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	s := Spec{ID: id, URL: u, Role: Mixed}
	if change != nil {
		change(&s)
	}
	return s
}

func TestParseWorker(t *testing.T) {
	tests := []struct {
		in          string
		id, address string
		change      func(*Spec)
	}{
		{"http://127.0.0.1:30000", "127.0.0.1:30000", "http://127.0.0.1:30000", nil},
		{"http://127.0.0.1:30000/", "127.0.0.1:30000", "http://127.0.0.1:30000", nil},
		{"HTTP://Worker-1.Example:8000", "worker-1.example:8000", "http://worker-1.example:8000", nil},
		{"http://worker", "worker:80", "http://worker", nil},
		{"https://worker", "worker:443", "https://worker", nil},
		{"http://[::1]:8000", "[::1]:8000", "http://[::1]:8000", nil},
		{"http://[fd00::12]", "[fd00::12]:80", "http://[fd00::12]", nil},
		{"http://w:1, role=prefill ,engine=sglang", "w:1", "http://w:1", func(s *Spec) { s.Role, s.Engine = Prefill, "sglang" }},
		{
			"http://w:1,role=decode,engine=vllm,events=tcp://w:5557,replay=tcp://w:5558,topic=kv-events,block-size=32,dp-size=4,model=org/m",
			"w:1", "http://w:1", func(s *Spec) {
				s.Role, s.Engine, s.Events, s.Replay, s.Topic, s.HasTopic = Decode, "vllm", "tcp://w:5557", "tcp://w:5558", "kv-events", true
				s.BlockSize, s.DPSize, s.Model = 32, 4, "org/m"
			},
		},
		{"http://w:1,events=tcp://*:5557,topic=", "w:1", "http://w:1", func(s *Spec) { s.Events, s.HasTopic = "tcp://*:5557", true }},
		{"http://w:1,events=tcp://[::1]:5557", "w:1", "http://w:1", func(s *Spec) { s.Events = "tcp://[::1]:5557" }},
		{"http://w:1,events=ipc:///run/kv", "w:1", "http://w:1", func(s *Spec) { s.Events = "ipc:///run/kv" }},
		{"http://w:1,block_size=16,meta.bootstrap_addr=10.0.0.1:8998,meta.protocol=a=b,meta.empty=", "w:1", "http://w:1", func(s *Spec) {
			s.BlockSize, s.Meta = 16, map[string]string{"bootstrap_addr": "10.0.0.1:8998", "protocol": "a=b", "empty": ""}
		}},
	}
	for _, tt := range tests {
		got, err := ParseWorker(tt.in)
		if err != nil {
			t.Errorf("%q: %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(spec(t, tt.id, tt.address, tt.change), got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.in, diff)
		}
		again, err := ParseWorker(got.String())
		if err != nil || !again.Equal(got) {
			t.Errorf("%q: written as %q, read back as %+v, error %v", tt.in, got.String(), again, err)
		}
	}
}

func TestParseWorkerErrors(t *testing.T) {
	tests := []struct{ in, why, hint string }{
		{"", "the URL is missing", "http://host:port"},
		{"localhost:8000", `"localhost:8000" has no scheme`, "http://localhost:8000"},
		{"role=prefill,http://w:1", "has no scheme", ""},
		{"htp://w:1", `scheme "htp"`, "did you mean http?"},
		{"http://user:secret@w:1", "user name or password", "logs"},
		{"http://w:1/v1", "has a path", "write http://w:1"},
		{"http://w:1?x=1", "query", ""},
		{"http://w:1#x", "fragment", ""},
		{"http://:8000", "names no host", ""},
		{"http://w:", "colon and no port", ""},
		{"http://w:0", `port "0"`, ""},
		{"http://w:65536", `port "65536"`, ""},
		{"http://w:http", "is not a URL", ""},
		{"http://::1:8000", "not a", "brackets"},
		{"http://[::g]:8000", "is not a URL", "brackets"},
		{"http://w 1:80", "is not a URL", ""},
		{"http://w:1,prefill", `"prefill" is not key=value`, "role"},
		{"http://w:1,rol=prefill", `unknown key "rol"`, "did you mean role?"},
		{"http://w:1,blocksize=16", `unknown key "blocksize"`, "block-size"},
		{"http://w:1,zzzzzzzz=16", `unknown key "zzzzzzzz"`, "keys are model, role"},
		{"http://w:1,role=prefil", `unknown role "prefil"`, "did you mean prefill?"},
		{"http://w:1,role=both", `unknown role "both"`, "one of mixed, prefill, decode"},
		{"http://w:1,engine=vlm", `unknown engine "vlm"`, "did you mean vllm?"},
		{"http://w:1,role=mixed,role=mixed", `"role" is there twice`, ""},
		{"http://w:1,meta.a=1,meta.a=2", `"meta.a" is there twice`, ""},
		{"http://w:1,meta.chat_template_kwargs=no", `"no" is not a JSON object`, "write what the engine was started with"},
		{"http://w:1,meta.chat_template_kwargs=null", `"null" is not a JSON object`, "write what the engine was started with"},
		{"http://w:1,meta.=1", "not a name", ""},
		{"http://w:1,model=", `"model" has no value`, ""},
		{"http://w:1,model=a\x1bb", "control characters", ""},
		{"http://w:1,block-size=0", `"0" is not a number from 1`, ""},
		{"http://w:1,block-size=16k", `"16k"`, ""},
		{"http://w:1,dp-size=-1", `"-1"`, ""},
		{"http://w:1,events=w:5557", "has no scheme", "tcp://w:5557"},
		{"http://w:1,events=tcp://w", "no port", ""},
		{"http://w:1,events=tcp://::1:5557", "no port", "brackets"},
		{"http://w:1,events=tcp://0.0.0.0:5557", "no host", "'*'"},
		{"http://w:1,events=udp://w:5557", "tcp://host:port or ipc", ""},
		{"http://w:1,replay=tcp://*:5558", "listen for replay", ""},
		{"http://w:1,events=tcp://w:65530,dp-size=8", "rank 7", ""},
	}
	for _, tt := range tests {
		_, err := ParseWorker(tt.in)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Error(), tt.why) || !strings.Contains(e.Hint, tt.hint) {
			t.Errorf("%q: error %v, want one with %q and a hint with %q", tt.in, err, tt.why, tt.hint)
			continue
		}
		if strings.Contains(e.Error()+e.Hint, "secret") || strings.ContainsAny(e.Error()+e.Hint, "\n\x1b") {
			t.Errorf("%q: error tells too much: %q %q", tt.in, e.Error(), e.Hint)
		}
	}
}

func TestRankEndpoint(t *testing.T) {
	tests := []struct {
		endpoint string
		rank     int
		want     string
		bind     bool
	}{
		{"tcp://w:5557", 0, "tcp://w:5557", false},
		{"tcp://w:5557", 3, "tcp://w:5560", false},
		{"tcp://[::1]:5557", 1, "tcp://[::1]:5558", false},
		{"tcp://*:5557", 1, "tcp://*:5558", true},
		{"ipc:///run/kv", 0, "ipc:///run/kv", false},
		{"ipc:///run/kv", 2, "ipc:///run/kv_dp2", false},
	}
	for _, tt := range tests {
		if got, bind := RankEndpoint(tt.endpoint, tt.rank); got != tt.want || bind != tt.bind {
			t.Errorf("rank %d of %s: %s, bind %v, want %s, %v", tt.rank, tt.endpoint, got, bind, tt.want, tt.bind)
		}
	}
}

func TestDiff(t *testing.T) {
	parse := func(texts ...string) (all []Spec) {
		for _, text := range texts {
			s, err := ParseWorker(text)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		return all
	}
	added, changed, removed := Diff(
		parse("http://a:1", "http://b:1", "http://c:1,role=prefill", "http://d:1"),
		parse("http://d:1", "http://c:1,role=decode", "http://e:1"))
	ids := func(all []Spec) (out []string) {
		for _, s := range all {
			out = append(out, s.ID)
		}
		return out
	}
	if diff := cmp.Diff([][]string{{"e:1"}, {"c:1"}, {"a:1", "b:1"}}, [][]string{ids(added), ids(changed), removed}); diff != "" {
		t.Errorf("added, changed, removed (-want +got):\n%s", diff)
	}
}

const goodFile = `# workers
workers:
  - http://a:1,role=prefill
  - url: http://b:1
    engine: sglang
    dp_size: 2
    meta:
      bootstrap_port: 8998
  - {"url": "http://[::1]:1", "block-size": 16, "topic": ""}
`

func TestParseFile(t *testing.T) {
	want := []string{
		"http://a:1,role=prefill w.yaml:3",
		"http://b:1,engine=sglang,dp-size=2,meta.bootstrap_port=8998 w.yaml:4",
		"http://[::1]:1,topic=,block-size=16 w.yaml:9",
	}
	set, err := ParseFile("w.yaml", []byte(goodFile))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range set {
		got = append(got, s.String()+" "+s.Origin)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("workers (-want +got):\n%s", diff)
	}
	for _, in := range []string{"[]", "workers: []", `{"workers":[]}`} {
		if set, err := ParseFile("w", []byte(in)); err != nil || set == nil || len(set) != 0 {
			t.Errorf("%q: %v, error %v, want an empty set", in, set, err)
		}
	}
	json := `[{"url":"http://a:1","role":"decode"},"http://b:1"]`
	if set, err := ParseFile("w.json", []byte(json)); err != nil || len(set) != 2 || set[0].Role != Decode {
		t.Errorf("JSON: %v, error %v", set, err)
	}
}

func TestParseFileErrors(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", "w: no list"},
		{"# nothing\n", "w: no list"},
		{"text", "w:1: no list"},
		{"workers: 3", "w:1: no list"},
		{"worker:\n - http://a:1", `w:1: unknown key "worker"`},
		{"workers:\n - http://a:1\n - http://b:1\n - url: http://a:1\n   role: prefill", "w:4: worker a:1 is there already (w:2)"},
		{"- http://a:1\n- url: http://b:1\n  rol: prefill", `w:3: unknown key "rol"`},
		{"- http://a:1\n- http://b:1/v1", "w:2: \"http://b:1/v1\" has a path"},
		{"- role: prefill", `w:1: key "url" is missing`},
		{"- url: http://a:1\n  meta: x", "w:2: meta is not a map"},
		{"- url: http://a:1\n  meta:\n    x: [1]", "w:2: meta holds more"},
		{"- url: http://a:1\n  model: [x]", "w:2: key \"model\": not a plain value"},
		{"- url: http://a:1\n  events: tcp://a:65535\n  dp-size: 2", "w:1: rank 1"},
		{"- [1]", "w:1: a worker is a URL or a map"},
		{"- {", "not YAML"},
		{"[]\n---\n[]", "second document"},
	}
	for _, tt := range tests {
		_, err := ParseFile("w", []byte(tt.in))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Error(), tt.want) || strings.Contains(e.Error(), "\n") {
			t.Errorf("%q: error %q, want one line with %q", tt.in, err, tt.want)
		}
	}
}

func TestStatic(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := spec(t, "a:1", "http://a:1", nil)
	calls := 0
	err := Static{a}.Watch(ctx, func(full []Spec) {
		calls += len(full)
		cancel()
	})
	if err != nil || calls != 1 {
		t.Errorf("%d workers told, error %v, want 1", calls, err)
	}
	if err := (Static{a, a}).Watch(t.Context(), func([]Spec) {}); err == nil {
		t.Error("the same address twice is taken")
	}
}

// told is the number of workers, -1 for none: 0 is for nothing told.
func told(full []Spec) int {
	if len(full) == 0 {
		return -1
	}
	return len(full)
}

// TestFile drives a file source look by look.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	write := func(text string, mtime time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, mtime, mtime); err != nil {
			t.Fatal(err)
		}
	}
	ticks, looked, sets, bad := make(chan time.Time), make(chan struct{}), make(chan int, 8), make(chan string, 8)
	src := &File{Path: path, ticks: ticks, looked: looked, now: func() time.Time { return clock }, Bad: func(err error) {
		if err == nil {
			bad <- "good again"
		} else {
			bad <- err.Error()
		}
	}}
	if err := src.Watch(t.Context(), nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("no file: error %v, want one that names it", err)
	}
	write("- http://a:1", clock)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- src.Watch(ctx, func(full []Spec) { sets <- told(full) }) }()
	if n := <-sets; n != 1 {
		t.Fatalf("%d workers at the start, want 1", n)
	}
	look := func(what string, wantSet int, wantBad string) {
		t.Helper()
		ticks <- clock
		<-looked
		gotSet, gotBad := 0, ""
		select {
		case gotSet = <-sets:
		default:
		}
		select {
		case gotBad = <-bad:
		default:
		}
		if gotSet != wantSet || !strings.Contains(gotBad, wantBad) || (gotBad == "") != (wantBad == "") || len(sets)+len(bad) > 0 {
			t.Errorf("%s: told %d workers and %q, want %d and %q", what, gotSet, gotBad, wantSet, wantBad)
		}
	}
	look("nothing changed", 0, "")
	write("- http://a:1\n- http://b:1", clock)
	look("one more", 2, "")
	write("- http://a:1\n- http://c:1", clock)
	look("another, with the same time and size", 2, "")
	clock = clock.Add(time.Hour)
	look("touched by nobody", 0, "")
	write("# a comment\n- http://a:1\n- http://c:1", clock)
	look("the same set in other words", 0, "")
	write("- http://a:1\n- http://a:1", clock)
	look("bad content", 0, "already")
	look("bad content still", 0, "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	look("gone", 0, "no such file")
	write("", clock)
	look("emptied", 0, "no list")
	write("# a comment\n- http://a:1\n- http://c:1", clock)
	look("back as it was", 0, "good again")
	write("[]", clock)
	look("all gone", -1, "")
	write("- http://z:1", clock)
	look("one", 1, "")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watching ended with %v", err)
	}
}

func FuzzParseWorker(f *testing.F) {
	f.Add("http://w:1,role=decode,engine=vllm,events=tcp://w:5557,replay=tcp://w:5558,topic=kv-events,block-size=32,dp-size=4,model=org/m,meta.a=b")
	f.Add("http://[::1%25eth0]:8000,topic=")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseWorker(text)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %T, want *Error", err)
			}
			return
		}
		again, err := ParseWorker(s.String())
		if err != nil || !again.Equal(s) {
			t.Fatalf("%q was read, written as %q and then gave %+v, error %v", text, s.String(), again, err)
		}
	})
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(goodFile))
	f.Add([]byte(`{"workers":[{"url":"http://a:1"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := ParseFile("w", data)
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("error %T, want *Error", err)
		}
		if err := CheckUnique(set); err != nil {
			t.Fatal(err)
		}
	})
}

package engine

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuiltinProfiles(t *testing.T) {
	var amd int
	seen := map[string]bool{}
	for i, p := range Profiles() {
		if name := ProfileNames()[i]; p.Name != name {
			t.Errorf("file %s.yaml has profile %s", name, p.Name)
		}
		if seen[p.Name] {
			t.Errorf("profile %s is there twice", p.Name)
		}
		seen[p.Name] = true
		if strings.Contains(p.Hardware, "MI355X") {
			amd++
		}
		if p.Measured {
			t.Errorf("profile %s says that we measured it", p.Name)
		} else if !strings.Contains(strings.ToLower(p.Origin), "not measured by") {
			t.Errorf("profile %s: origin does not say who has not measured it: %s", p.Name, p.Origin)
		}
		if len(p.Assumptions) == 0 {
			t.Errorf("profile %s states no assumptions", p.Name)
		}
		data, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseProfile(bytes.NewReader(data), p.Name)
		if err != nil {
			t.Fatalf("profile %s does not read back: %v\n%s", p.Name, err, data)
		}
		if diff := cmp.Diff(p, back); diff != "" {
			t.Errorf("profile %s read back differs (-want +got):\n%s", p.Name, diff)
		}
	}
	if amd == 0 || !seen[DefaultProfile] {
		t.Errorf("got profiles %v, want AMD ones and %s", ProfileNames(), DefaultProfile)
	}
	if _, ok := Lookup("mi355x"); ok {
		t.Error("Lookup takes a part of a name")
	}
}

func TestProfileCost(t *testing.T) {
	p, _ := Lookup("vllm-program")
	want := Cost{Step: 10_635_000_000, PerRequest: 419_000_000, PerContext: 142_000, PerPrefill: 57_000_000, PerPrefillSquare: 4410}
	if got := p.Cost(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := p.Cost().Scale(0.5).PerPrefill, int64(114_000_000); got != want {
		t.Errorf("at half speed: got %d ticks a prefill token, want %d", got, want)
	}
	if got, want := p.Transfer(1500), int64(8000)*TicksPerMicrosecond; got != want {
		t.Errorf("transfer of 1500 tokens: got %d, want %d", got, want)
	}
}

func TestParseProfileRejects(t *testing.T) {
	const good = "name: x\norigin: test\na_ms: 1\nchunk_tokens: 8\nmax_running: 4\nblock_size: 4\nkv_tokens: 64\n"
	if _, err := ParseProfile(strings.NewReader(good), "good.yaml"); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseProfile(strings.NewReader(`{"name":"x","origin":"t","a_ms":1,"chunk_tokens":8,"max_running":4,"block_size":4,"kv_tokens":64}`), "good.json"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", good + "b_ms: 3\n", "b_ms"},
		{"repeated key", good + "a_ms: 3\n", "a_ms"},
		{"not a number", good + "b_ms_per_request: .nan\n", "b_ms_per_request: must be a finite number"},
		{"infinite", good + "b_ms_per_request: .inf\n", "b_ms_per_request: must be a finite number"},
		{"negative", good + "c_ms_per_million_tokens: -1\n", "c_ms_per_million_tokens: must not be negative"},
		{"huge", good + "prefill_us_per_token: 1e300\n", "prefill_us_per_token: is 1e+300"},
		{"wrong type", good + "prefill_us_per_token: fast\n", "[8:23] cannot unmarshal string as float64"},
		{"no time", strings.Replace(good, "a_ms: 1", "a_ms: 0", 1), "a_ms: must be at least"},
		{"no origin", strings.Replace(good, "origin: test", "origin: ''", 1), "origin: is missing"},
		{"budget", strings.Replace(good, "max_running: 4", "max_running: 9", 1), "max_running: must be 1 to chunk_tokens (8)"},
		{"small pool", strings.Replace(good, "kv_tokens: 64", "kv_tokens: 3", 1), "kv_tokens: must be block_size"},
		{"two documents", good + "---\n" + good, "more than one document"},
		{"empty", "", "is empty"},
		{"list", "- a\n", "profile list"},
		{"not yaml", "\t{]", "profile not yaml"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := ParseProfile(strings.NewReader(tc.text), tc.name)
			if err == nil {
				t.Fatalf("got %+v, want an error with %q", p, tc.want)
			}
			if msg := err.Error(); !strings.Contains(msg, tc.want) || strings.Contains(msg, "\n") {
				t.Errorf("got %q, want one line with %q", msg, tc.want)
			}
		})
	}
}

func FuzzParseProfile(f *testing.F) {
	for _, p := range Profiles() {
		data, err := p.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("name: [x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseProfile(bytes.NewReader(data), "fuzz")
		if err != nil {
			return
		}
		out, err := p.Encode()
		if err != nil {
			t.Fatalf("accepted profile %+v does not encode: %v", p, err)
		}
		back, err := ParseProfile(bytes.NewReader(out), "again")
		if err != nil {
			t.Fatalf("encoded profile does not parse: %v\n%s", err, out)
		}
		if diff := cmp.Diff(p, back); diff != "" {
			t.Fatalf("round trip (-want +got):\n%s", diff)
		}
	})
}

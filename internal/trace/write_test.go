package trace_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
	"github.com/zeebo/xxh3"
)

// save writes w to memory.
func save(tb testing.TB, w *trace.Workload, format, packing string) []byte {
	tb.Helper()
	var b bytes.Buffer
	z, err := trace.Packed(&b, packing)
	if err != nil {
		tb.Fatal(err)
	}
	dst, err := trace.NewWriter(z, format)
	if err != nil {
		tb.Fatal(err)
	}
	if err := trace.Save(dst, w); err != nil {
		tb.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// loadBytes loads what is in memory.
func loadBytes(tb testing.TB, opt trace.Options, data ...string) *trace.Workload {
	tb.Helper()
	var src []trace.Source
	for _, d := range data {
		src = append(src, trace.Source{Name: "memory", R: strings.NewReader(d)})
	}
	w, err := trace.Load(src, opt)
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.Forest.Check(); err != nil {
		tb.Fatal(err)
	}
	return w
}

// sameTraffic compares two workloads up to the names of blocks: same requests, and the k-th block
// shared by two requests in one is shared in the other. Where exact is set, hashes are equal too.
func sameTraffic(t *testing.T, want, got *trace.Workload, exact bool) {
	t.Helper()
	if d := cmp.Diff(want.Sessions, got.Sessions); d != "" {
		t.Fatalf("sessions (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want.IDs, got.IDs); d != "" {
		t.Fatalf("ids (-want +got):\n%s", d)
	}
	if len(want.Requests) != len(got.Requests) || want.BlockSize != got.BlockSize || want.Forest.Len() != got.Forest.Len() {
		t.Fatalf("got %d requests, block size %d, %d blocks; want %d, %d, %d", len(got.Requests), got.BlockSize, got.Forest.Len(),
			len(want.Requests), want.BlockSize, want.Forest.Len())
	}
	to := map[block.Hash]block.Hash{}
	var a, b []block.Hash
	for i := range want.Requests {
		p, q := want.Requests[i], got.Requests[i]
		a, b = want.Path(p.Leaf, a[:0]), got.Path(q.Leaf, b[:0])
		p.Leaf, q.Leaf = 0, 0
		if p != q || len(a) != len(b) {
			t.Fatalf("request %d: got %+v with %d blocks, want %+v with %d", i, q, len(b), p, len(a))
		}
		for k := range a {
			if h, ok := to[a[k]]; !ok {
				to[a[k]] = b[k]
			} else if h != b[k] {
				t.Fatalf("request %d: block %d is another one than before", i, k)
			}
			if exact && a[k] != b[k] {
				t.Fatalf("request %d: block %d has hash %x, want %x", i, k, b[k], a[k])
			}
		}
		for _, k := range []int{0, 1, len(a) / 2, len(a)} {
			if x, y := want.PrefixTokens(&want.Requests[i], k), got.PrefixTokens(&got.Requests[i], k); x != y {
				t.Fatalf("request %d: the first %d blocks hold %d tokens, want %d", i, k, y, x)
			}
		}
	}
}

func TestWriteAndReadBack(t *testing.T) {
	for _, tc := range []struct{ name, data string }{
		{"mooncake", moonLine + strings.Replace(moonLine, "27", "27.125", 1)},
		{"chained", chainLine + strings.Replace(chainLine, "[0,1]", "[0,2,3]", 1)},
		{"sized", sizedLine + strings.Replace(sizedLine, "[30,4],\"hash_ids\":[0,1]", "[],\"hash_ids\":[]", 1)},
		{"claude-code", claudeA + strings.Replace(claudeA, `"A"`, `"B\n\"\u00e9"`, 1)},
		{"azure", azureHead + azureLine + azureLine},
		{"ragpulse", ragLine + strings.Replace(ragLine, `"82"`, `"13"`, 1)},
		{"kvroute with ids", kvHead + strings.Replace(kvLine, `"s":"a"`, `"id":"q1"`, 1) + `{"t":0,"in":3,"out":1}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := loadBytes(t, trace.Options{}, tc.data)
			for _, packing := range []string{"", "gzip", "zstd"} {
				data := save(t, want, trace.KVRoute, packing)
				sameTraffic(t, want, loadBytes(t, trace.Options{}, string(data)), true)
			}
			if tc.name == "azure" || tc.name == "ragpulse" {
				var b bytes.Buffer
				dst, _ := trace.NewWriter(&b, trace.Mooncake)
				if err := trace.Save(dst, want); err == nil {
					t.Fatalf("writing %s in Mooncake's form must be refused, got %s", tc.name, b.Bytes())
				}
				return
			}
			sameTraffic(t, want, loadBytes(t, trace.Options{}, string(save(t, want, trace.Mooncake, ""))), false)
		})
	}
}

// TestWrittenForm pins both forms.
func TestWrittenForm(t *testing.T) {
	w := loadBytes(t, trace.Options{}, chainLine+`{"timestamp":4.5,"input_length":50,"output_length":6,"block_size":16,"session_id":"b\"","request_id":7,"hash_ids":[0,2,3]}`+"\n"+
		`{"timestamp":5,"input_length":40,"output_length":5,"block_size":16,"hash_ids":[0,1]}`)
	for format, want := range map[string]string{
		trace.Mooncake: `{"timestamp":0,"input_length":40,"output_length":5,"hash_ids":[0,1],"block_size":16,"session_id":"a"}
{"timestamp":1.5,"input_length":50,"output_length":6,"hash_ids":[0,2,3],"block_size":16,"session_id":"b\"","request_id":"7"}
{"timestamp":2,"input_length":40,"output_length":5,"hash_ids":[0,1],"block_size":16}
`,
		trace.KVRoute: `{"kvroute":"trace/v1","block_size":16}
{"t":0,"in":40,"out":5,"new":"` + hexOf(0) + hexOf(0, 1) + `","s":"a"}
{"t":1500,"in":50,"out":6,"at":0,"new":"` + hexOf(0, 2) + hexOf(0, 2, 3) + `","s":"b\"","id":"7"}
{"t":2000,"in":40,"out":5,"at":1}
`,
	} {
		if d := cmp.Diff(want, string(save(t, w, format, ""))); d != "" {
			t.Errorf("%s (-want +got):\n%s", format, d)
		}
	}
}

// hexOf is the hash of a path of ids, by the rule of docs/trace-format.md.
func hexOf(ids ...uint64) string {
	var h uint64
	for _, id := range ids {
		var b [16]byte
		binary.LittleEndian.PutUint64(b[:8], h)
		binary.LittleEndian.PutUint64(b[8:], id)
		h = xxh3.Hash(b[:])
	}
	return fmt.Sprintf("%016x", h)
}

func TestWriteMooncakeAsItWas(t *testing.T) {
	for _, rel := range []string{"traces/golden/sessions80-serial.jsonl.gz", "traces/golden/sessions80-inter16.jsonl.gz"} {
		p := testtraces.Bundled(rel)
		w := load(t, p, trace.Options{})
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		again := loadBytes(t, trace.Options{}, string(save(t, w, trace.Mooncake, "gzip")))
		sameTraffic(t, w, again, true) // first-seen numbers are the numbers of the file
	}
}

func TestCopyKeepsTheOrderOfTheFile(t *testing.T) {
	late := strings.Replace(ragLine, `"82"`, `"90"`, 1)
	r, _, err := trace.Open(strings.NewReader(late+ragLine), "", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	dst, err := trace.NewWriter(&b, trace.KVRoute)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := trace.Copy(dst, r); n != 2 || err != nil {
		t.Fatalf("copied %d, %v", n, err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
	recs, err := readAll(b.Bytes(), "", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"90000000/3112/192/4/512/x", "82000000/3112/192/4/512/x"}, shapes(recs)); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
}

func TestSpeedupAndLimit(t *testing.T) {
	line := func(ms, id string) string {
		return `{"timestamp":` + ms + `,"input_length":500,"output_length":5,"session_id":"s` + id + `","hash_ids":[` + id + `]}` + "\n"
	}
	data := line("10399", "0") + line("1000", "1") + line("1399", "2") + line("5000", "3")
	for _, tc := range []struct {
		opt  trace.Options
		want []int64
	}{
		{trace.Options{}, []int64{0, 399000, 4000000, 9399000}},
		{trace.Options{Speedup: 200}, []int64{0, 1000, 20000, 46000}},
		{trace.Options{Speedup: 0.5}, []int64{0, 798000, 8000000, 18798000}},
		{trace.Options{Speedup: 1.5, Limit: 3}, []int64{0, 266000, 2666000}},
	} {
		w := loadBytes(t, tc.opt, data)
		var got []int64
		for _, q := range w.Requests {
			got = append(got, q.Arrival)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%+v (-want +got):\n%s", tc.opt, d)
		}
		if tc.opt.Limit == 3 && (w.Forest.Len() != 3 || len(w.Sessions) != 3 || w.Sessions[0] != "s1") {
			t.Errorf("after the limit %d blocks, sessions %q", w.Forest.Len(), w.Sessions)
		}
	}
	for _, bad := range []trace.Options{{Speedup: -1}, {Speedup: nan()}, {Limit: -1}, {BlockSize: -1}, {Speedup: 1e300}, {Speedup: 1e-300}, {Speedup: 1e-9}} {
		if _, err := trace.Load([]trace.Source{{Name: "f", R: strings.NewReader(data)}}, bad); err == nil {
			t.Errorf("%+v must be refused", bad)
		}
	}
}

func TestNoRequestsNamesTheFiles(t *testing.T) {
	const heading = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	_, err := trace.Load([]trace.Source{
		{Name: "dir/a.csv", R: strings.NewReader(heading)}, {Name: "b.csv", R: strings.NewReader(heading)},
	}, trace.Options{Name: "a+1"})
	if want := "dir/a.csv, b.csv: there are no requests in it"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestCutAndMergeRefuse(t *testing.T) {
	w := loadBytes(t, trace.Options{}, moonLine)
	for _, opt := range []trace.CutOptions{{FirstSessions: 1}, {MinLen: 1}, {MaxLen: 1}, {Sessions: []string{"a"}}} {
		if _, err := trace.Cut(w, opt); err == nil || !strings.Contains(err.Error(), "no sessions to go by") {
			t.Errorf("cutting %+v out of a trace without sessions: got %v", opt, err)
		}
	}
	// A shift must not make a trace that readers would refuse.
	_, err := trace.Merge([]*trace.Workload{w, w}, trace.MergeOptions{Shift: []time.Duration{0, 2_550_000 * time.Hour}})
	if err == nil || !strings.Contains(err.Error(), "makes arrivals later") {
		t.Errorf("a shift of 291 years: got %v", err)
	}
}

func TestSeveralSourcesAreOneTrace(t *testing.T) {
	b := strings.Replace(claudeA, `"A"`, `"B"`, 1)
	sameTraffic(t, loadBytes(t, trace.Options{}, claudeA+b), loadBytes(t, trace.Options{}, claudeA, b), true)
	twice := loadBytes(t, trace.Options{}, claudeA, claudeA)
	if d := cmp.Diff([]string{"A", "A#1"}, twice.Sessions); d != "" {
		t.Errorf("the same session twice (-want +got):\n%s", d)
	}
	_, err := trace.Load([]trace.Source{{Name: "a", R: strings.NewReader(moonLine)}, {Name: "b", R: strings.NewReader(chainLine)}}, trace.Options{})
	if err == nil || err.Error() != "b:1: blocks of 16 tokens here and of 512 before" {
		t.Errorf("got %v, want an error on the block size at b:1", err)
	}
}

// A forest cannot hold sizes of some blocks next to even splits of others: such a mixture was read, with wrong
// sizes, and could not be written.
func TestEvenSplitsAndSizesDoNotMix(t *testing.T) {
	const (
		head  = `{"kvroute":"trace/v1","block_size":512}` + "\n"
		even  = head + `{"t":0,"in":20,"out":5,"new":"00000000000000010000000000000002","even":10}` + "\n" + `{"t":1,"in":60,"out":5,"at":0,"new":"0000000000000003","even":30}` + "\n"
		sized = head + `{"t":0,"in":20,"out":5,"new":"00000000000000110000000000000012","bt":[5,15]}` + "\n"
		plain = head + `{"t":0,"in":1024,"out":5,"new":"00000000000000210000000000000022"}` + "\n"
	)
	for _, tc := range []struct {
		data []string
		want string // of the error; "": none
	}{
		{[]string{even, sized}, "f1:2: the blocks of this prompt have sizes of their own, unlike those before"},
		{[]string{sized, plain, even}, "f2:2: the blocks of this prompt have no sizes of their own, unlike those before"},
		{[]string{even, plain}, ""},
		{[]string{plain, sized}, ""},
	} {
		var sources []trace.Source
		for i, d := range tc.data {
			sources = append(sources, trace.Source{Name: fmt.Sprint("f", i), R: strings.NewReader(d)})
		}
		w, err := trace.Load(sources, trace.Options{})
		switch {
		case tc.want != "":
			if err == nil || err.Error() != tc.want {
				t.Errorf("%q: error %v, want %s", tc.data, err, tc.want)
			}
		case err != nil:
			t.Errorf("%q: %v", tc.data, err)
		default:
			sameTraffic(t, w, loadBytes(t, trace.Options{}, string(save(t, w, trace.KVRoute, ""))), true)
		}
	}
}

func TestCut(t *testing.T) {
	w := load(t, testtraces.Bundled("traces/golden/sessions80-inter16.jsonl.gz"), trace.Options{})
	for _, tc := range []struct {
		name               string
		opt                trace.CutOptions
		requests, sessions int
	}{
		{"all", trace.CutOptions{}, 436, 80},
		{"range", trace.CutOptions{From: 10, To: 20}, 10, 10},
		{"to the end", trace.CutOptions{From: 430}, 6, 0},
		{"time", trace.CutOptions{FromTime: 5 * time.Second, ToTime: 9 * time.Second}, 4, 4},
		{"two sessions", trace.CutOptions{Sessions: []string{"s3", "s70"}}, 0, 2},
		{"first sessions", trace.CutOptions{FirstSessions: 5}, 0, 5},
		{"sessions of at most 5 requests", trace.CutOptions{MaxLen: 5}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := trace.Cut(w, tc.opt)
			if err != nil {
				t.Fatal(err)
			}
			if err := got.Forest.Check(); err != nil {
				t.Fatal(err)
			}
			if tc.requests != 0 && len(got.Requests) != tc.requests || tc.sessions != 0 && len(got.Sessions) != tc.sessions {
				t.Errorf("got %d requests of %d sessions, want %d of %d", len(got.Requests), len(got.Sessions), tc.requests, tc.sessions)
			}
			if got.Requests[0].Arrival != 0 {
				t.Errorf("the first request arrives at %d, want 0", got.Requests[0].Arrival)
			}
			used := map[trace.NodeID]bool{}
			for i := range got.Requests {
				for n := got.Requests[i].Leaf; n != trace.NoNode; n = got.Forest.Parent[n] {
					used[n] = true
				}
			}
			if len(used) != got.Forest.Len() {
				t.Errorf("%d blocks are used, %d are there", len(used), got.Forest.Len())
			}
		})
	}
	for _, bad := range []trace.CutOptions{{From: 3, To: 3}, {From: -1}, {FromTime: 2, ToTime: 1}, {Sessions: []string{"s999"}}, {From: 10000}, {MinLen: 9999}} {
		if _, err := trace.Cut(w, bad); err == nil {
			t.Errorf("cut %+v must be refused", bad)
		}
	}
}

func TestMerge(t *testing.T) {
	a := loadBytes(t, trace.Options{}, chainLine+strings.Replace(chainLine, `"timestamp":3`, `"timestamp":9`, 1))
	b := loadBytes(t, trace.Options{}, chainLine)
	apart, err := trace.Merge([]*trace.Workload{a, b}, trace.MergeOptions{Shift: []time.Duration{0, 2 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if apart.Forest.Len() != 4 || len(apart.Requests) != 3 || apart.Requests[1].Arrival != 2000 {
		t.Errorf("got %d blocks, %+v", apart.Forest.Len(), apart.Requests)
	}
	if d := cmp.Diff([]string{"a", "a#1"}, apart.Sessions); d != "" {
		t.Errorf("sessions (-want +got):\n%s", d)
	}
	same, err := trace.Merge([]*trace.Workload{a, b}, trace.MergeOptions{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	if same.Forest.Len() != 2 || len(same.Sessions) != 1 {
		t.Errorf("shared: got %d blocks, %d sessions; want 2, 1", same.Forest.Len(), len(same.Sessions))
	}
	m := loadBytes(t, trace.Options{}, moonLine)
	if _, err := trace.Merge([]*trace.Workload{a, m}, trace.MergeOptions{}); err == nil {
		t.Error("traces of different block sizes must be refused")
	}
	if _, err := trace.Merge(nil, trace.MergeOptions{}); err == nil {
		t.Error("no trace must be refused")
	}
}

func TestResample(t *testing.T) {
	for _, name := range []string{"sessions", "time"} {
		t.Run(name, func(t *testing.T) {
			w := load(t, testtraces.Bundled("traces/golden/sessions80-inter16.jsonl.gz"), trace.Options{})
			if name == "time" {
				w.Sessions = nil
				for i := range w.Requests {
					w.Requests[i].Session = -1
				}
			}
			before := save(t, w, trace.KVRoute, "")
			total := 0
			for seed := range uint64(20) {
				r := w.Resample(rand.New(rand.NewPCG(seed, 0)).Uint64)
				if err := r.Forest.Check(); err != nil {
					t.Fatal(err)
				}
				if len(r.Sessions) != len(w.Sessions) {
					t.Fatalf("%d sessions, want %d", len(r.Sessions), len(w.Sessions))
				}
				for i := range r.Requests {
					q := &r.Requests[i]
					if i > 0 && q.Arrival < r.Requests[i-1].Arrival {
						t.Fatal("arrivals are not sorted")
					}
					if got := r.BlocksOf(q); int64(got) != q.Input/16 {
						t.Fatalf("a request of %d tokens has %d blocks", q.Input, got)
					}
				}
				total += len(r.Requests)
				if again := w.Resample(rand.New(rand.NewPCG(seed, 0)).Uint64); !bytes.Equal(save(t, r, trace.KVRoute, ""), save(t, again, trace.KVRoute, "")) {
					t.Fatal("the same seed gives another workload")
				}
			}
			if total < 20*436*8/10 || total > 20*436*12/10 {
				t.Errorf("%d requests in 20 draws of about 436", total)
			}
			if !bytes.Equal(before, save(t, w, trace.KVRoute, "")) {
				t.Error("resampling changed the workload")
			}
		})
	}
}

// A trace without times or sessions is drawn by runs of requests: drawn as one block, resamples would be the
// trace itself or twice of it.
func TestResampleWithoutTimes(t *testing.T) {
	var text strings.Builder
	for i := range 200 {
		fmt.Fprintf(&text, `{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[%d,%d]}`+"\n", i%10, 100+i)
	}
	w := loadBytes(t, trace.Options{}, text.String())
	for seed := range uint64(20) {
		r := w.Resample(rand.New(rand.NewPCG(seed, 0)).Uint64)
		first := map[block.Hash]int{}
		for i := range r.Requests {
			first[r.Path(r.Requests[i].Leaf, nil)[0]]++
		}
		if len(r.Requests) != 200 || len(first) != 10 || r == w {
			t.Errorf("seed %d: %d requests over %d shared blocks, want a draw of 200 over 10", seed, len(r.Requests), len(first))
		}
	}
}

// The name made for a copy must not be that of another session.
func TestResampledSessionsHaveNamesOfTheirOwn(t *testing.T) {
	var text strings.Builder
	for i, name := range []string{"a", "a~1", "a~2", "a~1#3"} {
		fmt.Fprintf(&text, `{"timestamp":%d,"input_length":16,"output_length":5,"block_size":16,"session_id":%q,"hash_ids":[%d]}`+"\n", i, name, i)
	}
	w := loadBytes(t, trace.Options{}, text.String())
	for seed := range uint64(200) {
		r := w.Resample(rand.New(rand.NewPCG(seed, 0)).Uint64)
		names := slices.Sorted(slices.Values(r.Sessions))
		if n := len(slices.Compact(names)); n != 4 {
			t.Fatalf("seed %d: sessions %q, want 4 different names", seed, r.Sessions)
		}
	}
}

// TestResampledCopiesDoNotHitEachOther draws the same session each time.
func TestResampledCopiesDoNotHitEachOther(t *testing.T) {
	a := `{"timestamp":0,"input_length":48,"output_length":5,"block_size":16,"session_id":"a","hash_ids":[0,1,2]}` + "\n"
	b := `{"timestamp":7,"input_length":48,"output_length":5,"block_size":16,"session_id":"b","hash_ids":[0,3,4]}` + "\n"
	w := loadBytes(t, trace.Options{}, a+b)
	r := w.Resample(func() uint64 { return 0 })
	p, q := r.Path(r.Requests[0].Leaf, nil), r.Path(r.Requests[1].Leaf, nil)
	if len(r.Requests) != 2 || r.Requests[1].Arrival != 7000 || p[0] != q[0] || p[1] == q[1] || r.Forest.Len() != 5 {
		t.Errorf("two draws of one session: %+v, paths %x and %x; want the block of both sessions shared, the rest not", r.Requests, p, q)
	}
	if d := cmp.Diff([]string{"a", "a~1"}, r.Sessions); d != "" {
		t.Errorf("sessions (-want +got):\n%s", d)
	}
}

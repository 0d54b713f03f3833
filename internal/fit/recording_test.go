package fit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/plantedlog"
)

func recorded(t testing.TB, opt decodelog.Options, files ...string) ([]decodelog.Sample, *decodelog.Report, error) {
	t.Helper()
	var sources []decodelog.Source
	for _, f := range files {
		sources = append(sources, decodelog.Source{Name: "rec", R: strings.NewReader(f)})
	}
	var got []decodelog.Sample
	rep, err := fit.ReadRecording(context.Background(), sources, opt, func(s *decodelog.Sample) error { got = append(got, *s); return nil })
	if rep.Used != int64(len(got)) {
		t.Errorf("%d samples, the report says %d", len(got), rep.Used)
	}
	return got, rep, err
}

func plantedRecording(t testing.TB, truth plantedlog.Truth, design plantedlog.Design) string {
	t.Helper()
	var b bytes.Buffer
	if err := plantedlog.Write(&b, plantedlog.Recording, truth, design, 7); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Without noise every request's mean step is a + b R + c T of the means of R and T, but for these being over time, in
// which long steps count more, and not over steps.
func TestRecordingObeysThePlantedPlane(t *testing.T) {
	truth := plantedlog.Truth{A: 0.018, B: 0.0004, C: 4e-8, Ranks: 3, Independent: true}
	got, rep, err := recorded(t, decodelog.Options{}, plantedRecording(t, truth, plantedlog.Design{Seconds: 600}))
	if err != nil {
		t.Fatal(err)
	}
	var off []float64
	for i, s := range got {
		if !s.Measured || !s.Meanwhile || s.Prefill || s.Accept != 1 || s.Weight < 15 {
			t.Fatalf("sample %+v", s)
		}
		if i > 0 && s.At < got[i-1].At {
			t.Fatalf("sample %d is before the one before it", i)
		}
		off = append(off, math.Abs(s.Step/(truth.A+truth.B*s.Running+truth.C*s.Held)-1))
	}
	slices.Sort(off)
	if len(off) < 1000 || off[len(off)/2] > 0.002 || off[len(off)*99/100] > 0.05 {
		t.Errorf("%d samples, off the plane by %v in the median, %v at 99 %%; want 0.2 %% and 5 %%", len(off), off[len(off)/2], off[len(off)*99/100])
	}
	if diff := cmp.Diff([]int32{0, 1, 2}, rep.Ranks); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	for why := range rep.Left {
		if why != "an answer of less than 16 tokens" && why != "not ended when the recording did" {
			t.Errorf("left out because %q", why)
		}
	}
}

// Means over time against a sum over small steps of time.
func TestRecordingMeansAgainstSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		type job struct{ first, done, in, out int64 }
		var jobs []job
		var loads []string
		lines := heading + `{"type":"worker","op":"join","w":0,"key":"k","role":"decode","block_size":16}` + "\n"
		for i := range 1 + rng.IntN(12) {
			j := job{first: rng.Int64N(400), in: rng.Int64N(1000), out: 20 + rng.Int64N(50)}
			j.done = j.first + 20 + rng.Int64N(300)
			jobs = append(jobs, j)
			lines += decided(i+1, "decode", j.in)
			loads = append(loads, loaded("first", i+1, j.first*1e8, -1), loaded("release", i+1, j.done*1e8, j.out))
		}
		got, _, err := recorded(t, decodelog.Options{MinStep: 1e-9, MaxStep: 1e9}, lines+strings.Join(loads, ""))
		if err != nil {
			t.Fatal(err)
		}
		var want []decodelog.Sample
		for _, j := range jobs {
			var r, tok float64
			const parts = 10
			for k := range (j.done - j.first) * parts {
				at := float64(j.first) + (float64(k)+0.5)/parts
				for _, o := range jobs {
					if at > float64(o.first) && at < float64(o.done) {
						r++
						tok += float64(o.in) + float64(o.out)*(at-float64(o.first))/float64(o.done-o.first)
					}
				}
			}
			n := float64((j.done - j.first) * parts)
			d := (j.done - j.first) * 1e8
			want = append(want, decodelog.Sample{
				At: j.first*1e8 + d/2, Step: float64(d) / 1e9 / float64(j.out-1), Running: r / n, Held: tok / n, Accept: 1, Weight: float64(j.out - 1), Measured: true, Meanwhile: true,
			})
		}
		order := func(a, b decodelog.Sample) int {
			return int(a.At-b.At) + int(1e9*(a.Step-b.Step))
		}
		slices.SortFunc(want, order)
		slices.SortFunc(got, order)
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+math.Abs(a)) })); diff != "" {
			t.Fatalf("samples of %v (-want +got):\n%s", jobs, diff)
		}
	}
}

const heading = `{"kvroute":"trace/v1","block_size":16,"recording":1,"run":"b0b0b0b0b0b0b0b0","part":1,"program":"p","model":"m","config":{"router-policy":"least-work","kv-overlap-weight":1,"kv-prefill-overlap-weight":null,"kv-decode-overlap-weight":null,"kv-recent-weight":0,"prefix-threshold":0.5,"decode-input-demand":"off","decode-request-weight":0,"session-affinity":"off","tier-weights":[1,0.8,0.4],"seed":0}}` + "\n"

func decided(seq int, role string, in int64) string {
	return fmt.Sprintf(`{"type":"decision","ns":0,"id":"r%d","role":"%s","in":%d,"exact":true,"w":[0],"decision":{"seq":%d,"picked_index":0}}`+"\n", seq, role, in, seq)
}

func loaded(op string, seq int, ns, out int64) string {
	if out < 0 {
		return fmt.Sprintf(`{"type":"load","op":"%s","d":%d,"ns":%d}`+"\n", op, seq, ns)
	}
	return fmt.Sprintf(`{"type":"load","op":"%s","d":%d,"ns":%d,"out":%d}`+"\n", op, seq, ns, out)
}

func TestRecordedRequestsThatAreLeftOut(t *testing.T) {
	const worker = `{"type":"worker","op":"join","w":0,"key":"k","role":"ROLE","block_size":16}` + "\n"
	good := decided(1, "decode", 100) + loaded("first", 1, 1e9, -1) + loaded("release", 1, 3e9, 101)
	tests := []struct {
		name, lines, why, other string
	}{
		{"still running", decided(2, "decode", 9) + loaded("first", 2, 1e9, -1), "not ended when the recording did", ""},
		{"no first token", decided(2, "decode", 9) + loaded("release", 2, 3e9, 100), "no first token seen: not streamed, or failed", ""},
		{"length not told", decided(2, "decode", 9) + loaded("first", 2, 1e9, -1) + loaded("release", 2, 3e9, -1), "the engine did not tell the answer's length", ""},
		{"short", decided(2, "decode", 9) + loaded("first", 2, 1e9, -1) + loaded("release", 2, 3e9, 15), "an answer of less than 16 tokens", ""},
		{"slow", decided(2, "decode", 9) + loaded("first", 2, 1e9, -1) + loaded("release", 2, 9e9, 17), "a token took more than the longest step allowed", ""},
		{"fast", decided(2, "decode", 9) + loaded("first", 2, 1e9, -1) + loaded("release", 2, 2e9, 1000), "a token took less than the least step allowed", ""},
		{"prefill", decided(2, "prefill", 9) + loaded("first", 2, 1e9, -1) + loaded("release", 2, 2e9, -1), "", "prefills"},
	}
	for _, tt := range tests {
		got, rep, err := recorded(t, decodelog.Options{}, heading+strings.Replace(worker, "ROLE", "decode", 1)+good+tt.lines)
		if err != nil || len(got) != 1 || got[0].Step != 0.02 {
			t.Errorf("%s: samples %+v, error %v; want the good request's", tt.name, got, err)
		}
		if tt.why != "" && rep.Left[tt.why].N != 1 || tt.other != "" && rep.Other[tt.other].N != 1 {
			t.Errorf("%s: left out %v, other %v; want %q, %q", tt.name, rep.Left, rep.Other, tt.why, tt.other)
		}
	}
	// On a worker that computes prompts, too, a request that began meanwhile had prefill in its steps.
	mixed := decided(1, "mixed", 100) + decided(2, "mixed", 100) + loaded("first", 1, 1e9, -1) + loaded("first", 2, 2e9, -1) + loaded("release", 1, 3e9, 101) + loaded("release", 2, 4e9, 101)
	got, _, err := recorded(t, decodelog.Options{}, heading+strings.Replace(worker, "ROLE", "mixed", 1)+mixed)
	if err != nil || len(got) != 2 || !got[0].Prefill || got[1].Prefill {
		t.Errorf("mixed: %+v, %v; want prefill in the first one only", got, err)
	}
}

// Parts may come in any order, packed or not; the bundled recording is read.
func TestRecordingParts(t *testing.T) {
	lines := heading + `{"type":"worker","op":"join","w":0,"key":"k","role":"decode","block_size":16}` + "\n" + decided(1, "decode", 100) + loaded("first", 1, 1e9, -1)
	second := strings.Replace(heading, `"part":1`, `"part":2`, 1) + loaded("release", 1, 3e9, 101)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, second)
	_ = z.Close()
	for _, files := range [][]string{{lines, second}, {second, lines}, {packed.String(), lines}} {
		got, rep, err := recorded(t, decodelog.Options{}, files...)
		if err != nil || len(got) != 1 || got[0].Source != 0 || len(rep.Digest) != 32 || rep.Bytes == 0 || rep.Lines != 6 {
			t.Errorf("parts: %+v, %+v, %v", got, rep, err)
		}
	}
	data, err := os.ReadFile("../../traces/golden/recording.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	if !fit.IsRecording(data) || !fit.IsRecording([]byte(lines)) || fit.IsRecording([]byte("[2026-01-01")) || fit.IsRecording(nil) || fit.IsRecording([]byte(`{"kvroute":"trace/v1","block_size":16}`)) {
		t.Error("recordings are not told from others by their heads")
	}
	got, rep, err := recorded(t, decodelog.Options{MaxStep: 100}, string(data))
	if err != nil || len(got) < 100 {
		t.Errorf("the bundled recording: %d samples, left out %v, %v", len(got), rep.Left, err)
	}
}

func TestRecordingErrors(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"not one": {"hello\n", "rec:1: not a recording"},
		"damaged": {heading + "{\n" + decided(1, "decode", 1), "rec:2: not a record"},
		"nothing": {heading, "no request of the recording tells"},
	} {
		_, _, err := recorded(t, decodelog.Options{}, tt.in)
		var e *decodelog.Error
		if !errors.As(err, &e) || !strings.Contains(e.Error(), tt.want) {
			t.Errorf("%s: error %v, want a *decodelog.Error with %q", name, err, tt.want)
		}
	}
}

// FuzzReadRecording: no recording makes the reader panic or yield what is not a number.
func FuzzReadRecording(f *testing.F) {
	worker := `{"type":"worker","op":"join","w":0,"key":"k","role":"mixed","block_size":16}` + "\n"
	f.Add(heading + worker + decided(1, "mixed", 100) + decided(2, "mixed", 7) + loaded("first", 1, 1e9, -1) + loaded("first", 2, 2e9, -1) + loaded("release", 1, 3e9, 101) + loaded("release", 2, 4e9, 1<<62))
	f.Add(heading + worker + strings.Replace(decided(1, "mixed", 1<<62), `"w"`, `"n":9223372036854775807,"w"`, 1) + loaded("first", 1, -1<<62, -1) + loaded("release", 1, 1<<62, 20))
	f.Fuzz(func(t *testing.T, in string) {
		src := []decodelog.Source{{Name: "rec", R: strings.NewReader(in)}}
		rep, err := fit.ReadRecording(context.Background(), src, decodelog.Options{}, func(s *decodelog.Sample) error {
			for _, v := range []float64{s.Step, s.Running, s.Held, s.Weight} {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Fatalf("sample %+v", *s)
				}
			}
			return nil
		})
		if err == nil && rep.Used == 0 {
			t.Fatal("nothing was used, without an error")
		}
	})
}

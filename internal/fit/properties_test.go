package fit_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/plantedlog"
)

// planted is ten minutes of four ranks, with noise.
func planted(tb testing.TB) []decodelog.Sample {
	tb.Helper()
	var log bytes.Buffer
	truth := plantedlog.Truth{A: 0.018, B: 5e-4, C: 1.5e-8, Ranks: 4, Noise: 0.03}
	if err := plantedlog.Write(&log, plantedlog.SGLang, truth, plantedlog.Design{Seconds: 600}, 3); err != nil {
		tb.Fatal(err)
	}
	return read(tb, "planted", &log)
}

// exact is samples on a plane without noise, of ranks that step together, constant within each 12 s.
func exact(a, b, c float64, bins, ranks int) []decodelog.Sample {
	rng := rand.New(rand.NewPCG(7, 7))
	var samples []decodelog.Sample
	running, held := make([]float64, ranks), make([]float64, ranks)
	for i := range bins {
		for k := range ranks {
			if i%4 > 0 {
				break
			}
			running[k] = float64(1 + rng.IntN(30))
			held[k] = float64(1000 + rng.IntN(500_000))
		}
		step := a + b*slices.Max(running) + c*slices.Max(held)
		for j := range 3 {
			for k := range ranks {
				samples = append(samples, decodelog.Sample{
					At: int64(i)*3e9 + int64(j)*1e9, Rank: int32(k), Step: step, Running: running[k], Held: held[k],
					Accept: 1, Measured: true, Meanwhile: true,
				})
			}
		}
	}
	return samples
}

func TestExactPlanesAreFoundExactly(t *testing.T) {
	for _, p := range [][3]float64{{0.018, 5e-4, 1.5e-8}, {0.2, 1e-4, 2e-8}, {0.001, 0.004, 3e-7}} {
		for _, ranks := range []int{2, 8} {
			r := fitSamples(exact(p[0], p[1], p[2], 200, ranks), fit.Options{})
			name := fmt.Sprint(p, " ", ranks, " ranks")
			near(t, name+" a", r.A.Value, p[0], 1e-9)
			near(t, name+" b", r.B.Value, p[1], 1e-9)
			near(t, name+" c", r.C.Value, p[2], 1e-9)
			near(t, name+" W", r.Weight.Value, p[1]/p[2], 1e-9)
			near(t, name+" W low", r.Weight.Low, p[1]/p[2], 1e-3)
			near(t, name+" W high", r.Weight.High, p[1]/p[2], 1e-3)
			if r.Verdict != fit.Good || r.Kept != len(r.Bins) {
				t.Errorf("%s: %s, %d of %d bins kept, %v; want it good and all kept", name, r.Verdict, r.Kept, len(r.Bins), r.Reasons)
			}
		}
	}
}

func equal(t *testing.T, what string, got, want *fit.Result, tolerance float64) {
	t.Helper()
	opts := []cmp.Option{cmpopts.EquateNaNs()}
	if tolerance > 0 {
		opts = append(opts, cmpopts.EquateApprox(tolerance, 0))
	}
	if d := cmp.Diff(want, got, opts...); d != "" {
		t.Errorf("%s changes the result (-before +after):\n%s", what, d)
	}
}

func TestGoroutinesDoNotShow(t *testing.T) {
	samples := planted(t)
	want := fitSamples(samples, fit.Options{Workers: 1, Seed: 5})
	for _, workers := range []int{2, 3, 16, 1000} {
		equal(t, fmt.Sprint(workers, " goroutines"), fitSamples(samples, fit.Options{Workers: workers, Seed: 5}), want, 0)
	}
	if other := fitSamples(samples, fit.Options{Seed: 6}); other.Weight == want.Weight {
		t.Error("another seed gives the same interval")
	}
}

func TestResultMayBeAskedForAnyTime(t *testing.T) {
	samples := planted(t)
	f := fit.New(fit.Options{Draws: 20})
	for i := range samples {
		f.Add(&samples[i])
		if i%1500 == 10 {
			got := f.Result()
			equal(t, fmt.Sprint("having asked before, at sample ", i), got, fitSamples(samples[:i+1], fit.Options{Draws: 20}), 0)
		}
	}
	equal(t, "asking twice", f.Result(), f.Result(), 0)
}

func TestTimeDoesNotMatter(t *testing.T) {
	samples := planted(t)
	want := fitSamples(samples, fit.Options{})
	const day = 86_400_000_000_000 // a multiple of the bins
	for i := range samples {
		samples[i].At += 1000 * day
	}
	got := fitSamples(samples, fit.Options{})
	for i := range got.Bins {
		got.Bins[i].AtNS -= 1000 * day
	}
	equal(t, "another date", got, want, 0)
}

func TestNamesOfRanksDoNotMatter(t *testing.T) {
	samples := planted(t)
	want := fitSamples(samples, fit.Options{})
	for i := range samples {
		samples[i].Rank = (samples[i].Rank + 3) % 4
	}
	got := fitSamples(samples, fit.Options{})
	slices.SortFunc(got.Ranks, func(a, b fit.Rank) int { return int((a.Rank+1)%4) - int((b.Rank+1)%4) })
	for i := range got.Ranks {
		got.Ranks[i].Rank = int32(i)
	}
	// Sums over ranks are taken in another order.
	equal(t, "another numbering of ranks", got, want, 1e-12)
}

func TestUnits(t *testing.T) {
	samples := planted(t)
	want := fitSamples(samples, fit.Options{})
	for i := range samples {
		samples[i].Held *= 64
	}
	got := fitSamples(samples, fit.Options{})
	near(t, "W of tokens that are a 64th", got.Weight.Value, 64*want.Weight.Value, 1e-9)
	near(t, "its low end", got.Weight.Low, 64*want.Weight.Low, 1e-9)
	near(t, "b of tokens that are a 64th", got.B.Value, want.B.Value, 1e-9)
	for i := range samples {
		samples[i].Held /= 64
		samples[i].Step /= 8
	}
	got = fitSamples(samples, fit.Options{})
	near(t, "W of steps that are 8 times as quick", got.Weight.Value, want.Weight.Value, 1e-9)
	near(t, "their b", got.B.Value, want.B.Value/8, 1e-9)
}

func TestTheSameAgainChangesNothing(t *testing.T) {
	samples := planted(t)
	once := fitSamples(samples, fit.Options{})
	for _, s := range samples[:len(samples):len(samples)] {
		s.At += 7 * 86_400_000_000_000
		samples = append(samples, s)
	}
	twice := fitSamples(samples, fit.Options{})
	if len(twice.Bins) != 2*len(once.Bins) {
		t.Fatalf("%d bins of a log given twice, %d of one", len(twice.Bins), len(once.Bins))
	}
	for i := range once.Plain {
		near(t, fmt.Sprint("plain coefficient ", i), twice.Plain[i], once.Plain[i], 0.02)
	}
	near(t, "W", twice.Weight.Value, once.Weight.Value, 0.02)
}

func TestSamplesThatCannotBe(t *testing.T) {
	f := fit.New(fit.Options{})
	ok := decodelog.Sample{At: 1, Step: 0.02, Running: 1, Held: 1}
	for _, change := range []func(*decodelog.Sample){
		func(s *decodelog.Sample) { s.Step = 0 },
		func(s *decodelog.Sample) { s.Step = math.NaN() },
		func(s *decodelog.Sample) { s.Step = math.Inf(1) },
		func(s *decodelog.Sample) { s.Running = 0 },
		func(s *decodelog.Sample) { s.Running = math.NaN() },
		func(s *decodelog.Sample) { s.Held = -1 },
		func(s *decodelog.Sample) { s.Held = math.NaN() },
	} {
		s := ok
		change(&s)
		f.Add(&s)
	}
	r := f.Result()
	if r.Counts.Bad != 7 || r.Counts.Used != 0 || r.Verdict != fit.Refused || r.Reasons[0].Code != fit.CodeNoBins {
		t.Errorf("got %+v, %s %v; want all 7 counted as bad and a refusal", r.Counts, r.Verdict, r.Reasons)
	}
	if r := fit.New(fit.Options{}).Result(); r.Verdict != fit.Refused || len(r.Bins) != 0 {
		t.Errorf("no samples at all: %s, %d bins; want a refusal", r.Verdict, len(r.Bins))
	}
}

// TestReadingOrder lets samples come late, as those of several files do.
func TestReadingOrder(t *testing.T) {
	samples := exact(0.02, 5e-4, 2e-8, 300, 3)
	want := fitSamples(samples, fit.Options{Draws: 10})
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range samples {
		j := min(len(samples)-1, i+rng.IntN(200))
		samples[i], samples[j] = samples[j], samples[i]
	}
	got := fitSamples(samples, fit.Options{Draws: 10})
	equal(t, "shuffling within a minute", got, want, 1e-9)

	f := fit.New(fit.Options{Draws: 10})
	for i := range samples {
		f.Add(&samples[i])
	}
	late := samples[0]
	late.At -= 3e9 * 1000
	for range 5000 { // past the samples that settle the bins
		f.Add(&samples[len(samples)-1])
	}
	f.Add(&late)
	if r := f.Result(); r.Counts.Late != 1 {
		t.Errorf("a sample 50 minutes before all others: %d late, want 1", r.Counts.Late)
	}
}

func TestRanksThatAreEquallyBusyShareABin(t *testing.T) {
	var samples []decodelog.Sample
	for i := range 150 {
		for rank := range int32(4) {
			running := 3.0
			if rank == 3 && i/3%5 == 0 {
				running = 4
			}
			samples = append(samples, decodelog.Sample{At: int64(i) * 1e9, Rank: rank, Step: 0.02, Running: running, Held: 1000, Accept: 1, Measured: true, Meanwhile: true})
		}
	}
	want := []float64{0.2, 0.2, 0.2, 0.4}
	for i, r := range fitSamples(samples, fit.Options{}).Ranks {
		near(t, fmt.Sprint("share of rank ", r.Rank), r.Busiest, want[i], 1e-12)
	}
}

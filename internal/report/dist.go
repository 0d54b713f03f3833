package report

import (
	"encoding/json"
	"slices"
)

// rank returns the 0-based index of the nearest-rank percentile: the ceil(percent*n/100)-th smallest,
// in integers, so that no rounding of percent*n can move it.
func rank(n int64, percent int64) int64 {
	r := (percent*n + 99) / 100
	return min(max(r, 1), n) - 1
}

// times are the distributions of a simulation in the order of its fields.
func (s *Sim) times() [4]*Dist { return [4]*Dist{&s.TTFT, &s.ITL, &s.E2E, &s.Queue} }

// known tells whether a distribution has values: where no request completed there are no times, and
// their zeros are not good ones.
func (s *Sim) known(d *Dist) bool { return s.Completed > 0 || *d != Dist{} }

// MarshalJSON writes distributions without values as null.
func (s Sim) MarshalJSON() ([]byte, error) {
	type plain Sim
	out := struct { // in front of the fields of the same names, which it hides
		TTFT  *Dist `json:"ttft_us"`
		ITL   *Dist `json:"itl_us"`
		E2E   *Dist `json:"e2e_us"`
		Queue *Dist `json:"queue_us"`
		plain
	}{plain: plain(s)}
	for i, d := range s.times() {
		if s.known(d) {
			*[...]**Dist{&out.TTFT, &out.ITL, &out.E2E, &out.Queue}[i] = d
		}
	}
	return json.Marshal(out)
}

// Percentile returns the nearest-rank percentile of ascending values: the ceil(percent*n/100)-th
// smallest. It is 0 for no values; percent is clipped to 0..100.
func Percentile(sorted []int64, percent int) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[rank(int64(len(sorted)), int64(min(max(percent, 0), 100)))]
}

// NewDist summarises values, which it sorts in place. Without values all is zero.
func NewDist(values []int64) Dist {
	n := int64(len(values))
	if n == 0 {
		return Dist{}
	}
	slices.Sort(values)
	d := Dist{
		P50: values[rank(n, 50)],
		P90: values[rank(n, 90)],
		P99: values[rank(n, 99)],
		Max: values[n-1],
	}
	for _, v := range values {
		d.Sum += v
	}
	d.Mean = float64(d.Sum) / float64(n)
	return d
}

// Weighted is a value that occurred Count times.
type Weighted struct{ Value, Count int64 }

// NewWeightedDist summarises values with counts, which it sorts in place. It equals NewDist of every
// value written out Count times; counts below 1 are left out.
func NewWeightedDist(values []Weighted) Dist {
	slices.SortFunc(values, func(a, b Weighted) int {
		switch {
		case a.Value < b.Value:
			return -1
		case a.Value > b.Value:
			return 1
		}
		return 0
	})
	var d Dist
	var n int64
	for _, v := range values {
		if v.Count > 0 {
			n += v.Count
			d.Sum += v.Value * v.Count
			d.Max = v.Value
		}
	}
	if n == 0 {
		return Dist{}
	}
	d.Mean = float64(d.Sum) / float64(n)
	targets := [3]int64{rank(n, 50), rank(n, 90), rank(n, 99)}
	out := [3]*int64{&d.P50, &d.P90, &d.P99}
	next, seen := 0, int64(0)
	for _, v := range values {
		if v.Count <= 0 {
			continue
		}
		seen += v.Count
		for next < len(targets) && targets[next] < seen {
			*out[next] = v.Value
			next++
		}
	}
	return d
}

// CurvePoints is the number of values Curve keeps.
const CurvePoints = 201

// Curve keeps CurvePoints nearest-rank quantiles of ascending values, at 0, 0.5, 1 … 100 %: enough to
// draw a cumulative distribution, small enough to keep for every run of a sweep. Nil for no values.
func Curve(sorted []int64) []int64 {
	n := int64(len(sorted))
	if n == 0 {
		return nil
	}
	out := make([]int64, CurvePoints)
	for i := range out {
		r := (int64(i)*n + CurvePoints - 2) / (CurvePoints - 1)
		out[i] = sorted[min(max(r, 1), n)-1]
	}
	return out
}

// Imbalance is max/mean of counts, the requests per worker; 0 where there is nothing to share out.
func Imbalance(counts []int64) float64 {
	var most, sum int64
	for _, c := range counts {
		most = max(most, c)
		sum += c
	}
	if sum == 0 {
		return 0
	}
	return float64(most) * float64(len(counts)) / float64(sum)
}

// Ratio is part/whole, 0 where the whole is 0.
func Ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

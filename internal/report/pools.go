package report

// Pool is a run of neighbouring worker numbers that do the same work.
type Pool struct {
	Role     string // prefill or decode; "" where every worker does both
	From, To int    // worker numbers, To not included
}

// Pools says which of n workers do what. Counts of different pools do not compare: with separate pools
// a request counts in both.
func (d *Document) Pools(n int) []Pool {
	p, _ := d.Flags["prefill-workers"].(int)
	if p <= 0 || p >= n {
		return []Pool{{"", 0, n}}
	}
	return []Pool{{"prefill", 0, p}, {"decode", p, n}}
}

func sum(counts []int64) int64 {
	var s int64
	for _, n := range counts {
		s += n
	}
	return s
}

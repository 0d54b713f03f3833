package index

// Add adds what another Op did.
func (r *Result) Add(o Result) { r.add(o) }

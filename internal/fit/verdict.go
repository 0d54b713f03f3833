package fit

// evidence is what a verdict is made from.
type evidence struct {
	f        *Fitter
	res      *Result
	design   *design
	est      *estimate
	coupling float64
	coarse   *table
}

func judge(e *evidence) {
	e.res.Verdict = Weak
	if !e.est.ok {
		e.res.Verdict = Refused
	}
}

package snapshot

// Turned says whether something changed from a to b that those who watch should not wait for: workers, health,
// breakers, trust, gaps, warnings, readiness. Everything else is numbers, which are not read several times a second.
func Turned(a, b *Snapshot) bool {
	if a.Run != b.Run || len(a.Workers) != len(b.Workers) || len(a.Warnings) != len(b.Warnings) ||
		a.Router.Ready != b.Router.Ready || a.Router.Draining != b.Router.Draining {
		return true
	}
	for i := range a.Workers {
		x, y := &a.Workers[i], &b.Workers[i]
		if x.RouteKey != y.RouteKey || x.Health != y.Health || x.Breaker != y.Breaker || x.Trust != y.Trust || x.Stream.Gaps != y.Stream.Gaps {
			return true
		}
	}
	for i := range a.Warnings {
		if a.Warnings[i].ID != b.Warnings[i].ID {
			return true
		}
	}
	return false
}

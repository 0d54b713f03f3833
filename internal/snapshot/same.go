package snapshot

import (
	"maps"
	"slices"
)

// same says whether two entries tell the same. It is written out because all entries are compared at every tick;
// TestEveryFieldIsCompared holds it to the fields that there are.
func (w *Worker) same(o *Worker) bool {
	return w.Requests == o.Requests && w.BlockCount == o.BlockCount && w.HeldTokens == o.HeldTokens && w.HeldRequests == o.HeldRequests &&
		w.PendingTokens == o.PendingTokens && w.ActiveBlocks == o.ActiveBlocks && w.RequestRate == o.RequestRate &&
		w.WorkerID == o.WorkerID && w.RouteKey == o.RouteKey && w.URL == o.URL && w.Model == o.Model && w.Role == o.Role &&
		w.Engine == o.Engine && w.EngineVersion == o.EngineVersion && w.Health == o.Health && w.HealthReason == o.HealthReason &&
		w.Breaker == o.Breaker && w.Busy == o.Busy && w.Trust == o.Trust && w.TrustReason == o.TrustReason && equal(w.TrustSinceMS, o.TrustSinceMS) &&
		w.Approximate == o.Approximate && w.LowerBlocks == o.LowerBlocks && w.Tiers == o.Tiers && equal(w.PoolBlocks, o.PoolBlocks) &&
		equal(w.PageSize, o.PageSize) && equal(w.Fill, o.Fill) && w.ContentHash == o.ContentHash && w.Orphans == o.Orphans && w.Holes == o.Holes &&
		equal(w.HitShare, o.HitShare) && equal(w.ReportedShare, o.ReportedShare) && w.Predictions == o.Predictions && slices.Equal(w.Parity, o.Parity) &&
		w.Stream.same(&o.Stream) && counts(w.History, o.History)
}

func (s *Stream) same(o *Stream) bool {
	return equal(s.Sequence, o.Sequence) && equal(s.LastEventMS, o.LastEventMS) && s.Batches == o.Batches && s.Replayed == o.Replayed &&
		s.Gaps == o.Gaps && s.Missing == o.Missing && s.Restarts == o.Restarts && s.Bad == o.Bad && s.Stored == o.Stored && s.Removed == o.Removed &&
		s.Clears == o.Clears && s.Refused == o.Refused && s.Dropped == o.Dropped && s.Conflicts == o.Conflicts &&
		counts(s.StoredHist, o.StoredHist) && counts(s.RemovedHist, o.RemovedHist) && maps.Equal(s.Skipped, o.Skipped)
}

func (c *Cache) same(o *Cache) bool {
	return c.Held == o.Held && c.Distinct == o.Distinct && c.Sampled == o.Sampled &&
		slices.EqualFunc(c.Prefixes, o.Prefixes, func(a, b Prefix) bool { return a.same(&b) })
}

func (p *Prefix) same(o *Prefix) bool {
	return p.Hash == o.Hash && p.Parent == o.Parent && p.Model == o.Model && p.From == o.From && p.Blocks == o.Blocks && p.Uses == o.Uses &&
		p.LastMS == o.LastMS && p.Text == o.Text && slices.Equal(p.Holders, o.Holders)
}

func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// counts compares histories, which snapshots share where they are the same.
func counts(a, b []uint32) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

package admin

import (
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/vitals"
)

// optional is nil for what is not known.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// Lists without an entry, which are not null in JSON.
var (
	noHistory = []uint32{}
	noParity  = []snapshot.Parity{}
)

func millis(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

func hexOf(v uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return hex.EncodeToString(b[:])
}

// outline is what warnings are made of.
func outline(s *fleet.TargetState, data func(string) router.WorkerState) snapshot.Worker {
	w := snapshot.Worker{
		WorkerID: s.WorkerID, RouteKey: s.RouteKey, Model: s.Model, Role: s.Role,
		Health: s.Health.String(), HealthReason: s.HealthReason, Trust: s.Stream.Trust.String(), TrustReason: s.Stream.Reason,
		Approximate: s.Approximate, HeldRequests: s.HeldRequests, HeldTokens: s.HeldTokens, PageSize: optional(s.PageSize), Parity: noParity,
		Stream: snapshot.Stream{
			Gaps: s.Stream.Gaps, Restarts: s.Stream.Restarts, Bad: s.Stream.Bad, Skipped: s.Stream.Skipped,
			Refused: uint64(s.Refused), Dropped: uint64(s.Dropped), Conflicts: uint64(s.Conflicts),
		},
	}
	if len(s.Parity) > 0 {
		w.Parity = make([]snapshot.Parity, 0, len(s.Parity))
	}
	for _, p := range s.Parity {
		w.Parity = append(w.Parity, snapshot.Parity{Case: p.Name, Verdict: p.Verdict, Detail: p.Detail})
	}
	if data != nil {
		d := data(s.WorkerID)
		w.Breaker, w.Busy = d.Breaker, d.Busy
	}
	return w
}

// entry is a target as the API shows it, without what vitals know.
func entry(s *fleet.TargetState, data func(string) router.WorkerState, blockSize int) snapshot.Worker {
	w := outline(s, data)
	w.URL, w.Engine, w.EngineVersion, w.TrustSinceMS = s.URL, s.Engine, s.Version, millis(s.Stream.Since)
	w.BlockCount, w.LowerBlocks, w.Tiers = s.Blocks, s.LowerBlocks, [3]int{s.Blocks - s.LowerBlocks, s.LowerBlocks - s.DiskBlocks, s.DiskBlocks}
	w.PoolBlocks, w.ContentHash, w.Orphans, w.Holes = optional(s.PoolBlocks), hexOf(s.ContentHash), s.Orphans, s.Holes
	w.ActiveBlocks, w.PendingTokens = s.ActiveBlocks, s.PendingTokens
	w.History, w.Stream.StoredHist, w.Stream.RemovedHist = noHistory, noHistory, noHistory
	w.Stream.LastEventMS, w.Stream.Batches, w.Stream.Replayed, w.Stream.Missing = millis(s.Stream.LastEvent), s.Stream.Batches, s.Stream.Replayed, s.Stream.Missing
	w.Predictions = snapshot.Prediction(s.Predictions)
	if s.PoolBlocks > 0 && s.PageSize > 0 && s.Joined {
		fill := float64(w.Tiers[0]) * float64(blockSize) / (float64(s.PoolBlocks) * float64(s.PageSize))
		w.Fill = &fill
	}
	if s.Stream.HasSeq {
		seq := s.Stream.Seq // states are memory that is used again
		w.Stream.Sequence = &seq
	}
	return w
}

// requestFacts are about requests as a whole.
func requestFacts(t router.Troubles) []vitals.Fact {
	fact := func(kind, severity string, n uint64, text string) vitals.Fact {
		return vitals.Fact{Kind: kind, Severity: severity, Counted: true, Count: n, Text: text}
	}
	return []vitals.Fact{
		fact("failed", "error", t.Failed, "%d requests were not answered, or not to the end, by the workers they were sent to"),
		fact("no-worker", "error", t.NoWorker, "%d requests found no worker that serves"),
		fact("doubtful", "warning", t.Doubtful, "%d requests were sent to workers with open breakers or busy ones: there was no other"),
		fact("rejected", "warning", t.Rejected, "%d requests were turned away for want of room (--max-in-flight, --max-per-worker, --max-body-memory)"),
		fact("retries", "warning", t.RetryBudget, "%d failed requests were not tried elsewhere: too many were (--retry-ratio, --retry-burst)"),
		fact("fault", "error", t.Own, "%d requests ended in a fault of the router's own: see its log"),
	}
}

package admin

import (
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/snapshot"
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

// entry is a target as the API shows it, without what vitals know.
func entry(s *fleet.TargetState, data func(string) router.WorkerState, blockSize int) snapshot.Worker {
	w := snapshot.Worker{
		WorkerID: s.WorkerID, RouteKey: s.RouteKey, URL: s.URL, Model: s.Model, Role: s.Role, Engine: s.Engine, EngineVersion: s.Version,
		Health: s.Health.String(), HealthReason: s.HealthReason, Trust: s.Stream.Trust.String(), TrustReason: s.Stream.Reason, TrustSinceMS: millis(s.Stream.Since),
		Approximate: s.Approximate, BlockCount: s.Blocks, LowerBlocks: s.LowerBlocks,
		Tiers:      [3]int{s.Blocks - s.LowerBlocks, s.LowerBlocks - s.DiskBlocks, s.DiskBlocks},
		PoolBlocks: optional(s.PoolBlocks), PageSize: optional(s.PageSize),
		ContentHash: hexOf(s.ContentHash), Orphans: s.Orphans, Holes: s.Holes,
		ActiveBlocks: s.ActiveBlocks, PendingTokens: s.PendingTokens, HeldRequests: s.HeldRequests, HeldTokens: s.HeldTokens,
		History: noHistory,
		Stream: snapshot.Stream{
			LastEventMS: millis(s.Stream.LastEvent), Batches: s.Stream.Batches, Replayed: s.Stream.Replayed, Gaps: s.Stream.Gaps, Missing: s.Stream.Missing,
			Restarts: s.Stream.Restarts, Bad: s.Stream.Bad, Skipped: s.Stream.Skipped, StoredHist: noHistory, RemovedHist: noHistory,
		},
		Parity:      noParity,
		Predictions: snapshot.Prediction(s.Predictions),
	}
	if s.PoolBlocks > 0 && s.PageSize > 0 && s.Joined {
		fill := float64(w.Tiers[0]) * float64(blockSize) / (float64(s.PoolBlocks) * float64(s.PageSize))
		w.Fill = &fill
	}
	if s.Stream.HasSeq {
		w.Stream.Sequence = &s.Stream.Seq
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

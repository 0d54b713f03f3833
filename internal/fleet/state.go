package fleet

import (
	"slices"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
)

// Health says whether a worker serves.
type Health uint8

// The states of health.
const (
	Starting  Health = iota // found, has not answered yet
	Healthy                 // answers
	Unhealthy               // has answered before and does not now
)

// String names it as logs and the admin API do.
func (h Health) String() string { return [...]string{"starting", "healthy", "unhealthy"}[h] }

// TargetState is what the router knows of one target. A worker that has not answered yet has one, with
// Joined false.
type TargetState struct {
	WorkerID     string
	RouteKey     string
	URL          string
	Model        string
	Role         string
	Engine       string
	Version      string
	Health       Health
	HealthReason string
	Joined       bool

	Blocks      int // of the mirror
	LowerBlocks int // of them, in no better tier than host memory
	DiskBlocks  int // of these, on disk only
	Orphans     int
	Holes       int
	Refused     int   // blocks that the full index did not take, since it joined
	Dropped     int   // blocks given up because their parent never came
	Conflicts   int   // blocks not taken because they are known under another parent
	PoolBlocks  int64 // blocks of PageSize tokens that the engine has; 0: unknown
	PageSize    int   // tokens per block of the engine's cache; 0: unknown
	Approximate bool
	ContentHash uint64
	Stream      feed.State
	Parity      []ParityState

	ActiveBlocks  int64
	PendingTokens int64
	HeldRequests  int64
	HeldTokens    int64

	Predictions PredictionState
}

// PredictionState compares predicted cached tokens with those the engine reported.
type PredictionState struct {
	Compared     uint64 // answers whose prediction nothing overtook
	Differing    uint64 // of those, not equal
	Overtaken    uint64
	Incomparable uint64 // the engine reports something else
	Predicted    int64  // cached tokens over all compared
	Reported     int64
	Diverged     bool
}

// ParityState is what comparing our tokens with the engine's gave.
type ParityState struct {
	Name    string
	Verdict string // confirmed, diverged, unknown
	Detail  string
	At      time.Time
}

// States returns what is known of every target, by worker and rank.
func (f *Fleet) States() []TargetState { return f.AppendStates(nil) }

// AppendStates appends to list what is known of every target, by worker and rank.
func (f *Fleet) AppendStates(list []TargetState) []TargetState {
	ws := f.all()
	list = slices.Grow(list, len(ws))
	for _, w := range ws {
		list = w.states(list)
	}
	return list
}

func (w *worker) states(list []TargetState) []TargetState {
	base := TargetState{WorkerID: w.spec.ID, RouteKey: w.spec.ID, URL: w.at, Model: w.spec.Model, Role: string(w.spec.Role), Engine: w.engine()}
	w.mu.Lock()
	base.Health, base.HealthReason, base.PageSize, base.Parity = w.health, w.reason, w.page, w.parity
	if w.model != nil {
		base.Model = w.model.name
	}
	if w.info != nil {
		base.Version, base.PoolBlocks = w.info.Version, w.info.PoolBlocks
	}
	targets := w.targets[:len(w.targets):len(w.targets)]
	w.mu.Unlock()
	if len(targets) == 0 {
		base.Stream.Reason = base.HealthReason
		return append(list, base)
	}
	for _, g := range targets {
		s := base
		s.RouteKey, s.Joined, s.Approximate = g.key, true, g.stream == nil
		st, ld, sum := g.model.pool.Look(g.id)
		s.Blocks, s.LowerBlocks, s.DiskBlocks, s.Orphans, s.Holes = st.Blocks, st.Lower, st.Disk, st.Orphans, st.Holes
		s.ContentHash, s.Refused, s.Dropped, s.Conflicts = sum, st.Totals.Refused, st.Totals.Dropped, st.Totals.Conflict
		s.ActiveBlocks, s.PendingTokens, s.HeldRequests, s.HeldTokens = ld.ActiveBlocks, ld.PendingTokens, ld.HeldRequests, ld.HeldTokens
		s.Stream = g.trust()
		g.mu.Lock()
		d := &g.drift
		s.Predictions = PredictionState{
			Compared: d.compared, Differing: d.differing, Overtaken: d.overtaken, Incomparable: d.unlike, Predicted: d.predicted, Reported: d.reported, Diverged: d.diverged,
		}
		g.mu.Unlock()
		list = append(list, s)
	}
	return list
}

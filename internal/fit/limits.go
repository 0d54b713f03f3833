package fit

import (
	"math"
	"strconv"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// Limits of the reason "step-limits": shares of the lines.
const (
	someNear   = 0.01 // near a limit
	someBeyond = 0.01 // left out as beyond it
	mostBeyond = 0.1  // refused
)

// limits judges whether the limits of steps cut off decode steps, and not only pauses: then some of those that are left lie
// close to the limit. Rows chosen by what they are to explain bend the plane.
func (e *evidence) limits() {
	r := e.f.report
	if r == nil {
		return
	}
	e.limit(r.Longest, "longer", "--max-step")
	e.limit(r.Shortest, "shorter", "--min-step")
}

func (e *evidence) limit(l decodelog.Limit, what, flag string) {
	used := float64(e.f.counts.Samples)
	share := float64(l.Beyond) / (used + float64(l.Beyond))
	if float64(l.Near) < someNear*used || share < someBeyond {
		return
	}
	say := e.weaken
	if share > mostBeyond {
		say = e.refuse
	}
	to := 2 * l.Step
	if what == "shorter" {
		to = l.Step / 2
	}
	say(CodeLimits, "give "+flag+" "+milliseconds(to)+" or so: between decode steps and pauses",
		"%.0f %% of the lines are left out as their step is %s than %s, and others are close to that: decode steps are cut off, not only pauses, which bends the plane",
		100*share, what, milliseconds(l.Step))
}

// milliseconds writes a time in seconds as the flags take it.
func milliseconds(s float64) string {
	return strconv.FormatFloat(math.Round(s*1e6)/1e3, 'g', -1, 64) + "ms"
}

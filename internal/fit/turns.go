package fit

import (
	"math"
	"slices"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// mostTurns is the most engines that are looked for in the lines of one rank.
const mostTurns = 4

// turns compares what a rank holds with what it held some lines before. An engine's tokens change slowly, so that lines
// further apart differ more. Where several engines print as one rank, in turn, lines next to each other are of two of them, and
// those as far apart as there are engines of one.
type turns struct {
	held  [mostTurns]float64 // of the lines before, the last first
	lines int64
	jumps [mostTurns]float64 // |change| over 1, 2, ... lines, summed over the same lines
}

func (t *turns) add(held float64) {
	if t.lines >= mostTurns {
		for i, before := range t.held {
			t.jumps[i] += math.Abs(held - before)
		}
	}
	copy(t.held[1:], t.held[:])
	t.held[0] = held
	t.lines++
}

// inTurn says whether several engines seem to print. Planted logs of one engine, also in waves of requests, have 1.1 at
// least, those of two or three mixed 0.75 at most, so that anything between is as good a limit. Tokens that have nothing to do
// with those of the line before have 1, give or take 1/sqrt(lines) at each distance: few lines need to show more.
func (t *turns) inTurn() bool {
	const least, sure = 0.15, 4
	less := 1 - slices.Min(t.jumps[1:])/t.jumps[0]
	return t.lines >= minBins && less > max(least, sure/math.Sqrt(float64(t.lines)))
}

// turns judges whether the lines of a rank are those of one engine.
func (e *evidence) turns() {
	for i := range e.f.ranks {
		r := &e.f.ranks[i]
		if !r.turns.inTurn() {
			continue
		}
		what := "lines of " + e.f.name(r.key)
		if r.key.rank == decodelog.NoRank {
			what = "lines in " + e.f.input(r.key.source)
		}
		e.refuse(CodeSeveral, "give the log of each engine as a file of its own (kubectl logs of one pod, docker logs of one container)",
			"%s jump between what several engines hold, as if these print into one log under the same name", what)
		return
	}
}

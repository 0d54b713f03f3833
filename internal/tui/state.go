package tui

import (
	"github.com/kvroute/kvroute/internal/snapshot"
)

// grade is how well a target stands, worse ones larger.
type grade uint8

const (
	gradeGood grade = iota
	gradeOff        // it cannot be known better: no events, no sequence numbers
	gradeWait       // on its way
	gradeWarn       // its mirror is in doubt
	gradeBad        // it gets no requests
)

// trustGrades are the words of package feed. One that is not here, from a newer router, is a doubt.
var trustGrades = map[string]grade{
	"trusted": gradeGood, "no-events": gradeOff, "unverifiable": gradeOff,
	"connecting": gradeWait, "warming": gradeWait, "resync": gradeWait,
	"gap": gradeWarn, "silent": gradeWarn, "malformed": gradeWarn, "diverged": gradeWarn,
}

// gradeOf grades a target by its health, its breaker and the trust in its events.
func gradeOf(w *snapshot.Worker) grade {
	switch {
	case w.Health == "unhealthy" || w.Breaker == "open":
		return gradeBad
	case w.Health == "starting" || w.Breaker == "half-open":
		return gradeWait
	}
	if g, ok := trustGrades[w.Trust]; ok {
		return g
	}
	return gradeWarn
}

// stateWord is the one word for a target's state: what keeps requests from it before what casts doubt on its mirror.
func stateWord(w *snapshot.Worker) string {
	switch {
	case w.Health == "unhealthy":
		return "unhealthy"
	case w.Breaker == "open":
		return "breaker open"
	case w.Health == "starting":
		return "starting"
	case w.Breaker == "half-open":
		return "half-open"
	case w.Trust == "":
		return "unknown"
	}
	return w.Trust
}

// shortState is a state's word, or where that does not fit one that says the same.
func shortState(s string, w int) string {
	if len(s) > w {
		switch s {
		case "breaker open":
			return "breaker"
		case "unverifiable":
			return "unverified"
		}
	}
	return s
}

// stateReason is why it is in that state.
func stateReason(w *snapshot.Worker) string {
	if w.Health == "unhealthy" || w.Health == "starting" {
		return w.HealthReason
	}
	return w.TrustReason
}

func (t *theme) grade(g grade) (string, tone) {
	switch g {
	case gradeGood:
		return t.g.good, good
	case gradeOff:
		return t.g.off, dim
	case gradeWait:
		return t.g.wait, warn
	case gradeWarn:
		return t.g.warn, warn
	}
	return t.g.bad, bad
}

// linkState is how the link stands, in a symbol, a tone and words.
func (m *Model) linkState() (string, tone, string) {
	t := m.theme
	switch m.update.Link {
	case Connecting:
		return t.g.wait, warn, "connecting"
	case Lost:
		return t.g.bad, bad, "stale " + age(m.staleMS())
	case Ended:
		return t.g.off, dim, "recording, over"
	}
	switch {
	case m.frozen:
		behind := int64(0)
		if m.update.Snap != nil && m.pic.snap != nil {
			behind = m.update.Snap.AtMS - m.pic.snap.AtMS
		}
		if behind < 2000 {
			return t.g.paused, warn, "paused"
		}
		return t.g.paused, warn, "paused " + age(behind) + " ago"
	case m.update.Play != nil && m.update.Play.Paused:
		return t.g.paused, warn, "recording, paused"
	case m.update.Play != nil:
		return t.g.play, good, "recording, playing"
	}
	return t.g.good, good, "live"
}

// lineFace is how lines of the picture are drawn.
func (m *Model) lineFace() face {
	if m.update.Link == Lost || m.update.Link == Connecting {
		return stale
	}
	return normal
}

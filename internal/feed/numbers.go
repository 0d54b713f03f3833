package feed

import "time"

// Connected says that a connection to the publisher stands: the first, or another one.
func (t *Tracker) Connected(now time.Time) (s Step) {
	first := !t.met
	t.up, t.met, t.down = true, true, ""
	t.fetch.gaveUp, t.fetch.attempts = false, 0
	t.lastMessage = now
	if !t.rules.Bind {
		t.hasLive, t.asked = false, false
	}
	switch {
	case t.rules.Bind && (t.unnumbered || !t.rules.Replay) && !t.resumed:
		// Somebody dialled, this engine or another: no reason to doubt anything.
	case t.rules.Replay && !t.unnumbered:
		reason := "fetching what the engine has published so far"
		switch {
		case t.resumed:
			reason = "checking the snapshot against the engine"
		case !first:
			reason = "connected again, fetching what was missed"
		}
		t.demand(now, reason)
		t.fetch.again = true
	case t.resumed:
		s.Clear = t.forget()
	case !t.has && !t.dirty:
	case t.unnumbered:
		// Most connections are lost with the engine, and without a clear its blocks would stay for ever.
		t.state.Restarts++
		s.Clear = t.forget()
	default:
		t.doubt("connected again, and the engine cannot be asked whether it is still the same")
	}
	t.settle(now)
	return s
}

// Disconnected says that there is no connection, and why.
func (t *Tracker) Disconnected(now time.Time, why string) {
	t.up, t.down = false, why
	t.settle(now)
}

// Garbled says that a message came whose frames are no batch.
func (t *Tracker) Garbled(now time.Time, why string) {
	t.lastMessage = now
	t.bad(why)
	t.doubt(why)
	t.settle(now)
}

// Live says what to do with a live message.
func (t *Tracker) Live(now time.Time, m Mark, numbered bool) (s Step) {
	defer func() {
		t.waits, t.waiting, t.fetched = s.Do == Wait, m, false
		if s.Do == Apply && numbered {
			t.note(m)
			t.empty = false
		}
		if numbered && s.Do != Wait {
			t.live, t.hasLive = m.Seq, true
		}
		t.settle(now)
	}()
	t.up, t.met, t.lastMessage = true, true, now
	if !numbered {
		if !t.unnumbered && t.has {
			s.Clear = t.restart() // another engine, as it seems
		}
		t.unnumbered = true
		t.fetch.drop()
		t.settled = true
		s.Do = Apply
		return s
	}
	if t.unnumbered {
		t.unnumbered = false
		s.Clear = t.forget()
	}
	if t.fetch.urgent() {
		s.Do = Wait
		return s
	}
	again := t.waits && t.waiting == m && t.fetched
	if !t.has {
		return t.join(now, m, again, s)
	}
	switch {
	case m.Seq == t.last.Seq+1:
		if again && t.rules.Bind {
			return t.foreign(now, s)
		}
		s.Do = Apply
		return s
	case m.Seq > t.last.Seq+1:
		return t.ahead(now, m, again, s)
	}
	return t.behind(now, m, again, s)
}

// foreign drops a message that came before a replay and is not in it: it is left over from a former life
// of the engine, whose connection could not be told from the present one. Should that be wrong, the next
// check brings it back.
func (t *Tracker) foreign(now time.Time, s Step) Step {
	t.state.Stale++
	t.fetch.lookAt = now.Add(recheck)
	s.Do = Drop
	return s
}

// join handles the first message of a life.
func (t *Tracker) join(now time.Time, m Mark, again bool, s Step) Step {
	start := m.Seq == 0 || m.Seq == 1 && t.rules.From1
	if t.usable(now) && !again && !(t.empty && start) {
		t.demand(now, "fetching what the engine has published so far")
		s.Do = Wait
		return s
	}
	t.begin(m.Seq, start)
	if !start && t.fetch.gaveUp {
		t.why += ", and could not be fetched: " + t.fetch.failed
	}
	s.Do = Apply
	return s
}

// ahead handles a number above the expected one.
func (t *Tracker) ahead(now time.Time, m Mark, again bool, s Step) Step {
	switch {
	case again && t.rules.Bind:
		return t.foreign(now, s)
	case again:
		s.Clear = t.lose(m.Seq, "the engine did not have them any more", true)
	case t.usable(now):
		t.state.Gaps++
		t.demand(now, "batches are missing, fetching them")
		s.Do = Wait
		return s
	case t.rules.Replay:
		if !t.fetch.gap {
			t.state.Gaps++
		}
		s.Clear = t.lose(m.Seq, "replay failed: "+t.fetch.failed, true)
	default:
		t.state.Gaps++
		s.Clear = t.lose(m.Seq, "the engine has no replay", false)
	}
	t.fetch.gap = false
	s.Do = Apply
	return s
}

// behind handles a number that should have been applied.
func (t *Tracker) behind(now time.Time, m Mark, again bool, s Step) Step {
	former, remembers := t.recall(m.Seq)
	late := m.Seq >= t.hole[0] && m.Seq < t.hole[1]
	overlap := t.asked && m.Seq <= t.upTo && (!t.hasLive || m.Seq > t.live) // live ones catch up with those replayed
	switch {
	case remembers && former != m && again:
		// The engine's replay is not what it published, so it is of no use.
		t.giveUp(now, "the replay has another batch of a number than the one that came")
		t.doubt(t.fetch.failed)
		s.Do = Drop
		return s
	case remembers && former == m, again, !remembers && (late || overlap):
		t.state.Stale++
		s.Do = Drop
		return s
	case !remembers && t.usable(now):
		t.demand(now, "numbers went down, asking whether the engine restarted")
		s.Do = Wait
		return s
	}
	// Another batch of the same number, or numbers that went down: a new life.
	s.Clear = t.restart() || s.Clear
	return t.join(now, m, false, s)
}

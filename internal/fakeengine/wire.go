package fakeengine

// wire is how one version of an engine puts events and answers on the wire. Where the version of a
// change is not known, the captured versions on both sides of it decide.
type wire struct {
	asMap       bool // events are maps with names, not arrays by position
	fields      int  // positions of a store in array form, the tag included
	removed     int  // positions of a removal
	rank        bool // the batch has the data-parallel rank as third field
	numbers     bool // three frames, with a sequence number
	replay      bool // there is a replay socket
	replayTopic bool // replay answers hold the topic
	signed      bool // hashes are signed
	merge       bool // removals with many hashes; otherwise one removal for each
	oneBlock    bool // a store for each block
	clears      bool // AllBlocksCleared exists
	clearMedium bool // and says from which medium
	salted      bool // SGLang: the salt is part of the published hash
	saltField   bool // SGLang: stores say the salt

	nullCached    bool // vLLM: prompt_tokens_details is null where nothing was cached
	created       bool // vLLM: chat usage counts the tokens that were added to the cache
	reuseUnhashed bool // vLLM: freed blocks without a hash are taken first
	eventSources  bool // vLLM: GET /kv_event_sources
	resetJSON     bool // vLLM: /reset_prefix_cache answers {"success":true}
	serverEvents  bool // SGLang: /server_info has kv_events
}

// wireOf is the wire form of a dialect's version.
func wireOf(d Dialect, v version) wire {
	switch d {
	case SGLang:
		w := wire{numbers: true, replay: true, signed: true, merge: true, clears: true, fields: 6, removed: 2}
		if v.atLeast(0, 5, 9) {
			w.fields, w.removed = 7, 3
		}
		w.rank = v.atLeast(0, 4, 8)
		w.saltField = v.atLeast(0, 5, 12)
		w.serverEvents = v.atLeast(0, 5, 12)
		w.asMap = v.atLeast(0, 5, 21)
		w.replayTopic = v.atLeast(0, 5, 23)
		w.salted = v.atLeast(0, 5, 23)
		return w
	case ATOM:
		w := wire{rank: true, fields: 12, removed: 4}
		if v.atLeast(0, 2, 0) {
			w.numbers, w.replay, w.replayTopic, w.clears, w.clearMedium = true, true, true, true, true
		} else {
			w.oneBlock = true
		}
		return w
	case TRTLLM:
		return wire{numbers: true, replay: true, replayTopic: true, rank: true, clears: true, fields: 7, removed: 3}
	}
	w := wire{numbers: true, replay: true, clears: true, fields: 6, removed: 2}
	w.rank = v.atLeast(0, 9, 1)
	for _, at := range []struct{ minor, fields, removed int }{{10, 7, 3}, {13, 8, 3}, {18, 9, 3}, {20, 10, 4}, {22, 12, 4}} {
		if v.atLeast(0, at.minor, 0) {
			w.fields, w.removed = at.fields, at.removed
		}
	}
	w.asMap = v.atLeast(0, 24, 0)
	w.nullCached = !w.asMap
	w.reuseUnhashed = w.asMap
	w.replayTopic = v.atLeast(0, 26, 0)
	w.created = v.atLeast(0, 32, 0)
	w.eventSources = v.atLeast(0, 32, 0)
	w.resetJSON = v.atLeast(0, 32, 0)
	return w
}

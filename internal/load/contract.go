// Package load is the ledger of what has been sent where and has not ended yet.
package load

import (
	"github.com/kvroute/kvroute/internal/block"
)

// Demand is what one reservation books on its target.
type Demand struct {
	Blocks        []block.Hash   // the prompt's chained block hashes; copied by the ledger
	More          [][]block.Hash // further prompts of the same request (a batch); copied by the ledger
	PrefillTokens int64          // tokens the target has to compute before the first token (uncached by the mirror's view)
	Tokens        int64          // input tokens the request holds while it lives (times n)
	Tag           uint64         // the caller's own mark, given back by Ledger.Reservation; it means nothing to the ledger
}

// Load is what is in flight on one target.
type Load struct {
	ActiveBlocks    int64 // distinct prompt blocks of held requests
	PendingTokens   int64 // prefill tokens of requests without a first token
	PendingRequests int64 // held requests without a first token
	HeldTokens      int64 // input tokens of held requests
	HeldRequests    int64 // reservations not yet released
}

// Handle names one reservation. The zero Handle names none.
type Handle struct {
	slot uint32
	gen  uint32
}

// Package mirrorfile keeps mirrors of caches in a file, so that a router that starts again knows at once
// what its workers hold.
//
// A file is a magic line, a version, and frames. Each frame is a kind, a length, a payload of that length
// and a checksum over these and the checksum before it, so that no frame can be damaged, lost, repeated or
// moved unseen; all numbers are little-endian.
//
//	magic    "kvroute-mirrors\n"
//	version  u32, 1
//	frames   { 'T' { 'R' } 'E' } 'Z', then the file ends
//	frame    kind u8, length u32, payload, xxh3-64 of (checksum before, u64; kind; length; payload)
//	'T'      Meta as JSON
//	'R'      records, see record.go
//	'E'      number of records since 'T', u64
//	'Z'      number of targets, u64
//
// The file holds hashes of prompts: who reads it can tell whether a prompt he guesses was sent. Make it
// readable by its owner alone (mode 0600), under a temporary name, and rename it once Close has returned,
// so that there is never a part of one under its name.
package mirrorfile

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Version is the version of the format written, and the only one read.
const Version = 1

const magic = "kvroute-mirrors\n"

// Frames.
const (
	kindTarget  = 'T'
	kindRecords = 'R'
	kindEnd     = 'E'
	kindClose   = 'Z'

	headLen    = 5       // kind and length
	sumLen     = 8       // checksum
	maxPayload = 1 << 20 // of any frame
	flushAt    = 1 << 16 // records are put into frames of about this size
)

// Errors that reading wraps. Whatever they are, the file is of no further use, and nothing but the warm
// start depends on it.
var (
	// ErrFormat: it is no file of mirrors, or it is damaged.
	ErrFormat = errors.New("not an undamaged file of mirrors")
	// ErrVersion: it was written by another version of kvroute.
	ErrVersion = errors.New("a file of mirrors of another version")
)

// Meta is what has to be known of a mirror beside its content, to decide whether it may be used again:
// only for the same engine process, and only if its events can be followed from Seq on.
type Meta struct {
	Worker      string `json:"worker"`      // its id
	Rank        int    `json:"rank"`        // target.NoRank where the worker has one cache
	Incarnation string `json:"incarnation"` // what tells one life of the engine from the next, as far as it is known
	Engine      string `json:"engine"`
	Model       string `json:"model"`
	Tokenizer   string `json:"tokenizer"`  // digest
	BlockSize   int    `json:"block_size"` // tokens of a block of the index, at least 1
	PageSize    int    `json:"page_size"`  // tokens of a page of the engine's cache; 0: not known
	Seq         uint64 `json:"seq"`        // of the last batch of events that was applied; meaningful if HasSeq
	HasSeq      bool   `json:"has_seq"`
	Payload     uint64 `json:"payload"` // XXH3-64 of that batch's payload, to recognise it when it is replayed
	Time        int64  `json:"time"`    // ns since 1970 when this was true
	Blocks      int    `json:"blocks"`  // held
	Content     uint64 `json:"content"` // index.ContentHash, to be compared after the import
}

func (m *Meta) validate() error {
	switch {
	case m.BlockSize < 1:
		return fmt.Errorf("target %q has blocks of %d tokens", m.Worker, m.BlockSize)
	case m.PageSize < 0 || m.Blocks < 0 || m.Rank < -1:
		return fmt.Errorf("target %q has page size %d, %d blocks, rank %d", m.Worker, m.PageSize, m.Blocks, m.Rank)
	}
	return nil
}

// chain is the checksum of a frame, of which head is the kind and length, after a frame with checksum prev.
func chain(h *xxh3.Hasher, prev uint64, head, payload []byte) uint64 {
	var before [8]byte
	binary.LittleEndian.PutUint64(before[:], prev)
	h.Reset()
	h.Write(before[:]) //nolint:errcheck // a hasher never fails
	h.Write(head)      //nolint:errcheck
	h.Write(payload)   //nolint:errcheck
	return h.Sum64()
}

package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrFrames is wrapped by the errors of Frames and ReplayFrames.
var ErrFrames = errors.New("not the frames of an event batch")

// Frame is one multipart message taken apart. Its slices are those of the message.
type Frame struct {
	Topic   []byte
	Seq     uint64
	HasSeq  bool // false: the engine sends no numbers, losses cannot be seen
	Payload []byte
	End     bool // replay only: there is no more
}

// Frames takes a live message apart: [topic, number, payload]; engines without numbers send [topic,
// payload] or the payload alone.
func Frames(parts [][]byte) (Frame, error) {
	n := len(parts)
	switch n {
	case 1:
		return Frame{Payload: parts[0]}, nil
	case 2:
		return Frame{Topic: parts[0], Payload: parts[1]}, nil
	case 3:
		if len(parts[1]) != 8 {
			return Frame{}, fmt.Errorf("%w: the sequence number has %d bytes, want 8", ErrFrames, len(parts[1]))
		}
		return Frame{Topic: parts[0], Seq: binary.BigEndian.Uint64(parts[1]), HasSeq: true, Payload: parts[2]}, nil
	}
	return Frame{}, fmt.Errorf("%w: %d frames, want 1 to 3", ErrFrames, n)
}

// ReplayFrames takes an answer of a replay socket apart: [empty, number, payload] from older engines and
// [empty, topic, number, payload] from newer ones, told apart by their length only, as the topic may be
// empty. The leading empty frame, which a REQ socket takes away, may be missing. Numbers are never absent.
// The end is an empty payload with a number of all ones.
func ReplayFrames(parts [][]byte) (Frame, error) {
	n := len(parts)
	if n < 2 || n > 4 {
		return Frame{}, fmt.Errorf("%w: %d frames in a replay, want 2 to 4", ErrFrames, n)
	}
	if n == 4 && len(parts[0]) > 0 {
		return Frame{}, fmt.Errorf("%w: a replay of 4 frames begins with %d bytes, want an empty frame", ErrFrames, len(parts[0]))
	}
	number := parts[n-2]
	if len(number) != 8 {
		return Frame{}, fmt.Errorf("%w: the sequence number has %d bytes, want 8", ErrFrames, len(number))
	}
	f := Frame{Seq: binary.BigEndian.Uint64(number), HasSeq: true, Payload: parts[n-1]}
	if n > 2 {
		f.Topic = parts[n-3]
	}
	f.End = len(f.Payload) == 0 && f.Seq == math.MaxUint64
	return f, nil
}

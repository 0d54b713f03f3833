package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrFrames is wrapped by errors about messages whose frames are none of the known layouts.
var ErrFrames = errors.New("not an event message")

const seqLen = 8

// endOfReplay is the number that the marker at the end of a replay carries.
const endOfReplay = ^uint64(0)

// ParseLive reads the frames of one live message: topic, number and payload; topic and payload; or the
// payload alone. Where there is no number, losses cannot be seen.
func ParseLive(parts [][]byte) (Message, error) {
	switch len(parts) {
	case 1:
		return Message{Payload: parts[0]}, nil
	case 2:
		return Message{Topic: string(parts[0]), Payload: parts[1]}, nil
	case 3:
		if len(parts[1]) != seqLen {
			return Message{}, fmt.Errorf("reading a live message: %w: the number has %d bytes, want %d", ErrFrames, len(parts[1]), seqLen)
		}
		return Message{Topic: string(parts[0]), Seq: binary.BigEndian.Uint64(parts[1]), HasSeq: true, Payload: parts[2]}, nil
	}
	return Message{}, fmt.Errorf("reading a live message: %w: %d frames, want 1 to 3", ErrFrames, len(parts))
}

// ParseReplay reads the frames of one answer to a replay request as a DEALER gets them: an empty one,
// then number and payload (vLLM before 0.26, older SGLang) or topic, number and payload. The layouts
// are told apart by the number of frames, as a topic may be empty. End marks the end of the replay: a
// number of all ones with an empty payload.
func ParseReplay(parts [][]byte) (m Message, end bool, err error) {
	if len(parts) != 3 && len(parts) != 4 {
		return Message{}, false, fmt.Errorf("reading a replay answer: %w: %d frames, want 3 or 4", ErrFrames, len(parts))
	}
	if len(parts[0]) != 0 {
		return Message{}, false, fmt.Errorf("reading a replay answer: %w: the first frame has %d bytes, want 0", ErrFrames, len(parts[0]))
	}
	number := parts[len(parts)-2]
	if len(number) != seqLen {
		return Message{}, false, fmt.Errorf("reading a replay answer: %w: the number has %d bytes, want %d", ErrFrames, len(number), seqLen)
	}
	m = Message{Seq: binary.BigEndian.Uint64(number), HasSeq: true, Payload: parts[len(parts)-1]}
	if len(parts) == 4 {
		m.Topic = string(parts[1])
	}
	if m.Seq == endOfReplay && len(m.Payload) == 0 {
		return Message{}, true, nil
	}
	return m, false, nil
}

// AppendReplayRequest appends the eight bytes that ask for all batches from start on. They go out
// after an empty frame: servers ignore anything else without an answer.
func AppendReplayRequest(dst []byte, start uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, start)
}

package kvevent

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFrames(t *testing.T) {
	seq := []byte{0, 0, 0, 0, 0, 0, 1, 2}
	ones := []byte{255, 255, 255, 255, 255, 255, 255, 255}
	payload, topic, empty := []byte{0x93}, []byte("kv-events"), []byte{}
	tests := []struct {
		name   string
		parts  [][]byte
		replay bool
		want   Frame
		bad    bool
	}{
		{name: "live", parts: [][]byte{topic, seq, payload}, want: Frame{Topic: topic, Seq: 258, HasSeq: true, Payload: payload}},
		{name: "live, empty topic", parts: [][]byte{empty, seq, payload}, want: Frame{Topic: empty, Seq: 258, HasSeq: true, Payload: payload}},
		{name: "live, all ones is a number", parts: [][]byte{topic, ones, payload}, want: Frame{Topic: topic, Seq: 1<<64 - 1, HasSeq: true, Payload: payload}},
		{name: "live without numbers", parts: [][]byte{topic, payload}, want: Frame{Topic: topic, Payload: payload}},
		{name: "live, topic of eight bytes", parts: [][]byte{seq, payload}, want: Frame{Topic: seq, Payload: payload}},
		{name: "live, payload alone", parts: [][]byte{payload}, want: Frame{Payload: payload}},
		{name: "live, number of 7 bytes", parts: [][]byte{topic, seq[1:], payload}, bad: true},
		{name: "live, nothing", bad: true},
		{name: "live, four", parts: [][]byte{empty, topic, seq, payload}, bad: true},
		{name: "replay, old", replay: true, parts: [][]byte{empty, seq, payload}, want: Frame{Topic: empty, Seq: 258, HasSeq: true, Payload: payload}},
		{name: "replay, new", replay: true, parts: [][]byte{empty, topic, seq, payload}, want: Frame{Topic: topic, Seq: 258, HasSeq: true, Payload: payload}},
		{name: "replay, new, empty topic", replay: true, parts: [][]byte{empty, empty, seq, payload}, want: Frame{Topic: empty, Seq: 258, HasSeq: true, Payload: payload}},
		{name: "replay, old, REQ", replay: true, parts: [][]byte{seq, payload}, want: Frame{Seq: 258, HasSeq: true, Payload: payload}},
		{name: "replay, new, REQ", replay: true, parts: [][]byte{topic, seq, payload}, want: Frame{Topic: topic, Seq: 258, HasSeq: true, Payload: payload}},
		{name: "end, old", replay: true, parts: [][]byte{empty, ones, empty}, want: Frame{Topic: empty, Seq: 1<<64 - 1, HasSeq: true, Payload: empty, End: true}},
		{name: "end, new", replay: true, parts: [][]byte{empty, empty, ones, empty}, want: Frame{Topic: empty, Seq: 1<<64 - 1, HasSeq: true, Payload: empty, End: true}},
		{name: "empty payload is no end", replay: true, parts: [][]byte{empty, seq, empty}, want: Frame{Topic: empty, Seq: 258, HasSeq: true, Payload: empty}},
		{name: "all ones with payload is no end", replay: true, parts: [][]byte{empty, ones, payload}, want: Frame{Topic: empty, Seq: 1<<64 - 1, HasSeq: true, Payload: payload}},
		{name: "replay, one", replay: true, parts: [][]byte{payload}, bad: true},
		{name: "replay, five", replay: true, parts: [][]byte{empty, empty, topic, seq, payload}, bad: true},
		{name: "replay, four without delimiter", replay: true, parts: [][]byte{topic, topic, seq, payload}, bad: true},
		{name: "replay, number of 9 bytes", replay: true, parts: [][]byte{empty, append(seq, 0), payload}, bad: true},
	}
	for _, tt := range tests {
		read := Frames
		if tt.replay {
			read = ReplayFrames
		}
		got, err := read(tt.parts)
		if tt.bad {
			if !errors.Is(err, ErrFrames) {
				t.Errorf("%s: error %v, want ErrFrames", tt.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

package watchssh

import (
	"context"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
	uv "github.com/charmbracelet/ultraviolet"
)

// What people type, hold down, turn a wheel for and paste is far below these. Without them a client that sends
// without end would keep a core of the router busy, and what never ends (a paste, an escape sequence) all of its memory.
const (
	mostAtOnce    = 16 << 10 // bytes
	mostPerSecond = 1 << 10  // bytes, in the long run
	mostInAll     = 4 << 20  // bytes of a session
)

// tooMuch is why a session ends then.
const tooMuch = "more was typed than anybody types"

// typed reads what a client types, tells when something came, and ends where it is too much.
type typed struct {
	r    io.Reader
	now  func() time.Time
	seen func()
	over func() // called once

	at    time.Time
	owed  float64 // bytes beyond mostPerSecond
	total int64
	ended bool
}

func (k *typed) Read(p []byte) (int, error) {
	if k.ended {
		return 0, io.EOF
	}
	n, err := k.r.Read(p)
	if n > 0 {
		now := k.now()
		if !k.at.IsZero() {
			k.owed = max(0, k.owed-now.Sub(k.at).Seconds()*mostPerSecond)
		}
		k.at = now
		k.owed += float64(n)
		k.total += int64(n)
		if k.owed > mostAtOnce || k.total > mostInAll {
			k.ended = true
			k.over()
			return 0, io.EOF
		}
		k.seen()
	}
	return n, err
}

// stream sends what is typed to a program, until the session is closed. A program's own reader of input waits for ever
// with a key that comes when the program has ended, and keeps all of it in memory; send must take what comes then too.
func stream(ctx context.Context, in io.Reader, term string, send func(tea.Msg)) {
	events := make(chan uv.Event)
	go func() {
		defer close(events)
		_ = uv.NewTerminalReader(in, term).StreamEvents(ctx, events) // the client is gone, which the session tells
	}()
	go func() {
		for e := range events {
			send(e)
		}
	}()
}

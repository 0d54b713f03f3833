package tui

import (
	"testing"

	tea "charm.land/bubbletea/v2"
	uv "github.com/charmbracelet/ultraviolet"
)

// typed is what Bubble Tea makes of bytes that come at once.
func typed(t *testing.T, s string) (msgs []any) {
	t.Helper()
	var d uv.EventDecoder
	for b := []byte(s); len(b) > 0; {
		n, e := d.Decode(b)
		k, ok := e.(uv.KeyPressEvent)
		if n == 0 || !ok {
			t.Fatalf("%q is %T, want keys", b, e)
		}
		msgs = append(msgs, tea.KeyPressMsg(k))
		b = b[n:]
	}
	return msgs
}

// TestEscapeAndAKey: escape with a key right behind it, which terminals send as alt and the key, does what the two do
// one after the other.
func TestEscapeAndAKey(t *testing.T) {
	start := at(100, 30, Options{}, live(fleetScene(12, pd, 0)))
	for _, tt := range []struct{ name, before, behind string }{
		{"out of help, down", "?", "j"},
		{"out of help, to decisions", "?", "3"},
		{"out of help, last", "?", "G"},
		{"out of help, reversed", "?", "S"},
		{"out of help, an arrow", "?", "\x1b[B"},
		{"out of a worker, a filter", "j\r", "/"},
		{"out of a worker, and another escape", "j\r", "\x1b"},
		{"out of a filter being typed", "/w1", "j"},
		{"out of a filter being typed, a word of none", "/w1", "x"},
		{"nothing to leave", "", "s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := after(start, typed(t, tt.before)...)
			together, apart := after(m, typed(t, "\x1b"+tt.behind)...), after(after(m, typed(t, "\x1b")...), typed(t, tt.behind)...)
			if got, want := together.screen(), apart.screen(); got != want {
				t.Errorf("together:\n%s\nwant:\n%s", plainText(got), plainText(want))
			}
			if tt.before != "" && together.screen() == m.screen() {
				t.Error("nothing happened")
			}
		})
	}
	// Words of a filter are gone over with alt; that is no escape.
	if m := after(start, typed(t, "/ab\x1bbc")...); !m.typing || m.input.Value() != "cab" {
		t.Errorf("alt+b in a filter: typing %v, %q; want %q still typed", m.typing, m.input.Value(), "cab")
	}
	// With alt a key that quits quits.
	if _, cmd := start.Update(typed(t, "\x1bq")[0]); cmd == nil {
		t.Error("escape and q do not quit")
	}
}

package watchssh

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// endless gives n bytes at each read, for ever.
type endless int

func (n endless) Read(p []byte) (int, error) { return min(int(n), len(p)), nil }

// TestTypedIsBounded: people do not meet the bounds; whatever the pace, what comes without end ends.
func TestTypedIsBounded(t *testing.T) {
	for _, c := range []struct {
		name  string
		n     int           // bytes of a read
		every time.Duration // between reads
		reads int
		ends  bool
	}{
		{"a key held down for six hours", 3, 20 * time.Millisecond, 6 * 3600 * 50, false},
		{"a wheel turned for ten minutes", 90, 100 * time.Millisecond, 6000, false},
		{"a long paste", 4096, 0, 4, false},
		{"a longer one", 4096, 0, 5, true},
		{"pastes, one after the other", 4096, 4 * time.Second, 100, false},
		{"faster than allowed", 2000, time.Second, 100, true},
		{"slowly without end", 1000, time.Second, 4200, true},
	} {
		now, over, seen := time.Unix(1_700_000_000, 0), 0, 0
		k := &typed{r: endless(c.n), now: func() time.Time { return now }, seen: func() { seen++ }, over: func() { over++ }}
		buf := make([]byte, 4096)
		ended := false
		for range c.reads {
			n, err := k.Read(buf)
			if ended = errors.Is(err, io.EOF); ended {
				if n != 0 || over != 1 {
					t.Errorf("%s: %d bytes at the end, told %d times of it, want none and once", c.name, n, over)
				}
				_, _ = k.Read(buf) // told no more
				break
			}
			now = now.Add(c.every)
		}
		if want := map[bool]int{true: 1}[c.ends]; ended != c.ends || over != want || seen == 0 {
			t.Errorf("%s: ended: %v, told %d times of it, keys seen %d times; want it ended: %v", c.name, ended, over, seen, c.ends)
		}
	}
}

// TestAFloodOfKeysEndsItsSession: and only that. A paste that never ends is one.
func TestAFloodOfKeysEndsItsSession(t *testing.T) {
	st := start(t, Limits{}, "")
	other := st.open(st.dial(), "xterm", 80, 24)
	other.expect("worker-0")
	for _, flood := range []string{"jk", "\x1b[200~pasted", "\x1b]0;"} {
		x := st.open(st.dial(), "xterm", 80, 24)
		x.expect("worker-0")
		if _, err := io.WriteString(x.keys, flood+strings.Repeat("a", 2*mostAtOnce)); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if code := x.wait(); code != 0 {
			t.Errorf("%q: exit code %d, want 0", flood, code)
		}
		x.expect(leaveScreen)
		if got := x.errs.String(); !strings.Contains(got, tooMuch) {
			t.Errorf("%q: got %q, want why it ended", flood, got)
		}
	}
	other.forget()
	other.press("?")
	other.expect("help")
}

// TestManySizesAreDrawnOnce: the last of very many sizes is drawn, soon, and not each on the way.
func TestManySizesAreDrawnOnce(t *testing.T) {
	st := start(t, Limits{}, "")
	x := st.open(st.dial(), "xterm", 80, 24)
	x.expect("worker-0")
	for range 2000 {
		for _, size := range [2][2]int{{40, 120}, {11, 33}} {
			if err := x.s.WindowChange(size[0], size[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	x.expect("here are 33x11")
}

// TestKeysBehindTheLastOne: what is typed when a session has ended keeps nothing of it (TestMain looks for goroutines).
func TestKeysBehindTheLastOne(t *testing.T) {
	st := start(t, Limits{}, "")
	for range 5 {
		x := st.open(st.dial(), "xterm", 80, 24)
		x.expect("worker-0")
		x.press(strings.Repeat("q", 100))
		if code := x.wait(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
	}
}

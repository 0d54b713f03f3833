package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Progress appears once work lasts longer than progressAfter and moves every progressEvery.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// progress is one line on stderr with the rate and the time left. It is safe for use by several
// goroutines; a nil progress does nothing.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	now   func() time.Time
	what  string // "requests"
	start time.Time
	last  time.Time
	done  int
	total int
	width int // of the line on the screen, 0: none yet
}

// newProgress returns nil where nobody wants to see it: off a terminal, or with --no-progress.
func (a *app) newProgress(what string) *progress {
	if !a.errTerm || a.general.noProgress || a.env["TERM"] == "dumb" {
		return nil
	}
	return &progress{w: a.stderr, now: a.now, what: what, start: a.now()}
}

// step tells how far the work is. total 0 means unknown.
func (p *progress) step(done, total int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = done, total
	now := p.now()
	if now.Sub(p.start) < progressAfter || now.Sub(p.last) < progressEvery {
		return
	}
	p.last = now
	p.draw(p.line(now))
}

// finish leaves a last line that says what was done, if there was a line at all.
func (p *progress) finish() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.width == 0 {
		return
	}
	took := p.now().Sub(p.start)
	p.draw(fmt.Sprintf("%s %s in %s (%s/s)", amount(p.done), p.what, span(took), short(rate(p.done, took))))
	fmt.Fprintln(p.w)
	p.width = 0
}

func (p *progress) line(now time.Time) string {
	took := now.Sub(p.start)
	perSecond := rate(p.done, took)
	if p.total <= 0 {
		return fmt.Sprintf("%s %s, %s/s", amount(p.done), p.what, short(perSecond))
	}
	left := "?"
	if perSecond > 0 {
		left = span(time.Duration(float64(p.total-p.done) / perSecond * float64(time.Second)))
	}
	return fmt.Sprintf("%s of %s %s (%d %%), %s/s, %s left", amount(p.done), amount(p.total), p.what,
		100*int64(p.done)/int64(p.total), short(perSecond), left)
}

// draw replaces the line on the screen.
func (p *progress) draw(line string) {
	n := len([]rune(line))
	fmt.Fprint(p.w, "\r"+line+strings.Repeat(" ", max(0, p.width-n)))
	p.width = n
}

func rate(n int, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(n) / took.Seconds()
}

// amount prints a count: as it is while it is short.
func amount(n int) string {
	if n < 10_000 {
		return strconv.Itoa(n)
	}
	return short(float64(n))
}

// short prints a number in a few characters: 950, 12.3k, 4.5M.
func short(x float64) string {
	switch {
	case x >= 9.95e6:
		return fmt.Sprintf("%.0fM", x/1e6)
	case x >= 1e6:
		return fmt.Sprintf("%.1fM", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.0fk", x/1e3)
	case x >= 10 || x == 0:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

// span prints a length of time to the second, or to the tenth below ten seconds.
func span(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

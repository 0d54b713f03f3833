package tui

import (
	"fmt"
	"html"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// plainText is a frame without its colours.
func plainText(frame string) string { return ansi.Strip(frame) }

// look is how a run of cells is drawn.
type look struct {
	fg, bg        string // "": the usual
	bold, reverse bool
}

const usualInk, usualGround = "#d7dce2", "#14181d"

// svgLine draws a line of ANSI text, the first cell at x.
func svgLine(line string, x, y, cell int) (string, error) {
	var b strings.Builder
	var l look
	column := 0
	for line != "" {
		esc := strings.IndexByte(line, 0x1b)
		if esc != 0 {
			run := line
			if esc > 0 {
				run = line[:esc]
			}
			line = line[len(run):]
			b.WriteString(svgRun(run, l, x+column*cell, y, cell))
			column += ansi.StringWidth(run)
			continue
		}
		codes, rest, ok := strings.Cut(line[1:], "m")
		if !ok || !strings.HasPrefix(codes, "[") {
			return "", fmt.Errorf("%q begins with no colour", line)
		}
		if err := l.apply(codes[1:]); err != nil {
			return "", err
		}
		line = rest
	}
	return b.String(), nil
}

func svgRun(run string, l look, x, y, cell int) string {
	fg, bg := l.fg, l.bg
	if fg == "" {
		fg = usualInk
	}
	if l.reverse {
		if bg == "" {
			bg = usualGround
		}
		fg, bg = bg, fg
	}
	var b strings.Builder
	n := ansi.StringWidth(run)
	if bg != "" {
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="17" fill="%s"/>`, x, y-13, n*cell, bg)
	}
	text := strings.TrimRight(run, " ")
	bare := strings.TrimLeft(text, " ")
	if bare == "" {
		return b.String()
	}
	x += (len(text) - len(bare)) * cell
	weight := ""
	if l.bold {
		weight = ` font-weight="bold"`
	}
	// textLength holds the grid whatever the font.
	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s"%s textLength="%d" xml:space="preserve">%s</text>`, x, y, fg, weight, ansi.StringWidth(bare)*cell, html.EscapeString(bare))
	return b.String()
}

// apply takes the codes of a sequence.
func (l *look) apply(codes string) error {
	part := strings.Split(codes, ";")
	for i := 0; i < len(part); i++ {
		n := 0
		if part[i] != "" {
			var err error
			if n, err = strconv.Atoi(part[i]); err != nil {
				return fmt.Errorf("code %q: %w", codes, err)
			}
		}
		switch {
		case n == 0:
			*l = look{}
		case n == 1:
			l.bold = true
		case n == 7:
			l.reverse = true
		case n == 2 || n == 4:
		case (n == 38 || n == 48) && i+2 < len(part) && part[i+1] == "5":
			c, err := strconv.Atoi(part[i+2])
			if err != nil {
				return fmt.Errorf("code %q: %w", codes, err)
			}
			i += 2
			if n == 38 {
				l.fg = colour256(c)
			} else {
				l.bg = colour256(c)
			}
		default:
			return fmt.Errorf("code %q is not one that the screen uses", codes)
		}
	}
	return nil
}

// colour256 is a colour of the common palette: a cube of six steps, then greys.
func colour256(n int) string {
	basic := []string{"#000000", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5", "#666666", "#f14c4c", "#23d18b", "#f5f543", "#3b8eea", "#d670d6", "#29b8db", "#ffffff"}
	switch {
	case n < len(basic):
		return basic[n]
	case n < 232:
		n -= 16
		step := []int{0, 95, 135, 175, 215, 255}
		return fmt.Sprintf("#%02x%02x%02x", step[n/36], step[n/6%6], step[n%6])
	}
	g := 8 + 10*(n-232)
	return fmt.Sprintf("#%02x%02x%02x", g, g, g)
}

package tui

import (
	"image/color"
	"strings"

	"charm.land/lipgloss/v2"
)

// UTF8 says whether a terminal's locale, by its variables, is one of UTF-8, or not told.
func UTF8(variable func(name string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(variable(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

// tone is what a piece of text means. Meaning is never told by a tone alone: a word or a symbol stands beside it.
type tone uint8

const (
	plain  tone = iota
	dim         // heads, units, what is usual
	strong      // names, the focused panel
	good        // trusted, live
	warn        // doubt
	bad         // wrong
	accent      // what can be pressed, where one is
	cool        // pictures: sparklines, bars
	numTones
)

// face is how a line stands: as it is, chosen, or out of date.
type face uint8

const (
	normal face = iota
	chosen
	stale
	numFaces
)

// glyphs are the symbols of the screen. All are one cell wide.
type glyphs struct {
	more, unknown, cursor, rule, dot             string
	good, warn, bad, wait, off, note             string
	barFull, barRest, up, down, approx           string
	branch, last, pipe, arrow, play, paused, sep string
	spark                                        []string // 0: nothing
	heat                                         []string // 0: nothing, last: all
}

var unicodeGlyphs = glyphs{
	more: "…", unknown: "–", cursor: "▌", rule: "─", dot: "·",
	good: "●", warn: "▲", bad: "✗", wait: "◌", off: "○", note: "·",
	barFull: "█", barRest: "░", up: "↑", down: "↓", approx: "~",
	branch: "├", last: "└", pipe: "│", arrow: "→", play: "▶", paused: "‖", sep: "│",
	spark: []string{"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"},
	heat:  []string{"·", "░", "▒", "▓", "█"},
}

var asciiGlyphs = glyphs{
	more: "~", unknown: "-", cursor: ">", rule: "-", dot: ".",
	good: "*", warn: "!", bad: "x", wait: ".", off: "o", note: ".",
	barFull: "#", barRest: ".", up: "^", down: "v", approx: "~",
	branch: "|", last: "`", pipe: "|", arrow: ">", play: ">", paused: "=", sep: "|",
	spark: []string{".", "_", "-", "=", "+", "*", "#"},
	heat:  []string{".", ":", "+", "%", "#"},
}

// theme is all that decides how things look: characters, colours, faces.
type theme struct {
	ascii bool
	g     *glyphs
	inks  [numFaces][numTones]ink
}

// ink is what comes before and behind text of a tone. Drawing is mostly putting these around words, so that they are
// made once.
type ink struct{ open, shut string }

func newInk(s lipgloss.Style) ink {
	open, shut, _ := strings.Cut(s.Render("x"), "x")
	return ink{open, shut}
}

// newTheme makes the theme for a terminal. With colours, it keeps to the 256 of the common palette, which
// terminals of 16 are given the nearest of; few says that there are no more than 16.
func newTheme(ascii, colours, dark, few bool) *theme {
	t := &theme{ascii: ascii, g: &unicodeGlyphs}
	if ascii {
		t.g = &asciiGlyphs
	}
	base := lipgloss.NewStyle().Inline(true)
	var tones [numTones]lipgloss.Style
	for i := range tones {
		tones[i] = base
	}
	tones[strong], tones[bad] = base.Bold(true), base.Bold(true)
	tones[dim] = base.Faint(true)
	if colours {
		pick := func(onDark, onLight string) color.Color {
			if dark {
				return lipgloss.Color(onDark)
			}
			return lipgloss.Color(onLight)
		}
		tones[dim] = base.Foreground(pick("245", "242"))
		tones[good] = base.Foreground(pick("108", "28"))
		tones[warn] = base.Foreground(pick("179", "130"))
		tones[bad] = base.Foreground(pick("203", "160")).Bold(true)
		tones[accent] = base.Foreground(pick("110", "25"))
		tones[cool] = base.Foreground(pick("73", "30"))
	}
	for i, tone := range tones {
		t.inks[normal][i] = newInk(tone)
		t.inks[stale][i] = newInk(base.Faint(true))
		switch {
		case !colours || few:
			t.inks[chosen][i] = newInk(base.Reverse(true))
		case dark:
			t.inks[chosen][i] = newInk(tone.Background(lipgloss.Color("237")))
		default:
			t.inks[chosen][i] = newInk(tone.Background(lipgloss.Color("254")))
		}
		if colours {
			t.inks[stale][i] = newInk(tones[dim])
		}
	}
	return t
}

// paint is clean text in a tone.
func (t *theme) paint(f face, k tone, s string) string {
	if s == "" {
		return ""
	}
	if k == plain && f == normal {
		return s
	}
	i := &t.inks[f][k]
	return i.open + s + i.shut
}

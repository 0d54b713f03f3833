package cli

import (
	"fmt"
	"math"
	"strings"

	"github.com/kvroute/kvroute/internal/fit"
)

// Size of the picture in characters, without its frame.
const (
	pictureWidth  = 56
	pictureHeight = 14
)

// fitPicture draws measured (up) against fitted (right) step time in characters. Bins that were left out are drawn
// too, as far as they lie on it; the diagonal is where both are equal.
func fitPicture(bins []fit.Bin, ascii bool) string {
	low, high := math.Inf(1), math.Inf(-1)
	for _, b := range bins {
		if b.Kept && !math.IsNaN(b.Fitted) {
			low, high = min(low, b.Fitted, b.Step), max(high, b.Fitted, b.Step)
		}
	}
	if !(low < high) {
		return ""
	}
	marks := []rune("·░▒▓█")
	out, line, corner, side, floor := '×', '╱', '└', '│', '─'
	if ascii {
		marks, out, line, corner, side, floor = []rune(".:oO@"), 'x', '/', '+', '|', '-'
	}
	var kept, left [pictureHeight][pictureWidth]int
	cell := func(v float64, n int) int { return int(math.Round((v - low) / (high - low) * float64(n-1))) }
	for _, b := range bins {
		if !(b.Fitted >= low && b.Fitted <= high && b.Step >= low && b.Step <= high) {
			continue
		}
		x, y := cell(b.Fitted, pictureWidth), pictureHeight-1-cell(b.Step, pictureHeight)
		if b.Kept {
			kept[y][x]++
		} else {
			left[y][x]++
		}
	}
	var s strings.Builder
	s.WriteString("\nmeasured step, ms\n")
	for y := range pictureHeight {
		label := "        "
		switch y {
		case 0:
			label = fmt.Sprintf("%7.1f ", high*perMS)
		case pictureHeight - 1:
			label = fmt.Sprintf("%7.1f ", low*perMS)
		}
		s.WriteString(label + string(side))
		row := make([]rune, pictureWidth)
		for x := range row {
			diagonal := pictureHeight-1-int(math.Round(float64(x)*float64(pictureHeight-1)/float64(pictureWidth-1))) == y
			switch {
			case kept[y][x] > 0:
				row[x] = marks[min(len(marks)-1, int(math.Log2(float64(kept[y][x]))))]
			case left[y][x] > 0:
				row[x] = out
			case diagonal:
				row[x] = line
			default:
				row[x] = ' '
			}
		}
		s.WriteString(strings.TrimRight(string(row), " ") + "\n")
	}
	s.WriteString("        " + string(corner) + strings.Repeat(string(floor), pictureWidth) + "\n")
	end := fmt.Sprintf("%.1f", high*perMS)
	fmt.Fprintf(&s, "         %-*.1f%s\n", pictureWidth-len(end), low*perMS, end)
	fmt.Fprintf(&s, "         fitted step, ms   %c left out   %c equal\n", out, line)
	return s.String()
}

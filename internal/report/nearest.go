package report

import (
	"slices"
	"strings"
)

// Nearest returns the names most like a misspelt one, best first, at most three: those within a third
// of its length in edits, and those it is part of. Case and '_' against '-' do not count.
func Nearest(name string, names []string) []string {
	type match struct {
		name string
		dist int
	}
	norm := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "-") }
	want := norm(name)
	if len(want) > 64 { // nobody mistypes that much; keeps the work bounded
		return nil
	}
	var found []match
	for _, n := range names {
		got := norm(n)
		d := edits(want, got)
		switch {
		case d <= max(1, max(len(want), len(got))/3):
		case len(want) >= 3 && (strings.Contains(got, want) || strings.Contains(want, got)):
			d = max(d, 100)
		default:
			continue
		}
		found = append(found, match{n, d})
	}
	slices.SortStableFunc(found, func(a, b match) int { return a.dist - b.dist })
	var out []string
	for _, m := range found[:min(3, len(found))] {
		out = append(out, m.name)
	}
	return out
}

// DidYouMean words the nearest names as a hint, "" where none is near.
func DidYouMean(name string, names []string) string {
	near := Nearest(name, names)
	if len(near) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// edits is the Damerau-Levenshtein distance (optimal string alignment): swapped neighbours cost one.
func edits(a, b string) int {
	prev2 := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}

//go:build engines

package engines

import (
	"strings"
	"sync"
	"testing"
)

// report collects what docs/engines.md shows: a row for each thing measured, a column for each kind.
var report struct {
	sync.Mutex
	rows  []string
	cells map[string]map[string]string // by row and kind
}

// note puts a cell into the report.
func note(k kind, row, cell string) {
	report.Lock()
	defer report.Unlock()
	if report.cells == nil {
		report.cells = map[string]map[string]string{}
	}
	if report.cells[row] == nil {
		report.cells[row] = map[string]string{}
		report.rows = append(report.rows, row)
	}
	report.cells[row][k.name] = cell
}

// printReport logs the table.
func printReport(t *testing.T) {
	report.Lock()
	defer report.Unlock()
	var b strings.Builder
	line := func(first string, cell func(k kind) string) {
		b.WriteString("\n| " + first + " |")
		for _, k := range kinds {
			b.WriteString(" " + cell(k) + " |")
		}
	}
	line("", func(k kind) string { return k.name })
	line("---", func(kind) string { return "---" })
	for _, r := range report.rows {
		line(r, func(k kind) string {
			if c := report.cells[r][k.name]; c != "" {
				return c
			}
			return "–"
		})
	}
	t.Log(b.String())
}

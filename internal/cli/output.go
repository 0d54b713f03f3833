package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Output formats of commands that print data.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatJSONL = "jsonl"
	formatCSV   = "csv"
)

// bindOutput adds -o with the formats the command knows.
func bindOutput(cmd *cobra.Command, to *string, formats ...string) {
	bind(cmd, cmd.Flags(), spec{
		name: "output", short: "o", arg: "FORMAT", def: formatTable, group: groupOutput,
		usage: strings.Join(formats, ", "), values: formats,
	}, to, oneOf(formats...))
}

// emit prints a command's data to stdout in one go: all of it or, after an error, nothing.
func (a *app) emit(write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if _, err := a.stdout.Write(b.Bytes()); err != nil {
		return failed("cannot write the result", "stdout", err)
	}
	return nil
}

// writeJSON prints a document, indented, as every -o json does.
func writeJSON(w io.Writer, doc any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(doc)
}

// writeJSONLines prints one entry a line.
func writeJSONLines[T any](w io.Writer, entries []T) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, entry := range entries {
		if err := e.Encode(entry); err != nil {
			return err
		}
	}
	return nil
}

// grid is a small table of text; numeric columns are set flush right.
type grid struct {
	head  []string
	right []bool // by column
	rows  [][]string
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// writeTable prints aligned columns. The last column is not padded.
func (g *grid) writeTable(w io.Writer, bold func(string) string) error {
	width := make([]int, len(g.head))
	for _, r := range append([][]string{g.head}, g.rows...) {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for n, r := range append([][]string{g.head}, g.rows...) {
		var line strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i < len(g.right) && g.right[i] {
				c = pad + c
			} else {
				c += pad
			}
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(c)
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			text = bold(text)
		}
		if _, err := io.WriteString(w, text+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// writeCSV prints the same cells for a spreadsheet.
func (g *grid) writeCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	if err := c.Write(g.head); err != nil {
		return err
	}
	if err := c.WriteAll(g.rows); err != nil {
		return err
	}
	c.Flush()
	return c.Error()
}

// bold makes text bold on a terminal that may have colour.
func (a *app) bold(s string) string {
	if !a.color() {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}

// color says whether stdout may be coloured: a terminal, and nobody said no.
func (a *app) color() bool {
	return a.outTerm && !a.general.noColor && a.env["NO_COLOR"] == "" && a.env["TERM"] != "dumb"
}

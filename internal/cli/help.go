package cli

import (
	"bufio"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the width of help pages, on every terminal: they are also golden files and man pages.
const helpWidth = 80

// page is what a help page and a man page both say.
type page struct {
	path     string // "kvroute trace stats"
	short    string
	usage    string
	body     string // paragraphs; lines that begin with two spaces are kept as they are
	commands [][2]string
	groups   []flagGroup
	example  string
	parent   string
}

type flagGroup struct {
	title string
	flags [][2]string // heading ("-o, --output FORMAT"), text
}

// pageOf collects a command's page.
func pageOf(cmd *cobra.Command) page {
	p := page{
		path: cmd.CommandPath(), short: cmd.Short, body: strings.TrimSpace(cmd.Long),
		example: strings.TrimRight(cmd.Example, "\n"),
	}
	if cmd.HasParent() {
		p.parent = cmd.Parent().CommandPath()
	}
	p.usage = cmd.UseLine()
	if len(cmd.Commands()) > 0 {
		p.usage = cmd.CommandPath() + " COMMAND [flags]"
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			p.commands = append(p.commands, [2]string{c.Name(), c.Short})
		}
	}
	byGroup := map[string][][2]string{}
	for _, f := range flagsOf(cmd) {
		g := firstNote(f, noteGroup)
		byGroup[g] = append(byGroup[g], [2]string{flagHead(f), flagText(f)})
	}
	for _, title := range groupOrder {
		if flags := byGroup[title]; len(flags) > 0 {
			p.groups = append(p.groups, flagGroup{title, flags})
		}
	}
	return p
}

func flagHead(f *pflag.Flag) string {
	head := "--" + f.Name
	if f.Shorthand != "" {
		head = "-" + f.Shorthand + ", " + head
	}
	if arg := firstNote(f, noteArg); arg != "" {
		head += " " + arg
	}
	return head
}

func flagText(f *pflag.Flag) string {
	text := f.Usage
	if f.DefValue != "" && f.DefValue != "false" {
		text += " (default " + f.DefValue + ")"
	}
	if env := note(f, noteEnv); len(env) > 1 {
		text += " (env " + strings.Join(env, ", ") + ")"
	}
	return text
}

// writeHelp prints a command's help page.
func writeHelp(w io.Writer, cmd *cobra.Command) error {
	p := pageOf(cmd)
	b := bufio.NewWriter(w)
	b.WriteString(p.short + "\n")
	if p.body != "" {
		b.WriteString("\n" + p.body + "\n")
	}
	b.WriteString("\nUsage:\n  " + p.usage + "\n")
	if len(p.commands) > 0 {
		b.WriteString("\nCommands:\n")
		columns(b, p.commands, 2, 16)
	}
	if p.example != "" {
		b.WriteString("\nExamples:\n" + p.example + "\n")
	}
	for _, g := range p.groups {
		b.WriteString("\n" + g.title + ":\n")
		columns(b, g.flags, 2, 32)
	}
	return b.Flush()
}

// columns prints heads and wrapped texts side by side; a head that is too long has its own line.
func columns(b *bufio.Writer, rows [][2]string, indent, at int) {
	for _, r := range rows {
		line := strings.Repeat(" ", indent) + r[0]
		if n := len([]rune(line)); n+2 <= at {
			line += strings.Repeat(" ", at-n)
		} else {
			b.WriteString(line + "\n")
			line = strings.Repeat(" ", at)
		}
		for i, t := range wrap(r[1], helpWidth-at) {
			if i > 0 {
				line = strings.Repeat(" ", at)
			}
			b.WriteString(line + t + "\n")
		}
	}
}

// wrap breaks text at blanks into lines of at most width characters; longer words stand alone.
func wrap(text string, width int) []string {
	var lines []string
	line, n := "", 0
	for _, word := range strings.Fields(text) {
		k := len([]rune(word))
		if n > 0 && n+1+k > width {
			lines = append(lines, line)
			line, n = "", 0
		}
		if n > 0 {
			line, n = line+" ", n+1
		}
		line, n = line+word, n+k
	}
	return append(lines, line)
}

package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/report"
)

func (a *app) newMan() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man [COMMAND…]",
		Short: "Print man pages, made from the same text as the help pages",
		Long: `Prints the page of one command, or with --dir writes the pages of all commands
as kvroute.1, kvroute-sim.1 and so on.`,
		Example: `  kvroute man sim > kvroute-sim.1
  kvroute man --dir man`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir != "" {
				if len(args) > 0 {
					return usage(fmt.Sprintf("unexpected argument %q", args[0]), "kvroute man", "--dir writes the pages of all commands", "")
				}
				return writeManPages(dir, cmd.Root())
			}
			target, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return noSuchCommand(target, rest)
			}
			return a.emit(func(w io.Writer) error { return writeMan(w, target) })
		},
	}
	bind(cmd, cmd.Flags(), spec{name: "dir", arg: "DIR", group: groupOutput, local: true, usage: "write all pages into this folder"}, &dir, parseText)
	return cmd
}

func writeManPages(dir string, cmd *cobra.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return &fault{code: exitFailed, what: "cannot make folder " + dir, where: "--dir", why: pathWhy(err), err: err}
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
	err := report.WriteFile(filepath.Join(dir, name), func(w io.Writer) error { return writeMan(w, cmd) })
	if err != nil {
		return fileFault("--dir", err)
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			if err := writeManPages(dir, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeMan prints a command's page in man's language.
func writeMan(w io.Writer, cmd *cobra.Command) error {
	p := pageOf(cmd)
	b := bufio.NewWriter(w)
	name := strings.ReplaceAll(p.path, " ", "-")
	fmt.Fprintf(b, ".TH %s 1 \"\" \"kvroute %s\" \"User Commands\"\n", strings.ToUpper(name), version())
	fmt.Fprintf(b, ".SH NAME\n%s \\- %s\n", roff(name), roff(lowerFirst(p.short)))
	fmt.Fprintf(b, ".SH SYNOPSIS\n.B %s\n", roff(p.usage))
	if p.body != "" {
		b.WriteString(".SH DESCRIPTION\n")
		manBody(b, p.body)
	}
	if len(p.commands) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range p.commands {
			fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(c[0]), roff(c[1]))
		}
	}
	if len(p.groups) > 0 {
		b.WriteString(".SH OPTIONS\n")
	}
	for _, g := range p.groups {
		fmt.Fprintf(b, ".SS %s\n", roff(g.title))
		for _, f := range g.flags {
			fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(f[0]), roff(f[1]))
		}
	}
	if p.example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n")
		for _, l := range strings.Split(p.example, "\n") {
			b.WriteString(roff(l) + "\n")
		}
		b.WriteString(".fi\n")
	}
	var see []string
	if p.parent != "" {
		see = append(see, strings.ReplaceAll(p.parent, " ", "-"))
	}
	for _, c := range p.commands {
		see = append(see, name+"-"+c[0])
	}
	for i, s := range see {
		if i == 0 {
			b.WriteString(".SH SEE ALSO\n")
		}
		comma := ","
		if i == len(see)-1 {
			comma = ""
		}
		fmt.Fprintf(b, ".BR %s (1)%s\n", roff(s), comma)
	}
	return b.Flush()
}

// manBody prints paragraphs; lines that begin with two spaces keep their shape.
func manBody(b *bufio.Writer, body string) {
	literal := false
	for _, line := range strings.Split(body, "\n") {
		switch {
		case strings.HasPrefix(line, "  ") && !literal:
			b.WriteString(".nf\n")
			literal = true
		case !strings.HasPrefix(line, "  ") && literal:
			b.WriteString(".fi\n")
			literal = false
		}
		if line == "" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(roff(line) + "\n")
	}
	if literal {
		b.WriteString(".fi\n")
	}
}

// roff protects what man would take as commands.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "×", "x", "−", "-", "≥", ">=", "≤", "<=", "µ", "u").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func lowerFirst(s string) string {
	if len(s) > 1 && strings.ToUpper(s[:2]) != s[:2] {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

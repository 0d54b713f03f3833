package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/tokenize/hf"
)

// linkVersion and linkCommit are set by the Makefile with -ldflags -X.
var (
	linkVersion = ""
	linkCommit  = ""
)

// develVersion is what a build without the Makefile calls itself.
const develVersion = "0.1.0-dev"

// version is the program's version: the one given at build time, or the tag it was installed at.
func version() string {
	if linkVersion != "" {
		return linkVersion
	}
	if bi, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(bi.Main.Version, "v") && !isPseudo(bi.Main.Version) {
		return strings.TrimPrefix(bi.Main.Version, "v")
	}
	return develVersion
}

// isPseudo tells versions that Go makes up from a commit: v0.0.0-20260101000000-0123456789ab.
func isPseudo(v string) bool {
	return strings.Contains(v, "+") || strings.Count(v, "-") >= 2
}

// commit is the revision the program was built from, "unknown" if nobody recorded it.
func commit() string {
	if linkCommit != "" {
		return linkCommit
	}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev, dirty := "", ""
	for _, s := range bi.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if v := bi.Main.Version; rev == "" && isPseudo(v) {
		v, _, _ = strings.Cut(v, "+")
		rev = v[strings.LastIndexByte(v, '-')+1:]
	}
	if rev == "" {
		return "unknown"
	}
	return rev + dirty
}

func (a *app) newVersion() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the Go release it was built with",
		Example: `  kvroute version -o json`,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.printVersion(format) },
	}
	bindOutput(cmd, &format, formatTable, formatJSON)
	return cmd
}

func (a *app) printVersion(format string) error {
	return a.emit(func(w io.Writer) error {
		if format == formatJSON {
			return writeJSON(w, struct {
				Schema   string `json:"schema"`
				Version  string `json:"version"`
				Commit   string `json:"commit"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
				Native   string `json:"native,omitempty"` // digest of what the tokenizers were built from
			}{"kvroute.version/v1", version(), commit(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, hf.Archive()})
		}
		_, err := fmt.Fprintf(w, "kvroute %s (commit %s, %s, %s/%s)\n", version(), commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	})
}

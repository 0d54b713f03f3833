package cli

import (
	"strings"

	"github.com/kvroute/kvroute/internal/report"
)

// didYouMean is the hint for an unknown name: the nearest ones, and all of them where they are few.
func didYouMean(name string, names []string) string {
	near, all := report.DidYouMean(name, names), ""
	if len(names) > 0 && len(names) <= 12 {
		all = "one of " + strings.Join(names, ", ")
	}
	switch {
	case near != "" && all != "":
		return near + " (" + all + ")"
	case near != "":
		return near
	default:
		return all
	}
}

package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tui"
)

// unknownText stands for what is not known.
const unknownText = "-"

func percent(v *float64) string {
	if v == nil {
		return unknownText
	}
	return fmt.Sprintf("%.1f %%", 100**v)
}

func millisText(v *float64) string {
	if v == nil {
		return unknownText
	}
	return fmt.Sprintf("%.3g ms", *v)
}

func ageText(atMS int64, was *int64) string {
	if was == nil {
		return unknownText
	}
	return (time.Duration(max(atMS-*was, 0)) * time.Millisecond).Round(100 * time.Millisecond).String()
}

// writeSnapshot prints a router's snapshot for people.
func writeSnapshot(w io.Writer, s *snapshot.Snapshot) error { return writeState(w, s, false) }

// writeState prints a snapshot: the router, or that it was so once, its workers, what is wrong.
func writeState(w io.Writer, s *snapshot.Snapshot, played bool) error {
	r := &s.Router
	state := "ready"
	switch {
	case played:
		state = "recorded, not live"
	case r.Draining:
		state = "draining"
	case !r.Ready:
		state = "not ready: " + strings.Join(r.NotReady, "; ")
	}
	fmt.Fprintf(w, "kvroute %s, %s, policy %s, %s\n", tui.Clean(r.Version), time.UnixMilli(s.AtMS).UTC().Format(time.RFC3339), tui.Clean(r.Policy), tui.Clean(state))
	fmt.Fprintf(w, "%.1f requests/s, %d in flight; cached %s of the tokens (1 min), %s (15 min), %d tokens saved; dispatch p50 %s, p99 %s\n\n",
		r.RequestRate, r.InFlight, percent(r.HitShare1m), percent(r.HitShare15m), r.SavedTokens, millisText(r.DispatchP50), millisText(r.DispatchP99))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "worker\tmodel\trole\thealth\ttrust\tblocks\tof pool\tactive\tpending\theld\theld tokens\treq/s\tpredicted\treported\tlast event\tgaps")
	for i := range s.Workers {
		x := &s.Workers[i]
		trust := x.Trust
		if x.Approximate {
			trust = "approximate"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%.1f\t%s\t%s\t%s\t%d\n",
			tui.Clean(x.RouteKey), tui.Clean(x.Model), tui.Clean(x.Role), tui.Clean(x.Health), tui.Clean(trust), x.BlockCount, percent(x.Fill), x.ActiveBlocks, x.PendingTokens,
			x.HeldRequests, x.HeldTokens, x.RequestRate, percent(x.HitShare), percent(x.ReportedShare), ageText(s.AtMS, x.Stream.LastEventMS), x.Stream.Gaps)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Workers) == 0 {
		fmt.Fprintln(w, "no workers")
	}
	for i := range s.Warnings {
		if x := &s.Warnings[i]; x.OverMS == nil {
			where := ""
			if x.RouteKey != "" { // else it is the router's own
				where = tui.Clean(x.RouteKey) + ": "
			}
			fmt.Fprintf(w, "%s: %s%s\n", tui.Clean(x.Severity), where, tui.Clean(x.Text))
		}
	}
	return nil
}

// writeSnapshotLine prints a snapshot as one line.
func writeSnapshotLine(w io.Writer, s *snapshot.Snapshot) error {
	healthy, trusted, open := 0, 0, 0
	for i := range s.Workers {
		if s.Workers[i].Health == "healthy" {
			healthy++
		}
		if s.Workers[i].Trust == "trusted" {
			trusted++
		}
	}
	for i := range s.Warnings {
		if s.Warnings[i].OverMS == nil {
			open++
		}
	}
	r := &s.Router
	_, err := fmt.Fprintf(w, "%s  %d of %d healthy, %d trusted  %.1f requests/s  %d in flight  cached %s  saved %d tokens  %d warnings\n",
		time.UnixMilli(s.AtMS).UTC().Format("2006-01-02T15:04:05.000Z"), healthy, len(s.Workers), trusted, r.RequestRate, r.InFlight, percent(r.HitShare1m), r.SavedTokens, open)
	return err
}

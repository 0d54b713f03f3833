package quality

import (
	"fmt"
	"io"
	"strconv"

	"github.com/kvroute/kvroute/internal/report"
)

// bound is a stated limit on one serial row, in ms; 0: none.
type bound struct {
	traffic   string
	workers   int
	mean, p90 float64
}

var bounds = []bound{
	{"mooncake conversation", 8, 450, 1090},
	{"mooncake conversation", 4, 740, 0},
	{"claude-code small", 8, 290, 380},
	{"claude-code small", 4, 320, 0},
}

const (
	leastHits     = 0.780 // share of blocks on the made sessions
	mostImbalance = 1.10
	batchSlack    = 1.02 // of the best other setting, under batch
)

// Misses lists every bound that is not kept, in words.
func Misses(golden []Golden, rows []Row) []string {
	var out []string
	miss := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, g := range golden {
		r := g.Runs[len(g.Runs)-1]
		if r.HitRate < leastHits || r.Imbalance > mostImbalance {
			miss("made sessions, %s, %d workers, K=%d: %.2f %% of blocks hit, busiest/mean %.3f", g.Order, g.Workers, g.K, 100*r.HitRate, r.Imbalance)
		}
	}
	for i := range rows {
		r := &rows[i]
		slack := batchSlack
		if r.Scenario == Scenarios[0].Name {
			slack = 1
			for _, b := range bounds {
				ttft := r.Default.Sim.TTFT
				if b.traffic == r.Traffic && b.workers == r.Workers &&
					(ttft.Mean/1e3 > b.mean || b.p90 > 0 && float64(ttft.P90)/1e3 > b.p90) {
					miss("%s, %d workers: mean %.1f ms, p90 %.1f ms, bounds %g and %g", r.Traffic, r.Workers, ttft.Mean/1e3, float64(ttft.P90)/1e3, b.mean, b.p90)
				}
			}
		}
		if ratio := r.Ratio(); ratio > slack {
			best, weight := r.Best()
			miss("%s, %d workers, %s: %.4f of the best other (round robin %.1f ms, formula at %g %.1f ms, least-work %.1f ms)",
				r.Traffic, r.Workers, r.Scenario, ratio, mean(r.Robin), weight, mean(best), mean(r.Default))
		}
	}
	return out
}

func mean(r *report.Run) float64 { return r.Sim.TTFT.Mean / 1e3 }

// WriteDocument writes docs/decision-quality.md.
func WriteDocument(w io.Writer, golden []Golden, rows []Row) error {
	p := &printer{w: w}
	p.line("%s", preface)
	p.line("## Made sessions, no clock\n")
	p.line("Share of blocks hit in percent · requests of the busiest worker over the mean. Unlimited caches; at most 78.6 %% can hit.\n")
	head := "| order, workers, in flight |"
	rule := "|---|"
	for _, c := range GoldenPolicies {
		head += " " + c.Name + " |"
		rule += "---:|"
	}
	p.line("%s\n%s", head, rule)
	for _, g := range golden {
		p.text("| %s, %d, %d |", g.Order, g.Workers, g.K-1)
		for _, r := range g.Runs {
			p.text(" %.1f · %.2f |", 100*r.HitRate, r.Imbalance)
		}
		p.line("")
	}
	for _, s := range Scenarios {
		p.line("\n## %s\n", title(s.Name))
		p.line("Mean / p90 TTFT in ms; the last column is least-work's mean over the best of all others.\n")
		head, rule := "| trace | workers | round robin |", "|---|---:|---:|"
		for _, weight := range Weights {
			head += " w=" + strconv.FormatFloat(weight, 'g', -1, 64) + " |"
			rule += "---:|"
		}
		p.line("%s least-work | ratio |\n%s---:|---:|", head, rule)
		for i := range rows {
			r := &rows[i]
			if r.Scenario != s.Name {
				continue
			}
			p.text("| %s | %d |", r.Traffic, r.Workers)
			for _, run := range append(append([]*report.Run{r.Robin}, r.Weights...), r.Default) {
				p.text(" %.1f / %.1f |", mean(run), float64(run.Sim.TTFT.P90)/1e3)
			}
			p.line(" %.3f |", r.Ratio())
		}
	}
	p.line("")
	p.line("## Bounds\n")
	misses := Misses(golden, rows)
	if len(misses) == 0 {
		p.line("All kept: %s", boundsText)
	} else {
		p.line("%s Not kept:\n", boundsText)
		for _, m := range misses {
			p.line("- %s", m)
		}
	}
	return p.err
}

const preface = `# Decision quality

How the default policy, least-work, compares with round robin and with every weight of the published formula
(` + "`overlap_weight × misses + active_blocks`" + `). Nothing is tuned per trace: least-work runs with its defaults throughout.
Every number comes from ` + "`make quality`" + `, which reads the traces of traces/README.md from the folder named by
KVROUTE_TRACES; the simulations are deterministic and a test holds this page to them.

Capacities are those of the published oracle numbers (blocks a worker: mooncake 5,859 of 512 tokens, claude-code 50,000 of
64, ragpulse 2,048 pieces with arrival times divided by 200, miniswe 2,000 of 64; azure has no prefixes, so only load
counts, which for the formula is the number of requests held).

The whole of claude-code, 461 sessions of which the small cut is 40, played no part in choosing least-work's constants. They
were chosen by some 500 trials on the other traces, and margins are thin in places: on claude-code small a change of a
constant by a few percent moves the mean by about 3 %. The batch engine runs the default profile, whose prefill side is
assumed, not measured: see docs/sim.md.
`

const boundsText = "on the made sessions at least 78.0 % of blocks hit and busiest/mean at most 1.10; under serial the stated TTFT bounds " +
	"(mooncake 450 / 1,090 ms with 8 workers and 740 ms with 4, claude-code 290 / 380 and 320 ms) and never worse than the best weight or round robin; " +
	"under batch never more than 2 % worse than the best of them."

func title(s string) string { return string(s[0]-'a'+'A') + s[1:] }

// printer keeps the first error, so that the writing reads like the page.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) text(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) line(format string, args ...any) { p.text(format+"\n", args...) }

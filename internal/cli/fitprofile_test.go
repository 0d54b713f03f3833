package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// madeLog makes lines of SGLang, 2 s apart, of which step says what each takes.
func madeLog(lines int, requests func(i int) int, tokens func(i int) int, step func(requests, tokens float64) float64) string {
	var b strings.Builder
	for i := range lines {
		r, k := requests(i), tokens(i)
		fmt.Fprintf(&b, "[2026-01-01 %02d:%02d:%02d TP0] Decode batch, #running-req: %d, #token: %d, token usage: 0.50, cuda graph: True, gen throughput (token/s): %.4f, #queue-req: 0\n",
			i/1800, i/30%60, 2*i%60, r, k, float64(r)/step(float64(r), float64(k)))
	}
	return b.String()
}

// TestFitThatMakesNoProfile: the result is printed, a line says why there is no profile, and the exit code is that of the fit.
func TestFitThatMakesNoProfile(t *testing.T) {
	dir := t.TempDir()
	r, k := func(i int) int { return 2 + i/9%16 }, func(i int) int { return 1000 * (10 + i/5%61) } // slowly, as lines show moments
	for _, tt := range []struct {
		name string
		log  string
		args []string
		code int
		want string
	}{
		{
			"tokens that shorten the step", madeLog(300, r, k, func(r, k float64) float64 { return 0.05 + 0.001*r - 2e-7*k }),
			[]string{"--force"},
			exitThreshold, "c_ms_per_million_tokens: must not be negative, is -",
		},
		{
			"constant requests", madeLog(300, func(int) int { return 4 }, k, func(r, k float64) float64 { return 0.01 + 0.001*r + 2e-7*k }),
			[]string{"--force"},
			exitThreshold, "no coefficients could be fitted",
		},
		{
			"a pool below a block", madeLog(300, r, k, func(r, k float64) float64 { return 0.01 + 0.001*r + 2e-7*k }),
			[]string{"--pool-tokens", "1"},
			exitFailed, "kv_tokens: must be block_size",
		},
	} {
		log := writeFile(t, filepath.Join(dir, "a.log"), tt.log)
		profile := filepath.Join(dir, "p.yaml")
		code, stdout, stderr := runFit(t, context.Background(), append([]string{log, "--emit-profile", profile}, tt.args...)...)
		lines := 0
		for line := range strings.Lines(stderr) {
			if strings.Contains(line, tt.want) && strings.Contains(line, "profile") || strings.Contains(line, profile) {
				lines++
			}
		}
		if code != tt.code || !strings.HasPrefix(stdout, "verdict: ") || lines != 1 {
			t.Errorf("%s: exit code %d, want %d; stdout %.40q, want a verdict; stderr %q, want one line with %q", tt.name, code, tt.code, stdout, stderr, tt.want)
		}
		if _, err := os.Stat(profile); err == nil {
			t.Errorf("%s: the profile is there", tt.name)
		}
	}
}

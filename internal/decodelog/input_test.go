package decodelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/kvroute/kvroute/internal/plantedlog"
)

// decode makes a line of SGLang.
func decode(prefix string, running, tokens int, throughput string) string {
	return fmt.Sprintf("%sDecode batch, #running-req: %d, #token: %d, token usage: 0.50, cuda graph: True, gen throughput (token/s): %s, #queue-req: 0\n", prefix, running, tokens, throughput)
}

func ats(samples []Sample) (out []int64) {
	for _, s := range samples {
		out = append(out, s.At/1e9)
	}
	return out
}

func TestClocks(t *testing.T) {
	midnight := at("2026-01-01 00:00:00") / 1e9
	newYear := at("1973-01-01 00:00:00") / 1e9 // the base year is 1972
	tests := []struct {
		name string
		opt  Options
		log  string
		want []int64
		note string
	}{
		{"over midnight", Options{}, decode("[23:59:58 TP0] ", 1, 9, "50.0") + decode("[23:59:59 TP0] ", 1, 9, "50.0") + decode("[00:00:01 TP0] ", 1, 9, "50.0"), []int64{86398, 86399, 86401}, "no dates"},
		{"changed places at midnight", Options{}, decode("[23:59:58 TP0] ", 1, 9, "50.0") + decode("[00:00:01 TP0] ", 1, 9, "50.0") + decode("[23:59:59 TP0] ", 1, 9, "50.0"), []int64{86398, 86399, 86401}, ""},
		{
			"over new year without year",
			Options{},
			"INFO 12-31 23:59:55 [loggers.py:87] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n" +
				"INFO 01-01 00:00:05 [loggers.py:87] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n",
			[]int64{newYear - 5, newYear + 5},
			"no year",
		},
		{"out of order", Options{}, decode("[2026-01-01 00:00:05 TP0] ", 1, 9, "50.0") + decode("[2026-01-01 00:00:03 TP0] ", 1, 9, "50.0"), []int64{midnight + 3, midnight + 5}, ""},
		{"set back by an hour", Options{}, decode("[2026-01-01 01:00:05 TP0] ", 1, 9, "50.0") + decode("[2026-01-01 00:00:03 TP0] ", 1, 9, "50.0"), []int64{midnight + 3605, midnight + 3}, "log:2: the clock goes back by 3602 s"},
		{"zone", Options{}, decode("2026-01-01T08:00:05.5+08:00 INFO x: ", 1, 9, "50.0") + decode("2026-01-01T00:00:06Z INFO x: ", 1, 9, "50.0"), []int64{midnight + 5, midnight + 6}, ""},
		{"syslog", Options{Year: 2026}, decode("Jan  1 00:00:07 host sglang[12]: ", 1, 9, "50.0"), []int64{midnight + 7}, ""},
		{"collector's column", Options{}, decode("1767225608000 ", 1, 9, "50.0"), []int64{midnight + 8}, ""},
		{"bracket of a level behind that of the time", Options{}, decode("[2026-01-01 00:00:09 DP1 TP1] [INFO] ", 1, 9, "50.0"), []int64{midnight + 9}, ""},
		{"container and colours", Options{}, decode("sglang-1  | \x1b[32m[2026-01-01 00:00:10 TP0]\x1b[0m ", 1, 9, "50.0"), []int64{midnight + 10}, ""},
		{"docker's JSON", Options{}, `{"log":"` + strings.TrimSpace(decode("[2026-01-01 00:00:11 TP0] ", 1, 9, "50.0")) + `\n","stream":"stderr","time":"2026-01-01T00:00:12Z"}` + "\n", []int64{midnight + 11}, ""},
		{"no time", Options{}, decode("", 1, 9, "50.0") + decode("[gpu=0] ", 1, 9, "20.0"), []int64{0, 2}, "no times"},
		{"no such day", Options{}, decode("[2026-13-41 00:00:11 TP0] ", 1, 9, "50.0"), []int64{11}, "no dates"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, rep := must(t, tt.opt, "log", tt.log)
			if diff := cmp.Diff(tt.want, ats(got)); diff != "" {
				t.Errorf("times (-want +got):\n%s", diff)
			}
			if !strings.Contains(strings.Join(rep.Notes, "\n"), tt.note) {
				t.Errorf("notes %q, want one with %q", rep.Notes, tt.note)
			}
		})
	}
}

func TestPools(t *testing.T) {
	pd := func(prefix string, tokens int, usage, pre string) string {
		return fmt.Sprintf("%sDecode batch, #running-req: 2, #token: %d, token usage: %s, pre-allocated usage: %s, #prealloc-req: 0, cuda graph: True, gen throughput (token/s): 50.0, #queue-req: 0\n", prefix, tokens, usage, pre)
	}
	const p = "[2026-01-01 00:00:05 DP1 TP1] "
	tests := []struct {
		name string
		opt  Options
		log  string
		held []float64
		from string
	}{
		{"stated for rank 0 only", Options{}, "[2026-01-01 00:00:01 DP0 TP0] max_total_num_tokens=1000, x\n" + pd(p, 500, "0.50", "0.20"), []float64{300}, "the start-up line"},
		{"stated for each", Options{PoolTokens: 7}, "[2026-01-01 00:00:01 DP0 TP0] max_total_num_tokens=9000, x\n[2026-01-01 00:00:01 DP1 TP1] max_total_num_tokens=1000, x\n" + pd(p, 500, "0.50", "0.20"), []float64{300}, "the start-up line"},
		{"given", Options{PoolTokens: 2000}, pd(p, 500, "0.25", "0.20"), []float64{100}, "--pool-tokens"},
		{"estimated from the fullest", Options{}, pd(p, 500, "0.50", "0.20") + pd(p, 1000, "0.99", "0.10"), []float64{500 - 0.2*1000/0.99, 1000 - 0.1*1000/0.99}, "tokens / usage (two decimals)"},
		{"rounding below nothing", Options{PoolTokens: 1000}, pd(p, 8, "0.01", "0.01"), []float64{0}, "--pool-tokens"},
		{"nothing to subtract", Options{}, pd(p, 8, "0.01", "0.00"), []float64{8}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, rep := must(t, tt.opt, "log", tt.log)
			var held []float64
			for _, s := range got {
				held = append(held, s.Held)
			}
			if diff := cmp.Diff(tt.held, held, near); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
			if rep.PoolFrom != tt.from {
				t.Errorf("pool from %q, want %q", rep.PoolFrom, tt.from)
			}
		})
	}
	_, _, err := read(t, Options{}, "log", pd(p, 50, "0.05", "0.02"))
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "--pool-tokens") {
		t.Errorf("pool unknown: %v, want a hint at --pool-tokens", err)
	}
}

func TestDamagedLines(t *testing.T) {
	good := decode("[2026-01-01 00:00:05 TP0] ", 4, 400, "100.0")
	const bad = "[2026-01-01 00:00:06 TP0] Decode batch, #running-req: "
	tests := []struct {
		name string
		log  string
		why  reason
	}{
		{"cut at the end", good + strings.TrimSuffix(decode("[2026-01-01 00:00:06 TP0] ", 4, 400, "10"), ", #queue-req: 0\n"), leftCut},
		{"cut within", good + bad + "4, #token: 40", leftCut},
		{"torn", good + bad + "4, #tok" + good, leftTorn},
		{"torn in a number", good + bad + "4[2026-01-01 00:00:06 TP1] Decode batch, #running-req: 4, #token: 3, gen throughput (token/s): 100.0, #queue-req: 0\n", leftTorn},
		{"nan", good + decode("[2026-01-01 00:00:06 TP0] ", 4, 400, "nan"), leftNumber},
		{"negative", good + bad + "-4, #token: 3, gen throughput (token/s): 100.0, #queue-req: 0\n", leftNumber},
		{"infinite", good + decode("[2026-01-01 00:00:06 TP0] ", 4, 400, "1e999"), leftNumber},
		{"zero throughput", good + decode("[2026-01-01 00:00:06 TP0] ", 4, 400, "0.00"), leftStill},
		{"no request", good + decode("[2026-01-01 00:00:06 TP0] ", 0, 400, "10.00"), leftIdle},
		{"too fast", good + decode("[2026-01-01 00:00:06 TP0] ", 1, 400, "1000.00"), leftShort},
		{"after a pause", good + decode("[2026-01-01 00:00:06 TP0] ", 1, 400, "0.11"), leftLong},
		{"rank", good + decode("[2026-01-01 00:00:06 DP99999999 TP0] ", 4, 400, "100.0"), leftRank},
		{"stage", good + decode("[2026-01-01 00:00:06 PP1 TP0] ", 4, 400, "100.0"), leftStage},
		{"acceptance", good + bad + "4, #token: 3, accept len: 0.00, gen throughput (token/s): 100.0, #queue-req: 0\n", leftAccept},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, rep := must(t, Options{}, "log", tt.log)
			if len(got) != 1 || got[0].Running != 4 || got[0].Held != 400 || got[0].Step != 0.04 {
				t.Errorf("samples %+v, want the good line's", got)
			}
			c := rep.Left[reasonWords[tt.why]]
			if c.N != 1 || c.First != (Place{"log", 2}) || c.Text == "" || len(rep.Left) != 1 {
				t.Errorf("left out %+v, want line 2 because %q", rep.Left, reasonWords[tt.why])
			}
		})
	}
}

func TestNumbersOfOtherPlaces(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want float64
		n    int
	}{
		{"186.64,", 186.64, 6},
		{"186,64, #queue", 186.64, 6},
		{"1.234,5 x", 1234.5, 7},
		{"4,594.01, #", 4594.01, 8},
		{"1,234, #", 1234, 5},
		{"1.234.567,", 1234567, 9},
		{"12,5", 12.5, 4},
		{"8, #token", 8, 1},
		{"8.", 8, 1},
		{"1.5e+03,", 1500, 7},
		{"1e3", 1000, 3},
		{"12345678901234567890", 12345678901234567890, 20},
		{"nan%", 0, 0},
		{"-3", 0, 0},
		{"inf", 0, 0},
		{"", 0, 0},
		{"1e999", 0, 0},
		{"0.123456789012345678", 0.123456789012345678, 20},
	} {
		got, n, _ := number([]byte(tt.in))
		if !near2(got, tt.want) || n != tt.n {
			t.Errorf("number(%q) = %v, %d; want %v, %d", tt.in, got, n, tt.want, tt.n)
		}
	}
	got, rep := must(t, Options{}, "log", decode("[2026-01-01 00:00:05 TP0] ", 8, 400, "186,64"))
	if len(got) != 1 || got[0].Step != 8/186.64 || !strings.Contains(strings.Join(rep.Notes, ""), "separators") {
		t.Errorf("a decimal comma gave %+v, notes %q", got, rep.Notes)
	}
}

func near2(a, b float64) bool { return a == b || a > b*(1-1e-12) && a < b*(1+1e-12) }

func TestRefused(t *testing.T) {
	sglang := decode("[2026-01-01 00:00:05 TP0] ", 4, 400, "100.0")
	vllm := quoted(t, "49")
	metrics := "# scraped_at 1767225600\nvllm:num_requests_running{engine=\"0\"} 1.0\n"
	tests := []struct {
		name string
		opt  Options
		logs []string
		want string
		hint string
	}{
		{"empty", Options{}, []string{"a", ""}, "a: there is nothing in it", "--decode-log-interval"},
		{"mixed in one", Options{}, []string{"a", sglang + vllm}, "a:2: statistics lines of vLLM here, but statistics lines of SGLang in a:1", "--engine sglang"},
		{"mixed in two", Options{}, []string{"a", sglang, "b", "x\n" + vllm}, "b:2: statistics lines of vLLM here, but statistics lines of SGLang in a:1", "one by one"},
		{"two tell the same", Options{}, []string{"a", vllm, "b", metrics}, "b:2: metrics of vLLM here, but statistics lines of vLLM in a:1", "fit one of them"},
		{"another engine", Options{Engine: VLLM}, []string{"a", sglang}, "no line of vllm, but 1 statistics of another engine, first at a:1", "leave --engine out"},
		{"prefill leg", Options{}, []string{"a", quoted(t, "37")}, "a: no decode batches, only prefill: 1 prefill batches, first at a:1", "decode leg"},
		{"ATOM", Options{}, []string{"a", quoted(t, "67")}, "a: ATOM prints nothing about decode steps (1 lines of ATOM, first at a:1)", "serve --record"},
		{"ATOM asked for", Options{Engine: ATOM}, []string{"a", "x\n"}, "a: ATOM prints nothing about decode steps", "SGLang or vLLM"},
		{"access log", Options{}, []string{"a", "10.0.0.2 - \"GET / HTTP/1.1\" 200\n"}, "found: 1 access log", "--disable-log-stats"},
		{"SGLang's metrics", Options{}, []string{"a", "sglang:num_running_reqs 3.0\n"}, "metrics of SGLang are gauges without step times", "log"},
		{"requests", Options{}, []string{"a", "ReqTimeStats(rid=1, input_len=3, output_len=4, type=decode): queue_duration=1ms\n"}, "statistics of requests, but no decode batches", "--decode-log-interval"},
		{"junk", Options{}, []string{"a", "\x01\x02\x00\x03\n\x00\x00\x01\n\x05\x06\n"}, "this is not a log but binary data", "text"},
		{"UTF-16", Options{}, []string{"a", "\xff\xfeh\x00i\x00"}, "a:1: the text is UTF-16", "iconv"},
		{"UTF-16 without mark", Options{}, []string{"a", "h\x00i\x00 \x00"}, "a:1: the text is UTF-16", "iconv"},
		{"recording", Options{}, []string{"a", `{"kvroute":"trace/v1"}` + "\n"}, "a:1: this is a file of kvroute", "recordings"},
		{"zip", Options{}, []string{"a", "PK\x03\x04" + strings.Repeat("x", 40)}, "this is a zip archive", "unpack"},
		{"no time in scrapes", Options{}, []string{"a", "vllm:num_requests_running 1\nvllm:num_requests_running 2\n"}, "a:2: nothing tells when this scrape was made", "date +%s"},
		{"one scrape", Options{}, []string{"a", metrics}, "there are not two scrapes", "curl"},
		{"two models", Options{}, []string{"a", "vllm:num_requests_running{model_name=\"x\"} 1\nvllm:num_requests_running{model_name=\"y\"} 2\n"}, "a:2: metrics of two models: x and y", "one model"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := read(t, tt.opt, tt.logs...)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want a *Error", err)
			}
			if !strings.Contains(e.Error(), tt.want) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("error %q, hint %q; want %q and %q", e.Error(), e.Hint, tt.want, tt.hint)
			}
		})
	}
	if got, _ := must(t, Options{Engine: SGLang}, "a", sglang+vllm); len(got) != 1 {
		t.Errorf("asked for SGLang's lines got %+v, want one", got)
	}
	if _, err := Read(context.Background(), nil, Options{}, nil); err == nil {
		t.Error("no source is no error")
	}
}

func TestPackedAndOddText(t *testing.T) {
	log := quoted(t, "3")
	want, _ := must(t, Options{}, "log", log)
	pack := func(w func(io.Writer) io.WriteCloser, s string) string {
		var b bytes.Buffer
		z := w(&b)
		_, _ = io.WriteString(z, s)
		_ = z.Close()
		return b.String()
	}
	gz := func(s string) string {
		return pack(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, s)
	}
	zst := func(s string) string {
		return pack(func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }, s)
	}
	for name, in := range map[string]string{
		"gzip":           gz(log),
		"two gzip parts": gz(log[:300]) + gz(log[300:]),
		"zstd":           zst(log),
		"CRLF":           strings.ReplaceAll(log, "\n", "\r\n"),
		"hole":           strings.Repeat("\x00", 5000) + log,
		"colours":        strings.NewReplacer("[2025", "\x1b[2m[2025", "TP0]", "TP0]\x1b[0m", ": 8,", ": \x1b[1m8\x1b[0m,").Replace(log),
		"huge line":      strings.Repeat("x", maxLine+chunk) + "Decode batch, #running-req: 1\n" + log,
		"no last end":    strings.TrimSuffix(log, "\n"),
	} {
		got, _ := must(t, Options{}, "log", in)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	_, rep := must(t, Options{}, "log", strings.Repeat("x", maxLine+1)+"\n"+log)
	if rep.Other[kindWords[kindLong]].N != 1 {
		t.Errorf("other lines %v, want a long one", rep.Other)
	}
	big := string(planted(t, plantedlog.SGLang, 300_000))
	packed := gz(big)
	got, rep := must(t, Options{}, "log", packed[:len(packed)/2])
	if len(got) < 100 || !strings.Contains(strings.Join(rep.Notes, ""), "breaks off after line") {
		t.Errorf("half of a packed log: %d samples, notes %q", len(got), rep.Notes)
	}
	broken := []byte(packed)
	broken[len(broken)/2] ^= 0x55
	if _, _, err := read(t, Options{}, "log", string(broken)); err == nil || !strings.Contains(err.Error(), "corrupt") {
		t.Errorf("a corrupt packed log: %v", err)
	}
}

// What comes out must not depend on how the input is cut into reads.
func TestChunksDoNotShow(t *testing.T) {
	for _, form := range plantedlog.Forms() {
		log := string(planted(t, form, 60_000))
		want, wantRep := must(t, Options{}, "log", log)
		for name, r := range map[string]io.Reader{
			"bytes":  iotest.OneByteReader(strings.NewReader(log)),
			"halves": iotest.HalfReader(strings.NewReader(log)),
			"eof":    iotest.DataErrReader(strings.NewReader(log)),
		} {
			var got []Sample
			rep, err := Read(context.Background(), []Source{{"log", r}}, Options{}, func(s *Sample) error { got = append(got, *s); return nil })
			if err != nil {
				t.Fatalf("%s by %s: %v", form, name, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s by %s (-want +got):\n%s", form, name, diff)
			}
			if diff := cmp.Diff(wantRep, rep); diff != "" {
				t.Errorf("%s by %s, report (-want +got):\n%s", form, name, diff)
			}
		}
	}
	boom := errors.New("boom")
	_, err := Read(context.Background(), []Source{{"log", io.MultiReader(strings.NewReader(quoted(t, "3")), iotest.ErrReader(boom))}}, Options{}, func(*Sample) error { return nil })
	if !errors.Is(err, boom) {
		t.Errorf("an error of the disk came back as %v", err)
	}
}

// Files of ranks, and rotated files in any order, give what one log gives.
func TestSourcesAreMerged(t *testing.T) {
	log := string(planted(t, plantedlog.SGLangMillis, 400_000))
	want, _ := must(t, Options{}, "log", log)
	lines := strings.SplitAfter(log, "\n")
	third := len(lines) / 3
	parts := []string{strings.Join(lines[:third], ""), strings.Join(lines[third:2*third], ""), strings.Join(lines[2*third:], "")}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		var logs []string
		for _, i := range order {
			logs = append(logs, fmt.Sprintf("dir/server.log.%d", 3-i), parts[i])
		}
		got, _ := must(t, Options{}, logs...)
		first := got[0].Source
		for i := range got {
			if got[i].Source != first {
				t.Fatalf("rotated files %v: sample %d is of source %d, the first one's is %d", order, i, got[i].Source, first)
			}
			got[i].Source = 0
			got[i].Weight = want[i].Weight // the first line of a file has none
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rotated files %v (-want +got):\n%s", order, diff)
		}
	}
	byRank := make([]string, 8)
	for _, l := range lines {
		for i := range byRank {
			if strings.Contains(l, fmt.Sprintf(" DP%d ", i)) {
				byRank[i] += l
			}
		}
	}
	var logs []string
	for i, l := range byRank {
		logs = append(logs, fmt.Sprintf("rank%d.log", i), l)
	}
	got, rep := must(t, Options{}, logs...)
	if !slices.IsSortedFunc(got, func(a, b Sample) int { return int(a.At - b.At) }) {
		t.Error("files of ranks are not merged by time")
	}
	for i := range got {
		if got[i].Source != got[i].Rank {
			t.Fatalf("sample %d of rank %d is of source %d: files at the same time are not rotated ones", i, got[i].Rank, got[i].Source)
		}
		got[i].Source = 0
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files of ranks (-want +got):\n%s", diff)
	}
	if len(rep.Ranks) != 8 {
		t.Errorf("ranks %v, want eight", rep.Ranks)
	}
}

// The same log under two names counts twice, however it is packed; parts of it and logs without samples do not.
func TestTheSameLogTwice(t *testing.T) {
	log := string(planted(t, plantedlog.SGLang, 60_000))
	var gz, zst bytes.Buffer
	z := gzip.NewWriter(&gz)
	_, _ = io.WriteString(z, log)
	_ = z.Close()
	s, _ := zstd.NewWriter(&zst)
	_, _ = io.WriteString(s, log)
	_ = s.Close()
	half := log[:strings.LastIndexByte(log[:len(log)/2], '\n')+1]
	for _, tt := range []struct {
		a, b  string
		twice bool
	}{
		{log, log, true},
		{log, gz.String(), true},
		{gz.String(), zst.String(), true},
		{log, half, false},
		{log, log + "one more line\n", false},
	} {
		_, _, err := read(t, Options{}, "a", tt.a, "empty", "", "also empty", "", "start", "x\n", "stop", "x\n", "b", tt.b)
		var e *Error
		if tt.twice != (errors.As(err, &e) && e.File == "b" && strings.HasPrefix(e.Why, "holds the same as a,") && e.Err == nil) {
			t.Errorf("a %.10q and b %.10q: %v; want an error %v", tt.a, tt.b, err, tt.twice)
		}
	}
	// Logs that are followed are told about where they end.
	ctx, cancel := context.WithCancel(context.Background())
	idle := func(context.Context, *Report) error { cancel(); return ctx.Err() }
	written := func() io.Reader { return &growing{parts: [][]byte{[]byte(log), nil}, ready: 1} }
	rep, err := Read(ctx, []Source{{"a", written()}, {"b", written()}}, Options{Idle: idle}, func(*Sample) error { return nil })
	if !errors.Is(err, context.Canceled) || !slices.Contains(rep.Notes, "b so far holds the same as a, so that all lines count twice") {
		t.Errorf("followed: %v, notes %q", err, rep.Notes)
	}
}

// A file among others that gives nothing is named, as is how many there are.
func TestInputsWithoutLinesAreNamed(t *testing.T) {
	log := string(planted(t, plantedlog.SGLang, 20_000))
	for _, tt := range []struct {
		more []string
		want string
	}{
		{nil, ""},
		{[]string{"nginx.log", "GET /\n"}, "nginx.log has no line that can be used"},
		{[]string{"nginx.log", "GET /\n", "x.log", "hello\n"}, "2 inputs have no line that can be used, the first is nginx.log"},
		{[]string{"none.log", ""}, "none.log is empty"},
	} {
		_, rep := must(t, Options{}, append([]string{"a.log", log}, tt.more...)...)
		var got []string
		for _, n := range rep.Notes {
			if strings.Contains(n, "no line that") || strings.Contains(n, "is empty") {
				got = append(got, n)
			}
		}
		if strings.Join(got, "|") != tt.want {
			t.Errorf("%q: notes %q, want %q", tt.more, got, tt.want)
		}
	}
}

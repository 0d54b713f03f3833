package trace_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/trace"
)

// readAll reads a whole source, with copies of the slices.
func readAll(data []byte, format string, opt trace.Options) ([]trace.Record, error) {
	r, _, err := trace.Open(bytes.NewReader(data), format, opt)
	if err != nil {
		return nil, err
	}
	var out []trace.Record
	for {
		var rec trace.Record
		if err := r.Read(&rec); err == io.EOF {
			return out, nil
		} else if err != nil {
			return out, err
		}
		rec.Blocks = append([]block.Hash(nil), rec.Blocks...)
		rec.BlockTokens = append([]uint32(nil), rec.BlockTokens...)
		out = append(out, rec)
	}
}

func gz(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.String()
}

const (
	moonLine  = `{"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}` + "\n"
	chainLine = `{"timestamp":3,"input_length":40,"output_length":5,"block_size":16,"session_id":"a","hash_ids":[0,1]}` + "\n"
	sizedLine = `{"timestamp":3,"input_length":40,"output_length":5,"block_tokens":[30,4],"hash_ids":[0,1]}` + "\n"
	ragLine   = `{"timestamp":"82","input_length":3112,"output_length":192,"hash_ids":{"sys_prompt":[8],"passages_ids":[7,9],"history":[],"web_search":[],"user_input":[2]},"session_id":"x"}` + "\n"
	azureHead = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	azureLine = "2023-11-16 18:15:46.6805900,374,44\n"
	kvHead    = `{"kvroute":"trace/v1","block_size":16}` + "\n"
	kvLine    = `{"t":5,"in":40,"out":5,"new":"000000000000000100000000000000ff","s":"a"}` + "\n"
	claudeA   = `{"id":"A","block_size":64,"hash_id_scope":"local","requests":[{"t":1.5,"type":"n","in":130,"out":3,"hash_ids":[1,2]},{"t":100.0,"type":"subagent","duration_ms":8000,"requests":[{"t":1.0,"type":"s","in":64,"out":1,"hash_ids":[9]}]},{"t":101,"type":"s","in":200,"out":4,"hash_ids":[1,2,5]}]}` + "\n"
)

// shapes renders what matters of records: arrival/input/output/blocks/session.
func shapes(recs []trace.Record) []string {
	var out []string
	for _, r := range recs {
		b := strings.Builder{}
		b.WriteString(strings.Join([]string{itoa(r.Arrival), itoa(r.Input), itoa(r.Output), itoa(int64(len(r.Blocks))), itoa(int64(r.BlockSize)), r.Session}, "/"))
		out = append(out, b.String())
	}
	return out
}

func TestReaders(t *testing.T) {
	for _, tc := range []struct {
		name, data, format string
		opt                trace.Options
		want               []string
	}{
		{"mooncake", moonLine, "mooncake", trace.Options{}, []string{"27000/1100/5/3/512/"}},
		{"byte order mark, blank lines, CRLF", "\xef\xbb\xbf\r\n \n" + strings.TrimSuffix(moonLine, "\n") + "\r\n\n", "mooncake", trace.Options{}, []string{"27000/1100/5/3/512/"}},
		{"no newline at the end", strings.TrimSpace(moonLine), "mooncake", trace.Options{}, []string{"27000/1100/5/3/512/"}},
		{"gzip, two members", gz(moonLine) + gz(moonLine), "mooncake", trace.Options{}, []string{"27000/1100/5/3/512/", "27000/1100/5/3/512/"}},
		{
			"order and space do not matter, unknown fields are ignored",
			` { "x":{"a":[1,{"timestamp":"no"}]} , "hash_ids" : [ 0 ,1 , 2 ] ,"output_length":5,"input_length":1100,"timestamp":27.0,"y":"\u00e9\"","z":null}`,
			"mooncake",
			trace.Options{},
			[]string{"27000/1100/5/3/512/"},
		},
		{"block size asked for", `{"timestamp":0,"input_length":33,"output_length":5,"hash_ids":[0,1,2]}`, "mooncake", trace.Options{BlockSize: 16}, []string{"0/33/5/3/16/"}},
		{"decimal times", `{"timestamp":0.1255,"input_length":1,"output_length":5,"hash_ids":[0]}`, "mooncake", trace.Options{}, []string{"126/1/5/1/512/"}},
		{"chained", chainLine, "chained", trace.Options{}, []string{"3000/40/5/2/16/a"}},
		{"chained with sizes", sizedLine, "chained", trace.Options{}, []string{"3000/40/5/2/512/"}},
		{"ragpulse", ragLine, "ragpulse", trace.Options{}, []string{"82000000/3112/192/4/512/x"}},
		{"ragpulse, even split", strings.Replace(ragLine, "3112", "1001", 1), "ragpulse", trace.Options{}, []string{"82000000/1001/192/4/250/x"}},
		{
			"ragpulse with sizes", `{"sys_prompt_id":8,"token_length":3}` + "\n" + `{"passage_id":7,"token_length":4}` + "\n" + `{"passage_id":9,"token_length":4}` + "\n" + `{"user_input_id":2,"token_length":4}` + "\n" + ragLine,
			"ragpulse",
			trace.Options{},
			[]string{"82000000/3112/192/4/512/x"},
		},
		{"azure", azureHead + azureLine + "2023-11-16 18:15:50.9951690,396,109", "azure", trace.Options{}, []string{"0/374/44/0/0/", "4314579/396/109/0/0/"}},
		{"azure over the end of a leap February", azureHead + "2024-02-29 23:59:59,1,1\n2024-03-01T00:00:00.5Z,1,1\n", "azure", trace.Options{}, []string{"0/1/1/0/0/", "1500000/1/1/0/0/"}},
		{
			"kvroute", kvHead + kvLine + `{"t":6,"in":40,"out":5,"at":0}` + "\n" + `{"type":"event","t":"x"}` + "\n" + `{"t":7,"in":70,"out":5,"at":1,"new":"0000000000000abc"}` + "\n",
			"kvroute",
			trace.Options{},
			[]string{"5/40/5/2/16/a", "6/40/5/1/16/", "7/70/5/3/16/"},
		},
		{
			"kvroute, numbers start again", kvHead + kvLine + `{"type":"reset"}` + "\n" + kvLine + `{"type":"request","t":6,"in":40,"out":5,"at":1}` + "\n",
			"kvroute",
			trace.Options{},
			[]string{"5/40/5/2/16/a", "5/40/5/2/16/a", "6/40/5/2/16/"},
		},
		{
			"kvroute, blocks numbered by themselves", kvHead + `{"type":"blocks","new":"000000000000000100000000000000ff"}` + "\n" + `{"type":"blocks","at":0,"new":"0000000000000abc"}` + "\n" +
				`{"t":6,"in":40,"out":5,"at":2}` + "\n" + `{"t":7,"in":40,"out":5,"at":1,"new":"0000000000000def"}` + "\n",
			"kvroute",
			trace.Options{},
			[]string{"6/40/5/2/16/", "7/40/5/3/16/"},
		},
		{"kvroute without blocks", `{"kvroute":"trace/v1"}` + "\n" + `{"t":5,"in":40,"out":5}`, "kvroute", trace.Options{}, []string{"5/40/5/0/0/"}},
		// Sub-agent: starts at 100-8 s, its request 1 s later; the gap of 91.5 s before it is cut to 60.
		{"claude-code", claudeA, "claude-code", trace.Options{}, []string{"0/130/3/2/64/A", "60000000/64/1/1/64/A", "68000000/200/4/3/64/A"}},
		{
			"claude-code without cap, two sessions, other stagger", claudeA + strings.Replace(claudeA, `"A"`, `"B"`, 1), "claude-code",
			trace.Options{GapCap: -1, SessionStagger: 5e9},
			[]string{"0/130/3/2/64/A", "91500000/64/1/1/64/A", "99500000/200/4/3/64/A", "5000000/130/3/2/64/B", "96500000/64/1/1/64/B", "104500000/200/4/3/64/B"},
		},
		{"claude-code, duration null", strings.Replace(claudeA, "8000", "null", 1), "claude-code", trace.Options{GapCap: -1}, []string{"0/130/3/2/64/A", "99500000/64/1/1/64/A", "99500000/200/4/3/64/A"}},
	} {
		for _, format := range []string{"auto", tc.format} {
			t.Run(tc.name+"/"+format, func(t *testing.T) {
				got, err := readAll([]byte(tc.data), format, tc.opt)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tc.want, shapes(got)); d != "" {
					t.Errorf("records of %q (-want +got):\n%s", tc.data, d)
				}
			})
		}
	}
}

// TestSharing checks what equal ids mean in each form.
func TestSharing(t *testing.T) {
	other := strings.Replace(claudeA, `"A"`, `"B"`, 1)
	recs, err := readAll([]byte(claudeA+other), "", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if recs[0].Blocks[1] != recs[2].Blocks[1] {
		t.Error("claude-code: ids of one session must name the same block")
	}
	if recs[0].Blocks[0] == recs[3].Blocks[0] {
		t.Error("claude-code: ids of two sessions must not name the same block")
	}
	swapped := strings.Replace(ragLine, "[7,9]", "[9,7]", 1)
	recs, err = readAll([]byte(ragLine+swapped), "", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, same := range []bool{true, false, false, false} {
		if got := recs[0].Blocks[i] == recs[1].Blocks[i]; got != same {
			t.Errorf("ragpulse: block %d of swapped passages equal: %v, want %v", i, got, same)
		}
	}
}

func TestBadInput(t *testing.T) {
	zst := func(s string) string {
		w, _ := zstd.NewWriter(nil)
		return string(w.EncodeAll([]byte(s), nil))
	}
	many := gz(strings.Repeat(moonLine, 1000))
	bad := func(old, new string) string { return moonLine + strings.Replace(moonLine, old, new, 1) }
	for _, tc := range []struct {
		name, data, format, want string
		line                     int
		damaged                  bool
	}{
		{"empty", "", "", "empty", 0, false},
		{"blank", "\n \n", "", "blank", 0, false},
		{"cut gzip", many[:len(many)/2], "", "the gzip data ends early", -1, true},
		{"cut gzip heading", many[:5], "", "gzip", 0, true},
		{"corrupt gzip", many[:len(many)-6] + "xxxxxx", "", "corrupt", -1, true},
		{"cut zstd", zst(strings.Repeat(moonLine, 1000))[:40], "", "the zstd data ends early", -1, true},
		{"zip", "PK\x03\x04whatever", "", "zip archive", 0, false},
		{"lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:1", "", "LFS pointer", 0, false},
		{"unknown text", "hello world\n", "", "unknown trace format", 1, false},
		{"unknown object", `{"a":1}` + "\n", "", "unknown trace format", 1, false},
		{"unknown name", moonLine, "moonpie", "unknown trace format \"moonpie\"", 0, false},
		{"text trace", `{"timestamp": 1, "input": "hi", "output": "", "session_id": "s"}` + "\n", "", "text trace", 1, false},
		{"not JSON", moonLine + "{]\n", "", "not a string", 2, false},
		{"not JSON at all", moonLine + "oops\n", "", "not a JSON object", 2, false},
		{"a list", moonLine + "[]\n", "", "not a JSON object", 2, false},
		{"something follows", bad("}", "} 1"), "", "something follows", 2, false},
		{"cut last line", moonLine + moonLine[:30], "", "cut off", 2, true},
		{"cut last line in a list", moonLine + moonLine[:len(moonLine)-5], "", "cut off", 2, true},
		{"short line that is not the last", moonLine + moonLine[:30] + "\n" + moonLine, "", "ends in the middle", 2, false},
		{"comma before the end", bad("2]", "2,]"), "", "comma before", 2, false},
		{"leading zero", bad("27", "027"), "", "leading zero", 2, false},
		{"wrong type", bad("1100", `"1100"`), "", "input_length: not a number", 2, false},
		{"fraction of a token", bad("1100", `1100.5`), "", "input_length: not an integer", 2, false},
		{"null", bad("1100", `null`), "", "input_length: not a number", 2, false},
		{"NaN", bad("1100", `NaN`), "", "input_length: not a number", 2, false},
		{"NaN time", bad("27", `NaN`), "", "timestamp: not a number", 2, false},
		{"negative", bad("1100", "-1"), "", "out of range", 2, false},
		{"absurd", bad("1100", "99999999999"), "", "out of range", 2, false},
		{"huge", bad("1100", "999999999999999999999999"), "", "out of range", 2, false},
		{"negative output", bad("5,", "-5,"), "", "out of range", 2, false},
		{"negative time", bad("27", "-27"), "", "negative", 2, false},
		{"absurd time", bad("27", "9e99"), "", "out of range", 2, false},
		{"negative id", bad("[0,", "[-1,"), "", "id -1 is negative", 2, false},
		{"id of two predecessors", bad("[0, 1, 2]", "[0, 2, 1]"), "", "id 2 follows id 0 here and follows id 1 before", 2, false},
		{"id twice in a prompt", bad("[0, 1, 2]", "[0, 1, 1]"), "", "id 1 follows id 1 here and follows id 0 before", 2, false},
		{"too few ids", bad("[0, 1, 2]", "[0]"), "", "1 hash_ids do not fit a prompt of 1100 tokens", 2, false},
		{"too many ids", bad("[0, 1, 2]", "[0, 1, 2, 3]"), "", "4 hash_ids do not fit", 2, false},
		{"missing field", bad(`"output_length": 5, `, ""), "", `"output_length" is missing`, 2, false},
		{"field twice", bad(`"timestamp": 27`, `"timestamp": 27, "timestamp": 28`), "", `"timestamp" is there twice`, 2, false},
		{"block size changes", chainLine + strings.Replace(chainLine, "16", "20", 1), "", "block_size is 20 here and 16 before", 2, false},
		{"block size 0", strings.Replace(chainLine, "16", "0", 1), "", "block_size 0", 1, false},
		{"sizes do not match", strings.Replace(sizedLine, "[30,4]", "[30]", 1), "", "1 block_tokens for 2 hash_ids", 1, false},
		{"sizes missing later", sizedLine + strings.Replace(sizedLine, `"block_tokens":[30,4],`, "", 1), "", "block_tokens must be on every line", 2, false},
		{"sizes contradict", sizedLine + strings.Replace(sizedLine, `30`, "31", 1), "", "contradict", 2, false},
		{"deep nesting", moonLine + strings.Repeat("[", 100) + "\n", "", "not a JSON object", 2, false},
		{"deep nesting in a field", bad(`{`, `{"x":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+","), "", "nested too deeply", 2, false},
		{"ragpulse: unknown list", strings.Replace(ragLine, "history", "mystery", 1), "", "unknown list", 1, false},
		{"ragpulse: bad time", strings.Replace(ragLine, `"82"`, `"8x"`, 1), "", "not a number of seconds", 1, false},
		{"ragpulse: size missing", `{"sys_prompt_id":8,"token_length":3}` + "\n" + ragLine, "", "size of piece 7 is not known", 2, false},
		{"azure: columns", azureHead + "1,2\n", "", "2 columns", 2, false},
		{"azure: time", azureHead + strings.Replace(azureLine, "-16", "-31", 1), "", "not a time", 2, false},
		{"azure: tokens", azureHead + strings.Replace(azureLine, "374", "x", 1), "", "not a number of tokens", 2, false},
		{"azure: cut", azureHead + azureLine + azureLine[:20], "", "cut off", 3, true},
		{"kvroute: heading", `{"x":1}` + "\n", "kvroute", "is not the heading", 1, false},
		{"kvroute: version", `{"kvroute":"trace/v9"}` + "\n", "", `"trace/v9"`, 1, false},
		{"kvroute: unknown block", kvHead + `{"t":5,"in":40,"out":5,"at":3}` + "\n", "", "block 3 is not known", 2, false},
		{"kvroute: blocks after an unknown one", kvHead + `{"type":"blocks","at":3}` + "\n", "", "block 3 is not known", 2, false},
		{"kvroute: half a hash", kvHead + `{"t":5,"in":40,"out":5,"new":"0a"}` + "\n", "", "16 for each block", 2, false},
		{"kvroute: not a hash", kvHead + `{"t":5,"in":40,"out":5,"new":"0A0000000000000x"}` + "\n", "", "hexadecimal", 2, false},
		{"kvroute: one block, two places", kvHead + kvLine + `{"t":5,"in":40,"out":5,"new":"00000000000000ff"}` + "\n", "", "contradict", 3, false},
		{"kvroute: blocks without size", `{"kvroute":"trace/v1"}` + "\n" + kvLine, "", "no block_size", 2, false},
		{"claude-code: scope", strings.Replace(claudeA, "local", "global", 1), "", "hash_id_scope", 1, false},
		{"claude-code: ids", strings.Replace(claudeA, "[1,2,5]", "[1,5,2]", 1), "", "id 2 follows id 5", 1, false},
		{"claude-code: ids after a common start", strings.Replace(claudeA, "[1,2,5]", "[1,2,1]", 1), "", "id 1 follows id 2 here and opens a prompt before", 1, false},
		{"claude-code: count", strings.Replace(claudeA, "[1,2,5]", "[1,2]", 1), "", "2 hash_ids do not fit", 1, false},
		{"claude-code: list in ids", strings.Replace(claudeA, "[1,2,5]", "[1,[2],5]", 1), "", "claude", 1, false},
		{"claude-code: field missing", strings.Replace(claudeA, `"out":3,`, "", 1), "", `"out" of a request is missing`, 1, false},
		{"claude-code: wrong type", strings.Replace(claudeA, `"out":3`, `"out":{}`, 1), "", "out: not a number", 1, false},
		{"claude-code: cut", claudeA + claudeA[:150], "", "cut off", 2, true},
		{"claude-code: cut in ids", claudeA + claudeA[:len(claudeA)-8], "", "cut off", 2, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := trace.Load([]trace.Source{{Name: "claude.jsonl", R: strings.NewReader(tc.data)}}, trace.Options{Format: tc.format})
			var e *trace.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a *trace.Error", err)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %q, want it to contain %q", err, tc.want)
			}
			if tc.line >= 0 && e.Line != tc.line || e.Damaged != tc.damaged || e.File != "claude.jsonl" {
				t.Errorf("got %q at %s line %d, damaged %v; want line %d, damaged %v", e.Why, e.File, e.Line, e.Damaged, tc.line, tc.damaged)
			}
		})
	}
}

func TestDamagedSaysHowMuchWasRead(t *testing.T) {
	data := gz(strings.Repeat(moonLine, 1000))
	_, err := trace.Load([]trace.Source{{Name: "f", R: strings.NewReader(data[:len(data)-8])}}, trace.Options{})
	var e *trace.Error
	if !errors.As(err, &e) || !e.Damaged || e.Read != 1000 {
		t.Fatalf("got %v, want damage after 1000 requests", err)
	}
}

type failing struct{ n int }

func (f *failing) Read(p []byte) (int, error) {
	if f.n++; f.n == 1 {
		return copy(p, moonLine), nil
	}
	return 0, errors.New("device on fire")
}

func TestReadErrorOfTheSource(t *testing.T) {
	_, err := trace.Load([]trace.Source{{Name: "f", R: &failing{}}}, trace.Options{})
	if !trace.IsDamaged(err) || !strings.Contains(err.Error(), "device on fire") {
		t.Fatalf("got %v, want the error of the source, as damage", err)
	}
}

func TestLongLine(t *testing.T) {
	_, err := readAll([]byte(moonLine+strings.Repeat(" ", 3<<20)+"\n"), "", trace.Options{MaxLine: 1 << 20})
	if err == nil || !strings.Contains(err.Error(), "longer than 1048576 bytes") {
		t.Fatalf("got %v, want an error on the length", err)
	}
	// The limit holds wherever the line happens to end in the reader's buffer, and with or without a newline.
	for _, over := range []int{-1, 0, 1, 2, 1 << 10, 64 << 10, 1 << 20} {
		for _, end := range []string{"\n", "", "\n" + moonLine} {
			line := moonLine[:len(moonLine)-1]
			line += strings.Repeat(" ", 1<<20+over-len(line))
			_, err := readAll([]byte(line+end), "", trace.Options{MaxLine: 1 << 20})
			if got, want := err != nil, over > 0; got != want {
				t.Errorf("%d bytes over the limit, end %.8q: got %v", over, end, err)
			}
		}
	}
	// Longer than any buffer of the reader, but allowed.
	recs, err := readAll([]byte(moonLine+strings.Replace(moonLine, "{", "{"+strings.Repeat(" ", 3<<20), 1)+moonLine), "", trace.Options{})
	if err != nil || len(recs) != 3 {
		t.Fatalf("got %d records, %v; want 3", len(recs), err)
	}
}

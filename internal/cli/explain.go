package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/trace"
)

// candidateKeys are what may stand after the name in --candidate, and where it goes.
var candidateKeys = []struct {
	key string
	to  func(*score.ExplainCandidate) *int64
}{
	{"hits", func(c *score.ExplainCandidate) *int64 { return &c.Hits }},
	{"active", func(c *score.ExplainCandidate) *int64 { return &c.Load.ActiveBlocks }},
	{"pending", func(c *score.ExplainCandidate) *int64 { return &c.Load.PendingTokens }},
	{"pending-requests", func(c *score.ExplainCandidate) *int64 { return &c.Load.PendingRequests }},
	{"held", func(c *score.ExplainCandidate) *int64 { return &c.Load.HeldRequests }},
	{"held-tokens", func(c *score.ExplainCandidate) *int64 { return &c.Load.HeldTokens }},
	{"computed", func(c *score.ExplainCandidate) *int64 { return &c.Computed }},
}

// parseCandidate reads NAME:hits=8,active=6,… Names may hold colons themselves (host:port): the
// numbers come after the last one.
func parseCandidate(s string) (score.ExplainCandidate, error) {
	const form = "candidates look like W0:hits=8,active=6"
	name, rest := s, ""
	if at := strings.LastIndexByte(s, ':'); at >= 0 && strings.Contains(s[at:], "=") {
		name, rest = s[:at], s[at+1:]
	}
	c := score.ExplainCandidate{Name: name}
	keys := []string{"recent"}
	for _, k := range candidateKeys {
		keys = append(keys, k.key)
	}
	switch tail := s[strings.LastIndexByte(s, ':')+1:]; {
	case name == "" || rest == "" && strings.Contains(s, "="):
		return c, &valueError{"no name in front of the numbers", form}
	case printable(name) != name:
		return c, &valueError{"a control character in the name", form}
	case rest == "" && tail != s && (tail == "" || contains(keys, tail)):
		return c, &valueError{fmt.Sprintf("%q has no =", tail), form}
	case rest == "":
		return c, nil
	}
	seen := map[string]bool{}
	for _, kv := range strings.Split(rest, ",") {
		key, val, ok := strings.Cut(kv, "=")
		switch {
		case !ok:
			return c, &valueError{fmt.Sprintf("%q has no =", kv), form}
		case !contains(keys, key):
			return c, &valueError{fmt.Sprintf("unknown key %q", key), didYouMean(key, keys)}
		case seen[key]:
			return c, &valueError{fmt.Sprintf("%s twice", key), ""}
		}
		seen[key] = true
		if err := setCandidate(&c, key, val); err != nil {
			return c, &valueError{fmt.Sprintf("%s %q: %s", key, val, err), form}
		}
	}
	return c, nil
}

func setCandidate(c *score.ExplainCandidate, key, val string) (err error) {
	if key == "recent" {
		c.Recent, err = parseReal(val)
		return err
	}
	for _, k := range candidateKeys {
		if k.key == key {
			*k.to(c), err = countBetween(0, load.MaxTokens)(val)
		}
	}
	return err
}

// explainFlags are the flags of explain.
type explainFlags struct {
	blocks     int64
	tokens     int64
	blockSize  int64
	role       string
	candidates []score.ExplainCandidate
	decisions  string
	url        string
	request    string
	tokenFile  string
	id         string
	format     string
	scorer     scorerFlags
}

func (a *app) newExplain() *cobra.Command {
	var e explainFlags
	cmd := &cobra.Command{
		Use:   "explain [RECORDING]",
		Short: "Show a decision with every term of every candidate",
		Long: `From numbers: state the request and the candidates, and the scorer decides.
From a record: name a recording of serve, or with --decisions a file written by
sim or replay --decisions; --id names one of its requests, and --role which of
its decisions, where a prefill and a decode worker were chosen for it.
From a live router: --url names it, and --request a file with the body of a
request, which is placed as it would be now, and sent to nobody.

A candidate is NAME:key=number,… with the keys hits (leading blocks of the
request it holds), active (distinct blocks in flight on it), pending (prompt
tokens still to be computed on it), pending-requests, held (requests in flight),
held-tokens, recent (the policy's recency charge) and computed (blocks it had to
compute so far). What is left out is 0.

The marked candidate was picked. The rule says what settled it: cost, or on
equal costs load (prefix policies: computed, the blocks computed so far), then
held requests, then order; only, where there was no choice; turn, draw, session
and demand where the policy goes by these. Engines of different kinds make
different tokens of a request: variant numbers those a candidate is measured by.`,
		Example: `  # the worked example: 1.0 × 2 + 6 = 8 against 1.0 × 10 + 1 = 11
  kvroute explain --request-blocks 10 --candidate W0:hits=8,active=6 --candidate W1:hits=0,active=1 --router-policy kv-aware
  # the same by expected work: tokens to compute, here and in front of it
  kvroute explain --request-blocks 10 --candidate W0:hits=8,pending=4096 --candidate W1:active=20
  # a decision that a router made
  kvroute explain traces/golden/recording.jsonl.gz --id request-dm`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return usage(fmt.Sprintf("unexpected argument %q", args[1]), "kvroute explain", "one recording at a time", "")
			case len(args) == 1 && a.given("decisions"):
				return usage("a recording and --decisions", "kvroute explain", "one file at a time", "leave one of them out")
			case len(args) == 1:
				e.decisions = args[0]
			}
			return a.explain(cmd.Context(), &e)
		},
	}
	fs := cmd.Flags()
	const group = groupDecision
	bind(cmd, fs, spec{name: "request-blocks", arg: "N", group: group, local: true, usage: "blocks of the request"}, &e.blocks, countBetween(0, score.MaxExplainBlocks))
	bind(cmd, fs, spec{
		name: "request-tokens", arg: "N", group: group, local: true,
		usage: "prompt tokens of the request (default blocks × block size)",
	}, &e.tokens, countBetween(0, load.MaxTokens))
	bind(cmd, fs, spec{name: "block-size", arg: "TOKENS", def: strconv.Itoa(block.DefaultSize), group: group, local: true, usage: "tokens in a block"}, &e.blockSize, countBetween(1, 1<<20))
	roles := []string{"mixed", "prefill", "decode"}
	bind(cmd, fs, spec{name: "role", arg: "ROLE", def: "mixed", group: group, values: roles, local: true, usage: "pool that is chosen from: mixed, prefill, decode; of a recorded request, which of its decisions"}, &e.role, oneOf(roles...))
	bindList(cmd, fs, spec{name: "candidate", arg: "NAME:…", group: group, local: true, usage: "a worker to choose from, repeatable, in route-key order"}, "", &e.candidates, parseCandidate)
	bind(cmd, fs, spec{name: "decisions", arg: "FILE", group: group, local: true, usage: "explain a recorded decision from this file"}, &e.decisions, parseText)
	bind(cmd, fs, spec{name: "url", arg: "URL", group: group, local: true, usage: "explain what a live router would decide"}, &e.url, parseText)
	bind(cmd, fs, spec{name: "request", arg: "FILE", group: group, local: true, usage: "body of the request for the router at --url; - is stdin"}, &e.request, parseText)
	bind(cmd, fs, spec{name: "token-file", arg: "FILE", group: group, local: true, usage: "file with the router's admin token"}, &e.tokenFile, parseText)
	bind(cmd, fs, spec{name: "id", arg: "ID", group: group, local: true, usage: "request id, else the number of the decision (default: the first one)"}, &e.id, parseText)
	bindScorer(cmd, &e.scorer)
	bindOutput(cmd, &e.format, formatTable, formatJSON, formatJSONL, formatCSV)
	return cmd
}

func (a *app) explain(ctx context.Context, e *explainFlags) error {
	switch {
	case e.url != "" && e.decisions != "":
		return usage("--url and a file", "kvroute explain", "a decision is either recorded or asked for", "leave one of them out")
	case e.url != "":
		if err := a.unstated("--url", "the router decides about its own workers"); err != nil {
			return err
		}
		if e.request == "" {
			return usage("--url without --request", "kvroute explain", "there is nothing to place", "add --request FILE with the body of a request")
		}
		return a.explainLive(ctx, e)
	case e.request != "" || e.tokenFile != "":
		return usage("--request and --token-file are for a router", "kvroute explain", "none is named", "add --url http://HOST:PORT")
	case e.decisions != "":
		return a.explainRecord(ctx, e)
	case e.id != "":
		return usage("--id without a file", "kvroute explain", "there is nothing to look in", "name a recording, or a file with --decisions")
	case len(e.candidates) == 0:
		return usage("no candidates", "kvroute explain", "nothing to choose from", "add --candidate W0:hits=8,active=6, or name a file with --decisions")
	case !a.given("request-blocks"):
		return usage("no request", "kvroute explain", "its size in blocks is not given", "add --request-blocks N")
	}
	names := map[string]bool{}
	for _, c := range e.candidates {
		if names[c.Name] {
			return usage(fmt.Sprintf("candidate %s twice", c.Name), "--candidate", "names must differ", "")
		}
		names[c.Name] = true
	}
	if err := a.validateScorer(&e.scorer.cfg); err != nil {
		return err
	}
	// The last block may be partial, and a rest after the last whole block need not be one.
	if least, most := (e.blocks-1)*e.blockSize+1, (e.blocks+1)*e.blockSize-1; a.given("request-tokens") && (e.tokens < least || e.tokens > most) {
		return usage(fmt.Sprintf("bad value %q", a.texts["request-tokens"]), "--request-tokens",
			fmt.Sprintf("a prompt of %d blocks of %d has %d to %d tokens", e.blocks, e.blockSize, max(least, 0), most), "")
	}
	role, err := score.ParseRole(e.role)
	if err != nil {
		return err
	}
	for i := range e.candidates {
		e.candidates[i].Role = role
	}
	req := score.Request{ID: "stated", Role: role, BlockSize: int(e.blockSize), InputTokens: e.tokens, TokensExact: true, N: 1}
	dec, err := score.Explain(e.scorer.cfg, req, e.blocks, e.candidates)
	if err != nil {
		return usage("cannot decide", "--candidate", err.Error(), "")
	}
	return a.writeDecision(e.format, &dec, allFlags(&e.scorer.cfg))
}

// unstated refuses the flags that state a decision in numbers, and those that decide.
func (a *app) unstated(with, why string) error {
	names := []string{"candidate", "request-blocks", "request-tokens", "block-size", "seed"}
	for _, row := range scorerSettings() {
		names = append(names, row.name)
	}
	for _, name := range names {
		if a.origins[name].Layer == "flag" {
			return usage(with+" and --"+name, "kvroute explain", why, "leave --"+name+" out")
		}
	}
	return nil
}

// explainRecord shows a recorded decision.
func (a *app) explainRecord(ctx context.Context, e *explainFlags) error {
	with, flag := "a recording", "kvroute explain"
	if a.given("decisions") {
		with, flag = "--decisions", "--decisions"
	}
	if err := a.unstated(with, "a recorded decision is shown as it was made"); err != nil {
		return err
	}
	var in io.Reader
	name := "stdin"
	if e.decisions == "-" {
		in = newPatient(ctx, a.stdin)
	} else {
		f, err := openInput(ctx, e.decisions)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return usage("cannot read decisions "+e.decisions, flag, pathWhy(err), "")
		}
		defer f.Close() // only read from
		in, name = f, e.decisions
	}
	role := ""
	if a.given("role") {
		role = e.role
	}
	dec, err := findDecision(in, name, e.id, role)
	if err != nil {
		return err
	}
	if dec.Role == score.Prefill && role == "" && e.format == formatTable {
		a.note("the choice of its decode worker: add --role decode")
	}
	return a.writeDecision(e.format, dec, nil)
}

// maxDecision is the longest line of a decisions file: one of as many targets as there can be has 8 MB.
const maxDecision = 64 << 20

// decisions gives the decisions of a file one by one.
type decisions interface {
	// next returns a decision; io.EOF at the end.
	next() (*score.Decision, error)
}

// openDecisions looks what kind of file it is, packed or not.
func openDecisions(r io.Reader, name string) (decisions, error) {
	src, err := trace.Unpack(r, name)
	if err != nil {
		var e *trace.Error
		if errors.As(err, &e) && !e.Damaged {
			return nil, usage("no decisions", name, e.Why, e.Hint)
		}
		return nil, failed("cannot read decisions (0 read)", name, err)
	}
	lines := bufio.NewReaderSize(src, 64<<10)
	first, err := nextDecision(lines)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, failed("cannot read decisions (0 read)", name+":1", err)
	}
	whole := io.MultiReader(bytes.NewReader(first), lines)
	var heading struct {
		KVRoute string `json:"kvroute"`
	}
	if json.Unmarshal(first, &heading) != nil || heading.KVRoute == "" {
		return &decisionLines{lines: bufio.NewReaderSize(whole, 64<<10), name: name}, nil
	}
	rec, err := record.Open(whole, name)
	if err != nil {
		return nil, recordingFault(err)
	}
	return &recorded{rec}, nil
}

// recorded is the decisions of a recording.
type recorded struct{ r *record.Reader }

func (d *recorded) next() (*score.Decision, error) {
	var rec record.Record
	for {
		if err := d.r.Read(&rec); err != nil {
			return nil, recordingFault(err)
		}
		if rec.Kind != record.Decision {
			continue
		}
		dec, err := score.ParseDecision(rec.JSON)
		if err != nil {
			return nil, failed("damaged recording", rec.Place(), err)
		}
		return &dec, nil
	}
}

// decisionLines is the decisions of a file of --decisions.
type decisionLines struct {
	lines *bufio.Reader
	name  string
	line  int
	read  int
	end   bool
}

func (d *decisionLines) next() (*score.Decision, error) {
	for !d.end {
		d.line++
		at := fmt.Sprintf("%s:%d", d.name, d.line)
		line, err := nextDecision(d.lines)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, failed(fmt.Sprintf("cannot read decisions (%d read)", d.read), at, err)
		}
		d.end = err != nil
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		dec, err := score.ParseDecision(line)
		switch {
		case err != nil && d.end && d.read > 0:
			return nil, failed(fmt.Sprintf("the last decision is cut off (%d read)", d.read), at, err)
		case err != nil:
			return nil, usage("not a decision", at, err.Error(), "want a file written by --decisions, or a recording of serve")
		}
		d.read++
		return &dec, nil
	}
	return nil, io.EOF
}

// findDecision returns the decision with the given request id, else the one with this number; the
// first one for "". A role, if not "", has to be the decision's.
func findDecision(r io.Reader, name, id, role string) (*score.Decision, error) {
	all, err := openDecisions(r, name)
	if err != nil {
		return nil, err
	}
	read := 0
	var numbered *score.Decision // ids may be numbers too, and go first
	for {
		dec, err := all.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		read++
		fits := role == "" || dec.Role.String() == role
		if fits && (id == "" || dec.RequestID == id) {
			return dec, nil
		}
		if fits && numbered == nil && strconv.FormatUint(dec.Seq, 10) == id {
			numbered = dec
		}
	}
	switch {
	case numbered != nil:
		return numbered, nil
	case read == 0:
		return nil, usage("no decisions", name, "the file is empty", "")
	}
	what, why, hint := "no decision", fmt.Sprintf("none of its %d decisions has this ", read), ""
	if role != "" {
		what, why, hint = "no "+role+" decision", why+"role", "leave --role out"
	}
	if id != "" {
		what += fmt.Sprintf(" %q", id)
		if role != "" {
			why += " and "
		}
		why += "request id or number"
	}
	return nil, usage(what, name, why, hint)
}

// nextDecision returns the next line; io.EOF comes with the last one, which may lack its end.
func nextDecision(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxDecision {
			return nil, fmt.Errorf("the line is longer than %d bytes", maxDecision)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// writeDecision prints one decision.
func (a *app) writeDecision(format string, dec *score.Decision, flags map[string]any) error {
	return a.emit(func(w io.Writer) error {
		switch format {
		case formatJSON:
			return writeDecisionJSON(w, dec, flags)
		case formatJSONL:
			_, err := w.Write(append(dec.AppendJSON(nil), '\n'))
			return err
		case formatCSV:
			return decisionGrid(dec).writeCSV(w)
		}
		return dec.Table(w)
	})
}

// writeDecisionJSON prints the canonical record, indented, after what every document begins with.
func writeDecisionJSON(w io.Writer, dec *score.Decision, flags map[string]any) error {
	head, err := json.Marshal(struct {
		Schema  string         `json:"schema"`
		Version string         `json:"version"`
		Flags   map[string]any `json:"flags"`
	}{"kvroute.explain/v1", version(), flags})
	if err != nil {
		return err
	}
	record := dec.AppendJSON(nil)
	doc := append(append(head[:len(head)-1], ','), record[1:]...)
	var b bytes.Buffer
	if err := json.Indent(&b, doc, "", "  "); err != nil {
		return fmt.Errorf("indenting the decision: %w", err)
	}
	b.WriteByte('\n')
	_, err = w.Write(b.Bytes())
	return err
}

// decisionGrid is the candidates with their main terms, for a spreadsheet.
func decisionGrid(dec *score.Decision) *grid {
	g := &grid{head: []string{
		"name", "picked", "eligible", "blocks", "hits", "misses", "active_blocks", "pending_tokens", "held_requests", "held_tokens", "recent", "demand", "cost", "tie", "note",
	}}
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	for i, t := range dec.Terms {
		g.add(t.Candidate.Key, strconv.FormatBool(i == dec.Picked), strconv.FormatBool(t.Eligible), count(t.Blocks), count(t.Hits),
			count(t.Blocks-t.Hits), count(t.Load.ActiveBlocks), count(t.Load.PendingTokens), count(t.Load.HeldRequests),
			count(t.Load.HeldTokens), report.FlagValue(t.Recent), report.FlagValue(t.Demand), report.FlagValue(t.Cost), report.FlagValue(t.Tie), t.Note)
	}
	return g
}

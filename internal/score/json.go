package score

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvroute/kvroute/internal/target"
)

// AppendJSON appends the canonical form of d: one line without a newline, every field present, in
// this order, numbers in their shortest form; only page_size, variant and doubt of candidates are left out
// where they are not set. Equal decisions give equal bytes. The Handle is left out: it means something
// only to the ledger that gave it.
func (d *Decision) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"seq":`...)
	dst = strconv.AppendUint(dst, d.Seq, 10)
	dst = textField(dst, "id", d.RequestID)
	dst = textField(dst, "policy", d.Policy)
	dst = textField(dst, "role", d.Role.String())
	dst = textField(dst, "basis", string(d.Basis))
	dst = textField(dst, "reason", d.Reason)
	dst = floatField(dst, "weight", d.Weight)
	dst = textField(dst, "rule", string(d.TieRule))
	picked := ""
	if d.Picked >= 0 && d.Picked < len(d.Terms) {
		picked = d.Terms[d.Picked].Candidate.Key
	}
	dst = textField(dst, "picked", picked)
	dst = intField(dst, "picked_index", int64(d.Picked))
	dst = intField(dst, "suggested", int64(d.Suggested))
	dst = intField(dst, "original", int64(d.Original))
	dst = intField(dst, "tokens", d.Tokens)
	dst = boolField(dst, "tokens_exact", d.TokensExact)
	dst = intField(dst, "images", int64(d.Images))
	dst = textField(dst, "session", string(d.Session))
	dst = append(dst, `,"candidates":[`...)
	for i := range d.Terms {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = d.Terms[i].appendJSON(dst)
	}
	return append(dst, "]}"...)
}

func (t *Terms) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"name":`...)
	dst = appendText(dst, t.Candidate.Key)
	dst = intField(dst, "target", int64(t.Candidate.Target))
	dst = textField(dst, "role", t.Candidate.Role.String())
	dst = intField(dst, "block_size", int64(t.Candidate.BlockSize))
	if t.Candidate.PageSize != 0 {
		dst = intField(dst, "page_size", int64(t.Candidate.PageSize))
	}
	if t.Candidate.Variant != 0 {
		dst = intField(dst, "variant", int64(t.Candidate.Variant))
	}
	dst = intField(dst, "blocks", t.Blocks)
	dst = intField(dst, "hits", t.Hits)
	dst = intField(dst, "misses", t.Blocks-t.Hits)
	dst = floatField(dst, "hit_weight", t.HitWeight)
	dst = intField(dst, "hit_tokens", t.HitTokens)
	dst = intField(dst, "active_blocks", t.Load.ActiveBlocks)
	dst = intField(dst, "pending_tokens", t.Load.PendingTokens)
	dst = intField(dst, "pending_requests", t.Load.PendingRequests)
	dst = intField(dst, "held_tokens", t.Load.HeldTokens)
	dst = intField(dst, "held_requests", t.Load.HeldRequests)
	dst = floatField(dst, "recent", t.Recent)
	dst = intField(dst, "computed", t.Computed)
	dst = intField(dst, "image_hits", t.ImageHits)
	if dst = field(dst, "slow"); t.Slow == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = appendFloat(dst, t.Slow)
	}
	dst = floatField(dst, "demand", t.Demand)
	dst = floatField(dst, "cost", t.Cost)
	dst = floatField(dst, "tie", t.Tie)
	dst = boolField(dst, "eligible", t.Eligible)
	dst = textField(dst, "note", t.Note)
	if t.Candidate.Doubt != "" {
		dst = textField(dst, "doubt", t.Candidate.Doubt)
	}
	return append(dst, '}')
}

func field(dst []byte, name string) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	return append(dst, '"', ':')
}

func intField(dst []byte, name string, v int64) []byte {
	return strconv.AppendInt(field(dst, name), v, 10)
}

func boolField(dst []byte, name string, v bool) []byte {
	return strconv.AppendBool(field(dst, name), v)
}

func textField(dst []byte, name, v string) []byte { return appendText(field(dst, name), v) }

func floatField(dst []byte, name string, v float64) []byte { return appendFloat(field(dst, name), v) }

// appendFloat writes the shortest digits that read back as v, with an exponent only far from 1. What
// JSON cannot say, which no valid Config leads to, becomes null.
func appendFloat(dst []byte, v float64) []byte {
	abs := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return append(dst, "null"...)
	case v == 0:
		return append(dst, '0') // negative zero too
	case abs < 1e-6 || abs >= 1e21:
		return strconv.AppendFloat(dst, v, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, v, 'f', -1, 64)
}

// appendText writes a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendText(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20 || r == 0x7f: // DEL would reach terminals
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// wireDecision and wireTerms are the JSON form for reading. All fields must be there but those with
// omitempty.
type wireDecision struct {
	Seq         uint64      `json:"seq"`
	ID          string      `json:"id"`
	Policy      string      `json:"policy"`
	Role        string      `json:"role"`
	Basis       string      `json:"basis"`
	Reason      string      `json:"reason"`
	Weight      float64     `json:"weight"`
	Rule        string      `json:"rule"`
	Picked      string      `json:"picked"`
	PickedIndex int         `json:"picked_index"`
	Suggested   int         `json:"suggested"`
	Original    int         `json:"original"`
	Tokens      int64       `json:"tokens"`
	TokensExact bool        `json:"tokens_exact"`
	Images      int         `json:"images"`
	Session     string      `json:"session"`
	Candidates  []wireTerms `json:"candidates"`
}

type wireTerms struct {
	Name            string  `json:"name"`
	Target          uint32  `json:"target"`
	Role            string  `json:"role"`
	BlockSize       int     `json:"block_size"`
	PageSize        int     `json:"page_size,omitempty"`
	Variant         int     `json:"variant,omitempty"`
	Blocks          int64   `json:"blocks"`
	Hits            int64   `json:"hits"`
	Misses          int64   `json:"misses"`
	HitWeight       float64 `json:"hit_weight"`
	HitTokens       int64   `json:"hit_tokens"`
	ActiveBlocks    int64   `json:"active_blocks"`
	PendingTokens   int64   `json:"pending_tokens"`
	PendingRequests int64   `json:"pending_requests"`
	HeldTokens      int64   `json:"held_tokens"`
	HeldRequests    int64   `json:"held_requests"`
	Recent          float64 `json:"recent"`
	Computed        int64   `json:"computed"`
	ImageHits       int64   `json:"image_hits"`
	Slow            float64 `json:"slow"`
	Demand          float64 `json:"demand"`
	Cost            float64 `json:"cost"`
	Tie             float64 `json:"tie"`
	Eligible        bool    `json:"eligible"`
	Note            string  `json:"note"`
	Doubt           string  `json:"doubt,omitempty"`
}

// ParseDecision reads what AppendJSON writes. The error says which part is wrong; decisions that lack a
// field, or contradict themselves (a pick that is no candidate, misses that are not blocks less hits), are
// errors.
func ParseDecision(line []byte) (Decision, error) {
	var w wireDecision
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Decision{}, fmt.Errorf("reading a decision: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Decision{}, errors.New("reading a decision: more text after its end")
	}
	if err := complete(line, w.Seq); err != nil {
		return Decision{}, err
	}
	return w.decision()
}

// The names of the fields that a decision and each of its candidates must have.
var (
	decisionFields = requiredFields(reflect.TypeFor[wireDecision]())
	termsFields    = requiredFields(reflect.TypeFor[wireTerms]())
)

func requiredFields(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if name, opt, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); opt == "" {
			names = append(names, name)
		}
	}
	return names
}

// complete makes sure that nothing reads as zero because it is missing, or null where that does not mean
// unknown.
func complete(line []byte, seq uint64) error {
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(line, &whole); err != nil {
		return fmt.Errorf("reading decision %d: %w", seq, err)
	}
	if name := lacking(whole, decisionFields); name != "" {
		return fmt.Errorf("decision %d: field %q is missing", seq, name)
	}
	var candidates []map[string]json.RawMessage
	if err := json.Unmarshal(whole["candidates"], &candidates); err != nil {
		return fmt.Errorf("reading the candidates of decision %d: %w", seq, err)
	}
	for i, c := range candidates {
		if name := lacking(c, termsFields); name != "" {
			return fmt.Errorf("decision %d: candidate %d: field %q is missing", seq, i, name)
		}
	}
	return nil
}

// lacking returns the first of the fields that are not there, "" if all are.
func lacking(got map[string]json.RawMessage, fields []string) string {
	for _, name := range fields {
		if v, ok := got[name]; !ok || name != slowColumn && string(v) == "null" {
			return name
		}
	}
	return ""
}

func (w *wireDecision) decision() (Decision, error) {
	fail := func(format string, args ...any) (Decision, error) {
		return Decision{}, fmt.Errorf("decision %d: %s", w.Seq, fmt.Sprintf(format, args...))
	}
	role, err := ParseRole(w.Role)
	if err != nil {
		return fail("%v", err)
	}
	n := len(w.Candidates)
	if w.PickedIndex < 0 || w.PickedIndex >= n || w.Candidates[w.PickedIndex].Name != w.Picked {
		return fail("picked %q, number %d, is none of its %d candidates", w.Picked, w.PickedIndex, n)
	}
	for _, i := range []int{w.Suggested, w.Original} {
		if i < -1 || i >= n {
			return fail("suggested or original target number %d is none of its %d candidates", i, n)
		}
	}
	d := Decision{
		Seq: w.Seq, RequestID: w.ID, Policy: w.Policy, Role: role, Basis: Basis(w.Basis), Reason: w.Reason,
		Weight: w.Weight, TieRule: Rule(w.Rule), Picked: w.PickedIndex, Suggested: w.Suggested, Original: w.Original,
		Tokens: w.Tokens, TokensExact: w.TokensExact, Images: w.Images, Session: Bound(w.Session),
		Terms: make([]Terms, n),
	}
	for i := range w.Candidates {
		c := &w.Candidates[i]
		if c.Target >= target.MaxTargets {
			return fail("candidate %q has target number %d, beyond the limit of %d", c.Name, c.Target, target.MaxTargets)
		}
		if c.PageSize < 0 || c.Variant < 0 {
			return fail("candidate %q has page size %d and variant %d, below 0", c.Name, c.PageSize, c.Variant)
		}
		if c.Misses != c.Blocks-c.Hits {
			return fail("candidate %q has %d misses, not %d blocks less %d hits", c.Name, c.Misses, c.Blocks, c.Hits)
		}
		t, err := c.terms()
		if err != nil {
			return fail("candidate %q: %v", c.Name, err)
		}
		d.Terms[i] = t
	}
	return d, nil
}

func (c *wireTerms) terms() (Terms, error) {
	role, err := ParseRole(c.Role)
	if err != nil {
		return Terms{}, err
	}
	t := Terms{
		Candidate: Candidate{Target: target.ID(c.Target), Key: c.Name, Role: role, BlockSize: c.BlockSize, PageSize: c.PageSize, Variant: c.Variant, Doubt: c.Doubt},
		Blocks:    c.Blocks, Hits: c.Hits, HitWeight: c.HitWeight, HitTokens: c.HitTokens,
		Recent: c.Recent, Computed: c.Computed, ImageHits: c.ImageHits,
		Slow: c.Slow, Demand: c.Demand, Cost: c.Cost, Tie: c.Tie, Eligible: c.Eligible, Note: c.Note,
	}
	t.Load.ActiveBlocks, t.Load.PendingTokens, t.Load.PendingRequests = c.ActiveBlocks, c.PendingTokens, c.PendingRequests
	t.Load.HeldTokens, t.Load.HeldRequests = c.HeldTokens, c.HeldRequests
	return t, nil
}

package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
)

// maxLine bounds a line: a decision about as many targets as there can be has 8 MB.
const maxLine = 256 << 20

// maxBlocks bounds the blocks of one request: what a damaged file can make of a few numbers.
const maxBlocks = 1 << 24

// Reader gives the records of one file in their order. It is owned by one goroutine.
type Reader struct {
	head Header
	name string
	br   *bufio.Reader
	line int
	long []byte // lines longer than br's buffer
	cut  bool

	hash    []block.Hash // of the numbered blocks
	parent  []uint32
	depth   []uint32
	workers []score.Candidate // by target.ID; Key "" unknown
	w       wire
	memory  []block.Hash // paths of the decision at hand
	fresh   []block.Hash
}

// Open reads the heading of a recording, which may be gzip or zstd. name is for messages. Errors are
// *Error.
func Open(r io.Reader, name string) (*Reader, error) {
	src, err := trace.Unpack(r, name)
	if err != nil {
		e := &Error{File: name, Why: err.Error()}
		var t *trace.Error
		if errors.As(err, &t) {
			e.Why, e.Hint, e.Damaged = t.Why, t.Hint, t.Damaged
		}
		return nil, e
	}
	rd := &Reader{name: name, br: bufio.NewReaderSize(src, 256<<10)}
	line, _, err := rd.next()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, rd.damaged("cannot be read: %v", err)
	}
	return rd, rd.heading(line)
}

// Header returns what the heading says.
func (r *Reader) Header() Header { return r.head }

// Cut says whether the file broke off in the middle of a record; known once Read returned io.EOF.
func (r *Reader) Cut() bool { return r.cut }

func (r *Reader) fail(format string, args ...any) *Error {
	return &Error{File: r.name, Line: r.line, Why: fmt.Sprintf(format, args...)}
}

func (r *Reader) damaged(format string, args ...any) *Error {
	e := r.fail(format, args...)
	e.Damaged = true
	return e
}

type wireHeading struct {
	KVRoute   string          `json:"kvroute"`
	Recording *int            `json:"recording"`
	Run       string          `json:"run"`
	Part      int             `json:"part"`
	Program   string          `json:"program"`
	Model     string          `json:"model"`
	BlockSize int             `json:"block_size"`
	Config    json.RawMessage `json:"config"`
}

func (r *Reader) heading(line []byte) error {
	var h wireHeading
	if err := json.Unmarshal(line, &h); err != nil || h.KVRoute == "" || h.Recording == nil {
		e := r.fail("not a recording: the first line is not the heading that serve --record writes")
		if err == nil && h.KVRoute != "" {
			e.Why = "a trace, but not a recording: there are no decisions in it"
		}
		return e
	}
	switch {
	case h.KVRoute != traceVersion || *h.Recording != formVersion:
		e := r.fail("the form is %s, recording %d; known is %s, recording %d", h.KVRoute, *h.Recording, traceVersion, formVersion)
		e.Hint = "use the program that wrote it, " + printable(h.Program)
		return e
	case h.Part < 1 || h.BlockSize < 1 || h.Run == "" || h.Config == nil:
		return r.damaged("the heading lacks its run, part, block size or configuration")
	}
	cfg, err := parseConfig(h.Config)
	if err != nil {
		e := r.fail("the router's configuration is not one of this program: %v", err)
		e.Hint = "use the program that wrote it, " + printable(h.Program)
		return e
	}
	r.head = Header{h.Run, h.Part, h.Program, h.Model, h.BlockSize, cfg}
	return nil
}

// printable keeps control characters of files off terminals.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < 0x20 || c == 0x7f {
			return '?'
		}
		return c
	}, s)
}

// next returns the next line without its end and whether it had one. The slice is valid until the next
// call. At the end io.EOF comes without a line.
func (r *Reader) next() (line []byte, whole bool, err error) {
	r.line++
	line, err = r.br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		r.long = append(r.long[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = r.br.ReadSlice('\n')
			if r.long = append(r.long, line...); len(r.long) > maxLine {
				return nil, false, fmt.Errorf("the line is longer than %d bytes", maxLine)
			}
		}
		line = r.long
	}
	switch {
	case err == nil:
		return line[:len(line)-1], true, nil
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, false, nil
	case errors.Is(err, io.ErrUnexpectedEOF): // packed data that breaks off, as a router that was killed leaves it
		r.cut = true
		return nil, false, io.EOF
	}
	return nil, false, err
}

// wire is every field a record can have.
type wire struct {
	Type string `json:"type"`
	Op   string `json:"op"`

	Key       string `json:"key"`
	Role      string `json:"role"`
	BlockSize int    `json:"block_size"`
	Page      int    `json:"page"`
	Variant   int    `json:"variant"`
	Doubt     string `json:"doubt"`

	Tier  int     `json:"tier"`
	After string  `json:"after"`
	Add   *string `json:"add"`
	Gone  *string `json:"gone"`
	Clear bool    `json:"clear"`
	New   string  `json:"new"`

	NS       *int64          `json:"ns"`
	ID       string          `json:"id"`
	Size     *int            `json:"size"`
	N        *int64          `json:"n"`
	S        string          `json:"s"`
	Keep     string          `json:"keep"`
	MM       bool            `json:"mm"`
	Img      string          `json:"img"`
	Last     bool            `json:"last"`
	Approx   string          `json:"approx"`
	BT       []uint32        `json:"bt"`
	Variants []wirePrompts   `json:"variants"`
	Decision json.RawMessage `json:"decision"`
	wirePrompts

	D   *uint64 `json:"d"`
	Out *int64  `json:"out"`

	Text     string `json:"text"`
	Complete bool   `json:"complete"`

	// Targets is one number, or, of a decision, a list.
	Targets json.RawMessage `json:"w"`
}

type wirePrompts struct {
	In    *int64  `json:"in"`
	Exact bool    `json:"exact"`
	Why   string  `json:"why"`
	At    *int64  `json:"at"`
	More  []int64 `json:"more"`
	Lens  []int64 `json:"lens"`
}

// Read gives the next record, io.EOF at the end. Other errors are *Error, all of damage.
func (r *Reader) Read(rec *Record) error {
	for {
		line, whole, err := r.next()
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		if err != nil {
			return r.damaged("cannot be read: %v", err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		r.w = wire{}
		if err := json.Unmarshal(line, &r.w); err != nil {
			if !whole {
				r.cut = true
				return io.EOF
			}
			return r.damaged("not a record: %v", err)
		}
		*rec = Record{File: r.name, Line: r.line}
		done, err := r.record(rec)
		if err != nil {
			return r.damaged("%s record: %v", printable(r.w.Type), err)
		}
		if done {
			return nil
		}
	}
}

// record fills rec from the line; done is false for records that are the Reader's own.
func (r *Reader) record(rec *Record) (done bool, err error) {
	w := &r.w
	switch w.Type {
	case "worker":
		rec.Kind = Worker
		return true, r.worker(rec)
	case "event":
		rec.Kind = Event
		return true, r.event(rec)
	case "blocks":
		return false, r.number()
	case "reset":
		r.hash, r.parent, r.depth = r.hash[:0], r.parent[:0], r.depth[:0]
		return false, nil
	case "decision":
		rec.Kind = Decision
		return true, r.decision(rec)
	case "load":
		rec.Kind = Load
		return true, r.load(rec)
	case "", "request", "unfinished":
		if w.New != "" {
			return false, errors.New("blocks are numbered in blocks records only")
		}
		rec.Kind = Request
		return true, nil
	case "note":
		rec.Kind, rec.Text, rec.Target = Note, w.Text, NoTarget
		if w.NS != nil {
			rec.At = *w.NS
		}
		if w.Targets != nil {
			rec.Target, err = w.target()
		}
		return true, err
	case "end":
		rec.Kind, rec.Complete, rec.Text = End, w.Complete, w.Why
		return true, nil
	}
	rec.Kind, rec.Text = Other, w.Type
	return true, nil
}

func (w *wire) target() (target.ID, error) {
	var t uint32
	if len(w.Targets) == 0 {
		return 0, errors.New("w is missing")
	}
	if err := json.Unmarshal(w.Targets, &t); err != nil {
		return 0, fmt.Errorf("w: %w", err)
	}
	if t >= target.MaxTargets {
		return 0, fmt.Errorf("w: target %d is beyond the limit of %d", t, target.MaxTargets)
	}
	return target.ID(t), nil
}

func (r *Reader) worker(rec *Record) (err error) {
	w := &r.w
	if rec.Target, err = w.target(); err != nil {
		return err
	}
	if rec.Op = WorkerOp(lookup(workerOps, w.Op)); rec.Op == 0 {
		return fmt.Errorf("op %q is none", w.Op)
	}
	if rec.Op != Join && rec.Op != Change {
		return nil
	}
	role, err := score.ParseRole(w.Role)
	if err != nil {
		return err
	}
	if w.Key == "" || w.BlockSize < 0 || w.Page < 0 || w.Variant < 0 {
		return errors.New("a worker without a key, or with a negative size")
	}
	rec.Candidate = score.Candidate{
		Target: rec.Target, Key: w.Key, Role: role, BlockSize: w.BlockSize, PageSize: w.Page, Variant: w.Variant, Doubt: w.Doubt,
	}
	for int(rec.Target) >= len(r.workers) {
		r.workers = append(r.workers, score.Candidate{})
	}
	r.workers[rec.Target] = rec.Candidate
	return nil
}

func (r *Reader) event(rec *Record) (err error) {
	w := &r.w
	if rec.Target, err = w.target(); err != nil {
		return err
	}
	digits := w.Gone
	switch {
	case w.Clear && w.Add == nil && w.Gone == nil:
		rec.Emptied = true
		return nil
	case w.Clear || (w.Add == nil) == (w.Gone == nil):
		return errors.New("want one of add, gone and clear")
	case w.Add != nil:
		rec.Held, digits = true, w.Add
	}
	if w.Tier < 0 || w.Tier > 2 {
		return fmt.Errorf("tier %d is none", w.Tier)
	}
	rec.Tier = uint8(w.Tier)
	after, ok := parseHex[block.Hash](nil, w.After)
	if !ok || len(after) > 1 {
		return fmt.Errorf("after: %q is not a hash", w.After)
	}
	if len(after) == 1 {
		rec.Parent = after[0]
	}
	if r.fresh, ok = parseHex(r.fresh[:0], *digits); !ok {
		return errors.New("blocks are not 16 lower-case hexadecimal digits each")
	}
	rec.Blocks = r.fresh
	return nil
}

// number reads a blocks record.
func (r *Reader) number() error {
	w := &r.w
	leaf, err := r.leaf(w.At)
	if err != nil {
		return err
	}
	fresh, ok := parseHex(r.fresh[:0], w.New)
	if r.fresh = fresh; !ok {
		return errors.New("new: blocks are not 16 lower-case hexadecimal digits each")
	}
	depth := uint32(0)
	if leaf != noBlock {
		depth = r.depth[leaf]
	}
	for _, h := range fresh {
		depth++
		r.parent = append(r.parent, leaf)
		leaf = uint32(len(r.hash))
		r.hash, r.depth = append(r.hash, h), append(r.depth, depth)
	}
	return nil
}

// leaf checks a block's number; nil and -1 are none.
func (r *Reader) leaf(at *int64) (uint32, error) {
	switch {
	case at == nil || *at == -1:
		return noBlock, nil
	case *at < 0 || *at >= int64(len(r.hash)):
		return 0, fmt.Errorf("block %d is not known here (%d are)", *at, len(r.hash))
	}
	return uint32(*at), nil
}

// path returns the chain that ends at a block, in r.memory.
func (r *Reader) path(at *int64) ([]block.Hash, error) {
	leaf, err := r.leaf(at)
	if err != nil || leaf == noBlock {
		return nil, err
	}
	start, n := len(r.memory), int(r.depth[leaf])
	if start+n > maxBlocks {
		return nil, fmt.Errorf("more than %d blocks in one request", maxBlocks)
	}
	r.memory = slices.Grow(r.memory, n)[:start+n]
	chain := r.memory[start : start+n : start+n]
	for i := n - 1; i >= 0; i-- {
		chain[i] = r.hash[leaf]
		leaf = r.parent[leaf]
	}
	return chain, nil
}

func (r *Reader) prompts(w *wirePrompts) (v score.Variant, err error) {
	if w.In == nil {
		return v, errors.New("in is missing")
	}
	v = score.Variant{Lengths: w.Lens, InputTokens: *w.In, TokensExact: w.Exact, Unhashable: w.Why}
	if v.Blocks, err = r.path(w.At); err != nil {
		return v, err
	}
	for i := range w.More {
		chain, err := r.path(&w.More[i])
		if err != nil {
			return v, err
		}
		v.More = append(v.More, chain)
	}
	if v.Lengths != nil && len(v.Lengths) != 1+len(v.More) {
		return v, fmt.Errorf("%d lengths of %d prompts", len(v.Lengths), 1+len(v.More))
	}
	return v, nil
}

func (r *Reader) decision(rec *Record) error {
	w := &r.w
	if w.NS == nil || len(w.Decision) == 0 {
		return errors.New("ns or decision is missing")
	}
	r.memory = r.memory[:0]
	v, err := r.prompts(&w.wirePrompts)
	if err != nil {
		return err
	}
	q := &rec.Req
	*q = score.Request{
		ID: w.ID, Model: r.head.Model, At: *w.NS, Blocks: v.Blocks, BlockSize: r.head.BlockSize, InputTokens: v.InputTokens, TokensExact: v.TokensExact,
		N: 1, BlockTokens: w.BT, Session: w.S, Multimodal: w.MM, Unhashable: v.Unhashable, More: v.More, LastComputed: w.Last, Lengths: v.Lengths, Approximate: w.Approx,
	}
	if w.Role != "" {
		if q.Role, err = score.ParseRole(w.Role); err != nil {
			return err
		}
	}
	if q.Retention, err = score.ParseRetention(w.Keep); err != nil {
		return err
	}
	if w.Size != nil {
		q.BlockSize = *w.Size
	}
	if w.N != nil {
		q.N = *w.N
	}
	var ok bool
	if q.Images, ok = parseHex[uint64](nil, w.Img); !ok {
		return errors.New("img: images are not 16 lower-case hexadecimal digits each")
	}
	if n := len(w.BT); n > 0 && n < len(q.Blocks) {
		return fmt.Errorf("bt has %d counts for %d blocks", n, len(q.Blocks))
	}
	for i := range w.Variants {
		v, err := r.prompts(&w.Variants[i])
		if err != nil {
			return fmt.Errorf("variant %d: %w", i+1, err)
		}
		q.Variants = append(q.Variants, v)
	}
	var ids []uint32
	if err := json.Unmarshal(w.Targets, &ids); err != nil {
		return fmt.Errorf("w: %w", err)
	}
	for _, id := range ids {
		if int(id) >= len(r.workers) || r.workers[id].Key == "" {
			return fmt.Errorf("w: target %d has not joined", id)
		}
		c := r.workers[id]
		if c.Variant > len(q.Variants) {
			return fmt.Errorf("w: target %d takes variant %d, there are %d", id, c.Variant, len(q.Variants))
		}
		rec.Candidates = append(rec.Candidates, c)
	}
	rec.JSON = w.Decision
	return nil
}

func (r *Reader) load(rec *Record) error {
	w := &r.w
	if rec.Load = LoadOp(lookup(loadOps, w.Op)); rec.Load == 0 {
		return fmt.Errorf("op %q is none", w.Op)
	}
	if w.D == nil || w.NS == nil && rec.Load != Unbind {
		return errors.New("d or ns is missing")
	}
	rec.Seq, rec.Output = *w.D, -1
	if w.NS != nil {
		rec.At = *w.NS
	}
	if w.Out != nil {
		rec.Output = *w.Out
	}
	return nil
}

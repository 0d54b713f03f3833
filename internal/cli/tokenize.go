package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/tokenize/hf"
)

// tokenizeFlags are the flags of tokenize.
type tokenizeFlags struct {
	model, template string
	prepare         string
	text            string
	special         bool
	request         string
	blockSize       int
	format          string
}

func (a *app) newTokenize() *cobra.Command {
	var f tokenizeFlags
	cmd := &cobra.Command{
		Use:   "tokenize",
		Short: "Show what the router makes of a prompt: text, token ids, block hashes",
		Long: `Takes a text or the body of a request (of /v1/chat/completions or of
/v1/completions) and shows the text the chat template makes of it, its token ids
and the hashes of its complete blocks, as serve computes them. Compare the ids
with those of the engine's own /tokenize.

--prepare says whose preparation of messages is followed: vllm and sglang treat
parts of content, tool calls and some roles in their own ways; none is what
apply_chat_template of transformers does. Without --model-path only the text is
given, for conversations by --chat-template.

With -o jsonl, --request holds one body a line, and each is answered on a line
of its own; a body that cannot be tokenized is answered with {"error": …}.`,
		Example: `  kvroute model write /tmp/tiny
  kvroute tokenize --model-path /tmp/tiny --text 'Which worker holds this prefix?'
  kvroute tokenize --model-path /tmp/tiny --text '<|im_start|>user' -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.tokenize(cmd.Context(), &f) },
	}
	fs := cmd.Flags()
	local := func(name, arg, def, usage string, values ...string) spec {
		return spec{name: name, arg: arg, def: def, usage: usage, group: groupPrompts, local: true, values: values}
	}
	bind(cmd, fs, local("model-path", "DIR", "", "model directory with tokenizer.json"), &f.model, parseText)
	bind(cmd, fs, local("chat-template", "FILE", "", "chat template to use instead of the model's own"), &f.template, parseText)
	prepares := []string{string(tokenize.PrepareNone), string(tokenize.PrepareVLLM), string(tokenize.PrepareSGLang)}
	bind(cmd, fs, local("prepare", "ENGINE", prepares[0], "prepare messages as this engine does: none, vllm, sglang", prepares...), &f.prepare, oneOf(prepares...))
	bind(cmd, fs, local("text", "TEXT", "", "tokenize this text as it is"), &f.text, parseAny)
	bindSwitch(cmd, fs, local("add-special-tokens", "", "", "add what the tokenizer puts around a text (BOS and the like)"), &f.special)
	bind(cmd, fs, local("request", "FILE", "", "tokenize the body of a request; - is stdin"), &f.request, parseText)
	bind(cmd, fs, local("block-size", "TOKENS", strconv.Itoa(block.DefaultSize), "tokens in a block"), &f.blockSize, intBetween(1, 1<<20))
	bindOutput(cmd, &f.format, formatTable, formatJSON, formatJSONL)
	return cmd
}

// parseAny takes any text, also none.
func parseAny(s string) (string, error) { return s, nil }

// tokenized is what is printed of one prompt. Text is null where it was given in ids.
type tokenized struct {
	Text    *string     `json:"text"`
	Basis   score.Basis `json:"basis"`
	Encoder string      `json:"encoder"`
	tokenizedPart
}

// tokenizedPart is the tokens of one prompt; hashes have 16 hex digits.
type tokenizedPart struct {
	Tokens []block.Token `json:"token_ids"`
	Blocks []string      `json:"block_hashes"`
}

// tokenizedBatch is what is printed of several prompts in one body.
type tokenizedBatch struct {
	Prompts []tokenizedPart `json:"prompts"`
	Basis   score.Basis     `json:"basis"`
	Encoder string          `json:"encoder"`
}

// textOnly is what is printed without a model.
type textOnly struct {
	Text string `json:"text"`
}

func (a *app) tokenize(ctx context.Context, f *tokenizeFlags) error {
	isText := a.given("text")
	switch {
	case isText && f.request != "":
		return usage("--text and --request", "kvroute tokenize", "one prompt at a time", "")
	case !isText && f.request == "":
		return usage("nothing to tokenize", "kvroute tokenize", "neither --text nor --request is given", "add --text TEXT, or --request FILE with the body of a request")
	case f.special && !isText:
		return usage("--add-special-tokens without --text", "kvroute tokenize", "a body says itself what is added", "")
	case isText && !utf8.ValidString(f.text):
		return usage("bad value", "--text", "it is not valid UTF-8", "")
	}
	m, err := a.tokenizeModel(f)
	if err != nil {
		return err
	}
	if !isText {
		return a.tokenizeFile(ctx, f, m)
	}
	body, err := json.Marshal(map[string]any{"prompt": f.text, "add_special_tokens": f.special})
	if err != nil {
		return fmt.Errorf("making a body of --text: %w", err)
	}
	doc, err := a.oneTokenized(ctx, m, f, body)
	if err != nil {
		return tokenizeFault(err, "--text")
	}
	return a.writeTokenized(f, doc)
}

// tokenizeModel opens what is there: a model, a template alone, or nothing.
func (a *app) tokenizeModel(f *tokenizeFlags) (*tokenize.Model, error) {
	if f.model != "" {
		m, loaded, err := a.openModel(f.model, f.template, tokenize.Limits{})
		if err != nil {
			return nil, err
		}
		for _, w := range loaded.Warnings {
			a.warn("%s", w)
		}
		return m, nil
	}
	var tpl tokenize.Template
	if f.template != "" {
		source, err := os.ReadFile(f.template)
		if err != nil {
			return nil, usage("cannot read chat template "+f.template, "--chat-template", pathWhy(err), "")
		}
		t, err := hf.Compile(string(source), hf.Options{})
		switch {
		case errors.Is(err, hf.ErrNotBuilt):
			return nil, failed("cannot render", "--chat-template", err)
		case err != nil:
			return nil, usage("bad chat template", f.template, err.Error(), "")
		}
		tpl = t
	}
	return tokenize.New(nil, tpl, tokenize.Meta{}, tokenize.Limits{})
}

// maxBody bounds a body read from a file or a line of it.
const maxBody = 64 << 20

func (a *app) tokenizeFile(ctx context.Context, f *tokenizeFlags, m *tokenize.Model) error {
	name, in := "stdin", io.Reader(newPatient(ctx, a.stdin))
	if f.request != "-" {
		file, err := openInput(ctx, f.request)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return usage("cannot read request "+f.request, "--request", pathWhy(err), "")
		}
		defer file.Close() // only read from
		name, in = f.request, file
	}
	if f.format == formatJSONL {
		return a.tokenizeLines(ctx, f, m, name, in)
	}
	body, err := io.ReadAll(io.LimitReader(in, maxBody+1))
	switch {
	case err != nil:
		return failed("cannot read the request", name, err)
	case len(body) > maxBody:
		return usage("request too large", name, fmt.Sprintf("at most %d bytes are read", maxBody), "")
	}
	doc, err := a.oneTokenized(ctx, m, f, body)
	if err != nil {
		return tokenizeFault(err, name)
	}
	return a.writeTokenized(f, doc)
}

// tokenizeLines answers every line, as soon as it is read: others may wait for it.
func (a *app) tokenizeLines(ctx context.Context, f *tokenizeFlags, m *tokenize.Model, name string, in io.Reader) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	out := json.NewEncoder(a.stdout)
	out.SetEscapeHTML(false)
	for n := 1; ; n++ {
		line, err := nextLine(lines, maxBody)
		if err != nil && !errors.Is(err, io.EOF) {
			return failed("cannot read requests", fmt.Sprintf("%s:%d", name, n), err)
		}
		last := err != nil
		if line = bytes.TrimSpace(line); len(line) > 0 {
			doc, err := a.oneTokenized(ctx, m, f, line)
			if err != nil {
				doc = struct {
					Error string `json:"error"`
				}{err.Error()}
			}
			if err := out.Encode(doc); err != nil {
				return failed("cannot write the result", "stdout", err)
			}
		}
		if last {
			return ctx.Err()
		}
	}
}

// nextLine returns the next line; io.EOF comes with the last one, which may lack its end.
func nextLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > most {
			return nil, fmt.Errorf("the line is longer than %d bytes", most)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// unhashable is a body without tokens.
type unhashable struct {
	reason string
	err    error
}

func (u *unhashable) Error() string {
	// The user's own template may say what it wants; the router's logs must not.
	var t *hf.TemplateError
	if errors.As(u.err, &t) && t.Detail != "" {
		return u.reason + ": " + t.Error() + ": " + t.Detail
	}
	return u.reason + ": " + u.err.Error()
}
func (u *unhashable) Unwrap() error { return u.err }

// oneTokenized tokenizes one body.
func (a *app) oneTokenized(ctx context.Context, m *tokenize.Model, f *tokenizeFlags, body []byte) (any, error) {
	ep := tokenize.Completions
	var probe struct {
		Messages json.RawMessage `json:"messages"`
	}
	if json.Unmarshal(body, &probe) == nil && probe.Messages != nil {
		ep = tokenize.Chat
	}
	res := m.Tokenize(ctx, ep, body, tokenize.Options{
		Variant: tokenize.Variant{Prepare: tokenize.Prepare(f.prepare)}, BlockSize: f.blockSize, Root: block.Root, KeepText: true, Now: a.now(),
	})
	switch {
	case res.Unhashable == tokenize.ReasonNoTokenizer && res.Text != nil:
		return textOnly{string(res.Text)}, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case res.Unhashable != "":
		return nil, &unhashable{res.Unhashable, res.Err}
	}
	basis := score.BasisExact
	if !res.Exact {
		basis = score.BasisEstimated
	}
	parts := make([]tokenizedPart, len(res.Prompts))
	for i, p := range res.Prompts {
		parts[i] = tokenizedPart{Tokens: append([]block.Token{}, p.Tokens...), Blocks: make([]string, len(p.Blocks))}
		for j, h := range p.Blocks {
			parts[i].Blocks[j] = fmt.Sprintf("%016x", uint64(h))
		}
	}
	if len(parts) != 1 {
		return tokenizedBatch{parts, basis, m.EncoderName()}, nil
	}
	doc := tokenized{Basis: basis, Encoder: m.EncoderName(), tokenizedPart: parts[0]}
	if res.Text != nil {
		text := string(res.Text)
		doc.Text = &text
	}
	return doc, nil
}

// tokenizeFault says what is wrong with a body: what no engine would take is the user's to mend.
func tokenizeFault(err error, where string) error {
	var u *unhashable
	if !errors.As(err, &u) {
		return err
	}
	switch f := usage("cannot tokenize the request", where, u.Error(), ""); u.reason {
	case tokenize.ReasonTemplate, tokenize.ReasonEncode, tokenize.ReasonBusy, tokenize.ReasonDeadline:
		f.code, f.err = exitFailed, err
		return f
	case tokenize.ReasonNoTokenizer:
		f.hint = "add --model-path DIR"
		return f
	default:
		return f
	}
}

// writeTokenized prints one result.
func (a *app) writeTokenized(f *tokenizeFlags, doc any) error {
	return a.emit(func(w io.Writer) error {
		switch f.format {
		case formatJSONL:
			return writeJSONLines(w, []any{doc})
		case formatTable:
			return a.tableTokenized(w, f, doc)
		}
		return writeTokenizedJSON(w, doc, a.givenFlags())
	})
}

// writeTokenizedJSON prints a result behind what every document begins with.
func writeTokenizedJSON(w io.Writer, doc any, flags map[string]any) error {
	head := struct {
		Schema  string         `json:"schema"`
		Version string         `json:"version"`
		Flags   map[string]any `json:"flags"`
	}{"kvroute.tokenize/v1", version(), flags}
	var text, out bytes.Buffer
	for _, v := range []any{head, doc} { // {…}\n{…}\n
		if err := writeJSONLines(&text, []any{v}); err != nil {
			return err
		}
	}
	joined := bytes.Replace(text.Bytes(), []byte("}\n{"), []byte(","), 1)
	if err := json.Indent(&out, joined, "", "  "); err != nil {
		return fmt.Errorf("indenting the result: %w", err)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// tableTokenized prints a result for people.
func (a *app) tableTokenized(w io.Writer, f *tokenizeFlags, doc any) error {
	text := func(s string) {
		fmt.Fprintf(w, "%s  %d bytes\n", a.bold("text   "), len(s))
		for line := range strings.SplitSeq(s, "\n") {
			fmt.Fprintf(w, "  | %s\n", printable(line))
		}
	}
	part := func(p tokenizedPart) {
		fmt.Fprintf(w, "%s  %d\n", a.bold("tokens "), len(p.Tokens))
		for line := range slices.Chunk(p.Tokens, 12) {
			fmt.Fprintf(w, "  %s\n", strings.Trim(fmt.Sprint(line), "[]"))
		}
		fmt.Fprintf(w, "%s  %d of %d tokens\n", a.bold("blocks "), len(p.Blocks), f.blockSize)
		for _, h := range p.Blocks {
			fmt.Fprintf(w, "  %s\n", h)
		}
	}
	basis := func(b score.Basis, encoder string) {
		fmt.Fprintf(w, "%s  %s\n%s  %s\n", a.bold("encoder"), encoder, a.bold("basis  "), b)
	}
	switch d := doc.(type) {
	case textOnly:
		text(d.Text)
	case tokenized:
		if d.Text != nil {
			text(*d.Text)
		}
		basis(d.Basis, d.Encoder)
		part(d.tokenizedPart)
	case tokenizedBatch:
		basis(d.Basis, d.Encoder)
		for _, p := range d.Prompts {
			part(p)
		}
	}
	return nil
}

//go:build cgo

package hf

/*
#cgo LDFLAGS: -L${SRCDIR}/../../../build/native -ltokenizers -ldl -lm -lpthread
#cgo noescape kvr_encode
#cgo nocallback kvr_encode
#cgo nocallback kvr_template_render
#include "kvr.h"
*/
import "C"

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// maxSource bounds the source of a template in bytes; real ones have some ten thousand.
const maxSource = 16 << 20

// nativeThreads bounds the threads the archive itself starts for one large text.
const nativeThreads = 4

// archive names the archive this program was linked with, by what it was built from; .ci/native writes the
// file that sets it. Empty: the archive was built by hand.
var archive string

// Archive is a digest of what the native archive was built from, "" if unknown.
func Archive() string { return archive }

func init() { C.kvr_init(C.uint32_t(min(runtime.NumCPU(), nativeThreads))) }

// Open loads the model directory (or tokenizer.json) at path. It takes about a second and, for large
// vocabularies, some hundred megabytes.
func Open(path string, opt Options) (*Model, error) {
	f, err := readFiles(path, opt)
	if err != nil {
		return nil, err
	}
	n := opt.Concurrent
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	sum := sha256.Sum256(f.tokenizer)
	m := &Model{
		Path: path, Digest: hex.EncodeToString(sum[:8]), Special: f.special, TokenizerClass: f.config.Class,
		ModelType: f.modelType, Architectures: f.archs, Warnings: f.warnings(),
		data: f.tokenizer, opt: opt, slots: make(chan struct{}, n),
	}
	for _, s := range f.special {
		switch s.Name {
		case "bos_token":
			m.BOS = s.Text
		case "eos_token":
			m.EOS = s.Text
		}
	}
	if err := m.openEncoder(); err != nil {
		return nil, fmt.Errorf("loading model %s: tokenizer.json: %w", path, err)
	}
	if m.Canary, err = m.encoder.Encode(nil, []byte(CanaryText), false); err != nil {
		return nil, fmt.Errorf("loading model %s: encoding the canary: %w", path, err)
	}
	for name, into := range map[string]**Template{"default": &m.plain, "tool_use": &m.tools} {
		source, ok := f.templates[name]
		if !ok {
			continue
		}
		if *into, err = compile(source, m.slots, opt.maxText()); err != nil {
			return nil, fmt.Errorf("loading model %s: %s: %w", path, f.configFile, err)
		}
	}
	return m, nil
}

// take copies bytes of the archive and gives them back.
func take(b C.kvr_bytes) []byte {
	if b.ptr == nil {
		return nil
	}
	out := C.GoBytes(unsafe.Pointer(b.ptr), C.int(b.len))
	C.kvr_bytes_free(b)
	return out
}

// pointer is where b begins, for calls that take a length too.
func pointer(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))) }

// encoder is the archive's model behind tokenize.Encoder: the fast encoder or the reference.
type encoder struct {
	handle    *modelHandle
	name      string
	added     []tokenize.AddedToken
	noNorm    bool
	reference bool
	slots     chan struct{}
	maxText   int
}

type modelHandle struct{ ptr *C.kvr_model }

func (m *Model) openEncoder() error {
	var info, fault C.kvr_bytes
	ptr := C.kvr_model_open(pointer(m.data), C.size_t(len(m.data)), &info, &fault)
	if ptr == nil {
		return errors.New(string(take(fault)))
	}
	handle := &modelHandle{ptr}
	runtime.AddCleanup(handle, func(p *C.kvr_model) { C.kvr_model_free(p) }, ptr)
	var about struct {
		Encoder         string       `json:"encoder"`
		FastOff         string       `json:"fast_off"`
		NormalizerEmpty bool         `json:"normalizer_empty"`
		VocabSize       int          `json:"vocab_size"`
		Added           []addedToken `json:"added"`
	}
	if err := json.Unmarshal(take(info), &about); err != nil {
		return fmt.Errorf("reading what the encoder says of itself: %w", err)
	}
	m.VocabSize, m.FastOff = about.VocabSize, about.FastOff
	e := &encoder{handle: handle, name: about.Encoder, noNorm: about.NormalizerEmpty, slots: m.slots, maxText: m.opt.maxText()}
	for _, t := range about.Added {
		e.added = append(e.added, tokenize.AddedToken(t))
	}
	m.encoder = e
	return nil
}

func (e *encoder) Name() string                 { return e.name }
func (e *encoder) Added() []tokenize.AddedToken { return e.added }
func (e *encoder) NormalizerEmpty() bool        { return e.noNorm }

// Encode implements tokenize.Encoder.
func (e *encoder) Encode(dst []block.Token, text []byte, addSpecial bool) ([]block.Token, error) {
	if err := check(text, e.maxText); err != nil {
		return dst, fmt.Errorf("encoding text: %w", err)
	}
	e.slots <- struct{}{}
	defer func() { <-e.slots }()
	return e.encode(dst, text, addSpecial)
}

func (e *encoder) encode(dst []block.Token, text []byte, addSpecial bool) ([]block.Token, error) {
	// A token covers about four bytes of prose; a wrong guess costs one copy.
	n := len(dst)
	if free := cap(dst) - n; free < len(text)/3+8 {
		grown := make([]block.Token, n, n+len(text)/3+8)
		copy(grown, dst)
		dst = grown
	}
	room := dst[n:cap(dst)]
	var more, fault C.kvr_bytes
	got := C.kvr_encode(e.handle.ptr, C.bool(e.reference), pointer(text), C.size_t(len(text)), C.bool(addSpecial),
		(*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(room))), C.size_t(len(room)), &more, &fault)
	runtime.KeepAlive(e.handle)
	switch {
	case got < 0:
		return dst, fmt.Errorf("encoding %d bytes with %s: %s", len(text), e.name, take(fault))
	case more.ptr != nil:
		ids := unsafe.Slice((*block.Token)(unsafe.Pointer(more.ptr)), int(got))
		dst = append(dst, ids...)
		C.kvr_bytes_free(more)
		return dst, nil
	}
	return dst[:n+int(got)], nil
}

// check says whether the archive takes the text.
func check(text []byte, limit int) error {
	if len(text) > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(text), limit)
	}
	if !utf8.Valid(text) {
		return ErrUTF8
	}
	return nil
}

// Decode is the text of ids, special tokens included, as the reference decodes them.
func (m *Model) Decode(ids []block.Token) (string, error) {
	var text, fault C.kvr_bytes
	ok := C.kvr_decode(m.encoder.handle.ptr, (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(ids))), C.size_t(len(ids)), &text, &fault)
	runtime.KeepAlive(m.encoder.handle)
	if !ok {
		return "", fmt.Errorf("decoding %d ids: %s", len(ids), take(fault))
	}
	return string(take(text)), nil
}

// Template is a compiled chat template.
type Template struct {
	handle    *templateHandle
	source    string
	variables []string
	vllm      bool
	sglang    bool
	slots     chan struct{}
	maxText   int
}

type templateHandle struct{ ptr *C.kvr_template }

// Compile compiles a chat template for use without a model.
func Compile(source string, opt Options) (*Template, error) {
	n := opt.Concurrent
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	return compile(source, make(chan struct{}, n), opt.maxText())
}

func compile(source string, slots chan struct{}, maxText int) (*Template, error) {
	src := []byte(source)
	if err := check(src, maxSource); err != nil {
		return nil, fmt.Errorf("compiling the chat template: %w", err)
	}
	var info, fault C.kvr_bytes
	ptr := C.kvr_template_compile(pointer(src), C.size_t(len(src)), &info, &fault)
	if ptr == nil {
		return nil, fmt.Errorf("compiling the chat template: %s", take(fault))
	}
	handle := &templateHandle{ptr}
	runtime.AddCleanup(handle, func(p *C.kvr_template) { C.kvr_template_free(p) }, ptr)
	var about struct {
		Variables   []string `json:"variables"`
		PartsVLLM   bool     `json:"parts_vllm"`
		PartsSGLang bool     `json:"parts_sglang"`
	}
	if err := json.Unmarshal(take(info), &about); err != nil {
		return nil, fmt.Errorf("reading what the template says of itself: %w", err)
	}
	return &Template{
		handle: handle, source: source, variables: about.Variables, vllm: about.PartsVLLM, sglang: about.PartsSGLang,
		slots: slots, maxText: maxText,
	}, nil
}

// Source is the template's text as it was read.
func (t *Template) Source() string { return t.source }

// Variables are the names the template reads and does not set, sorted.
func (t *Template) Variables() []string { return t.variables }

// WantsParts implements tokenize.Template by vLLM's rule.
func (t *Template) WantsParts() bool { return t.vllm }

// WantsPartsFor is WantsParts by the rule of the engine: SGLang also takes any mention of images, audio
// or video in the source for a yes, and follows fewer names of loop variables.
func (t *Template) WantsPartsFor(p tokenize.Prepare) bool {
	if p == tokenize.PrepareSGLang {
		return t.sglang
	}
	return t.vllm
}

// Render implements tokenize.Template. Errors are *TemplateError, or wrap ErrTooLarge or ErrUTF8.
func (t *Template) Render(dst, vars []byte, now time.Time) ([]byte, error) {
	if err := check(vars, t.maxText); err != nil {
		return dst, fmt.Errorf("rendering the chat template: %w", err)
	}
	if now.Year() < 1 || now.Year() > 9999 {
		return dst, fmt.Errorf("rendering the chat template: the year %d is not between 1 and 9999", now.Year())
	}
	t.slots <- struct{}{}
	defer func() { <-t.slots }()
	clock := C.kvr_time{
		year: C.int32_t(now.Year()), month: C.int32_t(now.Month()), day: C.int32_t(now.Day()),
		hour: C.int32_t(now.Hour()), minute: C.int32_t(now.Minute()), second: C.int32_t(now.Second()),
		micro: C.int32_t(now.Nanosecond() / 1000), weekday: C.int32_t(now.Weekday()), yearday: C.int32_t(now.YearDay() - 1),
	}
	var text, fault C.kvr_bytes
	ok := C.kvr_template_render(t.handle.ptr, pointer(vars), C.size_t(len(vars)), clock, &text, &fault)
	runtime.KeepAlive(t.handle)
	if !ok {
		return dst, templateError(take(fault))
	}
	dst = append(dst, unsafe.Slice((*byte)(unsafe.Pointer(text.ptr)), int(text.len))...)
	C.kvr_bytes_free(text)
	return dst, nil
}

func templateError(raw []byte) error {
	var f struct {
		Kind, What, Detail string
		Line               int
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return fmt.Errorf("rendering the chat template: unreadable error of the archive: %w", err)
	}
	return &TemplateError{
		What: strings.TrimSpace(f.What), Detail: f.Detail, Line: f.Line, Raised: f.Kind == "raised", BadVars: f.Kind == "vars",
	}
}

// floatRepr is the archive's Python repr of a float, for tests.
func floatRepr(v float64) string {
	var buf [32]byte
	n := C.kvr_float(C.double(v), pointer(buf[:]))
	return string(buf[:n])
}

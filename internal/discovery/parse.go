package discovery

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kvroute/kvroute/internal/report"
)

// Keys are the keys of a worker besides its URL. Names under meta are free.
var Keys = []string{"model", "role", "engine", "events", "replay", "topic", "block-size", "dp-size", "meta.<name>"}

// Poll as events says that the engine hands out its events over HTTP, as TensorRT-LLM does.
const Poll = "poll"

// TemplateKwargs is the name under meta of the engine's default arguments of the chat template, a JSON
// object, for engines that do not tell (vLLM's --default-chat-template-kwargs).
const TemplateKwargs = "chat_template_kwargs"

// Bounds of what can be said.
const (
	maxText      = 1 << 16
	maxBlockSize = 1 << 20
	maxDPSize    = 1 << 12
	maxMeta      = 64
)

// ParseWorker reads a value of --worker: URL[,key=value…]. Errors are *Error, one line each.
func ParseWorker(text string) (Spec, error) {
	if len(text) > maxText {
		return Spec{}, wrong(fmt.Sprintf("%d bytes are no description of a worker", len(text)), "")
	}
	if !utf8.ValidString(text) {
		return Spec{}, wrong(fmt.Sprintf("%q is not UTF-8", text), "")
	}
	address, rest, more := strings.Cut(text, ",")
	b := newBuilder()
	if err := b.address(strings.TrimSpace(address)); err != nil {
		return Spec{}, err
	}
	for more {
		var pair string
		pair, rest, more = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return Spec{}, wrong(fmt.Sprintf("%q is not key=value", pair), "write URL,key=value,… with "+strings.Join(Keys, ", "))
		}
		if err := b.set(strings.TrimSpace(key), strings.TrimSpace(value)); err != nil {
			return Spec{}, err
		}
	}
	return b.finish()
}

// builder collects what is said of one worker, from a flag or a file.
type builder struct {
	s    Spec
	seen map[string]bool
}

func newBuilder() *builder { return &builder{s: Spec{Role: Mixed}, seen: map[string]bool{}} }

// address sets URL and ID.
func (b *builder) address(text string) error {
	u, err := parseURL(text)
	if err != nil {
		return err
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	b.s.URL, b.s.ID = u, net.JoinHostPort(u.Hostname(), port)
	return nil
}

func parseURL(text string) (*url.URL, error) {
	if text == "" {
		return nil, wrong("the URL is missing", "write http://host:port")
	}
	if !strings.Contains(text, "://") {
		return nil, wrong(fmt.Sprintf("%q has no scheme", text), "did you mean http://"+text+"?")
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, wrong(fmt.Sprintf("%q is not a URL: %s", text, urlReason(err)), "write http://host:port, IPv6 in brackets")
	}
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, wrong(fmt.Sprintf("scheme %q: workers are reached over http or https", u.Scheme), report.DidYouMean(u.Scheme, []string{"http", "https"}))
	case u.User != nil:
		return nil, wrong("the URL holds a user name or password", "it would show in logs and views; let a proxy beside the worker add credentials")
	case u.Hostname() == "":
		return nil, wrong(fmt.Sprintf("%q names no host", text), "write http://host:port")
	case strings.ContainsFunc(u.Hostname(), func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return nil, wrong(fmt.Sprintf("host %q has white space or control characters", u.Hostname()), "")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, wrong(fmt.Sprintf("%q has a query or fragment", text), "give scheme, host and port only")
	case u.Path != "" && u.Path != "/":
		return nil, wrong(fmt.Sprintf("%q has a path; the API's paths are added to the address", text), "write "+u.Scheme+"://"+u.Host)
	}
	if err := checkHost(u); err != nil {
		return nil, err
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// checkHost refuses hosts and ports that url.Parse lets through.
func checkHost(u *url.URL) error {
	port := u.Port()
	if port == "" && strings.HasSuffix(u.Host, ":") {
		return wrong(fmt.Sprintf("%q has a colon and no port", u.Host), "")
	}
	if n, err := strconv.Atoi(port); port != "" && (err != nil || n < 1 || n > 65535) {
		return wrong(fmt.Sprintf("port %q is not between 1 and 65535", port), "")
	}
	if strings.Contains(u.Hostname(), ":") {
		address, _, _ := strings.Cut(u.Hostname(), "%")
		if net.ParseIP(address) == nil {
			return wrong(fmt.Sprintf("%q is not an IPv6 address", u.Hostname()), "")
		}
	}
	return nil
}

// urlReason is the inner part of an error of url.Parse, which repeats the whole text.
func urlReason(err error) string {
	s := err.Error()
	if i := strings.LastIndex(s, `": `); i >= 0 {
		s = s[i+3:]
	}
	return s
}

// set takes one key. Underscores are as good as hyphens.
func (b *builder) set(key, value string) error {
	if name, ok := strings.CutPrefix(key, "meta."); ok {
		return b.meta(name, value)
	}
	key = strings.ReplaceAll(key, "_", "-")
	take := map[string]func(string) error{
		"model": b.model, "role": b.role, "engine": b.engine, "events": b.events, "replay": b.replay,
		"topic": b.topic, "block-size": b.blockSize, "dp-size": b.dpSize,
	}[key]
	if take == nil {
		hint := report.DidYouMean(key, Keys)
		if hint == "" {
			hint = "keys are " + strings.Join(Keys, ", ")
		}
		return wrong(fmt.Sprintf("unknown key %q", key), hint)
	}
	if b.seen[key] {
		return wrong(fmt.Sprintf("key %q is there twice", key), "")
	}
	b.seen[key] = true
	if value == "" && key != "topic" {
		return wrong(fmt.Sprintf("key %q has no value", key), "leave it out where it is not known")
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return wrong(fmt.Sprintf("key %q: control characters in %q", key, value), "")
	}
	return take(value)
}

func (b *builder) model(v string) error { b.s.Model = v; return nil }

func (b *builder) topic(v string) error { b.s.Topic, b.s.HasTopic = v, true; return nil }

// oneOf takes a name out of a few.
func oneOf(key, v string, names ...string) error {
	for _, n := range names {
		if v == n {
			return nil
		}
	}
	hint := report.DidYouMean(v, names)
	if hint == "" {
		hint = "one of " + strings.Join(names, ", ")
	}
	return wrong(fmt.Sprintf("unknown %s %q", key, v), hint)
}

func (b *builder) role(v string) error {
	b.s.Role = Role(v)
	return oneOf("role", v, string(Mixed), string(Prefill), string(Decode))
}

func (b *builder) engine(v string) error {
	b.s.Engine = v
	return oneOf("engine", v, Engines...)
}

func (b *builder) events(v string) error {
	b.s.Events = v
	if v == Poll {
		return nil
	}
	return checkEndpoint("events", v, true)
}

func (b *builder) replay(v string) error {
	b.s.Replay = v
	return checkEndpoint("replay", v, false)
}

// checkEndpoint refuses endpoints nobody could connect to.
func checkEndpoint(key, v string, mayBind bool) error {
	scheme, address, ok := strings.Cut(v, "://")
	switch {
	case !ok:
		return wrong(fmt.Sprintf("%s: %q has no scheme", key, v), "did you mean tcp://"+v+"?")
	case scheme == "ipc" && address != "":
		return nil
	case scheme != "tcp":
		return wrong(fmt.Sprintf("%s: %q: endpoints are tcp://host:port or ipc://path", key, v), "")
	}
	host, port, err := net.SplitHostPort(address)
	n, perr := strconv.Atoi(port)
	switch {
	case err != nil || perr != nil || n < 1 || n > 65535:
		return wrong(fmt.Sprintf("%s: %q has no port between 1 and 65535", key, v), "write tcp://host:port, IPv6 in brackets")
	case host == "" || host == "0.0.0.0" || host == "::":
		return wrong(fmt.Sprintf("%s: %q names no host to connect to", key, v), "write the worker's host, or '*' where the engine dials and the router has to listen")
	case host == "*" && !mayBind:
		return wrong(fmt.Sprintf("%s: %q: engines listen for replay, so it needs their host", key, v), "")
	}
	return nil
}

func natural(key, v string, limit int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > limit {
		return 0, wrong(fmt.Sprintf("%s: %q is not a number from 1 to %d", key, v, limit), "leave it out where it is not known")
	}
	return n, nil
}

func (b *builder) blockSize(v string) (err error) {
	b.s.BlockSize, err = natural("block-size", v, maxBlockSize)
	return err
}

func (b *builder) dpSize(v string) (err error) {
	b.s.DPSize, err = natural("dp-size", v, maxDPSize)
	return err
}

func (b *builder) meta(name, value string) error {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '=' || r == ',' }) {
		return wrong(fmt.Sprintf("meta.%s is not a name", name), "write meta.<name>=value")
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return wrong(fmt.Sprintf("key %q: control characters in %q", "meta."+name, value), "")
	}
	if _, ok := b.s.Meta[name]; ok {
		return wrong(fmt.Sprintf("key %q is there twice", "meta."+name), "")
	}
	if len(b.s.Meta) >= maxMeta {
		return wrong(fmt.Sprintf("more than %d names under meta", maxMeta), "")
	}
	if b.s.Meta == nil {
		b.s.Meta = map[string]string{}
	}
	b.s.Meta[name] = value
	return nil
}

// finish checks what keys say together. Replay and topic may be there without events, which the engine can
// tell itself.
func (b *builder) finish() (Spec, error) {
	s := &b.s
	if text, ok := s.Meta[TemplateKwargs]; ok {
		var object map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
			return Spec{}, wrong(fmt.Sprintf("meta.%s: %q is not a JSON object", TemplateKwargs, text), `write what the engine was started with, {"enable_thinking":false} for one; commas only in a file`)
		}
	}
	for _, e := range []string{s.Events, s.Replay} {
		if e == "" || e == Poll || s.DPSize < 2 {
			continue
		}
		last, _ := RankEndpoint(e, s.DPSize-1)
		if checkEndpoint("", last, true) != nil {
			return Spec{}, wrong(fmt.Sprintf("rank %d would be at %s: no such port", s.DPSize-1, last), "")
		}
	}
	return *s, nil
}

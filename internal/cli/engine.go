package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/tinymodel"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Groups of engine's flags.
const (
	groupFaults = "Faults"
	groupWire   = "Wire"
)

// engineFlags are the flags of engine.
type engineFlags struct {
	cfg                        fakeengine.Config
	dialect, role, profile     string
	modelPath, template, model string
	faults                     []string
}

func (a *app) newEngine() *cobra.Command {
	var f engineFlags
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Stand in for an inference engine: its API, prefix cache and events",
		Long: `Looks to a router like vLLM, SGLang, ATOM or TensorRT-LLM: the OpenAI API and
the engine's own pages, real tokenization, a prefix cache by that engine's
rules, batching delays from a profile, and cache events over ZeroMQ in that
engine's wire form. Answers are words without meaning, the same for the same
prompt.

Without --model-path it serves the tiny model in this program; "kvroute model
write DIR" writes that out for a router. Things go wrong on command: --fault, or
POST /fault while it runs. docs/engine.md says what is like the real engines and
what is not.`,
		Example: `  # a vLLM and an SGLang on free event ports, which they tell on their own pages
  kvroute engine --dialect vllm --listen 127.0.0.1:30000
  kvroute engine --dialect sglang --listen 127.0.0.1:30001
  # an older vLLM: fixed ports, a small cache, two ranks, ten times as fast
  kvroute engine --engine-version 0.23.0 --events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5567 --capacity 500 --dp-size 2 --time-scale 0.1
  # every tenth request fails, and three event batches are lost on the way
  kvroute engine --fault errors=500:0.1 --fault drop-events=3`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runEngine(cmd.Context(), &f) },
	}
	fs := cmd.Flags()
	text := func(name, arg, def, group, usage string, to *string) {
		bind(cmd, fs, spec{name: name, arg: arg, def: def, group: group, usage: usage}, to, parseText)
	}
	count := func(name, def, group, usage string, to *int, low, high int64) {
		bind(cmd, fs, spec{name: name, arg: "N", def: def, group: group, usage: usage}, to, intBetween(low, high))
	}
	choice := func(name, def, group, usage string, to *string, values ...string) {
		bind(cmd, fs, spec{name: name, arg: "NAME", def: def, group: group, usage: usage, values: values}, to, oneOf(values...))
	}
	var dialects []string
	for _, d := range fakeengine.Dialects() {
		dialects = append(dialects, string(d))
	}
	choice("dialect", dialects[0], groupEngine, "the engine to be: "+strings.Join(dialects, ", "), &f.dialect, dialects...)
	text("engine-version", "VERSION", "", groupEngine, "its version, whose wire forms are spoken (default: the newest known)", &f.cfg.Version)
	text("listen", "ADDR", "127.0.0.1:30000", groupListen, "address of the API", &f.cfg.Listen)
	text("model-path", "DIR", "", groupPrompts, "model directory with tokenizer.json (default: the tiny model in this program)", &f.modelPath)
	text("chat-template", "FILE", "", groupPrompts, "chat template to use instead of the model's own", &f.template)
	text("served-model-name", "NAME", "", groupPrompts, "name of the model in the API (default: the directory's, or tiny)", &f.model)
	bindList(cmd, fs, spec{name: "adapter", arg: "NAME", group: groupPrompts, usage: "LoRA adapters to serve as models of their own; repeatable"}, ",", &f.cfg.Adapters, parseText)
	count("max-model-len", "0", groupPrompts, "tokens of prompt and answer; 0: half of what the cache holds, 131072 at most", &f.cfg.MaxModelLen, 0, 1<<30)

	count("block-size", "16", groupEngine, "tokens in a block or page of the cache", &f.cfg.BlockSize, 1, 1<<16)
	count("capacity", "0", groupEngine, "blocks of the cache, for each rank; 0: the profile's pool", &f.cfg.Capacity, 0, 1<<24)
	count("dp-size", "1", groupEngine, "data-parallel ranks", &f.cfg.Ranks, 1, 256)
	count("max-num-seqs", "0", groupEngine, "requests that run at once in a rank; 0: the profile's", &f.cfg.MaxSeqs, 0, 1<<16)
	bind(cmd, fs, spec{name: "max-num-batched-tokens", arg: "N", def: "0", group: groupEngine, usage: "tokens of a step; 0: the profile's"}, &f.cfg.Budget, countBetween(0, 1<<24))
	bind(cmd, fs, spec{
		name: "profile", arg: "NAME|FILE", def: engine.DefaultProfile, group: groupEngine, values: engine.ProfileNames(),
		usage: "what a step costs, built in or a YAML file",
	}, &f.profile, parseText)
	bind(cmd, fs, spec{name: "time-scale", arg: "X", def: "1", group: groupEngine, usage: "multiply all step times; 0: no delays"}, &f.cfg.TimeScale, parseReal)
	choice("role", "mixed", groupEngine, "mixed; engines that only prefill or decode are not there yet", &f.role, "mixed", "prefill", "decode")
	bind(cmd, fs, spec{name: "seed", arg: "N", def: "0", group: groupEngine, usage: "of answers and of faults by ratio"}, &f.cfg.Seed, parseSeed)

	text("events", "ENDPOINT", "tcp://127.0.0.1:0", groupWire, "where cache events are published, rank r at the port plus r; port 0: free ones; none: nowhere", &f.cfg.Events)
	text("replay", "ENDPOINT", "tcp://127.0.0.1:0", groupWire, "where missed events can be asked for; none: nowhere", &f.cfg.Replay)
	text("topic", "TEXT", "kv-events", groupWire, "topic of the events; may be empty", &f.cfg.Topic)
	choice("event-form", "", groupWire, "array or map (default: what the version sends)", &f.cfg.EventForm, fakeengine.FormArray, fakeengine.FormMap)
	bindSwitch(cmd, fs, spec{name: "events-dial", group: groupWire, usage: "connect to --events instead of binding it"}, &f.cfg.EventsDial)
	count("replay-buffer", "10000", groupWire, "batches kept for replay", &f.cfg.Buffer, 1, 1<<20)
	text("hash-seed", "TEXT", "0", groupWire, "vllm: PYTHONHASHSEED, the root of its block hashes", &f.cfg.HashSeed)

	var names []string
	for _, n := range fakeengine.FaultNames() {
		names = append(names, n+"=")
	}
	bindList(cmd, fs, spec{
		name: "fault", arg: "NAME=VALUE", group: groupFaults, values: names,
		usage: "what goes wrong from the start on, as in drop-events=3, errors=500:0.1, errors=429x5, slow-first-byte=2s; repeatable",
	}, "", &f.faults, parseFault)
	return cmd
}

// parseFault checks one fault; they are put together when all are known.
func parseFault(s string) (string, error) {
	if err := fakeengine.ParseFault(&fakeengine.Fault{}, s); err != nil {
		name, _, _ := strings.Cut(s, "=")
		return "", &valueError{err.Error(), didYouMean(name, fakeengine.FaultNames())}
	}
	return s, nil
}

// engineConfig turns the flags into a configuration, its model loaded.
func (a *app) engineConfig(f *engineFlags) (fakeengine.Config, error) {
	c := f.cfg
	if f.role != "mixed" {
		return c, usage("--role "+f.role, "--role", "engines that only prefill or decode are not there yet", "leave it out")
	}
	c.Dialect = fakeengine.Dialect(f.dialect)
	c.NoTopic = c.Topic == ""
	for _, e := range []*string{&c.Events, &c.Replay} {
		if *e == "none" {
			*e = ""
		}
	}
	if c.Events == "" {
		c.Replay = ""
	}
	p, err := loadProfile(f.profile)
	if err != nil {
		return c, err
	}
	c.Profile = p
	if c.Capacity == 0 {
		c.Capacity = int(min(p.KVTokens/int64(c.BlockSize), 1<<24))
	}
	for _, s := range f.faults {
		if err := fakeengine.ParseFault(&c.Faults, s); err != nil {
			return c, usage("bad value "+s, "--fault", err.Error(), "")
		}
	}
	c.Model = f.model
	tok, voc, name, err := a.engineModel(f.modelPath, f.template)
	if err != nil {
		return c, err
	}
	c.Tokenizer, c.Vocabulary = tok, voc
	if c.Model == "" {
		c.Model = name
	}
	return c, nil
}

// engineModel loads a model directory, or the one in this program where path is "".
func (a *app) engineModel(path, template string) (tokenize.Tokenizer, fakeengine.Vocabulary, string, error) {
	name := "tiny"
	if path == "" {
		dir, err := os.MkdirTemp("", "kvroute-model-")
		if err != nil {
			return nil, nil, "", failed("cannot unpack the tiny model", "", err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a directory in /tmp that nobody needs
		if err := tinymodel.WriteTo(dir); err != nil {
			return nil, nil, "", failed("cannot unpack the tiny model", dir, err)
		}
		path = dir
	} else if abs, err := filepath.Abs(path); err == nil {
		name = filepath.Base(strings.TrimSuffix(abs, "/tokenizer.json"))
	}
	m, voc, err := a.openModel(path, template, tokenize.Limits{})
	if err != nil {
		return nil, nil, "", err
	}
	return m, voc, name, nil
}

// runEngine serves until the first signal.
func (a *app) runEngine(ctx context.Context, f *engineFlags) error {
	c, err := a.engineConfig(f)
	if err != nil {
		return err
	}
	c.Exit = func() { os.Exit(137) } // as a process that was killed
	e, err := fakeengine.Start(c)
	if err != nil {
		return failed("cannot start the engine", f.cfg.Listen, errors.New(strings.TrimPrefix(err.Error(), "starting the engine: ")))
	}
	fmt.Fprintf(a.stderr, "kvroute: %s stand-in serves model %s at %s\n", c.Dialect, c.Model, e.URL())
	for r := range c.Ranks {
		if events, replay := e.Endpoints(r); events != "" {
			fmt.Fprintf(a.stderr, "kvroute: rank %d: events at %s, replay at %s\n", r, events, orNone(replay))
		}
	}
	<-ctx.Done()
	if err := e.Close(); err != nil {
		return failed("the engine did not end well", "", err)
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

package fakeengine

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Dialect names the engine that is stood in for.
type Dialect string

// The dialects.
const (
	VLLM   Dialect = "vllm"
	SGLang Dialect = "sglang"
	ATOM   Dialect = "atom"
	TRTLLM Dialect = "trtllm"
)

// Dialects lists them.
func Dialects() []Dialect { return []Dialect{VLLM, SGLang, ATOM, TRTLLM} }

// newest is the version each dialect has by default, the newest whose wire form was captured or read.
var newest = map[Dialect]string{VLLM: "0.32.0", SGLang: "0.5.23", ATOM: "0.2.0", TRTLLM: "1.3.0"}

// Event forms.
const (
	FormArray = "array"
	FormMap   = "map"
)

// Config describes an engine. The zero value of a field means the default that is stated for it.
type Config struct {
	Dialect Dialect // default vllm
	// Version is the engine version whose wire form is spoken: "0.23.0". Default: the newest known.
	// For atom 0.1 means before, 0.2 after its publisher got numbers and replay.
	Version   string
	EventForm string // FormArray or FormMap; default: what the version sends

	Listen string // HTTP address; default 127.0.0.1:0
	// Events and Replay are ZeroMQ endpoints of rank 0; rank r has the port plus r. Port 0 takes free
	// consecutive ones. "" for Events: no events are published; for Replay: there is no replay.
	Events, Replay string
	EventsDial     bool   // connect the PUB socket instead of binding it
	Topic          string // of the events; default "kv-events"
	NoTopic        bool   // an empty topic
	Buffer         int    // batches kept for replay; default 10000

	Model       string // served model name; default "tiny"
	Adapters    []string
	Tokenizer   tokenize.Tokenizer // nil: prompts must be token ids
	Vocabulary  Vocabulary         // text of token ids; nil: there is no /detokenize
	MaxModelLen int                // default: what half the cache holds, 131072 at most

	BlockSize int   // tokens of a cache block or page; default 16
	Capacity  int   // blocks; default 4096
	Ranks     int   // data-parallel ranks; default 1
	MaxSeqs   int   // requests that run at once in a rank; default: the profile's
	Budget    int64 // tokens of a step; default: the profile's
	HashSeed  string
	Seed      uint64 // of answers

	Profile   *engine.Profile // costs of steps; default engine.DefaultProfile
	TimeScale float64         // multiplies step times; 0: no delays at all

	ReportBlockSize int // block size that /metrics and /server_info state; default: the true one
	Faults          Fault
	// Exit ends the process for the fault "exit"; nil: the engine is closed as if the process had died.
	Exit func()
	// Sample draws the token after tokens, where prompt of them are the prompt's; nil: seeded words.
	Sample func(tokens []uint32, prompt int) uint32
}

// Validate reports every fault of the configuration, after defaults.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, why string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(why, args...)))
	}
	if !slices.Contains(Dialects(), c.Dialect) {
		bad("dialect", "%q is none of %v", c.Dialect, Dialects())
	}
	if c.EventForm != "" && c.EventForm != FormArray && c.EventForm != FormMap {
		bad("event form", "%q is neither %s nor %s", c.EventForm, FormArray, FormMap)
	}
	if _, err := parseVersion(c.Version); err != nil {
		bad("version", "%v", err)
	}
	for _, f := range []struct {
		name      string
		v, lo, hi int
	}{
		{"block size", c.BlockSize, 1, 1 << 16},
		{"capacity", c.Capacity, 2, 1 << 24},
		{"ranks", c.Ranks, 1, 256},
		{"running requests", c.MaxSeqs, 1, 1 << 16},
		{"buffer", c.Buffer, 1, 1 << 20},
		{"model length", c.MaxModelLen, 1, (c.Capacity - 1) * c.BlockSize},
	} {
		if f.v < f.lo || f.v > f.hi {
			bad(f.name, "must be %d to %d, is %d", f.lo, f.hi, f.v)
		}
	}
	if c.Budget < int64(c.MaxSeqs) {
		bad("budget", "must be at least the %d running requests, is %d", c.MaxSeqs, c.Budget)
	}
	if c.Budget < int64(c.BlockSize) {
		bad("budget", "must be at least a block of %d tokens, is %d", c.BlockSize, c.Budget)
	}
	if !(c.TimeScale >= 0) || c.TimeScale > 1e6 {
		bad("time scale", "must be 0 to 1e6, is %v", c.TimeScale)
	}
	if c.Replay != "" && c.Events == "" {
		bad("replay", "there is no replay without events")
	}
	for _, e := range []struct{ name, at string }{{"events", c.Events}, {"replay", c.Replay}} {
		if e.at != "" {
			if _, _, err := splitEndpoint(e.at); err != nil {
				bad(e.name, "%v", err)
			}
		}
	}
	if err := c.Faults.validate(c.Ranks); err != nil {
		bad("faults", "%v", err)
	}
	return errors.Join(errs...)
}

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	or := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	num := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Dialect == "" {
		c.Dialect = VLLM
	}
	or(&c.Version, newest[c.Dialect])
	or(&c.Listen, "127.0.0.1:0")
	or(&c.Model, "tiny")
	or(&c.HashSeed, "0")
	or(&c.Topic, "kv-events")
	if c.NoTopic {
		c.Topic = ""
	}
	if c.Profile == nil {
		c.Profile, _ = engine.Lookup(engine.DefaultProfile)
	}
	num(&c.BlockSize, 16)
	num(&c.Capacity, 4096)
	num(&c.Ranks, 1)
	num(&c.Buffer, 10000)
	num(&c.MaxSeqs, c.Profile.MaxRunning)
	if c.Budget == 0 {
		c.Budget = max(c.Profile.ChunkTokens, int64(c.MaxSeqs), int64(c.BlockSize))
	}
	num(&c.MaxModelLen, max(1, min(131072, (c.Capacity-1)*c.BlockSize/2)))
	num(&c.ReportBlockSize, c.BlockSize)
	return c
}

// splitEndpoint takes tcp://host:port apart; ipc:// and inproc:// endpoints have no port (-1).
func splitEndpoint(at string) (host string, port int, err error) {
	u, err := url.Parse(strings.Replace(at, "*", "0.0.0.0", 1))
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("endpoint %q: not an address", at)
	case u.Scheme == "ipc" || u.Scheme == "inproc":
		return "", -1, nil
	case u.Scheme != "tcp" || u.Port() == "":
		return "", 0, fmt.Errorf("endpoint %q: must look like tcp://host:port", at)
	}
	port, err = strconv.Atoi(u.Port())
	if err != nil || port > 65535 {
		return "", 0, fmt.Errorf("endpoint %q: bad port %q", at, u.Port())
	}
	host = u.Hostname()
	if strings.Contains(at, "*") {
		host = "*"
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host, port, nil
}

// version is major, minor, patch.
type version [3]int

func parseVersion(s string) (version, error) {
	var v version
	parts := strings.SplitN(s, ".", 3)
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return v, fmt.Errorf("%q does not look like 0.32.0", s)
		}
		v[i] = n
	}
	return v, nil
}

// atLeast compares versions.
func (v version) atLeast(major, minor, patch int) bool {
	return slices.Compare(v[:], []int{major, minor, patch}) >= 0
}

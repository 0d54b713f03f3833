package engine

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Profile holds the constants of the batch model for one deployment, and where they come from.
//
// A step costs
//
//	a + b*running + c*context tokens + prefill per token * tokens + attention * ((s+p)²-s²)
//
// where running and context count the decoding requests of one worker (one cache: a data-parallel rank
// where there are ranks).
type Profile struct {
	Name     string `yaml:"name"`
	Hardware string `yaml:"hardware"`
	Model    string `yaml:"model"`
	Engine   string `yaml:"engine"`
	Origin   string `yaml:"origin"`         // where the numbers come from
	Measured bool   `yaml:"measured_by_us"` // by this project, on that hardware
	// Assumptions lists what was not measured by anyone, or not on this deployment.
	Assumptions []string `yaml:"assumptions"`

	StepMS            float64 `yaml:"a_ms"`                    // fixed part of a step
	RequestMS         float64 `yaml:"b_ms_per_request"`        // for each decoding request
	ContextMS         float64 `yaml:"c_ms_per_million_tokens"` // for each million tokens of their context
	PrefillUS         float64 `yaml:"prefill_us_per_token"`
	PrefillSquareUS   float64 `yaml:"prefill_us_per_thousand_tokens_squared"` // attention: times (prompt/1000)²
	ChunkTokens       int64   `yaml:"chunk_tokens"`                           // token budget of a step
	MaxRunning        int     `yaml:"max_running"`                            // requests with memory, per worker
	BlockSize         int64   `yaml:"block_size"`                             // tokens; for traces without blocks of their own
	KVTokens          int64   `yaml:"kv_tokens"`                              // pool of one worker
	TransferUS        float64 `yaml:"transfer_us"`                            // prefill to decode: fixed part
	TransferUSPerKTok float64 `yaml:"transfer_us_per_thousand_tokens"`        // and for each thousand tokens sent

	// Fit is there if a, b and c were fitted to logs of the engine.
	Fit *ProfileFit `yaml:"fit,omitempty"`
}

// maxField bounds every cost, so that coefficients in ticks stay far from overflow.
const maxField = 1e9

// Validate reports every fault of the profile at once.
func (p *Profile) Validate() error {
	var errs []error
	bad := func(field, why string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(why, args...)))
	}
	if strings.TrimSpace(p.Name) == "" {
		bad("name", "is missing")
	}
	if strings.TrimSpace(p.Origin) == "" {
		bad("origin", "is missing: say where the numbers come from")
	}
	for _, f := range []struct {
		name string
		v    float64
	}{
		{"a_ms", p.StepMS},
		{"b_ms_per_request", p.RequestMS},
		{"c_ms_per_million_tokens", p.ContextMS},
		{"prefill_us_per_token", p.PrefillUS},
		{"prefill_us_per_thousand_tokens_squared", p.PrefillSquareUS},
		{"transfer_us", p.TransferUS},
		{"transfer_us_per_thousand_tokens", p.TransferUSPerKTok},
	} {
		switch {
		case math.IsNaN(f.v) || math.IsInf(f.v, 0):
			bad(f.name, "must be a finite number, not %v", f.v)
		case f.v < 0:
			bad(f.name, "must not be negative, is %v", f.v)
		case f.v > maxField:
			bad(f.name, "is %v, more than %g", f.v, maxField)
		}
	}
	if !(p.StepMS >= 1e-6) {
		bad("a_ms", "must be at least 1e-6: a step takes time")
	}
	if p.ChunkTokens < 1 || p.ChunkTokens > 1<<24 {
		bad("chunk_tokens", "must be 1 to %d, is %d", 1<<24, p.ChunkTokens)
	}
	if p.MaxRunning < 1 || int64(p.MaxRunning) > p.ChunkTokens {
		bad("max_running", "must be 1 to chunk_tokens (%d), is %d: each running request takes a token of a step", p.ChunkTokens, p.MaxRunning)
	}
	if p.BlockSize < 1 || p.BlockSize > 1<<20 {
		bad("block_size", "must be 1 to %d, is %d", 1<<20, p.BlockSize)
	}
	if p.KVTokens < p.BlockSize || p.KVTokens > 1<<40 {
		bad("kv_tokens", "must be block_size (%d) to %d, is %d", p.BlockSize, int64(1)<<40, p.KVTokens)
	}
	if p.Fit != nil {
		p.Fit.validate(bad)
	}
	return errors.Join(errs...)
}

// Cost converts the profile to ticks, each coefficient rounded to the nearest.
func (p *Profile) Cost() Cost {
	ticks := func(us float64) int64 { return int64(math.Round(us * float64(TicksPerMicrosecond))) }
	return Cost{
		Step:             max(1, ticks(p.StepMS*1e3)),
		PerRequest:       ticks(p.RequestMS * 1e3),
		PerContext:       ticks(p.ContextMS * 1e3 / 1e6),
		PerPrefill:       ticks(p.PrefillUS),
		PerPrefillSquare: ticks(p.PrefillSquareUS / 1e6),
	}
}

// Transfer is the time in ticks to move the KV of tokens from a prefill to a decode worker.
func (p *Profile) Transfer(tokens int64) int64 {
	fixed := int64(math.Round(p.TransferUS * float64(TicksPerMicrosecond)))
	perToken := int64(math.Round(p.TransferUSPerKTok * float64(TicksPerMicrosecond) / 1e3))
	return addSat(fixed, mulSat(perToken, tokens))
}

// ParseProfile reads one profile, YAML or JSON. Unknown keys, repeated keys, wrong types, a second
// document and values out of range are errors; name stands for the source in messages.
func ParseProfile(r io.Reader, name string) (*Profile, error) {
	const limit = 1 << 20
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading profile %s: %w", name, err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("profile %s: is larger than %d bytes", name, limit)
	}
	var p Profile
	dec := yaml.NewDecoder(strings.NewReader(string(data)), yaml.Strict(), yaml.DisallowUnknownField())
	if err := dec.Decode(&p); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("profile %s: is empty", name)
		}
		return nil, fmt.Errorf("profile %s: %s", name, plainYAML(err))
	}
	if err := dec.Decode(&Profile{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("profile %s: has more than one document", name)
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("profile %s: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return &p, nil
}

// plainYAML makes one line of a decoder's message: position and reason, without the excerpt.
func plainYAML(err error) string {
	msg, _, _ := strings.Cut(yaml.FormatError(err, false, false), "\n")
	return goType.ReplaceAllString(strings.TrimSpace(msg), "as $1")
}

// goType is how the YAML library names what it wanted.
var goType = regexp.MustCompile(`into Go struct field \S+ of type (\w+)`)

// Encode returns the profile as YAML that ParseProfile reads back unchanged.
func (p *Profile) Encode() ([]byte, error) {
	out, err := yaml.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encoding profile %s: %w", p.Name, err)
	}
	return out, nil
}

//go:embed profiles/*.yaml
var builtin embed.FS

// DefaultProfile is the profile taken where none is named.
const DefaultProfile = "mi355x-glm5.2-dp8"

// Profiles returns the built-in profiles, by name. The caller owns them.
func Profiles() []*Profile {
	var out []*Profile
	for _, name := range ProfileNames() {
		out = append(out, embedded(name))
	}
	return out
}

// embedded reads a built-in profile, whose file has its name. A test reads them all.
func embedded(name string) *Profile {
	file := path.Join("profiles", name+".yaml")
	f, err := builtin.Open(file)
	if err != nil {
		panic("engine: built-in profile: " + err.Error())
	}
	defer f.Close() // a file in memory
	p, err := ParseProfile(f, file)
	if err != nil {
		panic("engine: built-in profile: " + err.Error())
	}
	return p
}

// ProfileNames lists the built-in profiles, sorted, for messages and completion.
func ProfileNames() []string {
	entries, err := builtin.ReadDir("profiles")
	if err != nil {
		panic("engine: built-in profiles: " + err.Error())
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	slices.Sort(names) // of names without ending: '.' sorts before '-'
	return names
}

// Lookup finds a built-in profile. Callers suggest from ProfileNames where there is none.
func Lookup(name string) (*Profile, bool) {
	if !slices.Contains(ProfileNames(), name) {
		return nil, false
	}
	return embedded(name), true
}

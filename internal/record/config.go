package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvroute/kvroute/internal/score"
)

// setting is one field of a score.Config in a heading, named as its flag is.
type setting struct {
	name string
	get  func(c *score.Config) any
	set  func(c *score.Config, raw []byte) error
}

// field makes a setting that JSON writes and reads as it is.
func field[T any](name string, of func(*score.Config) *T) setting {
	return setting{
		name: name,
		get:  func(c *score.Config) any { return *of(c) },
		set:  func(c *score.Config, raw []byte) error { return strict(raw, of(c)) },
	}
}

// named makes a setting that is written by its name.
func named[T fmt.Stringer](name string, of func(*score.Config) *T, parse func(string) (T, error)) setting {
	return setting{
		name: name,
		get:  func(c *score.Config) any { return (*of(c)).String() },
		set: func(c *score.Config, raw []byte) error {
			var s string
			if err := strict(raw, &s); err != nil {
				return err
			}
			v, err := parse(s)
			*of(c) = v
			return err
		},
	}
}

// settings are all fields of a score.Config. A test holds the two together.
var settings = []setting{
	field("router-policy", func(c *score.Config) *string { return &c.Policy }),
	field("kv-overlap-weight", func(c *score.Config) *float64 { return &c.OverlapWeight }),
	field("kv-prefill-overlap-weight", func(c *score.Config) **float64 { return &c.PrefillOverlapWeight }),
	field("kv-decode-overlap-weight", func(c *score.Config) **float64 { return &c.DecodeOverlapWeight }),
	field("kv-recent-weight", func(c *score.Config) *float64 { return &c.RecentWeight }),
	field("prefix-threshold", func(c *score.Config) *float64 { return &c.PrefixThreshold }),
	named("decode-input-demand", func(c *score.Config) *score.DemandMode { return &c.DecodeInputDemand }, score.ParseDemandMode),
	field("decode-request-weight", func(c *score.Config) *float64 { return &c.DecodeRequestWeight }),
	named("session-affinity", func(c *score.Config) *score.Affinity { return &c.SessionAffinity }, score.ParseAffinity),
	field("tier-weights", func(c *score.Config) *[3]float64 { return &c.TierWeights }),
	field("seed", func(c *score.Config) *uint64 { return &c.Seed }),
}

// strict reads exactly one JSON value.
func strict(raw []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more text after the value")
	}
	return nil
}

// appendConfig appends the configuration as a JSON object, every setting, in order.
func appendConfig(dst []byte, c *score.Config) ([]byte, error) {
	for i, s := range settings {
		if i == 0 {
			dst = append(dst, '{')
		} else {
			dst = append(dst, ',')
		}
		v, err := json.Marshal(s.get(c))
		if err != nil {
			return nil, fmt.Errorf("writing the setting %s: %w", s.name, err)
		}
		dst = appendText(dst, s.name)
		dst = append(append(dst, ':'), v...)
	}
	return append(dst, '}'), nil
}

// parseConfig reads what appendConfig writes. A setting missing or unknown is an error: the program
// that wrote it decided by other rules.
func parseConfig(raw []byte) (score.Config, error) {
	var c score.Config
	var all map[string]json.RawMessage
	if err := strict(raw, &all); err != nil {
		return c, err
	}
	for _, s := range settings {
		v, ok := all[s.name]
		if !ok {
			return c, fmt.Errorf("it has no %s", s.name)
		}
		if err := s.set(&c, v); err != nil {
			return c, fmt.Errorf("%s: %w", s.name, err)
		}
		delete(all, s.name)
	}
	if len(all) > 0 {
		var names []string
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(names)
		return c, fmt.Errorf("%q is a setting this program does not know", names[0])
	}
	if err := c.Validate(); err != nil {
		return c, err
	}
	return c, nil
}

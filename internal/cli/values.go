package cli

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// value is a flag's value: text in, checked T out. It implements pflag.Value.
type value[T any] struct {
	text  string
	to    *T
	parse func(string) (T, error)
}

// Set checks and stores the text.
func (v *value[T]) Set(s string) error {
	t, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.to, v.text = t, s
	return nil
}

// String returns the text that was set last.
func (v *value[T]) String() string { return v.text }

// Type names the flag's kind for completion scripts.
func (v *value[T]) Type() string {
	if _, ok := any(v.to).(*bool); ok {
		return "bool" // pflag takes bare flags only of this type
	}
	return "value"
}

// list is a flag that may be given several times. The first Set of a layer (flag, environment, file)
// replaces what a lower layer left.
type list[T any] struct {
	texts []string
	to    *[]T
	parse func(string) (T, error)
	split string // separator inside one value, "" none
	fresh bool   // the next Set starts anew
}

// Set checks and appends.
func (l *list[T]) Set(s string) error {
	parts := []string{s}
	if l.split != "" {
		parts = strings.Split(s, l.split)
	}
	var add []T
	for _, p := range parts {
		t, err := l.parse(p)
		if err != nil {
			return err
		}
		add = append(add, t)
	}
	if l.fresh {
		*l.to, l.texts, l.fresh = nil, nil, false
	}
	*l.to = append(*l.to, add...)
	l.texts = append(l.texts, s)
	return nil
}

// String joins the texts that were set.
func (l *list[T]) String() string { return strings.Join(l.texts, " ") }

// Type names the flag's kind for completion scripts.
func (l *list[T]) Type() string { return "values" }

// multi is implemented by flags that take several values.
type multi interface{ renew() }

// renew makes the next Set replace the list.
func (l *list[T]) renew() { l.fresh = true }

var countSuffixes = []struct {
	suffix string
	factor float64
}{
	// Longest first: "KiB" must not be read as "B".
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"ki", 1 << 10},
	{"mi", 1 << 20},
	{"gi", 1 << 30},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"k", 1e3},
	{"m", 1e6},
	{"g", 1e9},
	{"b", 1},
}

// parseCount reads a whole number that is not negative: 8, 64k (thousands), 2GiB (powers of 1024).
func parseCount(s string) (int64, error) {
	t := strings.TrimSpace(s)
	if n, err := strconv.ParseInt(t, 10, 64); err == nil {
		if n < 0 {
			return 0, &valueError{why: "negative"}
		}
		return n, nil
	}
	low, factor := strings.ToLower(t), 1.0
	for _, c := range countSuffixes {
		if rest, ok := strings.CutSuffix(low, c.suffix); ok {
			low, factor = strings.TrimSpace(rest), c.factor
			break
		}
	}
	x, err := strconv.ParseFloat(low, 64)
	n := x * factor
	switch {
	case err != nil || math.IsNaN(x) || strings.ContainsAny(low, "xnip_"):
		return 0, &valueError{"not a number", "counts look like 8, 64k (thousands) or 2Mi (powers of 1024)"}
	case n < 0:
		return 0, &valueError{why: "negative"}
	case n > 1<<53:
		return 0, &valueError{why: "too large"}
	case n != math.Trunc(n):
		return 0, &valueError{why: "not a whole number"}
	}
	return int64(n), nil
}

// countBetween is parseCount with a lower and an upper bound, for what is counted in other things than
// bytes.
func countBetween(low, high int64) func(string) (int64, error) {
	return func(s string) (int64, error) {
		n, err := parseCount(s)
		switch {
		case err == nil && strings.HasSuffix(strings.ToLower(strings.TrimSpace(s)), "b"):
			return 0, &valueError{"a number of bytes, but bytes are not what is counted here", "counts look like 8, 64k (thousands) or 2Mi (powers of 1024)"}
		case err != nil:
			return 0, err
		case n < low:
			return 0, &valueError{why: "less than " + strconv.FormatInt(low, 10)}
		case n > high:
			return 0, &valueError{why: "more than " + strconv.FormatInt(high, 10)}
		}
		return n, nil
	}
}

// parseSize is parseCount for sizes that are not 0.
func parseSize(s string) (int64, error) {
	n, err := parseCount(s)
	if err == nil && n == 0 {
		return 0, &valueError{why: "less than 1"}
	}
	return n, err
}

// intBetween is countBetween as an int.
func intBetween(low, high int64) func(string) (int, error) {
	parse := countBetween(low, high)
	return func(s string) (int, error) {
		n, err := parse(s)
		return int(n), err
	}
}

// parseSpan reads a time that is not negative, as 250ms, 20s or 1h30m.
func parseSpan(s string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(s))
	switch {
	case err != nil:
		return 0, &valueError{"not a time", "times look like 250ms, 20s or 1h30m"}
	case d < 0:
		return 0, &valueError{why: "negative"}
	}
	return d, nil
}

// spanAtLeast is parseSpan with a lower bound, for times of which none at all would mean nothing.
func spanAtLeast(low time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		d, err := parseSpan(s)
		if err == nil && d < low {
			return 0, &valueError{why: "less than " + low.String()}
		}
		return d, err
	}
}

// parseReal reads a finite number that is not negative.
func parseReal(s string) (float64, error) {
	s = strings.TrimSpace(s)
	x, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || strings.ContainsAny(s, "xXpP_"): // hexadecimal and underscores are typos here
		return 0, &valueError{why: "not a number"}
	case math.IsNaN(x) || math.IsInf(x, 0):
		return 0, &valueError{why: "not a finite number"}
	case x < 0:
		return 0, &valueError{why: "negative"}
	}
	return x + 0, nil // -0 becomes 0
}

// parsePositive reads a finite number above zero.
func parsePositive(s string) (float64, error) {
	x, err := parseReal(s)
	if err == nil && x == 0 {
		err = &valueError{why: "not above 0"}
	}
	return x, err
}

// parseText takes anything but the empty string.
func parseText(s string) (string, error) {
	if s == "" {
		return "", &valueError{why: "empty"}
	}
	return s, nil
}

// parseBool reads true and false in the spellings of strconv.
func parseBool(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return false, &valueError{why: "neither true nor false"}
	}
	return b, nil
}

// oneOf accepts the given names only.
func oneOf(names ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		for _, n := range names {
			if s == n {
				return s, nil
			}
		}
		return "", &valueError{"unknown name", didYouMean(s, names)}
	}
}

// parseSeed reads an unsigned number, decimal or 0x….
func parseSeed(s string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 0, 64)
	if err != nil {
		return 0, &valueError{why: "not a whole number between 0 and 18446744073709551615"}
	}
	return n, nil
}

package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// Term is one place where two decisions differ: a field, "candidates[2].cost", and its two values as
// they are written; "" where one side has none.
type Term struct {
	Name     string `json:"name"`
	Recorded string `json:"recorded"`
	Replayed string `json:"replayed"`
}

// differences compares two decisions term by term, in the order of the first; terms that only the second
// has follow. Decisions that differ in form alone, or are not JSON, differ as a whole.
func differences(recorded, replayed []byte) []Term {
	a, errA := flatten(recorded)
	b, errB := flatten(replayed)
	whole := []Term{{"decision", string(recorded), string(replayed)}}
	if errA != nil || errB != nil {
		return whole
	}
	other := make(map[string]string, len(b))
	for _, t := range b {
		other[t.name] = t.value
	}
	var out []Term
	seen := make(map[string]bool, len(a))
	for _, t := range a {
		seen[t.name] = true
		if v, ok := other[t.name]; !ok || v != t.value {
			out = append(out, Term{t.name, t.value, v})
		}
	}
	for _, t := range b {
		if !seen[t.name] {
			out = append(out, Term{t.name, "", t.value})
		}
	}
	if len(out) == 0 {
		return whole
	}
	return out
}

// leaf is a value in a document with the path to it.
type leaf struct{ name, value string }

// flatten lists the values of a JSON document in order, numbers as they are written.

func flatten(doc []byte) ([]leaf, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var out []leaf
	if err := walk(dec, "", &out); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more text after its end")
	}
	return out, nil
}

func walk(dec *json.Decoder, path string, out *[]leaf) error {
	tok, err := dec.Token()
	if err != nil {
		return err
	}
	switch tok {
	case json.Delim('{'):
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := key.(string) // a key is a string
			if path != "" {
				name = path + "." + name
			}
			if err := walk(dec, name, out); err != nil {
				return err
			}
		}
		_, err = dec.Token()
		return err
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			if err := walk(dec, path+"["+strconv.Itoa(i)+"]", out); err != nil {
				return err
			}
		}
		_, err = dec.Token()
		return err
	}
	value, err := json.Marshal(tok)
	if err != nil {
		return err
	}
	*out = append(*out, leaf{path, string(value)})
	return nil
}

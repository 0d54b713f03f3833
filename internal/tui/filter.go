package tui

import "strings"

// filter is what was typed behind "/": terms that must all be met. A term is a field's name, a colon and a part of
// its value, or a part of anything. Case does not matter.
type filter []term

type term struct{ field, part string }

// field is a named value that filters look at.
type field struct{ name, value string }

// filterFields are the names that terms may begin with.
var filterFields = []string{"worker", "model", "basis", "session", "role", "state", "engine", "kind", "id"}

func parseFilter(s string) filter {
	var f filter
	for _, w := range strings.Fields(strings.ToLower(s)) {
		t := term{part: w}
		if name, part, ok := strings.Cut(w, ":"); ok {
			for _, n := range filterFields {
				if name == n {
					t = term{n, part}
				}
			}
		}
		f = append(f, t)
	}
	return f
}

// match says whether a row with this text and these fields is shown.
func (f filter) match(text string, fields ...field) bool {
	for _, t := range f {
		ok := t.field == "" && strings.Contains(strings.ToLower(text), t.part)
		for _, x := range fields {
			if ok {
				break
			}
			if t.field == "" || t.field == x.name {
				ok = strings.Contains(strings.ToLower(x.value), t.part)
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

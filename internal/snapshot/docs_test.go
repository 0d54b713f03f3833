package snapshot

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestEveryFieldIsDocumented: docs/cli-json.md names every field of a snapshot and of a delta.
func TestEveryFieldIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli-json.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(typ.Elem())
		case reflect.Struct:
			for i := range typ.NumField() {
				f := typ.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if name == "" {
					t.Errorf("%s.%s has no name in JSON", typ.Name(), f.Name)
				}
				if seen++; !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(string(text), "`"+name+"[]`") && !strings.Contains(string(text), "`"+name+"{}`") {
					t.Errorf("docs/cli-json.md does not have %s.%s, %q", typ.Name(), f.Name, name)
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Snapshot]())
	walk(reflect.TypeFor[Delta]())
	if seen < 90 {
		t.Errorf("%d fields, want all of them", seen)
	}
}

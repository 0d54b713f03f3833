package snapshot

import (
	"reflect"
	"testing"
)

// TestEveryFieldIsCompared: an entry that differs in one field is another one, whichever it is.
func TestEveryFieldIsCompared(t *testing.T) {
	for _, tt := range []struct {
		typ  reflect.Type
		same func(a, b reflect.Value) bool
	}{
		{reflect.TypeFor[Worker](), func(a, b reflect.Value) bool { return a.Interface().(*Worker).same(b.Interface().(*Worker)) }},
		{reflect.TypeFor[Cache](), func(a, b reflect.Value) bool { return a.Interface().(*Cache).same(b.Interface().(*Cache)) }},
	} {
		a := reflect.New(tt.typ)
		fill(a.Elem())
		n := 0
		each(a.Elem(), tt.typ.Name(), func(path string, v reflect.Value) {
			n++
			b := reflect.New(tt.typ)
			fill(b.Elem())
			if !tt.same(a, b) {
				t.Fatalf("%s: equal ones differ", path)
			}
			was := reflect.New(v.Type()).Elem()
			was.Set(v)
			change(v)
			if tt.same(a, b) {
				t.Errorf("%s: a difference is not seen", path)
			}
			v.Set(was)
		})
		if n < 10 {
			t.Errorf("%s: %d fields looked at", tt.typ, n)
		}
	}
}

// fill makes every slice, map and pointer have something in it.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}

// each calls f with every value that can differ, down to the last.
func each(v reflect.Value, path string, f func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			each(v.Field(i), path+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Slice:
		each(v.Index(1), path+"[1]", f)
		f(path+" shorter", v)
	case reflect.Array:
		each(v.Index(v.Len()-1), path+"[]", f)
	case reflect.Pointer:
		each(v.Elem(), "*"+path, f)
		f(path+" nil", v)
	default:
		f(path, v)
	}
}

func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Pointer:
		v.SetZero()
	case reflect.Slice:
		v.Set(v.Slice(0, 1))
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		m.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
		v.Set(m)
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

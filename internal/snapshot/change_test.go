package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// scramble sets about a third of all values in v to others, nil and empty ones among them, without writing through
// what v refers to.
func scramble(rng *rand.Rand, v reflect.Value) {
	if v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			scramble(rng, v.Field(i))
		}
		return
	}
	if rng.IntN(3) > 0 {
		return
	}
	n := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Pointer:
		if rng.IntN(3) > 0 {
			n = reflect.New(v.Type().Elem())
			set(rng, n.Elem())
		}
	case reflect.Slice:
		n = reflect.MakeSlice(v.Type(), rng.IntN(4), 4)
		for i := range n.Len() {
			set(rng, n.Index(i))
		}
	case reflect.Map:
		for range rng.IntN(3) {
			if n.IsNil() {
				n = reflect.MakeMap(v.Type())
			}
			n.SetMapIndex(reflect.ValueOf(fmt.Sprint("k", rng.IntN(3))), reflect.ValueOf(rng.Uint64()))
		}
	default:
		set(rng, n)
	}
	v.Set(n)
}

func set(rng *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString([]string{"", "a", `"skipped_events":`, "ü\n"}[rng.IntN(4)])
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int, reflect.Int64:
		v.SetInt(rng.Int64N(9) - 4)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(rng.Uint64N(5))
	case reflect.Float64:
		v.SetFloat(rng.Float64())
	case reflect.Array:
		for i := range v.Len() {
			set(rng, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			set(rng, v.Field(i))
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

// fleetOf is the snapshot after n rounds of random changes.
func fleetOf(seed uint64, n int) *Snapshot {
	s := &Snapshot{Schema: Schema, Run: "r", Seq: uint64(n), AtMS: int64(n) * 250}
	for i := range 4 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		var w Worker
		for range n {
			scramble(rng, reflect.ValueOf(&w).Elem())
		}
		w.WorkerID, w.RouteKey, w.Model, w.Role = "", fmt.Sprint("w", i), "m", "mixed"
		s.Workers = append(s.Workers, w)
	}
	return s
}

// TestChanges: shortened deltas lead where whole ones do, whatever changes, and what was handed out before stays as
// it was.
func TestChanges(t *testing.T) {
	for seed := range uint64(12) {
		seen := fleetOf(seed, 1)
		for n := 1; n < 8; n++ {
			old, next := fleetOf(seed, n), fleetOf(seed, n+1)
			d := Diff(old, next)
			if d == nil {
				t.Fatalf("seed %d: nothing changed in round %d", seed, n)
			}
			whole, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Shorten(old); err != nil {
				t.Fatal(err)
			}
			short, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			if len(short) >= len(whole) {
				t.Errorf("shortened to %d bytes from %d: %s", len(short), len(whole), short)
			}
			after, err := Follow(seen, short)
			if err != nil {
				t.Fatalf("seed %d, round %d: %v in %s", seed, n, err, short)
			}
			if !reflect.DeepEqual(next, after) {
				d := cmp.Diff(next, after)
				t.Fatalf("seed %d, round %d: after %s (-want +got):\n%s", seed, n, short, d)
			}
			if !reflect.DeepEqual(old, seen) {
				d := cmp.Diff(old, seen)
				t.Fatalf("seed %d, round %d: the snapshot before changed (-want +got):\n%s", seed, n, d)
			}
			seen = after
		}
	}
}

// TestWorkersThatCome: new workers are told whole beside changes of old ones.
func TestWorkersThatCome(t *testing.T) {
	old := &Snapshot{Run: "r", Seq: 1, Workers: []Worker{{RouteKey: "a", BlockCount: 1}, {RouteKey: "b"}, {RouteKey: "c"}}}
	next := &Snapshot{Run: "r", Seq: 2, Workers: []Worker{{RouteKey: "a", BlockCount: 2}, {RouteKey: "c"}, {RouteKey: "d", URL: "u"}}}
	d := Diff(old, next)
	if err := d.Shorten(old); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"changes":{"a":{"block_count":2}},"gone":["b"]`; !strings.Contains(string(data), want) {
		t.Errorf("no %s in %s", want, data)
	}
	got, err := Follow(old, data)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(next, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestFollowRefuses(t *testing.T) {
	s := &Snapshot{Run: "r", Seq: 1, Workers: []Worker{{RouteKey: "a"}}}
	for _, tt := range []struct {
		name string
		s    *Snapshot
		in   string
		gap  bool
	}{
		{"no snapshot before", nil, `{"run":"r","from":1,"seq":2}`, true},
		{"changes of a stranger", s, `{"run":"r","from":1,"seq":2,"changes":{"b":{}}}`, true},
		{"another run", s, `{"run":"q","from":1,"seq":2}`, true},
		{"a field of another kind", s, `{"run":"r","from":1,"seq":2,"changes":{"a":{"block_count":"x"}}}`, false},
		{"no object", s, `{"run":"r","from":1,"seq":2,"changes":{"a":7}}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Follow(tt.s, []byte(tt.in))
			if err == nil || errors.Is(err, ErrGap) != tt.gap {
				t.Errorf("got %v, want an error; of a gap: %v", err, tt.gap)
			}
		})
	}
}

func FuzzFollow(f *testing.F) {
	f.Add([]byte(`{"run":"r","from":1,"seq":2,"changes":{"a":{"fill":null,"stream":{"skipped_events":{"x":1}}}},"gone":["a"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		make := func() *Snapshot {
			s := fleetOf(3, 6)
			s.Seq = 1
			s.Workers[0].RouteKey = "a"
			return s
		}
		s := make()
		n, err := Follow(s, data)
		if err == nil && Diff(n, n) != nil {
			t.Error("a snapshot differs from itself")
		}
		if d := cmp.Diff(make(), s); d != "" {
			t.Errorf("what it follows changed (-want +got):\n%s", d)
		}
	})
}

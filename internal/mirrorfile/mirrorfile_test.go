package mirrorfile_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/mirrorfile"
	"github.com/kvroute/kvroute/internal/target"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// mirror is a target of a file, with all its records.
type mirror struct {
	Meta    mirrorfile.Meta
	Records []index.Record
}

func each(recs []index.Record) func(func(*index.Record) error) error {
	return func(f func(*index.Record) error) error {
		for i := range recs {
			if err := f(&recs[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

func write(tb testing.TB, mirrors []mirror) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := mirrorfile.NewWriter(&out)
	for _, m := range mirrors {
		if err := w.Target(m.Meta, each(m.Records)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// read reads a file to its end or first error.
func read(in io.Reader) ([]mirror, error) {
	r, err := mirrorfile.NewReader(in)
	if err != nil {
		return nil, err
	}
	var out []mirror
	for {
		meta, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		m := mirror{Meta: meta}
		for rec, err := range r.Records() {
			if err != nil {
				return out, err
			}
			c := *rec
			c.Hashes = slices.Clone(rec.Hashes)
			m.Records = append(m.Records, c)
		}
		out = append(out, m)
	}
}

// samples are mirrors with records of every form.
func samples() []mirror {
	gpu := [index.NumTiers]uint32{1}
	return []mirror{
		{
			Meta: mirrorfile.Meta{
				Worker: "http://a:8000", Rank: 1, Incarnation: "x", Engine: "vllm", Model: "m", Tokenizer: "sha256:00", BlockSize: 16, PageSize: 32,
				Seq: 1<<64 - 1, HasSeq: true, Payload: 1<<64 - 2, Time: 1, Blocks: 7, Content: 1<<64 - 3,
			},
			Records: []index.Record{
				{Handle: 1, HasHandle: true, First: true, Hashes: []block.Hash{10}, Copies: gpu},
				{Handle: 2, HasHandle: true, Parent: 10, Hashes: []block.Hash{11}, Copies: gpu},
				{Handle: 1<<64 - 1, HasHandle: true, Parent: 10, Hashes: []block.Hash{1<<64 - 1, 13, 14}, Copies: [index.NumTiers]uint32{2, 0, 1<<32 - 1}},
				{First: true, Parent: 77, Hashes: []block.Hash{15}},
				{Parent: 15, Hashes: []block.Hash{16}, Copies: [index.NumTiers]uint32{0, 1, 1}},
				{Handle: 0, HasHandle: true, Parent: 0, Hashes: []block.Hash{17}, Copies: gpu},
			},
		},
		{Meta: mirrorfile.Meta{Worker: "empty", Rank: target.NoRank, BlockSize: 1}},
		{
			Meta:    mirrorfile.Meta{Worker: "ü\n", BlockSize: 16},
			Records: []index.Record{{Handle: 5, HasHandle: true, First: true, Hashes: []block.Hash{9}, Copies: gpu}},
		},
	}
}

func TestRoundTrip(t *testing.T) {
	want := samples()
	data := write(t, want)
	for name, in := range map[string]io.Reader{
		"whole": bytes.NewReader(data), "byte by byte": iotest.OneByteReader(bytes.NewReader(data)), "end with data": iotest.DataErrReader(bytes.NewReader(data)),
	} {
		got, err := read(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: read back (-want +got):\n%s", name, diff)
		}
	}
	if got, err := read(bytes.NewReader(write(t, nil))); err != nil || got != nil {
		t.Errorf("a file without mirrors: %v, %v", got, err)
	}
	path := filepath.Join("testdata", "v1.mirrors")
	if *update {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(golden, data) {
		t.Errorf("%s differs from what is written now: the format needs a new version (or -update before the first release)", path)
	}
}

// TestEveryDamageIsSeen flips each bit's byte, cuts at each length, and repeats, swaps and drops parts.
func TestEveryDamageIsSeen(t *testing.T) {
	good := write(t, samples())
	try := func(what string, data []byte) {
		t.Helper()
		_, err := read(bytes.NewReader(data))
		if !errors.Is(err, mirrorfile.ErrFormat) && !errors.Is(err, mirrorfile.ErrVersion) {
			t.Errorf("%s: error %v, want one of the format", what, err)
		}
	}
	for i := range good {
		for _, bit := range []byte{1, 0x80} {
			bad := slices.Clone(good)
			bad[i] ^= bit
			try(fmt.Sprintf("byte %d, bit %#x", i, bit), bad)
		}
		try(fmt.Sprintf("cut to %d bytes", i), good[:i])
	}
	try("another byte", append(slices.Clone(good), 0))
	try("twice", append(slices.Clone(good), good...))
	const begin = len("kvroute-mirrors\n") + 4
	one := write(t, samples()[:1])
	frame := one[begin:]
	try("two closes", append(slices.Clone(one), frame[len(frame)-21:]...))
	try("frames of another file", append(slices.Clone(good[:begin]), frame[13:]...))
}

func TestErrorsSayWhatAndWhere(t *testing.T) {
	good := write(t, samples())
	for _, tc := range []struct {
		name string
		data []byte
		want error
		text string
	}{
		{"empty", nil, mirrorfile.ErrFormat, "cut short at byte 0"},
		{"another file", []byte(strings.Repeat("hello\n", 9)), mirrorfile.ErrFormat, "does not begin like one"},
		{"version 2", append([]byte("kvroute-mirrors\n\x02\x00\x00\x00"), good[20:]...), mirrorfile.ErrVersion, "version 2, this program reads version 1"},
		{"cut", good[:len(good)-1], mirrorfile.ErrFormat, fmt.Sprintf("cut short at byte %d", len(good)-1)},
		{"huge frame", append(slices.Clone(good[:21]), 0xff, 0xff, 0xff, 0xff), mirrorfile.ErrFormat, "byte 20"},
	} {
		if _, err := read(bytes.NewReader(tc.data)); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: error %v, want %v with %q", tc.name, err, tc.want, tc.text)
		}
	}
	disk := errors.New("disk on fire")
	if _, err := read(io.MultiReader(bytes.NewReader(good[:100]), iotest.ErrReader(disk))); !errors.Is(err, disk) || errors.Is(err, mirrorfile.ErrFormat) {
		t.Errorf("error %v, want that of the disk", err)
	}
}

// TestSkipping reads a part of each mirror only.
func TestSkipping(t *testing.T) {
	want := samples()
	data := write(t, want)
	for stop := range 7 {
		r, err := mirrorfile.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			m, err := r.Next()
			if err != nil || m != want[i].Meta {
				t.Fatalf("stopping after %d: mirror %d is %+v, %v; want %+v", stop, i, m, err, want[i].Meta)
			}
			n := 0
			for _, err := range r.Records() {
				if err != nil {
					t.Fatal(err)
				}
				if n++; n >= stop {
					break
				}
			}
		}
		for range 2 {
			if _, err := r.Next(); err != io.EOF {
				t.Errorf("after the last mirror: %v, want EOF", err)
			}
		}
	}
}

func TestWriterRefuses(t *testing.T) {
	ok := samples()[0]
	for _, tc := range []struct {
		name   string
		change func(*mirror)
		want   string
	}{
		{"no block size", func(m *mirror) { m.Meta.BlockSize = 0 }, "blocks of 0 tokens"},
		{"negative page", func(m *mirror) { m.Meta.PageSize = -1 }, "page size -1"},
		{"rank", func(m *mirror) { m.Meta.Rank = -2 }, "rank -2"},
		{"no hashes", func(m *mirror) { m.Records[1].Hashes = nil }, "0 blocks"},
		{"too many", func(m *mirror) { m.Records[1].Hashes = make([]block.Hash, 5000) }, "5000 blocks"},
		{"long name", func(m *mirror) { m.Meta.Worker = strings.Repeat("x", 2<<20) }, "the limit"},
	} {
		m := mirror{ok.Meta, slices.Clone(ok.Records)}
		tc.change(&m)
		w := mirrorfile.NewWriter(io.Discard)
		if err := w.Target(m.Meta, each(m.Records)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.want)
		}
	}
	// A mirror that cannot be exported is left out, and the file is whole.
	var out bytes.Buffer
	w := mirrorfile.NewWriter(&out)
	if err := w.Target(ok.Meta, func(func(*index.Record) error) error { return index.ErrExport }); err != index.ErrExport {
		t.Errorf("error %v, want that of the export", err)
	}
	if err := errors.Join(w.Target(ok.Meta, each(ok.Records)), w.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := read(&out); err != nil || len(got) != 1 {
		t.Errorf("%d mirrors, %v; want 1", len(got), err)
	}
	// One that ends in the middle spoils it.
	w = mirrorfile.NewWriter(&out)
	late := errors.New("changed meanwhile")
	err := w.Target(ok.Meta, func(f func(*index.Record) error) error { return errors.Join(f(&ok.Records[0]), late) })
	if !errors.Is(err, late) || !errors.Is(w.Target(ok.Meta, each(nil)), late) || !errors.Is(w.Close(), late) {
		t.Errorf("error %v, and then none", err)
	}
	w = mirrorfile.NewWriter(full{})
	if err := errors.Join(w.Target(ok.Meta, each(ok.Records)), w.Close()); !errors.Is(err, errFull) {
		t.Errorf("error %v, want %v", err, errFull)
	}
}

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// filled makes an index of some targets with shared chains, several handles and tiers.
func filled(tb testing.TB, blocks int) *index.Index {
	x := index.New(16, index.Options{})
	rng := rand.New(rand.NewPCG(1, 16))
	for t := range target.ID(3) {
		x.Join(t)
		for i := 0; i < blocks; {
			h := block.Hash(rng.IntN(1 + blocks/50))
			op := index.Op{Kind: index.Store, Target: t, Counted: true}
			if t == 2 && rng.IntN(4) == 0 {
				op.Tier = index.CPU
			}
			for range 50 {
				h = block.Hash((uint64(h) + 1) * 0x9e3779b97f4a7c15)
				op.Hashes, op.Handles = append(op.Hashes, h), append(op.Handles, index.Handle(h)^index.Handle(t&1))
				i++
			}
			if _, err := x.Apply(op); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return x
}

func save(tb testing.TB, x *index.Index) []byte {
	var out bytes.Buffer
	w := mirrorfile.NewWriter(&out)
	for t := range target.ID(3) {
		m := mirrorfile.Meta{Worker: fmt.Sprint("w", t), BlockSize: 16, Blocks: x.Stats(t).Blocks, Content: x.ContentHash(t)}
		if err := w.Target(m, func(each func(*index.Record) error) error { return x.Export(t, each) }); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// TestWarmStart takes an index to a file and back, over many frames.
func TestWarmStart(t *testing.T) {
	x := filled(t, 20_000)
	data := save(t, x)
	r, err := mirrorfile.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	y := index.New(16, index.Options{})
	for id := range target.ID(3) {
		m, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		y.Join(id)
		if _, err := y.Import(id, r.Records()); err != nil {
			t.Fatal(err)
		}
		if got := y.Stats(id); y.ContentHash(id) != m.Content || got.Blocks != m.Blocks || got.Copies != x.Stats(id).Copies || got.Copies == 0 {
			t.Errorf("target %d: content %x, %+v; want %x, %+v", id, y.ContentHash(id), got, m.Content, x.Stats(id))
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after the last: %v", err)
	}
	if err := y.Check(); err != nil {
		t.Error(err)
	}
	// Damage in the middle: what is imported then is dropped, what was before is whole.
	data[len(data)/2] ^= 4
	if r, err = mirrorfile.NewReader(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	z := index.New(16, index.Options{})
	var failed error
	for id := range target.ID(3) {
		z.Join(id)
		if _, failed = r.Next(); failed != nil {
			break
		}
		if _, failed = z.Import(id, r.Records()); failed != nil {
			if z.Stats(id).Blocks != 0 {
				t.Errorf("target %d has %d blocks of a damaged file", id, z.Stats(id).Blocks)
			}
			break
		}
		if z.ContentHash(id) != x.ContentHash(id) {
			t.Errorf("target %d, before the damage, has content %x, want %x", id, z.ContentHash(id), x.ContentHash(id))
		}
	}
	if !errors.Is(failed, mirrorfile.ErrFormat) || z.Stats(0).Blocks == 0 {
		t.Errorf("error %v, %d blocks of the first target", failed, z.Stats(0).Blocks)
	}
	if err := z.Check(); err != nil {
		t.Error(err)
	}
}

// FuzzRead reads anything; what can be read is written again as the same.
func FuzzRead(f *testing.F) {
	f.Add(write(f, samples()))
	f.Add(write(f, samples()[1:2]))
	f.Add(write(f, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := read(bytes.NewReader(data))
		x := index.New(16, index.Options{})
		for i, m := range got { // whatever was read before an error can be imported, or is refused
			x.Join(target.ID(i))
			x.Import(target.ID(i), func(yield func(*index.Record, error) bool) { //nolint:errcheck // it must not panic
				for k := range m.Records {
					if !yield(&m.Records[k], nil) {
						return
					}
				}
			})
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		again, err := read(bytes.NewReader(write(t, got)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("written and read again (-want +got):\n%s", diff)
		}
	})
}

// FuzzRecords reads any records behind good checksums, which no chance leads to.
func FuzzRecords(f *testing.F) {
	data := write(f, samples())
	f.Add(uint8('R'), data[300:400])
	f.Add(uint8('T'), []byte(`{"worker":"w","block_size":16}`))
	f.Add(uint8('E'), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Add(uint8('Z'), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, kind uint8, payload []byte) {
		if len(payload) > 1<<20 {
			return
		}
		mirrorfile.ReadForged(kind, payload, func(r *mirrorfile.Reader) {
			for {
				if _, err := r.Next(); err != nil {
					return
				}
				for rec, err := range r.Records() {
					if err == nil && len(rec.Hashes) == 0 {
						t.Fatalf("record %+v has no block", rec)
					}
				}
			}
		})
	})
}

func BenchmarkFile(b *testing.B) {
	x := filled(b, 300_000)
	data := save(b, x)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			w := mirrorfile.NewWriter(io.Discard)
			for t := range target.ID(3) {
				if err := w.Target(mirrorfile.Meta{BlockSize: 16}, func(each func(*index.Record) error) error { return x.Export(t, each) }); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	mirrors, err := read(bytes.NewReader(data))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			w := mirrorfile.NewWriter(io.Discard)
			for _, m := range mirrors {
				if err := w.Target(m.Meta, each(m.Records)); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			r, err := mirrorfile.NewReader(bytes.NewReader(data))
			for err == nil {
				_, err = r.Next()
			}
			if err != io.EOF {
				b.Fatal(err)
			}
		}
	})
}

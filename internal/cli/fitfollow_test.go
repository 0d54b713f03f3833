package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvroute/kvroute/internal/testtraces"
)

// TestFitFollows: a log grows, is rotated and cut short; each time the next fit has the lines that came. The signal
// ends it with the last fit, which is that of the whole log.
func TestFitFollows(t *testing.T) {
	packed, err := os.Open(testtraces.Bundled("traces/decode/g52-pd-dp8-nomtp.log.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	log, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(log, []byte("\n"))
	third := len(lines) / 3
	parts := [][]byte{bytes.Join(lines[:third], nil), bytes.Join(lines[third:2*third], nil), bytes.Join(lines[2*third:], nil)}
	path := filepath.Join(t.TempDir(), "decode.log")
	write := func(data []byte, flag int) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	write(parts[0], 0)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, w := io.Pipe()
	var stderr bytes.Buffer
	codes := make(chan int, 1)
	go func() {
		codes <- Run(ctx, []string{"fit", "--follow", "--every", "1ms", "-o", "jsonl", "--bootstrap", "20", path}, bytes.NewReader(nil), w, &stderr)
		_ = w.Close()
	}()
	out := bufio.NewScanner(r)
	out.Buffer(nil, 1<<20)
	var used int64
	until := func(want int64) { // fits are printed as lines come, in pieces of any size
		for used < want && out.Scan() {
			var doc struct {
				Input struct {
					Lines int64 `json:"lines"`
				} `json:"input"`
			}
			if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
				t.Fatalf("%v: %s", err, out.Bytes())
			}
			used = doc.Input.Lines
		}
		if used != want {
			t.Fatalf("followed %d lines, want %d; %v; stderr %s", used, want, out.Err(), stderr.String())
		}
	}
	n := func(b []byte) int64 { return int64(bytes.Count(b, []byte("\n"))) }
	until(n(parts[0]))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(parts[1], os.O_EXCL)
	until(n(parts[0]) + n(parts[1]))
	if err := os.Rename(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	write(parts[2], os.O_EXCL)
	until(n(log))
	cancel()
	var last []byte
	for out.Scan() {
		last = append(last[:0], out.Bytes()...)
	}
	var doc struct {
		Verdict string
		Bins    int
	}
	if err := json.Unmarshal(last, &doc); err != nil || doc.Verdict != "weak" || doc.Bins != 310 {
		t.Errorf("the last fit is %+v, %v; want that of the whole log", doc, err)
	}
	if code := <-codes; code != 0 || stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %s", code, stderr.String())
	}
}

// TestTail: a file that is cut short is read from its start; a line without an end does not run into the next file.
func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("one\ntwo")
	tl, err := newTail(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tl.Close()
	read := func(want string) {
		t.Helper()
		var got []byte
		buf := make([]byte, 64)
		for {
			n, err := tl.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			got = append(got, buf[:n]...)
		}
		if string(got) != want {
			t.Errorf("read %q, want %q", got, want)
		}
	}
	read("one\ntwo")
	read("")
	put("3\n") // cut short and written anew
	read("\n3\n")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	read("")
	put("four\n")
	read("four\n")
}

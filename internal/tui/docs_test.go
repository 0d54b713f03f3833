package tui

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// recorded are the snapshots of testdata/fleet.watch.gz: kvroute watch --record --interval 1s on kvroute serve before
// two of kvroute engine, of which one is killed and comes back.
func recorded(t *testing.T) []*snapshot.Snapshot {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("testdata", "fleet.watch.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	track, err := OpenTape("fleet.watch", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var all []*snapshot.Snapshot
	for {
		s, err := track.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if len(all) < 20 {
		t.Fatalf("got %d snapshots, want 20 and more", len(all))
	}
	return all
}

// pictured is a model right after a snapshot.
func pictured(m Model, s *snapshot.Snapshot) Model {
	m = after(m, live(s))
	m.adopt()
	m.settle()
	return m
}

// sick is the first snapshot with a worker that is not well, by its place.
func sick(t *testing.T, all []*snapshot.Snapshot) int {
	t.Helper()
	for i, s := range all {
		for j := range s.Workers {
			if w := &s.Workers[j]; w.Health != "healthy" || w.Breaker != "closed" {
				return i
			}
		}
	}
	t.Fatal("no worker ever fails in the recording")
	return 0
}

// docFile compares a file of docs/ with what it should be, or writes it.
func docFile(t *testing.T, name, want string) {
	t.Helper()
	file := filepath.Join("..", "..", "docs", name)
	if updating() {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/%s is not what the program draws (-drawn +there); run make screens:\n%s", name, diff)
	}
}

// TestScreensInDocs holds the pictures in docs/watch.md to what is drawn of the recording.
func TestScreensInDocs(t *testing.T) {
	all := recorded(t)
	down := sick(t, all)
	m := at(100, 30, Options{NoColor: true})
	for _, s := range all[:down+4] {
		m = pictured(m, s)
	}
	small := at(80, 24, Options{NoColor: true})
	small = pictured(small, all[down-1])
	healthy := pictured(at(100, 30, Options{NoColor: true}), all[down-1])
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "watch.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(doc)
	for _, c := range []struct {
		name string
		m    Model
		p    page
	}{{"fleet", small, fleetPage}, {"down", m, fleetPage}, {"worker", healthy, workerPage}, {"decisions", healthy, picksPage}, {"cache", healthy, cachePage}} {
		c.m = on(c.m, c.p)
		var b strings.Builder
		for line := range strings.SplitSeq(plainText(c.m.screen()), "\n") {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		begin, end := "<!-- screen "+c.name+" -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(text, begin)
		_, behind, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("docs/watch.md has no place for the screen %s: want a line %q and then one %q", c.name, begin, end)
		}
		text = before + begin + "```text\n" + b.String() + "```\n" + end + behind
	}
	docFile(t, "watch.md", text)
}

// TestMovingPicture holds docs/watch.svg to what is drawn of the recording.
func TestMovingPicture(t *testing.T) {
	all := recorded(t)
	down := sick(t, all)
	m := at(100, 26, Options{Dark: ptr(true)})
	var frames []string
	add := func() { frames = append(frames, m.screen()) }
	for _, s := range all[max(down-5, 0):min(down+16, len(all))] {
		m = pictured(m, s)
		m = on(m, fleetPage)
		add()
	}
	for _, p := range []page{workerPage, picksPage, cachePage} {
		m = on(m, p)
		for range 3 {
			add()
		}
	}
	svg, err := movie(100, 26, frames)
	if err != nil {
		t.Fatal(err)
	}
	if len(svg) > 500_000 {
		t.Errorf("the picture has %d bytes, want 500,000 at most", len(svg))
	}
	docFile(t, "watch.svg", svg)
}

// movie draws frames, one a second, as an SVG that begins anew after the last.
func movie(width, height int, frames []string) (string, error) {
	const cell, line, margin = 8, 17, 10
	rows := make([][]string, len(frames))
	for i, f := range frames {
		if rows[i] = strings.Split(f, "\n"); len(rows[i]) != height {
			return "", fmt.Errorf("frame %d has %d lines, want %d", i, len(rows[i]), height)
		}
	}
	var b strings.Builder
	w, h := width*cell+2*margin, height*line+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="13">`+"\n", w, h, w, h)
	b.WriteString("<title>kvroute watch: a worker dies and comes back; its page, decisions, the cache map</title>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#14181d"/>`+"\n", w, h)
	for y := range height {
		for from := 0; from < len(frames); {
			to := from + 1
			for to < len(frames) && rows[to][y] == rows[from][y] {
				to++
			}
			body, err := svgLine(rows[from][y], margin, margin+y*line+13, cell)
			if err != nil {
				return "", err
			}
			if body != "" {
				b.WriteString("<g>" + body + window(from, to, len(frames)) + "</g>\n")
			}
			from = to
		}
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// window shows what it is in from frame from to frame to.
func window(from, to, of int) string {
	if from == 0 && to == of {
		return ""
	}
	values, times := "hidden;visible;hidden", fmt.Sprintf("0;%.4f;%.4f", float64(from)/float64(of), float64(to)/float64(of))
	switch {
	case from == 0:
		values, times = "visible;hidden", fmt.Sprintf("0;%.4f", float64(to)/float64(of))
	case to == of:
		values, times = "hidden;visible", fmt.Sprintf("0;%.4f", float64(from)/float64(of))
	}
	return fmt.Sprintf(`<animate attributeName="visibility" values="%s" keyTimes="%s" calcMode="discrete" dur="%ds" repeatCount="indefinite"/>`, values, times, of)
}

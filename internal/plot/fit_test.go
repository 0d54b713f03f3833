package plot

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
)

// aFit is observations near a plane, some of them far off.
func aFit(n int) *Fit {
	f := &Fit{Title: "Decode steps of a log", Note: "verdict good", Paste: "--decode-request-weight 1000", A: 0.02, B: 0.001, C: 1e-8}
	for i := range n {
		p := FitPoint{AtNS: int64(i) * 3e9, Requests: float64(1 + i%7), Tokens: float64(20_000 * (1 + i%5)), Kept: i%10 != 0}
		p.Step = f.at(p.Requests, p.Tokens) + 0.0001*math.Sin(float64(i))
		if !p.Kept {
			p.Step *= 1.05
		}
		f.Points = append(f.Points, p)
	}
	return f
}

func TestWriteFit(t *testing.T) {
	for _, format := range Formats() {
		var a, b bytes.Buffer
		for _, w := range []*bytes.Buffer{&a, &b} {
			if err := WriteFit(w, format, aFit(200)); err != nil {
				t.Fatal(err)
			}
		}
		if a.Len() < 5000 || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%s: %d bytes, and %d the second time", format, a.Len(), b.Len())
		}
		if format == "html" {
			for _, want := range []string{`id="fit"`, `id="residuals"`, `id="requests"`, `id="tokens"`, "--decode-request-weight 1000"} {
				if !strings.Contains(a.String(), want) {
					t.Errorf("the page lacks %s", want)
				}
			}
			if strings.Contains(a.String(), "<h2>Runs</h2>") || strings.Contains(a.String(), "http://") && !strings.Contains(a.String(), "w3.org") {
				t.Error("the page has what is not of a fit")
			}
		}
	}
	if err := WriteFit(&bytes.Buffer{}, "gif", aFit(20)); err == nil {
		t.Error("gif was written")
	}
}

// Very long logs are drawn in part, the plane is drawn as it is.
func TestFitIsBounded(t *testing.T) {
	var short, long bytes.Buffer
	if err := WriteFit(&short, "svg", aFit(maxDots)); err != nil {
		t.Fatal(err)
	}
	if err := WriteFit(&long, "svg", aFit(10*maxDots)); err != nil {
		t.Fatal(err)
	}
	if long.Len() > 2*short.Len() {
		t.Errorf("%d bytes for ten times the points, %d for those", long.Len(), short.Len())
	}
}

func TestNoFitToDraw(t *testing.T) {
	none := aFit(5)
	for i := range none.Points {
		none.Points[i].Kept = false
	}
	wild := aFit(5)
	wild.B = math.NaN()
	for _, f := range []*Fit{{}, none, wild} {
		if err := WriteFit(&bytes.Buffer{}, "svg", f); err == nil || !strings.Contains(err.Error(), "no fit to draw") {
			t.Errorf("got %v", err)
		}
	}
	failing := errors.New("disk full")
	if err := WriteFit(failWriter{failing}, "svg", aFit(50)); !errors.Is(err, failing) {
		t.Errorf("a failing writer gives %v", err)
	}
}

type failWriter struct{ err error }

func (w failWriter) Write([]byte) (int, error) { return 0, w.err }

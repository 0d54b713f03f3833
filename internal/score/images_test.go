package score_test

import (
	"testing"

	"github.com/kvroute/kvroute/internal/score"
)

func TestImageKey(t *testing.T) {
	for _, tc := range []struct {
		text string
		want uint64
	}{
		{"http://example.com/a.png", 0xab8fa44a7a4495a3},
		{" http://example.com/a.png\n", 0xab8fa44a7a4495a3},
		{"https://example.com/cat.png", 0x2f97f006c0e2eb2e},
		{"data:image/png;base64,iVBORw0KGgo=", 0x097b9a074423d593},
		{"AAAA", 0xab12e0c62bf99c9d},
		{"图像", 0x982350c15a511a7e},
	} {
		if got, ok := score.ImageKey(tc.text); !ok || got != tc.want {
			t.Errorf("ImageKey(%q) = %016x, %v; want %016x", tc.text, got, ok, tc.want)
		}
	}
	for _, blank := range []string{"", " \t\r\n"} {
		if _, ok := score.ImageKey(blank); ok {
			t.Errorf("ImageKey(%q) is a key", blank)
		}
	}
}

func imageReq(role score.Role, keys ...uint64) score.Request {
	req := prompt(chain(1, 4))
	req.Role, req.Multimodal, req.Images = role, true, keys
	return req
}

// 256 images are remembered per target, the one sent longest ago is forgotten first.
func TestImageMemory(t *testing.T) {
	r := newRig(t, 1, config(score.KVAware))
	hits := func(key uint64) int64 {
		var dec score.Decision
		req := imageReq(score.Mixed, key)
		if err := r.sc.Peek(&req, r.cands, &dec); err != nil {
			t.Fatal(err)
		}
		return dec.Terms[0].ImageHits
	}
	for key := range uint64(256) {
		r.serve(imageReq(score.Mixed, key+1))
	}
	r.serve(imageReq(score.Mixed, 1)) // used again
	r.serve(imageReq(score.Mixed, 257))
	if hits(1) != 1 || hits(2) != 0 || hits(3) != 1 || hits(257) != 1 {
		t.Errorf("hits of 1, 2, 3, 257 = %d, %d, %d, %d; want 1, 0, 1, 1", hits(1), hits(2), hits(3), hits(257))
	}
	r.sc.Forget(0)
	r.led.Join(0, 1)
	if hits(257) != 0 {
		t.Error("a forgotten target still has images")
	}
}

// Text is never trusted beside an image: not for hits, not for booking; and decode goes by load.
func TestImagesNeverUseText(t *testing.T) {
	for _, policy := range []string{score.KVAware, score.LeastWork} {
		r := newRig(t, 2, config(policy))
		r.view.add(1, chain(1, 4)...) // the same text lies on b
		if got := r.pick(imageReq(score.Prefill, 5)); got != "a" {
			t.Errorf("%s: first image on %s, want a by order", policy, got)
		}
		if tm := r.dec.Terms[1]; tm.Hits != 0 || tm.Blocks != 0 {
			t.Errorf("%s: terms of b = %+v, want no text blocks", policy, tm)
		}
		if got := r.led.Load(0); got.ActiveBlocks != 0 || got.HeldTokens != 64 {
			t.Errorf("%s: load = %+v, want tokens but no blocks", policy, got)
		}
		if got := r.pick(imageReq(score.Prefill, 5, 5)); got != "a" || r.dec.PickedTerms().ImageHits != 2 || r.dec.Images != 2 {
			t.Errorf("%s: image again on %s (hits %d of %d), want a, both times", policy, got, r.dec.PickedTerms().ImageHits, r.dec.Images)
		}
		r.busy(0, 3)
		if got := r.pick(imageReq(score.Decode, 5)); got != "b" || r.dec.Terms[0].ImageHits != 0 {
			t.Errorf("%s: decode on %s, want b by load alone", policy, got)
		}
	}
}

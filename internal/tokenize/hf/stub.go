//go:build !cgo

package hf

import (
	"fmt"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Open fails with ErrNotBuilt, after it has looked at the files so that their faults are named first.
func Open(path string, opt Options) (*Model, error) {
	if _, err := readFiles(path, opt); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("loading model %s: %w", path, ErrNotBuilt)
}

// Archive is empty in this build.
func Archive() string { return "" }

// Compile fails with ErrNotBuilt.
func Compile(string, Options) (*Template, error) { return nil, ErrNotBuilt }

// Reference fails with ErrNotBuilt.
func (m *Model) Reference() (tokenize.Encoder, error) { return nil, ErrNotBuilt }

// Decode fails with ErrNotBuilt.
func (m *Model) Decode([]block.Token) (string, error) { return "", ErrNotBuilt }

// encoder cannot be made in this build.
type encoder struct{}

func (e *encoder) Encode(dst []block.Token, _ []byte, _ bool) ([]block.Token, error) {
	return dst, ErrNotBuilt
}
func (e *encoder) Name() string                 { return "none" }
func (e *encoder) Added() []tokenize.AddedToken { return nil }
func (e *encoder) NormalizerEmpty() bool        { return false }

// Template cannot be made in this build.
type Template struct{}

// Source is empty in this build.
func (t *Template) Source() string { return "" }

// Variables is empty in this build.
func (t *Template) Variables() []string { return nil }

// WantsParts is false in this build.
func (t *Template) WantsParts() bool { return false }

// WantsPartsFor is false in this build.
func (t *Template) WantsPartsFor(tokenize.Prepare) bool { return false }

// Render fails with ErrNotBuilt.
func (t *Template) Render(dst, _ []byte, _ time.Time) ([]byte, error) { return dst, ErrNotBuilt }

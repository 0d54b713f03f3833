// Package tinymodel is a model directory small enough to live in the program: a byte-level BPE of 4,096
// tokens trained on this repository's own texts (train.py), a ChatML template with tools, and the shape
// of a model that an engine can run with random weights. Demos and tests need no download because of it.
package tinymodel

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed model
var files embed.FS

// VocabSize is the number of token ids.
const VocabSize = 4096

// FS is the model directory: tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json.
func FS() fs.FS {
	sub, err := fs.Sub(files, "model")
	if err != nil {
		panic(err) // the name is a constant and valid
	}
	return sub
}

// WriteTo writes the model directory to dir, which is made if it is not there. Files of these names that
// hold something else are an error, so that nobody's model is overwritten.
func WriteTo(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("making the model directory: %w", err)
	}
	entries, err := fs.ReadDir(FS(), ".")
	if err != nil {
		return fmt.Errorf("listing the embedded model: %w", err)
	}
	for _, e := range entries {
		text, err := fs.ReadFile(FS(), e.Name())
		if err != nil {
			return fmt.Errorf("reading the embedded model: %w", err)
		}
		if err := writeNew(filepath.Join(dir, e.Name()), text); err != nil {
			return err
		}
	}
	return nil
}

// writeNew writes a file that must not exist, unless with the same content.
func writeNew(path string, text []byte) error {
	switch old, err := os.ReadFile(path); {
	case err == nil && string(old) == string(text):
		return nil
	case err == nil:
		return fmt.Errorf("writing %s: %w with other content", path, fs.ErrExist)
	case !os.IsNotExist(err):
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("writing the model: %w", err)
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

package recorder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Files returns a Create that writes the parts of a run to path, path.0002, path.0003 and so on. No file
// is ever replaced: where one is there already, of an earlier run, say, the whole run goes to the next
// free name (path, path-2, path-3 …), with its parts after it. keep above 0 leaves only that many parts;
// without the first part a recording can be explained and is a trace, but cannot be verified. name is
// told the path of every file opened; nil: nobody. Files are readable by their owner only.
func Files(path string, keep int, name func(string)) func(part int) (io.WriteCloser, error) {
	base := path
	var parts []string
	return func(part int) (io.WriteCloser, error) {
		var file *os.File
		var err error
		if part == 1 {
			file, base, err = firstFree(path)
		} else {
			file, err = create(fmt.Sprintf("%s.%04d", base, part))
		}
		if err != nil {
			return nil, err
		}
		if name != nil {
			name(file.Name())
		}
		if parts = append(parts, file.Name()); keep > 0 && len(parts) > keep {
			if err := os.Remove(parts[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, errors.Join(fmt.Errorf("removing an old part: %w", err), file.Close())
			}
			parts = parts[1:]
		}
		return file, nil
	}
}

// maxRuns bounds the search for a free name.
const maxRuns = 100_000

// firstFree creates path, or the first of path-2, path-3 … that is not there.
func firstFree(path string) (*os.File, string, error) {
	for n := 1; n <= maxRuns; n++ {
		name := path
		if n > 1 {
			name = fmt.Sprintf("%s-%d", path, n)
		}
		file, err := create(name)
		if !errors.Is(err, fs.ErrExist) {
			return file, name, err
		}
	}
	return nil, "", fmt.Errorf("%s: %d recordings are there already", path, maxRuns)
}

func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// PathFor is where a model's recording goes: path itself where there is one model, else path with the
// model's name in front of its ending, with everything but letters, digits, dot, dash and underscore
// replaced by an underscore.
func PathFor(path, model string, several bool) string {
	if !several {
		return path
	}
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '_'
	}, model)
	ext := filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + "." + clean + ext
}

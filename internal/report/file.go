package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a result file in the making: it appears under its name on Commit, whole, or not at all.
type File struct {
	path string // final name, symlinks resolved
	temp string // "" where the target is a device or pipe, which is written directly
	f    *os.File
	w    *bufio.Writer
	done bool
}

// FileError is why a result file cannot be written.
type FileError struct {
	Path string
	Err  error // without the path
}

func (e *FileError) Error() string { return "writing " + e.Path + ": " + e.Err.Error() }

// Unwrap gives the reason.
func (e *FileError) Unwrap() error { return e.Err }

// CreateFile starts the result file path. What is there stays until Commit. Devices and pipes, such as
// /dev/stdout, cannot be replaced and are written directly.
func CreateFile(path string) (*File, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	var mode fs.FileMode // of the file to be replaced
	if st, err := os.Stat(path); err == nil {
		switch {
		case st.IsDir():
			return nil, &FileError{path, errors.New("is a directory")}
		case !st.Mode().IsRegular():
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return nil, &FileError{path, reason(err)}
			}
			return &File{path: path, f: f, w: bufio.NewWriter(f)}, nil
		}
		mode = st.Mode().Perm()
	}
	f, err := createTemp(path)
	if err != nil {
		return nil, &FileError{path, reason(err)}
	}
	if mode != 0 {
		if err := f.Chmod(mode); err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			return nil, &FileError{path, reason(err)}
		}
	}
	return &File{path: path, temp: f.Name(), f: f, w: bufio.NewWriterSize(f, 64<<10)}, nil
}

// createTemp makes a new file beside path. Unlike os.CreateTemp it leaves the permissions to the umask.
func createTemp(path string) (*os.File, error) {
	for i := 0; ; i++ {
		name := fmt.Sprintf(".%s.%d-%d.tmp", filepath.Base(path), os.Getpid(), i)
		f, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) || i == 1000 {
			return f, err
		}
	}
}

// Write buffers p. An error is of the file and stays with it: Commit reports it again.
func (f *File) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		err = &FileError{f.path, reason(err)}
	}
	return n, err
}

// Commit makes the file appear under its name. After an error nothing has changed there.
func (f *File) Commit() error {
	if f.done {
		return &FileError{f.path, os.ErrClosed}
	}
	f.done = true
	err := f.w.Flush()
	if f.temp != "" && err == nil {
		err = f.f.Sync()
	}
	if cerr := f.f.Close(); err == nil {
		err = cerr
	}
	if f.temp == "" {
		if err != nil {
			return &FileError{f.path, reason(err)}
		}
		return nil
	}
	if err == nil {
		err = os.Rename(f.temp, f.path)
	}
	if err != nil {
		_ = os.Remove(f.temp)
		return &FileError{f.path, reason(err)}
	}
	return nil
}

// Abort drops what was written. It does nothing after Commit, so that it can be deferred.
func (f *File) Abort() {
	if f.done {
		return
	}
	f.done = true
	_ = f.f.Close()
	if f.temp != "" {
		_ = os.Remove(f.temp)
	}
}

// WriteFile writes path through write: all of it, or, after an error, nothing.
func WriteFile(path string, write func(io.Writer) error) error {
	f, err := CreateFile(path)
	if err != nil {
		return err
	}
	defer f.Abort()
	if err := write(f); err != nil {
		return err
	}
	return f.Commit()
}

// reason strips the operation and the path that os errors repeat: the caller names them.
func reason(err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		return pe.Err
	case errors.As(err, &le):
		return le.Err
	}
	return err
}

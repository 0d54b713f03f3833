package cli

import (
	"log/slog"
	"strings"
)

// libraryLog takes what libraries write with package log into the program's own log, where every line has
// one form. net/http quotes what a worker sends unasked, which may be a piece of an answer: that is left out.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(p []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(p)), " starting with ")
	l.log.Warn("a library complains", "text", text)
	return len(p), nil
}

package trace

import (
	"errors"
	"fmt"
	"strconv"
)

// Error is the one kind of error readers give: where, why and what to do.
type Error struct {
	File    string
	Line    int // from 1; 0: the whole file
	Why     string
	Hint    string // "" none
	Damaged bool   // the data ends early or is corrupt, rather than being of the wrong kind
	Read    int    // requests read from this source before, where Damaged
}

// Error returns "file:line: why", with the number of requests read where the data is damaged.
func (e *Error) Error() string {
	s := e.File
	if s == "" {
		s = "trace"
	}
	if e.Line > 0 {
		s += ":" + strconv.Itoa(e.Line)
	}
	s += ": " + e.Why
	if e.Damaged {
		s += fmt.Sprintf(" (damaged; %d requests read before)", e.Read)
	}
	return s
}

// asError returns err as *Error, with its place where it has none.
func asError(err error, file string, line int) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Why: err.Error()}
	}
	if e.File == "" {
		e.File = file
		if e.Line == 0 {
			e.Line = line
		}
	}
	return e
}

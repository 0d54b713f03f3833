//go:build !linux

package admin

import (
	"testing"
	"time"
)

var started = time.Now()

// processTime falls back to the wall clock.
func processTime(testing.TB) time.Duration { return time.Since(started) }

//go:build unix

package cli

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestInterruptedWhileWaitingForAPipe: a named pipe without a writer keeps whoever opens it, one with an
// idle writer whoever reads it; a signal ends the run all the same.
func TestInterruptedWhileWaitingForAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no named pipes here:", err)
	}
	for _, writer := range []bool{false, true} {
		if writer {
			fd, err := syscall.Open(pipe, syscall.O_RDWR, 0) // with both ends, so that it does not wait
			if err != nil {
				t.Skip("cannot hold a pipe open:", err)
			}
			defer syscall.Close(fd)
		}
		for _, args := range [][]string{{"trace", "stats", pipe}, {"sim", pipe, "--workers", "2"}, {"explain", "--decisions", pipe}} {
			ctx, cancel := context.WithCancel(context.Background())
			var out, errs bytes.Buffer
			code := make(chan int, 1)
			go func() { code <- Run(ctx, args, strings.NewReader(""), &out, &errs) }()
			cancel()
			select {
			case got := <-code:
				if got != exitInterrupted || out.Len() > 0 || errs.String() != "kvroute: interrupted\n" {
					t.Errorf("%s, writer %v: code %d, stdout %q, stderr %q", args[0], writer, got, out.String(), errs.String())
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s, writer %v: waits in spite of the signal", args[0], writer)
			}
		}
	}
}

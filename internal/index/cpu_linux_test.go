package index

import (
	"syscall"
	"testing"
	"time"
)

// threadTime is the processor time this thread has used: the figure that counts on a busy machine.
func threadTime(tb testing.TB) time.Duration {
	tb.Helper()
	const thisThread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thisThread, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

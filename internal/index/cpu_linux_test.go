package index

import (
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// threadTime is the processor time this thread has used: the figure that counts on a busy machine.
// Getrusage would give it by ticks of the scheduler, some milliseconds.
func threadTime(tb testing.TB) time.Duration {
	tb.Helper()
	const thisThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, e := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, thisThread, uintptr(unsafe.Pointer(&ts)), 0); e != 0 {
		tb.Fatal(e)
	}
	return time.Duration(ts.Nano())
}

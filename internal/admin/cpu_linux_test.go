package admin

import (
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// processTime is the processor time that this process has used, on all cores and for the collector too: the figure
// that counts on a busy machine.
func processTime(tb testing.TB) time.Duration {
	tb.Helper()
	const thisProcess = 2 // CLOCK_PROCESS_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, e := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, thisProcess, uintptr(unsafe.Pointer(&ts)), 0); e != 0 {
		tb.Fatal(e)
	}
	return time.Duration(ts.Nano())
}

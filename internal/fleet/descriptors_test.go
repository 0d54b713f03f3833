//go:build cgo

package fleet_test

import (
	"os"
	"testing"
)

// descriptors counts this process's open files; 0 where the system does not tell.
func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if os.IsNotExist(err) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

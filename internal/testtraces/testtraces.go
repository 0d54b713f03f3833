// Package testtraces finds the recorded traces that tests read. Small ones lie in traces/; the big
// ones are read from the folder named by KVROUTE_TRACES, by default ../shared/traces beside the
// checkout. A test that needs a missing file is skipped, or fails where KVROUTE_REQUIRE_TRACES=1. With -short
// tests that need big ones are skipped.
package testtraces

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Root returns the top folder of the checkout.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Dir returns the folder of the big traces, whether it exists or not.
func Dir() string {
	if d := os.Getenv("KVROUTE_TRACES"); d != "" {
		return d
	}
	return filepath.Join(Root(), "..", "shared", "traces")
}

// Path returns the path of the trace rel (slash-separated, as mooncake/conversation_trace.jsonl.gz).
func Path(tb testing.TB, rel string) string {
	tb.Helper()
	if testing.Short() {
		tb.Skipf("trace %s is a big one: without -short (make test-all)", rel)
	}
	p := filepath.Join(Dir(), filepath.FromSlash(rel))
	if _, err := os.Stat(p); err != nil {
		if os.Getenv("KVROUTE_REQUIRE_TRACES") == "1" {
			tb.Fatalf("trace %s: %v", rel, err)
		}
		tb.Skipf("trace %s not here (set KVROUTE_TRACES): %v", rel, err)
	}
	return p
}

// Bundled returns the path of a file under traces/ or testdata/ in the checkout.
func Bundled(rel string) string { return filepath.Join(Root(), filepath.FromSlash(rel)) }

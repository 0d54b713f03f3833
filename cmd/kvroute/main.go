// Command kvroute routes LLM requests to the workers that already hold their prompt's KV cache, and
// replays and simulates recorded traffic on the same scorer.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvroute/kvroute/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default handling is back: a second one ends the program at once.
	context.AfterFunc(ctx, stop)
	code := cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

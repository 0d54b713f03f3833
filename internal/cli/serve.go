package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/router"
)

// Groups of serve's flags.
const (
	groupWorkers  = "Workers"
	groupPrompts  = "Prompts"
	groupListen   = "Listening"
	groupLimits   = "Limits and times"
	groupFailover = "Failover"
	groupKeep     = "Records and snapshots"
	groupLog      = "Log"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	model       string
	workers     []discovery.Spec
	workersFile string
	backend     string
	transport   string
	events      string
	health      time.Duration
	silentAfter int
	guess       pool.Guess

	tokenizers   []string
	template     string
	blockSize    int
	tokenizeTime time.Duration
	tokenCache   int64
	maxText      int64
	indexLimit   int64

	listen, adminListen  string
	watchText            bool
	apiKeys, adminTokens string
	tlsCert, tlsKey      string
	workerCA             string
	connectTimeout       time.Duration
	router               router.Config
	sessionHeaders       []string
	record               string
	recordMax            int64
	recordKeep           int
	snapshot             string
	snapshotEvery        time.Duration
	logLevel, logFormat  string
	dryRun               bool
	ssh                  sshFlags
	scorer               scorerFlags
}

func (a *app) newServe() *cobra.Command {
	f := serveFlags{router: router.Defaults()}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Route live requests to the workers that already hold their prompt's KV cache",
		Long: `Answers the OpenAI API in front of vLLM, SGLang, ATOM and TensorRT-LLM workers.
It follows the workers' KV cache events, tokenizes every prompt as its engine
does, and sends it where the least work is left. Bytes pass untouched both
ways.

GET /ready says when all that the workers hold is known, GET /metrics how it
goes, GET /v1/admin/workers what is believed of each worker and why. The first
SIGTERM or SIGINT drains, a second one ends at once. See docs/serve.md.`,
		Example: `  # two workers that say themselves where their events are
  kvroute serve --model qwen3 --router-tokenizer-path /models/qwen3 --worker http://10.0.0.1:30000 --worker http://10.0.0.2:30000
  # endpoints given, a recording kept, and the published formula
  kvroute serve --router-tokenizer-path /models/qwen3 --worker http://10.0.0.1:8000,engine=vllm,events=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558 --record run.jsonl --router-policy kv-aware
  # what would happen, without serving
  kvroute serve --worker http://10.0.0.1:8000 --dry-run`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context(), &f) },
	}
	fs := cmd.Flags()
	text := func(name, arg, def, group, usage string, to *string) {
		bind(cmd, fs, spec{name: name, arg: arg, def: def, group: group, usage: usage}, to, parseText)
	}
	atLeast := func(low time.Duration, name, def, group, usage string, to *time.Duration) {
		bind(cmd, fs, spec{name: name, arg: "TIME", def: def, group: group, usage: usage}, to, spanAtLeast(low))
	}
	span := func(name, def, group, usage string, to *time.Duration) { atLeast(0, name, def, group, usage, to) }
	choice := func(name, def, group, usage string, to *string, values ...string) {
		bind(cmd, fs, spec{name: name, arg: "NAME", def: def, group: group, usage: usage, values: values}, to, oneOf(values...))
	}
	text("model", "NAME", "", groupWorkers, "model of workers that do not say theirs with model= (default: what each serves)", &f.model)
	bindList(cmd, fs, spec{
		name: "worker", arg: "URL[,key=value…]", group: groupWorkers,
		usage: "a worker, repeatable; keys: model, role, engine, events, replay, topic, block-size, dp-size, meta.<name>",
	}, "", &f.workers, parseWorker)
	choice("discovery-backend", "static", groupWorkers, "where workers come from: static (--worker), file (--workers-file)", &f.backend, "static", "file")
	text("workers-file", "FILE", "", groupWorkers, "workers in YAML or JSON, followed as it changes", &f.workersFile)
	choice("request-transport", "http", groupWorkers, "how requests reach workers", &f.transport, "http")
	choice("kv-event-transport", "zmq", groupWorkers, "how cache events come", &f.events, "zmq")
	atLeast(10*time.Millisecond, "health-interval", "10s", groupWorkers, "time between health checks of a worker", &f.health)
	bind(cmd, fs, spec{name: "silent-after", arg: "N", def: "16", group: groupWorkers, usage: "requests without a cache event after which a worker's stream counts as silent"}, &f.silentAfter, intBetween(1, 1<<20))
	bind(cmd, fs, spec{name: "approximate-blocks", arg: "N", def: "65536", group: groupWorkers, usage: "blocks that a worker without events is believed to cache"}, &f.guess.Blocks, intBetween(1, 1<<26))
	atLeast(time.Millisecond, "approximate-age", "10m", groupWorkers, "time that a prefix is believed to stay on a worker without events", &f.guess.Age)

	bindList(cmd, fs, spec{
		name: "router-tokenizer-path", arg: "[MODEL=]DIR", group: groupPrompts,
		usage: "model directory with tokenizer.json; with MODEL= for that model only; repeatable. Without: approximate routing",
	}, "", &f.tokenizers, parseText)
	text("chat-template", "FILE", "", groupPrompts, "chat template to use instead of the model's own", &f.template)
	bind(cmd, fs, spec{name: "block-size", arg: "N", def: "16", group: groupPrompts, usage: "tokens in a block of the mirrors; best is the engines' block size or a divisor of it"}, &f.blockSize, intBetween(1, 1<<16))
	atLeast(time.Millisecond, "tokenize-timeout", "2s", groupPrompts, "time to make tokens of a prompt; then it is routed by load", &f.tokenizeTime)
	bind(cmd, fs, spec{name: "tokenize-cache", arg: "SIZE", def: "256MiB", group: groupPrompts, usage: "memory for tokens of earlier prompts"}, &f.tokenCache, parseSize)
	bind(cmd, fs, spec{name: "tokenize-max", arg: "SIZE", def: "32MiB", group: groupPrompts, usage: "longest prompt that is tokenized; longer ones are routed by load"}, &f.maxText, parseSize)
	bind(cmd, fs, spec{name: "index-limit", arg: "N", def: "0", group: groupPrompts, usage: "greatest number of (block, target) pairs mirrored for a model; 0: 268 million"}, &f.indexLimit, countBetween(0, 1<<40))

	text("listen", "ADDR", ":8000", groupListen, "address of the API", &f.listen)
	text("admin-listen", "ADDR", "", groupListen, "address of the admin API (default: on --listen, for clients on this machine)", &f.adminListen)
	text("admin-token-file", "FILE", "", groupListen, "tokens that let others use the admin API, one a line", &f.adminTokens)
	text("api-key-file", "FILE", "", groupListen, "API keys that clients need, one a line, read again when changed", &f.apiKeys)
	text("tls-cert", "FILE", "", groupListen, "certificate (PEM) to serve TLS with, read again when changed", &f.tlsCert)
	text("tls-key", "FILE", "", groupListen, "its key", &f.tlsKey)
	text("worker-ca", "FILE", "", groupListen, "certificates (PEM) to trust for https workers instead of the system's", &f.workerCA)
	bindList(cmd, fs, spec{name: "forward-header", arg: "NAME", group: groupListen, usage: "request header to pass on to workers beside Accept, Content-Type, Traceparent, Tracestate; repeatable"}, ",", &f.router.ForwardHeaders, parseText)
	bindList(cmd, fs, spec{name: "session-header", arg: "NAME", group: groupListen, usage: "headers that name a request's session (default X-Dynamo-Session-ID); repeatable"}, ",", &f.sessionHeaders, parseText)
	bindList(cmd, fs, spec{name: "session-field", arg: "NAME", group: groupListen, values: []string{"prompt_cache_key", "session_id", "user"}, usage: "fields of the body that name it, after the headers; repeatable"}, ",", &f.router.SessionFields, parseText)
	bindSwitch(cmd, fs, spec{name: "explain-header", group: groupListen, usage: "answer x-kvroute-explain: 1 with the decision in headers"}, &f.router.Explain)
	bindSwitch(cmd, fs, spec{name: "stream-usage", group: groupListen, usage: "ask engines for usage at the end of every stream, to hold predictions against it; clients that did not ask do not see it"}, &f.router.StreamUsage)
	bindSwitch(cmd, fs, spec{name: "watch-text", group: groupListen, usage: "show the beginning of prompts to those who watch; for a machine of your own only"}, &f.watchText)
	bindSwitch(cmd, fs, spec{name: "dry-run", group: groupListen, local: true, usage: "check everything that can be reached, print the plan and end"}, &f.dryRun)

	bind(cmd, fs, spec{name: "max-body", arg: "SIZE", def: "64MiB", group: groupLimits, usage: "largest body of a request"}, &f.router.MaxBody, parseSize)
	bind(cmd, fs, spec{name: "max-body-memory", arg: "SIZE", def: "4GiB", group: groupLimits, usage: "bodies of all requests at once, 0: no limit; more are answered 429"}, &f.router.MaxBodies, parseCount)
	bind(cmd, fs, spec{name: "max-in-flight", arg: "N", def: "16384", group: groupLimits, usage: "requests in flight at once, 0: no limit; more are answered 429"}, &f.router.MaxInFlight, intBetween(0, 1<<24))
	bind(cmd, fs, spec{name: "max-per-worker", arg: "N", def: "0", group: groupLimits, usage: "the same for each worker"}, &f.router.MaxPerWorker, intBetween(0, 1<<24))
	d := router.Defaults()
	span("body-timeout", d.BodyTimeout.String(), groupLimits, "time for a request's body to arrive, 0: no limit", &f.router.BodyTimeout)
	span("connect-timeout", "5s", groupLimits, "time to connect to a worker, 0: no limit", &f.connectTimeout)
	span("first-byte-timeout", d.FirstByteTimeout.String(), groupLimits, "time for a worker's answer to begin, 0: no limit", &f.router.FirstByteTimeout)
	span("idle-timeout", d.IdleTimeout.String(), groupLimits, "time between two pieces of an answer, 0: no limit", &f.router.IdleTimeout)
	span("total-timeout", d.TotalTimeout.String(), groupLimits, "time for a whole request, 0: no limit", &f.router.TotalTimeout)
	span("client-timeout", d.ClientTimeout.String(), groupLimits, "time for a client to take a piece of the answer, 0: no limit", &f.router.ClientTimeout)
	span("drain-delay", d.DrainDelay.String(), groupLimits, "time to go on listening after the first signal, for those who watch /ready", &f.router.DrainDelay)
	span("drain-limit", d.DrainLimit.String(), groupLimits, "time for requests to finish after that, 0: no limit", &f.router.DrainLimit)

	bind(cmd, fs, spec{name: "attempts", arg: "N", def: "3", group: groupFailover, usage: "workers tried for a request before its first byte, each once"}, &f.router.Retry.Attempts, intBetween(1, 1000))
	span("retry-within", d.Retry.Within.String(), groupFailover, "no further attempt later than this, 0: no limit", &f.router.Retry.Within)
	bind(cmd, fs, spec{name: "retry-ratio", arg: "SHARE", def: "0.2", group: groupFailover, usage: "retries allowed for each request, over all"}, &f.router.Retry.Ratio, parseReal)
	bind(cmd, fs, spec{name: "retry-burst", arg: "N", def: "64", group: groupFailover, usage: "retries that may be saved up"}, &f.router.Retry.Burst, intBetween(0, 1<<20))
	bind(cmd, fs, spec{name: "breaker-failure-threshold", arg: "N", def: "3", group: groupFailover, env: []string{"INFERA_BREAKER_FAILURE_THRESHOLD"}, usage: "failures in a row after which a worker is left alone; 0: never"}, &f.router.Breaker.Threshold, intBetween(0, 1<<20))
	bind(cmd, fs, spec{name: "breaker-cooldown", arg: "TIME", def: d.Breaker.Cooldown.String(), group: groupFailover, usage: "how long, the first time; doubles with every probe that fails"}, &f.router.Breaker.Cooldown, parseSpan)
	span("breaker-max-cooldown", d.Breaker.MaxCooldown.String(), groupFailover, "how long at most", &f.router.Breaker.MaxCooldown)

	text("record", "FILE", "", groupKeep, "record decisions and all they depend on, as hashes and counts, for replay and sim", &f.record)
	bind(cmd, fs, spec{name: "record-max-size", arg: "SIZE", def: "1GiB", group: groupKeep, usage: "begin another file after this much"}, &f.recordMax, parseCount)
	bind(cmd, fs, spec{name: "record-keep", arg: "N", def: "0", group: groupKeep, usage: "files of a run to keep, 0: all; without the first a recording cannot be verified"}, &f.recordKeep, intBetween(0, 1<<20))
	text("snapshot", "FILE", "", groupKeep, "keep the mirrors here and start from them, where the engines' sequence numbers show that they still hold", &f.snapshot)
	atLeast(time.Second, "snapshot-interval", "1m", groupKeep, "time between two snapshots", &f.snapshotEvery)

	choice("log-level", "info", groupLog, "least level to log: debug, info, warn, error", &f.logLevel, "debug", "info", "warn", "error")
	choice("log-format", "text", groupLog, "text (one key=value line each) or json", &f.logFormat, "text", "json")
	bindSSH(cmd, &f.ssh)
	bindScorer(cmd, &f.scorer)
	return cmd
}

// parseWorker reads a value of --worker.
func parseWorker(s string) (discovery.Spec, error) {
	w, err := discovery.ParseWorker(s)
	if err != nil {
		return discovery.Spec{}, discoveryValue(err)
	}
	w.Origin = "--worker " + s
	return w, nil
}

// discoveryValue turns an error about a worker into one about a value.
func discoveryValue(err error) error {
	var e *discovery.Error
	if errors.As(err, &e) {
		return &valueError{why: e.Error(), hint: e.Hint}
	}
	return err
}

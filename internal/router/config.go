package router

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config says how requests are carried. Start from Defaults; of times and limits 0 means none unless said
// otherwise.
type Config struct {
	Log       *slog.Logger
	Registry  *prometheus.Registry // takes the router's metrics and answers /metrics
	Forwarder Forwarder

	MaxBody     int64         // bytes of a request's body; more is answered 413
	BodyTimeout time.Duration // for a request's body to arrive; 408

	// Times of an answer: to its first byte, between chunks, in total, and for the client to take a chunk.
	FirstByteTimeout time.Duration
	IdleTimeout      time.Duration
	TotalTimeout     time.Duration
	ClientTimeout    time.Duration

	// MaxInFlight and MaxPerWorker bound requests in flight in total and on each worker; more is answered 429.
	MaxInFlight  int
	MaxBodies    int64 // bytes of all bodies held at once; more is answered 429
	MaxPerWorker int

	Retry   RetryConfig
	Breaker BreakerConfig

	SessionHeaders []string // name the session of a request, the first that is set counts
	SessionFields  []string // of the body, asked after the headers: prompt_cache_key, session_id, user
	ForwardHeaders []string // sent on to workers besides DefaultForwardHeaders
	Keys           *Secrets // API keys; nil: no key is needed
	Explain        bool     // answer x-kvroute-explain: 1 with the decision in headers
	// StreamUsage asks engines for usage at the end of streams whose client did not, and takes the record
	// that brings it out of the stream again. It is the one thing that is ever added to a body.
	StreamUsage bool

	// Admin serves /v1/admin/. Loopback clients may use it on the public listener, unless AdminElsewhere
	// leaves it to AdminHandler alone; others need a token of AdminTokens.
	Admin          http.Handler
	AdminElsewhere bool
	AdminTokens    *Secrets

	DrainDelay time.Duration // listeners stay open for, after /ready has turned
	DrainLimit time.Duration // streams may run on for, after that; then they are cut

	// OnDispatch is told the router's own time of a request, from the end of its body to its first dispatch; nil: nobody is.
	OnDispatch func(time.Duration)
	// OnBreaker is told whenever a worker's breaker opens, and must be quick; nil: nobody is.
	OnBreaker func(worker string)

	Now func() time.Time
}

// RetryConfig bounds how often a request may move on to another worker. Each worker is tried once.
type RetryConfig struct {
	Attempts int           // workers tried for a request, at most; at least 1
	Within   time.Duration // no further attempt later than that after the request came
	// Ratio and Burst bound retries of all requests together: each request allows Ratio retries, and Burst
	// may be saved up, so that an outage is not multiplied. One more is allowed every second.
	Ratio float64
	Burst int
}

// BreakerConfig says when a worker is left alone.
type BreakerConfig struct {
	Threshold   int           // failures in a row that open it; 0: never
	Cooldown    time.Duration // until the first probe; doubles with each probe that fails
	MaxCooldown time.Duration
	BusyPenalty time.Duration // a worker that says it is busy is avoided that long, or as it asks, up to MaxBusy
	MaxBusy     time.Duration
}

// Defaults returns the configuration that serve starts from.
func Defaults() Config {
	return Config{
		MaxBody: 64 << 20, BodyTimeout: 2 * time.Minute,
		FirstByteTimeout: 10 * time.Minute, IdleTimeout: 2 * time.Minute, TotalTimeout: time.Hour, ClientTimeout: time.Minute,
		MaxInFlight:    16384,
		MaxBodies:      4 << 30,
		Retry:          RetryConfig{Attempts: 3, Within: 30 * time.Second, Ratio: 0.2, Burst: 64},
		Breaker:        BreakerConfig{Threshold: 3, Cooldown: 5 * time.Second, MaxCooldown: time.Minute, BusyPenalty: time.Second, MaxBusy: 10 * time.Second},
		SessionHeaders: []string{"X-Dynamo-Session-ID"},
		DrainDelay:     5 * time.Second, DrainLimit: 5 * time.Minute,
	}
}

// DefaultForwardHeaders are the request headers that workers get. Authorization is not among them: it is
// for the router.
var DefaultForwardHeaders = []string{"Accept", "Content-Type", "Traceparent", "Tracestate"}

// neverForwarded belong to one connection or are the router's own to set.
var neverForwarded = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Host", "Content-Length", "Content-Encoding", "Accept-Encoding", "Expect",
	rankHeader, requestIDHeader,
}

// Check says what is wrong with a configuration.
func (c Config) Check() error { return c.check() }

// check says what is wrong with a configuration and fills in what may be left out.
func (c *Config) check() error {
	if c.Forwarder == nil {
		return fmt.Errorf("checking the router's configuration: no forwarder")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.MaxBody <= 0 {
		return fmt.Errorf("checking the limit of request bodies: %d bytes, want more than 0", c.MaxBody)
	}
	if c.Retry.Attempts < 1 {
		return fmt.Errorf("checking retries: %d attempts, want at least 1", c.Retry.Attempts)
	}
	if r := c.Retry.Ratio; !(r >= 0) || c.Retry.Burst < 0 {
		return fmt.Errorf("checking the retry budget: ratio %v and burst %d, want neither below 0", r, c.Retry.Burst)
	}
	if b := c.Breaker; b.Threshold > 0 && (b.Cooldown <= 0 || b.MaxCooldown < b.Cooldown) {
		return fmt.Errorf("checking the breaker: cool-down %v up to %v, want 0 < first <= last", b.Cooldown, b.MaxCooldown)
	}
	for _, f := range c.SessionFields {
		if !slices.Contains([]string{"prompt_cache_key", "session_id", "user"}, f) {
			return fmt.Errorf("checking session fields: %q is none of prompt_cache_key, session_id, user", f)
		}
	}
	for _, h := range slices.Concat(c.ForwardHeaders, c.SessionHeaders) {
		if h == "" || strings.ContainsAny(h, " \t:\r\n") {
			return fmt.Errorf("checking headers: %q is no header's name", h)
		}
	}
	for _, h := range c.ForwardHeaders {
		if slices.Contains(neverForwarded, textproto.CanonicalMIMEHeaderKey(h)) {
			return fmt.Errorf("checking headers to forward: %s belongs to a connection or is set by the router", h)
		}
	}
	return nil
}

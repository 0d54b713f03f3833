package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Limits of one request.
const (
	timeout   = 10 * time.Second
	maxAnswer = 32 << 20
)

// api asks one engine.
type api struct {
	client  *http.Client
	base    *url.URL
	scraped map[string]*dto.MetricFamily // of this probe; nil: not asked yet
	failed  error                        // of scraping
}

// statusError is an answer other than 200.
type statusError struct {
	method, path string
	status       int
	text         string // what the engine said, in short
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("%s %s answered %d", e.method, e.path, e.status)
	if e.text != "" {
		s += ": " + e.text
	}
	return s
}

// Unwrap tells engines that are starting from those that lack something.
func (e *statusError) Unwrap() error {
	if e.status == http.StatusServiceUnavailable {
		return ErrNotReady
	}
	return nil
}

// status is the status of an answer that was an error, 0 if there was none.
func status(err error) int {
	var e *statusError
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

func (a *api) get(ctx context.Context, path string) ([]byte, error) {
	return a.do(ctx, http.MethodGet, path, nil)
}

func (a *api) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, a.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.client.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // says method and URL again
			err = u.Err
		}
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %s: reading the answer: %w", method, path, err)
	case len(data) > maxAnswer:
		return nil, fmt.Errorf("%s %s: the answer is longer than %d bytes", method, path, maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return nil, &statusError{method, path, resp.StatusCode, errorText(data)}
	}
	return data, nil
}

func (a *api) getJSON(ctx context.Context, path string, v any) error {
	data, err := a.get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("GET %s: not the JSON that was expected: %w", path, err)
	}
	return nil
}

// errorText is the message of an error body, cut to a line.
func errorText(data []byte) string {
	var e struct {
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text := ""
	if json.Unmarshal(data, &e) == nil {
		switch {
		case e.Error.Message != "":
			text = e.Error.Message
		case e.Message != "":
			text = e.Message
		default:
			text = strings.Trim(string(e.Detail), `"`)
		}
	}
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}

// metrics reads /metrics once.
func (a *api) metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	if a.scraped != nil || a.failed != nil {
		return a.scraped, a.failed
	}
	data, err := a.get(ctx, "/metrics")
	if err == nil {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		if a.scraped, err = parser.TextToMetricFamilies(bytes.NewReader(data)); err != nil {
			err = fmt.Errorf("GET /metrics: not metrics in the text form: %w", err)
		}
	}
	if err != nil {
		a.scraped, a.failed = nil, err
	}
	return a.scraped, a.failed
}

// endpoint rewrites an endpoint that an engine binds so that it can be reached from here. An engine that
// binds says '*' or a wildcard address; one that names another host dials it, which reaches only whoever
// listens there.
func (a *api) endpoint(s string) (string, error) {
	scheme, address, ok := strings.Cut(s, "://")
	if !ok {
		return "", fmt.Errorf("%q is not an endpoint", s)
	}
	if scheme == "ipc" {
		if h := a.base.Hostname(); h != "localhost" && !net.ParseIP(h).IsLoopback() {
			return "", fmt.Errorf("the engine publishes on %s, which is reachable on its own machine only", s)
		}
		return s, nil
	}
	host, port, err := net.SplitHostPort(address)
	switch {
	case scheme != "tcp" || err != nil:
		return "", fmt.Errorf("the engine publishes on %s, which cannot be reached over the network", s)
	case port == "0":
		return "", fmt.Errorf("the engine publishes on %s, a port that it does not name", s)
	case host == "*" || host == "::" || host == "0.0.0.0" || host == "":
		return "tcp://" + net.JoinHostPort(a.base.Hostname(), port), nil
	}
	return "", fmt.Errorf("the engine dials %s instead of listening; if that is meant to be this router, give events=tcp://*:%s", s, port)
}

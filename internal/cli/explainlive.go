package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/kvroute/kvroute/internal/score"
)

// explainPath is where a router explains.
const explainPath = "/v1/admin/explain"

// maxRequest bounds a request body and a router's answer.
const maxRequest = 64 << 20

// explainLive asks a router how it would place a request. Nothing is sent to a worker.
func (a *app) explainLive(ctx context.Context, e *explainFlags) error {
	at, err := explainURL(e.url)
	if err != nil {
		return badValue(e.url, "--url", err)
	}
	body, err := a.readRequest(ctx, e.request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, bytes.NewReader(body))
	if err != nil {
		return badValue(e.url, "--url", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if e.id != "" {
		req.Header.Set("X-Request-Id", e.id)
	}
	if e.tokenFile != "" {
		token, err := readToken(e.tokenFile)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return &fault{code: exitUnreachable, what: "cannot reach the router", where: at, why: err.Error(), err: err}
	}
	defer resp.Body.Close() // only read from
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxRequest+1))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return &fault{code: exitUnreachable, what: "the router's answer breaks off", where: at, why: err.Error(), err: err}
	}
	if resp.StatusCode != http.StatusOK {
		return refused(resp, at, answer)
	}
	dec, flags, err := parseExplained(answer)
	if err != nil {
		return failed("cannot read the router's answer", at, err)
	}
	return a.writeDecision(e.format, dec, flags)
}

// explainURL is the address to ask, from a router's.
func explainURL(text string) (string, error) {
	u, err := url.Parse(text)
	const hint = "a router's address looks like http://127.0.0.1:8000"
	switch {
	case err != nil:
		return "", &valueError{err.Error(), hint}
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", &valueError{"not an http address", hint}
	case u.RawQuery != "" || u.Fragment != "":
		return "", &valueError{"an address with a query", hint}
	}
	if !strings.HasSuffix(u.Path, explainPath) {
		u.Path = strings.TrimSuffix(u.Path, "/") + explainPath
	}
	return u.String(), nil
}

// readRequest reads the body to explain.
func (a *app) readRequest(ctx context.Context, path string) ([]byte, error) {
	var in io.Reader
	if path == "-" {
		in = newPatient(ctx, a.stdin)
	} else {
		f, err := openInput(ctx, path)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, usage("cannot read request "+path, "--request", pathWhy(err), "")
		}
		defer f.Close() // only read from
		in = f
	}
	body, err := io.ReadAll(io.LimitReader(in, maxRequest+1))
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, failed("cannot read request "+path, "--request", err)
	case len(body) > maxRequest:
		return nil, usage("cannot read request "+path, "--request", fmt.Sprintf("it is larger than %d bytes", maxRequest), "")
	case !json.Valid(body):
		return nil, usage("cannot read request "+path, "--request", "it is not JSON", "give the body of a /v1/chat/completions or /v1/completions request")
	}
	return body, nil
}

// readToken reads a token file: its first line that is not blank.
func readToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", usage("cannot read token file "+path, "--token-file", pathWhy(err), "")
	}
	for _, line := range strings.Split(string(data), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			return line, nil
		}
	}
	return "", usage("no token", "--token-file "+path, "the file is empty", "")
}

// refused words a router's refusal.
func refused(resp *http.Response, at string, answer []byte) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	why := resp.Status
	if json.Unmarshal(answer, &body) == nil && body.Error.Message != "" {
		why += ": " + body.Error.Message
	}
	f := &fault{code: exitUsage, what: "the router refuses to explain", where: at, why: why}
	switch {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		f.hint = "name the router's admin token with --token-file, or ask from the machine it runs on"
	case resp.StatusCode == http.StatusNotFound && body.Error.Message == "":
		f.hint = "is this a kvroute router? With --admin-listen the admin API has an address of its own"
	case resp.StatusCode >= 500:
		f.code, f.what = exitFailed, "the router cannot explain"
	}
	return f
}

// parseExplained reads a kvroute.explain/v1 document.
func parseExplained(doc []byte) (*score.Decision, map[string]any, error) {
	var head struct {
		Schema string         `json:"schema"`
		Flags  map[string]any `json:"flags"`
	}
	var all map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(doc, &head), json.Unmarshal(doc, &all)); err != nil {
		return nil, nil, err
	}
	if head.Schema != "kvroute.explain/v1" {
		return nil, nil, fmt.Errorf("its schema is %q, not kvroute.explain/v1", head.Schema)
	}
	for _, name := range []string{"schema", "version", "flags"} {
		delete(all, name)
	}
	record, err := json.Marshal(all)
	if err != nil {
		return nil, nil, err
	}
	dec, err := score.ParseDecision(record)
	return &dec, head.Flags, err
}

package router

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvroute/kvroute/internal/openai"
	"github.com/kvroute/kvroute/internal/score"
)

// Headers of ours.
const (
	requestIDHeader = "X-Request-Id"
	altIDHeader     = "X-Infera-Request-Id"
	rankHeader      = "X-Data-Parallel-Rank"
	timeoutHeader   = "X-Request-Timeout"
	explainHeader   = "X-Kvroute-Explain"
)

// requestID returns the id a client gave, if it can stand in logs and headers, or a new one.
func requestID(req *http.Request) string {
	for _, h := range []string{requestIDHeader, altIDHeader} {
		if id := req.Header.Get(h); validID(id) {
			return id
		}
	}
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func validID(id string) bool {
	if len(id) == 0 || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// sharedBody is a request's body in a buffer that goes back to its pool once nobody reads it: a worker
// that answers early leaves the transport sending.
type sharedBody struct {
	buf  *buffer
	refs atomic.Int64
	room *room
	held int64 // bytes of room taken
}

type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 16<<10)} }}

// maxPooled bounds what a pool keeps; larger bodies are rare and their memory is better given back.
const maxPooled = 4 << 20

func (s *sharedBody) release() {
	if s.refs.Add(-1) != 0 {
		return
	}
	s.room.give(s.held)
	if cap(s.buf.b) <= maxPooled {
		s.buf.b = s.buf.b[:0]
		buffers.Put(s.buf)
	}
}

// room bounds the memory of all bodies together.
type room struct {
	most int64 // bytes; 0: no bound
	used atomic.Int64
}

// take reports whether there is room for n bytes more, and takes it.
func (r *room) take(n int64) bool {
	if r.used.Add(n) > r.most && r.most > 0 {
		r.used.Add(-n)
		return false
	}
	return true
}

func (r *room) give(n int64) { r.used.Add(-n) }

// reader returns a reader of the body that holds it until closed.
func (s *sharedBody) reader(splices ...openai.Splice) io.ReadCloser {
	s.refs.Add(1)
	return &bodyReader{Body: openai.NewBody(s.buf.b, splices...), shared: s}
}

type bodyReader struct {
	*openai.Body
	shared *sharedBody
	once   sync.Once
}

func (b *bodyReader) Close() error {
	b.once.Do(b.shared.release)
	return nil
}

// trusted is how much of a Content-Length is believed before as much has come.
const trusted = 1 << 20

var (
	errTooLarge = errors.New("body too large")
	errNoRoom   = errors.New("no room for the body")
)

// readBody reads a request's body into one buffer. Its length is known from the start for nearly all
// requests; then there is no second copy at any time beyond the first trusted bytes.
func (r *Router) readBody(req *http.Request) (*sharedBody, error) {
	s := &sharedBody{buf: buffers.Get().(*buffer), room: &r.bodies}
	s.refs.Store(1)
	if err := s.fill(req.Body, req.ContentLength, r.cfg.MaxBody); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// grow makes room for size bytes in all. The old buffer is given back as the new one is taken.
func (s *sharedBody) grow(b []byte, size int64) ([]byte, error) {
	if !s.room.take(size - s.held) {
		return b, errNoRoom
	}
	s.held = size
	if int64(cap(b)) >= size {
		return b, nil
	}
	return append(make([]byte, 0, size), b...), nil
}

func (s *sharedBody) fill(from io.Reader, length, most int64) (err error) {
	if length > most {
		return errTooLarge
	}
	b := s.buf.b[:0]
	defer func() { s.buf.b = b }()
	if b, err = s.grow(b, max(min(length, trusted), int64(cap(b)))); err != nil {
		return err
	}
	for {
		if len(b) == cap(b) {
			if int64(len(b)) == length {
				// Nothing more should come; the reader's end is still to be seen.
				var one [1]byte
				n, err := from.Read(one[:])
				if n > 0 {
					b = append(b, one[0])
				}
				if err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				continue
			}
			size := max(2*int64(cap(b)), 16<<10)
			if length > int64(len(b)) {
				size = length
			}
			if b, err = s.grow(b, size); err != nil {
				return err
			}
		}
		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if int64(len(b)) > most {
			return errTooLarge
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// receive reads and scans a request. It returns nil and answers it where that is not possible.
func (x *exchange) receive() bool {
	if enc := x.req.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		x.refuse(outcomeClientError, &openai.Error{Status: 415, Message: "the body must not be compressed", Type: openai.TypeInvalid, Code: "unsupported_encoding"})
		return false
	}
	body, err := x.r.readBody(x.req)
	if err != nil {
		// The deadline stands: the server reads what is left of a body before it answers, and this
		// client may never send it.
		x.bodyFailed(err)
		return false
	}
	x.r.deadline(x.rc.SetReadDeadline, time.Time{})
	x.body, x.bytesIn = body, len(body.buf.b)
	x.r.m.body.Observe(float64(len(body.buf.b)))
	x.received = x.r.cfg.Now()
	q, err := openai.Scan(body.buf.b)
	if err != nil {
		msg := "the body is not valid JSON: " + err.Error()
		if len(body.buf.b) == 0 {
			msg = "the body is empty, a JSON object is expected"
		}
		x.refuse(outcomeClientError, &openai.Error{Status: 400, Message: msg, Type: openai.TypeInvalid, Code: "invalid_json"})
		return false
	}
	session, err := x.session(&q)
	if err != nil {
		x.refuse(outcomeClientError, &openai.Error{Status: 400, Message: err.Error(), Type: openai.TypeInvalid, Code: "invalid_session"})
		return false
	}
	x.scanned = q
	x.call = *newCall(x.id, x.endpoint, body.buf.b, &q, session, x.start)
	return true
}

var retentions = [...]score.Retention{
	openai.NoHint: score.NoHint, openai.RetainNone: score.RetainNone, openai.RetainShort: score.RetainShort, openai.RetainLong: score.RetainLong,
}

// lingerTime bounds how long the rest of a body is read that nobody wants.
const lingerTime = 5 * time.Second

// linger reads what is left of a refused request's body and throws it away, up to twice the limit of bodies. A
// client that is still sending would otherwise see its connection reset, and never the answer.
func (r *Router) linger(w http.ResponseWriter, req *http.Request) {
	if req.ProtoMajor != 1 || req.Header.Get("Expect") != "" { // who expects 100 sends nothing now
		return
	}
	rc := http.NewResponseController(w)
	if err := rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return // the client has gone
	}
	r.deadline(rc.SetReadDeadline, time.Now().Add(lingerTime))
	if _, err := io.CopyN(io.Discard, req.Body, 2*r.cfg.MaxBody); err != nil && err != io.EOF {
		r.cfg.Log.Debug("reading the rest of a refused body", "err", err)
	}
}

func (x *exchange) bodyFailed(err error) {
	var ne net.Error
	x.broken = !errors.Is(err, errTooLarge)
	switch {
	case errors.Is(err, errTooLarge):
		x.refuse(outcomeClientError, &openai.Error{Status: 413, Message: fmt.Sprintf("the body is larger than the limit of %d bytes", x.r.cfg.MaxBody), Type: openai.TypeInvalid, Code: "body_too_large"})
	case errors.Is(err, errNoRoom):
		x.full("bodies", "the router holds as many bytes of requests as it may")
	case errors.As(err, &ne) && ne.Timeout():
		x.refuse(outcomeClientError, &openai.Error{Status: 408, Message: fmt.Sprintf("the body did not arrive within %v", x.r.cfg.BodyTimeout), Type: openai.TypeTimeout, Code: "body_timeout"})
	case x.req.Context().Err() != nil:
		x.gone()
	default:
		x.refuse(outcomeClientError, &openai.Error{Status: 400, Message: "the body could not be read to its end: " + err.Error(), Type: openai.TypeInvalid, Code: "incomplete_body"})
	}
}

const maxSession = 1024

// session returns the name of the request's session by the headers, then the body fields configured.
func (x *exchange) session(q *openai.Request) (string, error) {
	for _, h := range x.r.cfg.SessionHeaders {
		switch v := x.req.Header.Values(h); {
		case len(v) == 0:
			continue
		case len(v) > 1:
			return "", fmt.Errorf("duplicate %s", h)
		case len(v[0]) < 1 || len(v[0]) > maxSession:
			return "", fmt.Errorf("%s must be 1..%d bytes", h, maxSession)
		default:
			return v[0], nil
		}
	}
	for _, f := range x.r.cfg.SessionFields {
		v := map[string]string{"prompt_cache_key": q.PromptCacheKey, "session_id": q.SessionID, "user": q.User}[f]
		if v != "" && len(v) <= maxSession {
			return v, nil
		}
	}
	return "", nil
}

// asked returns the time limit that a client set, 0 if none: seconds, or a duration with its unit.
func asked(req *http.Request) (time.Duration, error) {
	v := strings.TrimSpace(req.Header.Get(timeoutHeader))
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if s, numErr := strconv.ParseFloat(v, 64); numErr == nil {
		d, err = time.Duration(min(s, math.MaxInt64/2/float64(time.Second))*float64(time.Second)), nil
		if math.IsNaN(s) {
			err = numErr
			d = 0
		}
	}
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s must be seconds above 0, or a duration such as 250ms", timeoutHeader)
	}
	return d, nil
}

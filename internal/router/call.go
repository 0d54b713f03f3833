package router

import (
	"time"

	"github.com/kvroute/kvroute/internal/openai"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// ScanCall reads a request's body without serving it. The session is left out: where it comes from is a
// matter of configuration.
func ScanCall(id string, ep tokenize.Endpoint, body []byte, at time.Time) (*Call, error) {
	q, err := openai.Scan(body)
	if err != nil {
		return nil, err
	}
	return newCall(id, ep, body, &q, "", at), nil
}

func newCall(id string, ep tokenize.Endpoint, body []byte, q *openai.Request, session string, at time.Time) *Call {
	return &Call{
		ID: id, Endpoint: ep, Body: body, Model: q.Model, Stream: q.Stream, N: q.N, Salt: q.CacheSalt, Session: session,
		Retention: retentions[q.Retention], Multimodal: q.Multimodal, Images: q.Images, At: at,
		Tools: q.Tools, Messages: q.Messages, Prompt: q.Prompt,
	}
}

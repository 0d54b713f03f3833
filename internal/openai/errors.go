package openai

import (
	"encoding/json"
	"strconv"
)

// Error is an error in OpenAI's schema.
type Error struct {
	Status  int    // HTTP status; not part of the body
	Message string // one sentence for people
	Type    string // kind, see the Type constants
	Param   string // field at fault; "" is null
	Code    string // what programs look at; "" is null
}

func (e *Error) Error() string { return strconv.Itoa(e.Status) + ": " + e.Message }

// Types of errors.
const (
	TypeInvalid     = "invalid_request_error"
	TypeAuth        = "authentication_error"
	TypeRateLimit   = "rate_limit_error"
	TypeServer      = "server_error"
	TypeUnavailable = "service_unavailable_error"
	TypeTimeout     = "timeout_error"
)

// Body returns {"error":{"message":…,"type":…,"param":…,"code":…}}.
func (e *Error) Body() []byte {
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	b := body{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		b.Param = &e.Param
	}
	if e.Code != "" {
		b.Code = &e.Code
	}
	out, err := json.Marshal(struct {
		Error body `json:"error"`
	}{b})
	if err != nil {
		panic("openai: an error of strings does not print: " + err.Error())
	}
	return out
}

// Record returns the error as a record of an event stream. A stream that ends with it has no [DONE].
func (e *Error) Record() []byte {
	b := append([]byte("data: "), e.Body()...)
	return append(b, "\n\n"...)
}

package tokenize

import (
	"bytes"
	"strconv"
	"strings"
)

// sglang prepares a conversation as SGLang 0.5 does (entrypoints/openai/serving_chat.py,
// parser/jinja_template_utils.py and the request's own schema). Its field add_generation_prompt does not
// exist there, nor does documents.
func (c *chat) sglang(defaults *value) error {
	own, err := kwargs(c.body)
	if err != nil {
		return err
	}
	msgs, err := messageList(c.body)
	if err != nil {
		return err
	}
	cont, err := flag(c.body, "continue_final_message", false)
	if err != nil {
		return err
	}
	c.messages = make([]dict, 0, len(msgs))
	var last value
	var role string
	for i := range msgs {
		var d dict
		if d, role, err = c.sglangMessage(&msgs[i]); err != nil {
			return err
		}
		c.messages = append(c.messages, d)
	}
	if last, err = parseJSON(c.messages[len(msgs)-1].get("content")); err != nil {
		return templateFailed(err)
	}
	// A conversation that ends with the assistant: go on from its text, or take it for the user's.
	if n := len(c.messages) - 1; role == "assistant" && last.kind == kindString {
		if !cont {
			c.messages[n] = dict{{"role", []byte(`"user"`)}, {"content", last.raw}}
		} else {
			s, err := last.str()
			if err != nil {
				return &refusal{ReasonUTF8, err}
			}
			if c.messages = c.messages[:n]; n == 0 {
				return unsupported("continue_final_message, and no other message")
			}
			c.prefix = s
		}
	}
	if err := c.sglangTools(); err != nil {
		return err
	}
	return c.sglangVars(defaults, own)
}

// sglangRoles are the roles besides user, which may have capitals.
var sglangRoles = map[string]bool{"system": true, "assistant": true, "tool": true, "function": true, "developer": true, "latest_reminder": true, "root": true}

// sglangMessage prints a message as SGLang's schema does, without nulls.
func (c *chat) sglangMessage(msg *value) (dict, string, error) {
	rb, err := msg.get("role").str()
	if err != nil {
		return nil, "", &refusal{ReasonUTF8, err}
	}
	role := string(rb)
	content, err := c.sglangContent(strings.ToLower(role), msg.get("content"))
	if err != nil {
		return nil, role, err
	}
	d := append(make(dict, 0, 6), member{"role", msg.get("role").raw}, member{"content", content})
	if role == "user" {
		return d, role, nil
	}
	if role = strings.ToLower(role); !sglangRoles[role] {
		return nil, role, unsupported("unknown role")
	}
	d.set("role", appendQuoted(nil, []byte(role)))
	for _, k := range [...]string{"tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix"} {
		v := msg.get(k)
		if !v.has() {
			continue
		}
		raw := v.raw
		switch k {
		case "tool_calls":
			raw, err = sglangCalls(role, v)
		case "tools":
			raw, err = sglangToolList(v, k, "")
		}
		if err != nil {
			return nil, role, err
		}
		d.set(k, raw)
	}
	// A content that was a list stands behind the other fields.
	if v := msg.get("content"); v.kind == kindArray && c.wantsParts() {
		d.del("content")
		d.set("content", content)
	}
	return d, role, nil
}

// sglangContent is process_content_for_template_format with normalize_tool_content.
func (c *chat) sglangContent(role string, content *value) ([]byte, error) {
	switch content.kind {
	case kindNone, kindNull:
		return jsonEmpty, nil
	case kindString:
		return content.raw, nil
	case kindArray:
		if content.nums > 0 {
			return nil, unsupported("the content of a message is a list of numbers")
		}
	default:
		return nil, unsupported("the content of a message is neither text nor a list")
	}
	parts := c.wantsParts()
	var out []dict
	var texts [][]byte
	for i := range content.kids {
		part := &content.kids[i]
		t := part.get("type")
		switch {
		case part.kind != kindObject:
			return nil, unsupported("a part of content is not an object")
		case t.is("text"):
			s, err := part.get("text").str()
			if err != nil {
				return nil, unsupported("a part of content lacks its text: %w", err)
			}
			texts = append(texts, s)
			out = append(out, dict{{"type", t.raw}, {"text", part.get("text").raw}})
		case mediaOf(part) != "":
			c.multimodal = true
			out = append(out, dict{{"type", appendQuoted(nil, []byte(mediaOf(part)))}})
		case t.is("tool_reference"):
			out = append(out, dict{{"type", t.raw}, {"name", part.get("name").raw}})
		case t.is("thinking"), t.is("reasoning"): // not shown to templates
		default:
			return nil, unsupported("a part of content has an unknown type")
		}
	}
	if parts && (role != "tool" || len(out) > len(texts)) {
		return listText(out), nil
	}
	return appendQuoted(nil, bytes.Join(texts, []byte(" "))), nil
}

// sglangCalls prints tool calls as the schema does. Arguments given as text must be a JSON object.
func sglangCalls(role string, calls *value) ([]byte, error) {
	if calls.kind != kindArray || calls.nums > 0 {
		return nil, unsupported("tool_calls is not a list")
	}
	out := make([]dict, len(calls.kids))
	for i := range calls.kids {
		call := &calls.kids[i]
		f := call.get("function")
		if f.kind != kindObject {
			return nil, unsupported("tool_calls[%d] is not of a function", i)
		}
		args := f.get("arguments")
		raw := orNull(args)
		if args.kind == kindString && role == "assistant" {
			s, err := args.str()
			if err != nil {
				return nil, &refusal{ReasonUTF8, err}
			}
			o, err := parseJSON(s)
			if err != nil || o.kind != kindObject {
				return nil, unsupported("the arguments of tool_calls[%d] are not a JSON object", i)
			}
			raw = o.raw
		}
		fn := dict{{"name", orNull(f.get("name"))}, {"arguments", raw}}
		out[i] = dict{
			{"id", orNull(call.get("id"))},
			{"index", orNull(call.get("index"))},
			{"type", []byte(`"function"`)},
			{"function", fn.append(nil)},
		}
	}
	return listText(out), nil
}

func orNull(v *value) []byte {
	if v.has() {
		return v.raw
	}
	return jsonNull
}

// sglangTools sets the tools: all, the chosen one, or none.
func (c *chat) sglangTools() error {
	choice := c.body.get("tool_choice")
	only := ""
	if choice.kind == kindObject {
		s, err := choice.get("function").get("name").str()
		if err != nil {
			return unsupported("tool_choice names no function")
		}
		only = string(s)
	}
	if choice.is("none") {
		return nil
	}
	list, err := sglangToolList(c.body.get("tools"), "tools", only)
	if err != nil || list == nil {
		return err
	}
	c.tooled = true
	c.vars.set("tools", list)
	v, err := parseJSON(list)
	if err != nil {
		return templateFailed(err)
	}
	c.flatTools = append(c.flatTools, '[')
	for i := range v.kids {
		if i > 0 {
			c.flatTools = append(c.flatTools, ',')
		}
		c.flatTools = append(c.flatTools, v.kids[i].get("function").raw...)
	}
	c.flatTools = append(c.flatTools, ']')
	return nil
}

// sglangToolList prints tools as the schema does: the function's fields in the client's order, then the
// missing ones as null. With only, just the tool of this name. It is nil where there are none.
func sglangToolList(v *value, name, only string) ([]byte, error) {
	tools, err := objectList(v, name)
	if err != nil {
		return nil, err
	}
	var out []dict
	for i := range tools {
		tool := &tools[i]
		f := tool.get("function")
		if f.kind != kindObject {
			return nil, unsupported("a tool has no function")
		}
		if only != "" && !f.get("name").is(only) {
			continue
		}
		later := tool.get("defer_loading")
		fn := make(dict, 0, 5)
		for j := range f.kids {
			switch k := string(f.kids[j].key); k {
			case "name", "description", "parameters":
				fn.set(k, f.get(k).raw)
			case "strict", "defer_loading":
				if f.get(k).has() {
					fn.set(k, f.get(k).raw)
				} else if k == "defer_loading" && later.has() {
					fn.set(k, later.raw)
				}
			}
		}
		for _, k := range [...]string{"description", "name", "parameters"} {
			fn.setDefault(k, jsonNull)
		}
		if later.has() {
			fn.setDefault("defer_loading", later.raw)
		}
		kind := []byte(`"function"`)
		if t := tool.get("type"); t.kind == kindString {
			kind = t.raw
		}
		out = append(out, dict{{"type", kind}, {"function", fn.append(nil)}, {"defer_loading", orNull(later)}})
	}
	if out == nil {
		return nil, nil
	}
	return listText(out), nil
}

// sglangVars sets reasoning_effort, what follows from it, and chat_template_kwargs.
func (c *chat) sglangVars(defaults, own *value) error {
	ctk := make(dict, 0, 4)
	ctk.update(own)
	effort := c.body.get("reasoning_effort").raw
	if !c.body.get("reasoning_effort").has() {
		effort = nil
	}
	thinking := false // reasoning.enabled
	if r := c.body.get("reasoning"); r.kind == kindObject {
		e := r.get("effort")
		if !e.has() {
			e = r.get("reasoning_effort")
		}
		if e.has() {
			effort = e.raw
		}
		on := r.get("enabled")
		if !on.has() {
			on = r.get("enable")
		}
		thinking = truthy(on)
	}
	if effort != nil || thinking {
		if effort != nil {
			thinking = string(effort) != `"none"`
		}
		ctk.setDefault("thinking", jsonBool(thinking))
		ctk.setDefault("enable_thinking", jsonBool(thinking))
	}
	if e := ctk.get("reasoning_effort"); e != nil {
		if string(e) != "null" {
			effort = e
		}
		ctk.del("reasoning_effort")
	}
	for i := range defaults.kids {
		ctk.setDefault(string(defaults.kids[i].key), defaults.kids[i].raw)
	}
	if e := ctk.get("reasoning_effort"); e != nil && string(e) != "null" && effort == nil {
		effort = e
	}
	c.vars.set("add_generation_prompt", jsonTrue)
	if effort != nil {
		c.vars.set("reasoning_effort", asFloat(effort))
	}
	for _, m := range ctk {
		c.vars.set(m.key, m.val)
	}
	return nil
}

// truthy is how SGLang reads the switch reasoning.enabled.
func truthy(v *value) bool {
	switch v.kind {
	case kindTrue:
		return true
	case kindString:
		s, err := v.str()
		if err != nil {
			return false
		}
		switch strings.ToLower(strings.TrimFunc(string(s), pythonSpace)) {
		case "1", "true", "yes", "y", "on":
			return true
		}
		return false
	case kindNumber:
		f, err := strconv.ParseFloat(string(v.raw), 64)
		return err != nil || f != 0
	case kindArray, kindObject:
		return len(v.kids)+v.nums > 0
	}
	return false
}

// asFloat makes whole numbers floats: a number for reasoning_effort is one.
func asFloat(raw []byte) []byte {
	if _, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return append(bytes.Clone(raw), ".0"...)
	}
	return raw
}

package tokenize

import (
	"bytes"
	"strings"
)

// vllm prepares a conversation as vLLM does (0.23 to 0.32: renderers/chat_utils.py, renderers/hf.py and
// the request's own schema). Where these versions differ, the newest is followed.
func (c *chat) vllm(defaults *value) error {
	own, err := kwargs(c.body)
	if err != nil {
		return err
	}
	msgs, err := messageList(c.body)
	if err != nil {
		return err
	}
	tools, err := objectList(c.body.get("tools"), "tools")
	if err != nil {
		return err
	}
	for i := range tools {
		d, err := vllmTool(&tools[i])
		if err != nil {
			return err
		}
		c.tools = append(c.tools, d)
	}
	c.tooled = c.tools != nil
	c.messages = make([]dict, 0, len(msgs))
	developer := false
	for i := range msgs {
		d, role, err := c.vllmMessage(&msgs[i])
		if err != nil {
			return err
		}
		developer = developer || role == "developer"
		c.messages = append(c.messages, d)
	}
	if developer && !strings.Contains(c.model.source(c.tooled), `"developer"`) && !strings.Contains(c.model.source(c.tooled), `'developer'`) {
		if err := c.developersToSystem(); err != nil {
			return err
		}
	}
	return c.vllmVars(defaults, own)
}

// vllmVars merges what the template sees: the engine's defaults, then the tools, then the request's
// kwargs, then its own fields. Null and "auto" never override.
func (c *chat) vllmVars(defaults, own *value) error {
	c.vars.update(defaults)
	if c.tools != nil {
		c.vars.set("tools", listText(c.tools))
	}
	add, err := flag(c.body, "add_generation_prompt", true)
	if err != nil {
		return err
	}
	cont, err := flag(c.body, "continue_final_message", false)
	if err != nil {
		return err
	}
	if c.addSpecial, err = flag(c.body, "add_special_tokens", false); err != nil {
		return err
	}
	for i := range own.kids {
		if k := &own.kids[i]; k.has() && !k.is("auto") {
			c.vars.set(string(k.key), k.raw)
		}
	}
	c.vars.set("add_generation_prompt", jsonBool(add))
	c.vars.del("continue_final_message") // transformers keeps it from the template
	docs := c.body.get("documents")
	if _, err := objectList(docs, "documents"); err != nil {
		return err
	}
	if docs.has() {
		c.vars.set("documents", docs.raw)
	}
	if effort := c.body.get("reasoning_effort"); effort.has() {
		c.vars.set("reasoning_effort", effort.raw)
		if own.get("enable_thinking").kind == kindNone {
			c.vars.set("enable_thinking", jsonBool(!effort.is("none")))
		}
	}
	return c.goOn(cont, add)
}

// vllmMessage is _parse_chat_message_content with _postprocess_messages.
func (c *chat) vllmMessage(msg *value) (dict, string, error) {
	rb, err := msg.get("role").str()
	if err != nil {
		return nil, "", &refusal{ReasonUTF8, err}
	}
	role := string(rb)
	content, err := c.vllmContent(role, msg.get("content"))
	if err != nil {
		return nil, role, err
	}
	d := append(make(dict, 0, 6), member{"role", msg.get("role").raw}, member{"content", content})
	switch role {
	case "assistant":
		if calls := msg.get("tool_calls"); calls.has() {
			list, err := vllmCalls(calls)
			if err != nil {
				return nil, role, err
			}
			if list != nil {
				d.set("tool_calls", list)
			}
		}
		reasoning := msg.get("reasoning")
		if !reasoning.has() {
			reasoning = msg.get("reasoning_content")
		}
		if reasoning.has() {
			d.set("reasoning", reasoning.raw)
			d.set("reasoning_content", reasoning.raw)
		}
	case "tool":
		if id := msg.get("tool_call_id"); id.kind != kindNone {
			d.set("tool_call_id", id.raw)
		}
	}
	for _, k := range [...]string{"name", "task"} {
		if v := msg.get(k); v.kind == kindString {
			d.set(k, v.raw)
		}
	}
	if role == "developer" {
		tools := msg.get("tools")
		d.set("tools", jsonNull)
		if tools.has() {
			d.set("tools", tools.raw)
		}
	}
	return d, role, nil
}

// vllmContent makes of a content what the template wants: text, or a list of parts.
func (c *chat) vllmContent(role string, content *value) ([]byte, error) {
	parts := c.wantsParts()
	var list []value
	switch content.kind {
	case kindNone, kindNull:
	case kindString:
		if !parts && !(role == "system" && billed(content)) {
			return content.raw, nil // by far the most usual
		}
		list = []value{*content}
	case kindArray:
		list = content.kids
		if content.nums > 0 {
			return nil, unsupported("the content of a message is a list of numbers")
		}
	default:
		return nil, unsupported("the content of a message is neither text nor a list")
	}
	if parts {
		return c.vllmParts(role, list)
	}
	var texts [][]byte
	for i := range list {
		v, err := c.vllmText(&list[i])
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		s, err := v.str()
		if err != nil {
			return nil, &refusal{ReasonUTF8, err}
		}
		if s, keep := unbilled(role, &list[i], s); keep {
			texts = append(texts, s)
		}
	}
	return appendQuoted(nil, bytes.Join(texts, []byte("\n"))), nil
}

// vllmText returns the text of a part of content; nil where it has none.
func (c *chat) vllmText(part *value) (*value, error) {
	if part.kind == kindString {
		return part, nil
	}
	if part.kind != kindObject {
		return nil, unsupported("a part of content is neither text nor an object")
	}
	if mediaOf(part) != "" {
		c.multimodal = true
		return nil, nil
	}
	t := part.get("type")
	field := ""
	switch {
	case t.is("text"), t.is("input_text"), t.is("output_text"):
		field = "text"
	case t.is("refusal"):
		field = "refusal"
	case t.is("thinking"):
		field = "thinking"
	case t.is("tool_reference"):
		field = "name"
	default:
		return nil, unsupported("a part of content has an unknown type")
	}
	v := part.get(field)
	if v.kind == kindString {
		return v, nil
	}
	if !v.has() && (t.is("text") || t.is("refusal")) {
		return nil, nil // skipped with a warning
	}
	return nil, unsupported("a part of content lacks its text")
}

// knownPartFields are the fields of parts of content that vLLM knows; others it hands to the template.
var knownPartFields = map[string]bool{
	"audio_embeds": true, "audio_url": true, "closed": true, "data": true, "file": true, "image_embeds": true, "image_pil": true,
	"image_url": true, "input_audio": true, "name": true, "prompt_cache_breakpoint": true, "refusal": true, "text": true,
	"thinking": true, "type": true, "uuid": true, "video_embeds": true, "video_url": true,
}

// vllmParts makes the list of parts. The results of tools become text if they are nothing else.
func (c *chat) vllmParts(role string, list []value) ([]byte, error) {
	out := make([]dict, 0, len(list))
	var texts [][]byte
	for i := range list {
		part := &list[i]
		v, err := c.vllmText(part)
		if err != nil {
			return nil, err
		}
		d := make(dict, 0, 2)
		switch {
		case v == nil && mediaOf(part) != "":
			d.set("type", appendQuoted(nil, []byte(mediaOf(part))))
		case v == nil:
			continue
		case part.get("type").is("tool_reference"):
			out = append(out, dict{{"type", []byte(`"tool_reference"`)}, {"name", v.raw}})
			continue
		default:
			s, err := v.str()
			if err != nil {
				return nil, &refusal{ReasonUTF8, err}
			}
			s, keep := unbilled(role, part, s)
			if !keep {
				continue
			}
			texts = append(texts, s)
			d = append(d, member{"type", []byte(`"text"`)}, member{"text", appendQuoted(nil, s)})
		}
		for j := range part.kids {
			if k := string(part.kids[j].key); part.kind == kindObject && !knownPartFields[k] {
				d.set(k, part.kids[j].raw)
			}
		}
		out = append(out, d)
	}
	if role == "tool" && len(texts) == len(out) {
		return appendQuoted(nil, bytes.Join(texts, []byte("\n"))), nil
	}
	return listText(out), nil
}

// billing begins the line that vLLM 0.24 and later cut from system prompts: it changes with every request.
const billing = "x-anthropic-billing-header"

func billed(v *value) bool { return bytes.HasPrefix(v.raw[1:], []byte(billing)) || v.esc }

// unbilled cuts that line from the text of a system message; without more than it, the part is dropped.
func unbilled(role string, part *value, s []byte) ([]byte, bool) {
	if role != "system" || !bytes.HasPrefix(s, []byte(billing)) || part.kind == kindObject && !part.get("type").is("text") {
		return s, true
	}
	_, rest, _ := bytes.Cut(s, []byte("\n"))
	return rest, len(rest) > 0
}

// vllmCalls is the list of an assistant's tool calls with their arguments parsed; nil if there are none.
func vllmCalls(calls *value) ([]byte, error) {
	if calls.kind != kindArray || calls.nums > 0 {
		return nil, unsupported("tool_calls is not a list")
	}
	if len(calls.kids) == 0 {
		return nil, nil
	}
	out := make([]dict, len(calls.kids))
	for i := range calls.kids {
		call := &calls.kids[i]
		f := call.get("function")
		if t := call.get("type"); f.kind != kindObject || t.kind != kindNone && !t.is("function") {
			return nil, unsupported("tool_calls[%d] is not of a function", i)
		}
		args, err := callArguments(f.get("arguments"))
		if err != nil {
			return nil, err
		}
		fn := dict{{"arguments", args}}
		if n := f.get("name"); n.kind != kindNone {
			fn.set("name", n.raw)
		}
		fn.rest(f)
		fn.set("arguments", args)
		d := make(dict, 0, 4)
		for _, k := range [...]string{"id", "function", "type"} {
			if v := call.get(k); v.kind != kindNone {
				d.set(k, v.raw)
			}
		}
		d.rest(call)
		d.set("function", fn.append(nil))
		out[i] = d
	}
	return listText(out), nil
}

// rest adds the members of v that are not there yet, in their order.
func (d *dict) rest(v *value) {
	for i := range v.kids {
		d.setDefault(string(v.kids[i].key), v.kids[i].raw)
	}
}

// callArguments parses the arguments of a call: an object stays, text is read, anything else is {}.
func callArguments(v *value) ([]byte, error) {
	if v.kind == kindObject {
		return v.raw, nil
	}
	if v.kind == kindString {
		s, err := v.str()
		if err != nil {
			return nil, &refusal{ReasonUTF8, err}
		}
		if o, err := parseJSON(s); err == nil && o.kind == kindObject {
			return o.raw, nil
		}
	}
	return []byte("{}"), nil
}

// vllmTool prints a tool as vLLM's schema does: its fields in their order, null where they are missing.
func vllmTool(tool *value) (dict, error) {
	f := tool.get("function")
	if f.kind != kindObject {
		return nil, unsupported("a tool has no function")
	}
	fn := make(dict, 0, 5)
	for _, k := range [...]string{"name", "description", "parameters"} {
		fn.set(k, jsonNull)
		if v := f.get(k); v.has() {
			fn.set(k, v.raw)
		}
	}
	defer1 := tool.get("defer_loading")
	for _, k := range [...]string{"strict", "defer_loading"} {
		v := f.get(k)
		if k == "defer_loading" && !v.has() {
			v = defer1
		}
		if v.has() {
			fn.set(k, v.raw)
		}
	}
	d := dict{{"type", []byte(`"function"`)}, {"function", fn.append(nil)}}
	if defer1.has() {
		d.set("defer_loading", defer1.raw)
	}
	return d, nil
}

// developersToSystem is what vLLM does for templates that do not know the role developer: such messages
// become system messages, and all system messages become one in front.
func (c *chat) developersToSystem() error {
	var contents [][]byte
	others := make([]dict, 0, len(c.messages))
	merge := false
	for i := range c.messages {
		d := &c.messages[i]
		role, err := parseJSON(d.get("role"))
		if err != nil {
			return templateFailed(err)
		}
		if role.is("developer") {
			d.set("role", []byte(`"system"`))
			d.del("tools")
		} else if !role.is("system") {
			others = append(others, *d)
			continue
		}
		merge = merge || i > 0 || len(contents) > 0
		text, err := contentText(d.get("content"))
		if err != nil {
			return err
		}
		if len(text) > 0 {
			contents = append(contents, text)
		}
	}
	if merge {
		one := dict{{"role", []byte(`"system"`)}, {"content", appendQuoted(nil, bytes.Join(contents, []byte("\n\n")))}}
		c.messages = append([]dict{one}, others...)
	}
	return nil
}

// contentText joins the texts of a prepared content with newlines.
func contentText(raw []byte) ([]byte, error) {
	v, err := parseJSON(raw)
	if err != nil {
		return nil, templateFailed(err)
	}
	if v.kind == kindString {
		s, err := v.str()
		if err != nil {
			return nil, &refusal{ReasonUTF8, err}
		}
		return s, nil
	}
	var texts [][]byte
	for i := range v.kids {
		if t := v.kids[i].get("text"); t.kind == kindString {
			s, err := t.str()
			if err != nil {
				return nil, &refusal{ReasonUTF8, err}
			}
			texts = append(texts, s)
		}
	}
	return bytes.Join(texts, []byte("\n")), nil
}

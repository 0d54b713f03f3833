package tokenize

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// refusal is why a body came to no tokens: a reason for counting and an error for people.
type refusal struct {
	reason string
	err    error
}

func (r *refusal) Error() string { return r.reason + ": " + r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// unsupported makes the refusal of a body that no engine would take, or in a form we do not know.
func unsupported(format string, args ...any) error {
	return &refusal{ReasonBody, fmt.Errorf(format, args...)}
}

func templateFailed(err error) error { return &refusal{ReasonTemplate, err} }

var (
	jsonNull  = []byte("null")
	jsonTrue  = []byte("true")
	jsonFalse = []byte("false")
	jsonEmpty = []byte(`""`)
)

func jsonBool(b bool) []byte {
	if b {
		return jsonTrue
	}
	return jsonFalse
}

// chat is a conversation on its way from the body to the template.
type chat struct {
	body  *value
	model *Model
	kind  Prepare

	messages   []dict
	tools      []dict // of SGLang and vLLM, as they print them
	vars       dict
	tooled     bool // the template for requests with tools is to be used, where there are two
	multimodal bool
	addSpecial bool // encode with what the post-processor adds
	// continued is the text that transformers' continue_final_message goes on from; nil if it is off.
	continued []byte
	// prefix is what SGLang appends to the rendered prompt, encoded on its own.
	prefix []byte
	// flatTools are the tools SGLang tries when the template fails with the others.
	flatTools []byte
}

// messageList returns the messages of a body.
func messageList(body *value) ([]value, error) {
	m := body.get("messages")
	switch {
	case m.kind != kindArray:
		return nil, unsupported("messages is not a list")
	case len(m.kids) == 0:
		return nil, unsupported("messages is empty")
	}
	for i := range m.kids {
		if m.kids[i].kind != kindObject || m.kids[i].get("role").kind != kindString {
			return nil, unsupported("messages[%d] is no object with a role", i)
		}
	}
	return m.kids, nil
}

// objectList returns the entries of a list of objects; nil where it is absent or null.
func objectList(v *value, name string) ([]value, error) {
	if !v.has() {
		return nil, nil
	}
	if v.kind != kindArray || v.nums > 0 {
		return nil, unsupported("%s is not a list", name)
	}
	for i := range v.kids {
		if v.kids[i].kind != kindObject {
			return nil, unsupported("%s[%d] is not an object", name, i)
		}
	}
	return v.kids, nil
}

// flag reads a boolean member.
func flag(body *value, name string, def bool) (bool, error) {
	switch v := body.get(name); v.kind {
	case kindNone, kindNull:
		return def, nil
	case kindTrue, kindFalse:
		return v.kind == kindTrue, nil
	}
	return def, unsupported("%s is neither true nor false", name)
}

// kwargs reads chat_template_kwargs; a template that came with the request is refused by all engines
// unless they were told to trust their clients.
func kwargs(body *value) (*value, error) {
	if body.get("chat_template").has() {
		return nil, unsupported("the request brings its own chat_template")
	}
	k := body.get("chat_template_kwargs")
	if k.has() && k.kind != kindObject {
		return nil, unsupported("chat_template_kwargs is not an object")
	}
	if k.get("chat_template").kind != kindNone {
		return nil, unsupported("chat_template_kwargs brings its own chat_template")
	}
	return k, nil
}

// prepareChat makes the template's variables of a body, as the engine does.
func (m *Model) prepareChat(body *value, v Variant) (*chat, error) {
	c := &chat{body: body, model: m, kind: v.Prepare}
	defaults := &value{}
	if len(v.Kwargs) > 0 {
		d, err := parseJSON(v.Kwargs)
		if err != nil || d.kind > kindNull && d.kind != kindObject {
			return nil, templateFailed(errors.New("the engine's default chat_template_kwargs are not a JSON object"))
		}
		defaults = &d
	}
	c.vars = append(make(dict, 0, 16), member{"messages", nil}, member{"tools", jsonNull}, member{"documents", jsonNull})
	for _, s := range m.meta.Special {
		c.vars.set(s.Name, appendQuoted(nil, []byte(s.Text)))
	}
	var err error
	switch v.Prepare {
	case PrepareVLLM:
		err = c.vllm(defaults)
	case PrepareSGLang:
		err = c.sglang(defaults)
	case PrepareNone, "":
		err = c.plain(defaults)
	default:
		err = unsupported("unknown preparation %q", v.Prepare)
	}
	return c, err
}

// plain is apply_chat_template to the letter: the body's messages, tools and documents as they came.
func (c *chat) plain(defaults *value) error {
	own, err := kwargs(c.body)
	if err != nil {
		return err
	}
	msgs, err := messageList(c.body)
	if err != nil {
		return err
	}
	c.messages = make([]dict, len(msgs))
	for i := range msgs {
		c.multimodal = c.multimodal || hasMedia(msgs[i].get("content"))
		c.messages[i] = plainMessage(&msgs[i])
	}
	for _, name := range []string{"tools", "documents"} {
		list := c.body.get(name)
		if _, err := objectList(list, name); err != nil {
			return err
		}
		if list.has() {
			c.vars.set(name, list.raw)
		}
	}
	c.vars.update(defaults)
	if effort := c.body.get("reasoning_effort"); effort.has() {
		c.vars.set("reasoning_effort", effort.raw)
	}
	c.vars.update(own)
	if c.addSpecial, err = flag(c.body, "add_special_tokens", false); err != nil {
		return err
	}
	add, err := flag(c.body, "add_generation_prompt", true)
	if err != nil {
		return err
	}
	cont, err := flag(c.body, "continue_final_message", false)
	if err != nil {
		return err
	}
	if cont && !c.body.get("add_generation_prompt").has() {
		add = false // it cannot be meant
	}
	c.vars.set("add_generation_prompt", jsonBool(add))
	c.tooled = string(c.vars.get("tools")) != "null"
	return c.goOn(cont, add)
}

// plainMessage is what transformers (5.24) makes of a message: fields that are null are dropped, and
// reasoning goes by several names.
func plainMessage(msg *value) dict {
	d := make(dict, 0, len(msg.kids)+2)
	var reasoning []byte
	for _, name := range [...]string{"reasoning", "thinking", "reasoning_content"} { // the last one counts
		if r := msg.get(name); r.has() {
			reasoning = r.raw
		}
	}
	if reasoning != nil {
		d.set("thinking", reasoning)
	}
	for i := range msg.kids {
		if k := &msg.kids[i]; msg.get(string(k.key)).has() {
			d.set(string(k.key), msg.get(string(k.key)).raw)
		}
	}
	if reasoning != nil {
		d.set("reasoning_content", reasoning)
	}
	return d
}

// continueTag is what transformers marks the end of the message to continue with.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// goOn prepares continue_final_message as transformers does: the last message is rendered with a mark at
// its end, and the prompt is cut there.
func (c *chat) goOn(on, add bool) error {
	switch source := c.model.source(c.tooled); {
	case !on:
		return nil
	case add:
		return unsupported("continue_final_message and add_generation_prompt exclude each other")
	case source != "" && !strings.Contains(source, "content"):
		return templateFailed(errors.New("continue_final_message, but the template has no field content"))
	}
	last := &c.messages[len(c.messages)-1]
	content := value{}
	if raw := last.get("content"); raw != nil {
		var err error
		if content, err = parseJSON(raw); err != nil {
			return templateFailed(err)
		}
	}
	return c.tagContent(last, &content)
}

// tagContent puts the mark behind the content of the last message.
func (c *chat) tagContent(d *dict, content *value) error {
	switch content.kind {
	case kindString:
		text, err := content.str()
		if err != nil {
			return &refusal{ReasonUTF8, err}
		}
		c.continued = append([]byte{}, text...)
		d.set("content", appendQuoted(nil, append(bytes.Clone(text), continueTag...)))
		return nil
	case kindArray:
		for i := len(content.kids) - 1; i >= 0; i-- {
			part := &content.kids[i]
			text := part.get("text")
			if text.kind != kindString {
				continue
			}
			s, err := text.str()
			if err != nil {
				return &refusal{ReasonUTF8, err}
			}
			c.continued = append([]byte{}, s...)
			p := make(dict, 0, len(part.kids))
			p.update(part)
			p.set("text", appendQuoted(nil, append(bytes.Clone(s), continueTag...)))
			list := append([]byte{}, '[')
			for j := range content.kids {
				if j > 0 {
					list = append(list, ',')
				}
				if j == i {
					list = p.append(list)
				} else {
					list = append(list, content.kids[j].raw...)
				}
			}
			d.set("content", append(list, ']'))
			return nil
		}
	}
	return unsupported("continue_final_message, but the final message has no text to continue")
}

// cutContinued cuts the rendered text at the mark.
func (c *chat) cutContinued(text []byte) ([]byte, error) {
	if c.continued == nil {
		return text, nil
	}
	mark := strings.TrimSpace(continueTag)
	at := bytes.LastIndex(text, []byte(mark))
	if at < 0 || !bytes.Contains(text, bytes.TrimFunc(c.continued, pythonSpace)) {
		return nil, templateFailed(errors.New("continue_final_message, but the template changes the final message"))
	}
	if bytes.HasPrefix(text[at:], []byte(continueTag)) {
		return text[:at], nil
	}
	return bytes.TrimRightFunc(text[:at], pythonSpace), nil
}

// pythonSpace is what Python's str.strip removes.
func pythonSpace(r rune) bool {
	switch {
	case r >= 0x09 && r <= 0x0d, r >= 0x1c && r <= 0x20, r == 0x85, r == 0xa0, r == 0x1680, r >= 0x2000 && r <= 0x200a,
		r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f, r == 0x3000:
		return true
	}
	return false
}

// text are the variables as the template gets them. The messages, which are nearly all of it, are written
// in place.
func (c *chat) text(dst []byte) []byte {
	if c.messages == nil {
		return c.vars.append(slices.Grow(dst, c.vars.size()))
	}
	c.vars.set("messages", nil)
	n := c.vars.size()
	for i := range c.messages {
		n += c.messages[i].size()
	}
	dst = append(slices.Grow(dst, n), '{')
	for i, m := range c.vars {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendQuoted(dst, []byte(m.key)), ':')
		if m.key == "messages" {
			dst = appendList(dst, c.messages)
		} else {
			dst = append(dst, m.val...)
		}
	}
	return append(dst, '}')
}

// mediaTypes are the types of parts of content that are not text, and what vLLM calls them for templates.
var mediaTypes = map[string]string{
	"image": "image", "image_url": "image", "input_image": "image", "image_pil": "image", "image_embeds": "image",
	"input_audio": "audio", "audio_url": "audio", "audio_embeds": "audio", "audio": "audio",
	"video": "video", "video_url": "video", "video_embeds": "video", "document": "file", "file": "file",
}

// mediaOf returns the kind of medium a part of content is; "" for text and what we do not know.
func mediaOf(part *value) string {
	if t := part.get("type"); t.kind == kindString {
		s, err := t.str()
		if err != nil {
			return ""
		}
		return mediaTypes[string(s)]
	}
	for _, k := range [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "audio_url", "input_audio", "video_url"} {
		if part.get(k).kind != kindNone {
			return mediaTypes[k]
		}
	}
	return ""
}

func hasMedia(content *value) bool {
	for i := range content.kids {
		if content.kind == kindArray && mediaOf(&content.kids[i]) != "" {
			return true
		}
	}
	return false
}

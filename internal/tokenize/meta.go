package tokenize

// Special is a special token that templates get as a variable: bos_token and the like.
type Special struct{ Name, Text string }

// Meta is what a model says besides its tokenizer and its template.
type Meta struct {
	// Special are the variables of templates, in the order of transformers.
	Special []Special
	// ToolTemplate is the template for requests with tools, where the model has one of its own; else nil.
	ToolTemplate Template
	// Vocab is the number of token ids the model has; prompts with others are refused. 0: not known.
	Vocab int
}

// bos is the text of the token that begins sequences; "" if there is none.
func (m *Meta) bos() string {
	for _, s := range m.Special {
		if s.Name == "bos_token" {
			return s.Text
		}
	}
	return ""
}

package trace

import "bytes"

func looksAzure(line []byte) bool { return bytes.Contains(line, []byte("ContextTokens")) }

// Package traces holds the bundled trace that the demo plays, so that it works wherever the program is.
// README.md says where the traces come from.
package traces

import _ "embed" // for Agent

// AgentName names Agent in messages.
const AgentName = "lmcache-agent/miniswe_blocks64.jsonl.gz"

// Agent is a real trace of a software agent's sessions: chained blocks of 64 tokens, gzip.
//
//go:embed lmcache-agent/miniswe_blocks64.jsonl.gz
var Agent []byte

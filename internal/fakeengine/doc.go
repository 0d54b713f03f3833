// Package fakeengine is a stand-in for an inference engine: what a router in front of it sees is what
// vLLM, SGLang, ATOM or TensorRT-LLM would show. It serves the OpenAI API and each engine's own pages,
// tokenizes for real, schedules with continuous batching on a profile's costs, keeps a prefix cache by
// that engine's rules, and publishes its events over ZeroMQ in that engine's wire form. It computes
// nothing: answers are words drawn by a seeded hash. Faults happen on command.
//
// What is reproduced was seen in captures of real engines, or read in their sources; docs/engine.md says
// which, and where the stand-in is simpler.
//
// Config goes in, Start returns an *Engine; its ranks are independent caches with a goroutine each, and
// everything of one rank happens under that rank's lock, in steps.
package fakeengine

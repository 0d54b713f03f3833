// Package openai reads and writes the little of the OpenAI API that routing needs: what a request asks
// for, found in one pass over its body; fields spliced into a body that is otherwise left alone; error
// bodies; and what an answer says about its usage.
//
// Bodies stay as they came. Nothing here prints a request or an answer again, so what an engine gets is
// what the client sent, number for number and space for space.
package openai

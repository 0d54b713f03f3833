// Package arch holds no code, only tests of the project's shape: who may import whom, how large files
// may grow, and what committed text must not mention.
package arch

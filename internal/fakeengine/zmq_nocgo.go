//go:build !cgo

package fakeengine

import "errors"

// openSocket says what is missing.
func openSocket(string, string, bool, func(uint64) [][][]byte) (socket, error) {
	return nil, errors.New("publishing events: this build has no ZeroMQ: it needs cgo (CGO_ENABLED=1, a C compiler and libzmq3-dev)")
}

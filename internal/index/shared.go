package index

import (
	"sync"
	"sync/atomic"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Shared is an Index that any number of goroutines may use at once.
//
// Readers go on side by side. Writers take turns, operation by operation; after each block operation a
// writer looks whether readers wait and if so lets them in, so that none waits longer than one block
// operation, however long the event or however large the target that is being emptied. A reader may
// therefore see the first part of an event. The locks are taken in the order turn, lock.
type Shared struct {
	turn    sync.Mutex // one writer at a time, for a whole operation
	lock    sync.RWMutex
	waiting atomic.Int32 // readers on their way in
	index   *Index       // guarded by lock
}

// NewShared makes a shared index; see New.
func NewShared(blockSize int, opt Options) *Shared {
	s := &Shared{index: New(blockSize, opt)}
	s.index.yield = func() {
		if s.waiting.Load() > 0 {
			s.lock.Unlock() // lets in all readers that wait
			s.lock.Lock()
		}
	}
	return s
}

func (s *Shared) read(f func(*Index)) {
	s.enter()
	defer s.lock.RUnlock()
	f(s.index)
}

func (s *Shared) enter() {
	s.waiting.Add(1)
	s.lock.RLock()
	s.waiting.Add(-1)
}

func (s *Shared) write(f func(*Index)) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.lock.Lock()
	defer s.lock.Unlock()
	f(s.index)
}

// Join is Index.Join.
func (s *Shared) Join(t target.ID) { s.write(func(x *Index) { x.Join(t) }) }

// Forget is Index.Forget.
func (s *Shared) Forget(t target.ID) { s.write(func(x *Index) { x.Forget(t) }) }

// Apply is Index.Apply.
func (s *Shared) Apply(op Op) (r Result, err error) {
	s.write(func(x *Index) { r, err = x.Apply(op) })
	return r, err
}

// Match is Index.Match; each goroutine needs its own dst.
func (s *Shared) Match(chain []block.Hash, dst *Matches) {
	s.enter()
	defer s.lock.RUnlock()
	s.index.Match(chain, dst)
}

// Stats is Index.Stats.
func (s *Shared) Stats(t target.ID) (st Stats) {
	s.read(func(x *Index) { st = x.Stats(t) })
	return st
}

// Size is Index.Size.
func (s *Shared) Size() (z Size) {
	s.read(func(x *Index) { z = x.Size() })
	return z
}

// ContentHash is Index.ContentHash.
func (s *Shared) ContentHash(t target.ID) (sum uint64) {
	s.read(func(x *Index) { sum = x.ContentHash(t) })
	return sum
}

// Check is Index.Check between two operations; writers wait meanwhile, readers do not.
func (s *Shared) Check() error {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.enter()
	defer s.lock.RUnlock()
	return s.index.Check()
}

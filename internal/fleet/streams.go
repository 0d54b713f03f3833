package fleet

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/kvevent"
	"github.com/kvroute/kvroute/internal/target"
)

// pollEvents is the events endpoint of a worker whose engine hands out events over HTTP (TensorRT-LLM).
const pollEvents = discovery.Poll

// shared are subscriptions that several targets have a part in: endpoints that engines dial, and engines
// that hand out the events of all their ranks in one place.
type shared struct {
	mu sync.Mutex
	by map[string]*sharedStream
}

type sharedStream struct {
	demux *feed.Demux
	stop  context.CancelFunc
	done  chan struct{}
	users int
	err   atomic.Pointer[error] // why it ended by itself
}

// ended is why the subscription ended by itself; nil: it goes on.
func (s *sharedStream) ended() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

// join gives a target its part of the subscription to endpoint, which is opened for the first of them.
// leave must be called once the target's stream has ended.
func (s *shared) join(f *Fleet, via feed.Transport, endpoint string, bind bool, claims func(*feed.Message) bool) (part feed.Transport, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.by[endpoint]
	if st == nil {
		ctx, stop := context.WithCancel(context.Background())
		st = &sharedStream{demux: feed.NewDemux(via, endpoint, "", bind), stop: stop, done: make(chan struct{})}
		s.by[endpoint] = st
		go func() {
			defer close(st.done)
			if err := st.demux.Run(ctx); err != nil {
				f.log.Error("events could not be followed", "endpoint", endpoint, "error", err)
				st.err.Store(&err)
			}
		}()
	}
	st.users++
	part = st.demux.Route(claims)
	return part, func() {
		s.mu.Lock()
		st.demux.Drop(part)
		st.users--
		last := st.users == 0
		if last {
			delete(s.by, endpoint)
		}
		s.mu.Unlock()
		if last {
			st.stop()
			<-st.done
		}
	}
}

// source is where a target's events come from.
func (g *tgt) source(endpoint, topic string, bind bool) (via feed.Transport, at string) {
	f := g.f
	switch {
	case endpoint == pollEvents && g.rank == target.NoRank:
		return &feed.Poll{Client: f.cfg.Client}, g.worker.url.String()
	case endpoint == pollEvents:
		name := fmt.Sprintf("rank %d", g.rank)
		at = g.worker.url.String()
		via, g.unshare = f.shared.join(f, &feed.Poll{Client: f.cfg.Client}, at, false, func(m *feed.Message) bool { return m.Topic == name })
		return via, at
	case bind:
		via, g.unshare = f.shared.join(f, f.cfg.Transport, endpoint, true, func(m *feed.Message) bool { return strings.HasPrefix(m.Topic, topic) })
		return via, endpoint
	}
	return f.cfg.Transport, endpoint
}

// decodePolled returns the decoder of a target whose engine is polled.
func (g *tgt) decodePolled() feed.Decode {
	var p kvevent.Polled
	return func(payload []byte) (feed.Decoded, error) {
		runs, err := p.Decode(payload)
		if err != nil {
			return feed.Decoded{}, err
		}
		out := feed.Decoded{Skipped: map[string]int{}}
		for _, run := range runs {
			out.Ops = append(out.Ops, g.mapper.Map(&run.Batch)...)
			out.Lost += lost(run.Skipped)
			for why, n := range run.Skipped {
				out.Skipped[why] += n
			}
			out.Rank, out.HasRank = run.Rank, run.HasRank
		}
		out.PageSize = g.mapper.PageSize()
		return out, nil
	}
}

// lost counts the events among those left out that the mirror lacks now.
func lost(skipped map[string]int) (n int) {
	for why, k := range skipped {
		switch why {
		case kvevent.SkipUnknownKind, kvevent.SkipSmallerWindow, kvevent.SkipPartialBlock, kvevent.SkipRank: // nothing the mirror should have
		default:
			n += k
		}
	}
	return n
}

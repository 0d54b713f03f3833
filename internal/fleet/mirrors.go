package fleet

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/mirrorfile"
)

// Resume holds the mirrors of an earlier run until their targets join.
type Resume struct {
	kept map[string]*keptMirror // by worker and rank
}

type keptMirror struct {
	meta    mirrorfile.Meta
	records []index.Record
}

func mirrorKey(worker string, rank int) string { return fmt.Sprintf("%s#%d", worker, rank) }

// ReadMirrors reads a file that WriteMirrors wrote.
func ReadMirrors(in io.Reader) (*Resume, error) {
	r, err := mirrorfile.NewReader(in)
	if err != nil {
		return nil, err
	}
	out := &Resume{kept: map[string]*keptMirror{}}
	for {
		meta, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		k := &keptMirror{meta: meta}
		for rec, err := range r.Records() {
			if err != nil {
				return nil, err
			}
			kept := *rec
			kept.Hashes = slices.Clone(rec.Hashes)
			k.records = append(k.records, kept)
		}
		out.kept[mirrorKey(meta.Worker, meta.Rank)] = k
	}
}

// Targets is the number of mirrors read.
func (r *Resume) Targets() int { return len(r.kept) }

func (k *keptMirror) all() iter.Seq2[*index.Record, error] {
	return func(yield func(*index.Record, error) bool) {
		for i := range k.records {
			if !yield(&k.records[i], nil) {
				return
			}
		}
	}
}

// resume gives a target that has just joined its mirror of an earlier run, if there is one that fits. The
// stream then checks by the engine's own numbers whether it still holds.
func (f *Fleet) resume(m *model, g *tgt) *feed.Resume {
	f.mu.Lock()
	var k *keptMirror
	if f.cfg.Resume != nil {
		name := mirrorKey(g.worker.spec.ID, g.rank)
		k = f.cfg.Resume.kept[name]
		delete(f.cfg.Resume.kept, name) // it fits one life at most
	}
	f.mu.Unlock()
	if k == nil {
		return nil
	}
	why := ""
	switch meta := &k.meta; {
	case meta.Model != m.name:
		why = fmt.Sprintf("it is of model %q", meta.Model)
	case meta.BlockSize != m.pool.BlockSize():
		why = fmt.Sprintf("its blocks have %d tokens", meta.BlockSize)
	case meta.Engine != g.worker.engine():
		why = fmt.Sprintf("it is of engine %q", meta.Engine)
	case !meta.HasSeq:
		why = "it has no sequence number to be checked by"
	}
	if why == "" {
		r, err := m.pool.Import(g.id, k.all())
		switch {
		case err != nil:
			why = err.Error()
		case m.pool.ContentHash(g.id) != k.meta.Content:
			why = "its content is not what it was"
			if _, err := m.pool.Apply(g.id, []index.Op{{Kind: index.Epoch}}); err != nil {
				why += "; " + err.Error()
			}
		default:
			f.log.Info("mirror loaded from the snapshot, to be checked against the engine", "worker", g.key, "blocks", r.Stored, "sequence", k.meta.Seq)
			return &feed.Resume{Last: feed.Mark{Seq: k.meta.Seq, Hash: k.meta.Payload}, Exact: true}
		}
	}
	f.log.Warn("mirror of the snapshot is not used", "worker", g.key, "reason", why)
	g.happened("mirror-file", "", "its kept mirror is not used, what it caches is learned anew: "+why)
	return nil
}

// WriteMirrors writes the mirrors of all targets whose streams have numbers to check them by later, and
// that are all their engines hold. It returns how many.
func (f *Fleet) WriteMirrors(out io.Writer) (n int, err error) {
	w := mirrorfile.NewWriter(out)
	for _, wk := range f.all() {
		for _, g := range wk.targetsNow() {
			if g.stream == nil {
				continue
			}
			g.stream.Snapshot(func(at feed.Resume, ok bool) {
				if !ok || !at.Exact {
					return
				}
				if !g.mapper.Plain() { // what its handles mean is not in the snapshot
					f.log.Info("mirror is left out of the snapshot: its engine's hashes leave salts or cache groups out", "worker", g.key)
					return
				}
				st, _, _ := g.model.pool.Look(g.id)
				meta := mirrorfile.Meta{
					Worker: wk.spec.ID, Rank: g.rank, Engine: wk.engine(), Model: g.model.name, BlockSize: g.model.pool.BlockSize(),
					PageSize: wk.pageNow(), Seq: at.Last.Seq, HasSeq: true, Payload: at.Last.Hash, Time: time.Now().UnixNano(),
					Blocks: st.Blocks, Content: g.model.pool.ContentHash(g.id),
				}
				e := w.Target(meta, func(each func(*index.Record) error) error { return g.model.pool.Export(g.id, each) })
				switch {
				case errors.Is(e, index.ErrExport):
					f.log.Warn("mirror cannot be kept in the snapshot", "worker", g.key, "reason", e)
				case e != nil:
					err = errors.Join(err, e)
				default:
					n++
				}
			})
		}
	}
	return n, errors.Join(err, w.Close())
}

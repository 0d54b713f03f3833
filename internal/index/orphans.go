package index

import "slices"

// orphans are the stores of one target whose parent is not known (yet), oldest first.
//
// Invariants:
//
//	O1  cost is the sum of Op.blocks over the buffered events and at most the limit.
//	O2  waiting is the number of handles in them that were not removed meanwhile.
//	O3  byParent and byHandle list exactly the buffered events, in order of arrival.
type orphans struct {
	byParent map[Handle][]*orphan
	byHandle map[Handle][]*orphan
	queue    []*orphan // in order of arrival; taken ones are nil
	first    int       // of the queue
	cost     int
	waiting  int
}

type orphan struct {
	op     Op
	gone   []bool // handles removed while waiting
	left   int    // handles not gone
	at     int    // place in the queue
	blocks int
}

// add buffers a copy of an event, of which the handles in gone are void, and gives up the oldest ones
// beyond limit.
func (o *orphans) add(op Op, gone []bool, blocks, limit int, r *Result) {
	n := &orphan{gone: make([]bool, len(op.Handles)), left: len(op.Handles), blocks: blocks}
	copy(n.gone, gone)
	for _, g := range n.gone {
		if g {
			n.left--
		}
	}
	if o.byParent == nil {
		o.byParent, o.byHandle = map[Handle][]*orphan{}, map[Handle][]*orphan{}
	}
	r.Orphaned += n.left
	for o.cost+blocks > limit && o.first < len(o.queue) {
		if old := o.queue[o.first]; old != nil {
			r.Dropped += old.left
			o.take(old)
		} else {
			o.first++
		}
	}
	if blocks > limit {
		r.Dropped += n.left
		return
	}
	op.Handles, op.Tokens, op.Hashes = slices.Clone(op.Handles), slices.Clone(op.Tokens), slices.Clone(op.Hashes)
	n.op = op
	o.compact()
	n.at = len(o.queue)
	o.queue = append(o.queue, n)
	o.cost += blocks
	o.waiting += n.left
	o.byParent[op.Parent] = append(o.byParent[op.Parent], n)
	for i, h := range op.Handles {
		if !slices.Contains(op.Handles[:i], h) {
			o.byHandle[h] = append(o.byHandle[h], n)
		}
	}
}

// compact drops the taken events from the queue once they are the larger part of it.
func (o *orphans) compact() {
	if len(o.queue) < 64 || len(o.queue) < 2*(len(o.byParent)+1) {
		return
	}
	keep := o.queue[:0]
	for _, n := range o.queue {
		if n != nil {
			n.at = len(keep)
			keep = append(keep, n)
		}
	}
	clear(o.queue[len(keep):])
	o.queue, o.first = keep, 0
}

// take takes an event out of the buffer.
func (o *orphans) take(n *orphan) {
	o.queue[n.at] = nil
	o.cost -= n.blocks
	o.waiting -= n.left
	cut(o.byParent, n.op.Parent, n)
	for i, h := range n.op.Handles {
		if !slices.Contains(n.op.Handles[:i], h) {
			cut(o.byHandle, h, n)
		}
	}
}

func cut(m map[Handle][]*orphan, h Handle, n *orphan) {
	list := m[h]
	if i := slices.Index(list, n); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(m, h)
	} else {
		m[h] = list
	}
}

// of takes out the events that wait for parent h.
func (o *orphans) of(h Handle) []*orphan {
	list := slices.Clone(o.byParent[h])
	for _, n := range list {
		o.take(n)
	}
	return list
}

// remove notes that a handle was removed from a tier before its parent came. It tells how many
// announcements that voids: of those that count the oldest, and then the removal is used up (counted);
// of the others all.
func (o *orphans) remove(h Handle, t Tier) (void int, counted bool) {
	for _, n := range slices.Clone(o.byHandle[h]) {
		if n.op.Tier != t {
			continue
		}
		for i, oh := range n.op.Handles {
			if oh != h || n.gone[i] || n.op.Counted && counted {
				continue
			}
			n.gone[i] = true
			n.left--
			o.waiting--
			void++
			counted = counted || n.op.Counted
		}
		if n.left == 0 {
			o.take(n)
		}
	}
	return void, counted
}

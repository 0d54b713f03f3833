package plantedlog

import (
	"bufio"
	"fmt"

	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/score"
)

// recording prints a recording's records of decisions, first tokens and releases.
type recording struct {
	w    *bufio.Writer
	from map[int64]int64 // tokens of answers that were there when a request began, by number
}

func (p *recording) begin(e *engine) {
	enc := record.NewEncoder(record.Header{Run: "abcdef0123456789", Program: "planted", Model: "m", BlockSize: 16, Config: score.Defaults()}, 0)
	head, err := enc.Begin(nil, 1)
	if err != nil {
		panic(err) // the defaults can be written
	}
	_, _ = p.w.Write(head) // errors stay with the writer until it is flushed
	for _, r := range e.ranks {
		fmt.Fprintf(p.w, `{"type":"worker","op":"join","w":%d,"key":"http://host#dp%d","role":"%s","block_size":16}`+"\n", r.id, r.id, p.role(e))
	}
}

func (p *recording) role(e *engine) string {
	if e.design.Mixed {
		return "mixed"
	}
	return "decode"
}

func (p *recording) prefilled(*engine, *rank, int64) {}
func (p *recording) stepped(*engine, *rank)          {}
func (p *recording) ticked(*engine)                  {}

func (p *recording) began(e *engine, r *rank, q *request) {
	p.from[q.number] = q.done
	fmt.Fprintf(p.w, `{"type":"decision","ns":%d,"id":"r%d","role":"%s","in":%d,"exact":true,"w":[%d],"decision":{"seq":%d,"picked_index":0}}`+"\n",
		int64(q.arrived*1e9), q.number, p.role(e), q.input+q.done, r.id, q.number)
	fmt.Fprintf(p.w, `{"type":"load","op":"first","d":%d,"ns":%d}`+"\n", q.number, int64(r.now*1e9))
}

func (p *recording) ended(_ *engine, r *rank, q *request) {
	// The first token comes from the prompt's computation, the others from steps.
	fmt.Fprintf(p.w, `{"type":"load","op":"release","d":%d,"ns":%d,"out":%d}`+"\n", q.number, int64(r.now*1e9), q.done-p.from[q.number]+1)
	delete(p.from, q.number)
}

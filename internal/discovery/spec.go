// Package discovery says which workers there are: from flags or from a file. Every source gives whole
// sets, so that a missed change cannot outlast the next look.
package discovery

import (
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Role is the part a worker plays.
type Role string

// The roles. A worker of which nothing is said is Mixed.
const (
	Mixed   Role = "mixed"
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Engines are the engines that can be named; "" is for what the engine itself says.
var Engines = []string{"vllm", "sglang", "atom", "trtllm"}

// Spec is one worker as it was configured. What was not said is empty or 0: unknown, to be asked of the
// engine.
type Spec struct {
	ID        string   // host:port, the address of the API; unique in a set
	URL       *url.URL // scheme and address, no path
	Model     string
	Role      Role
	Engine    string
	Events    string // endpoint of rank 0's events; see RankEndpoint
	Replay    string // endpoint of rank 0's replay
	Topic     string // meaningful if HasTopic; empty: every topic
	HasTopic  bool
	BlockSize int // tokens per block of the engine's cache
	DPSize    int // data-parallel ranks behind the URL
	Meta      map[string]string
	Origin    string // where it was said, for messages: a flag, or file:line. Not part of what Equal compares.
}

// Equal tells whether two specs say the same.
func (s Spec) Equal(o Spec) bool {
	return s.ID == o.ID && s.URL.String() == o.URL.String() && s.Model == o.Model && s.Role == o.Role &&
		s.Engine == o.Engine && s.Events == o.Events && s.Replay == o.Replay && s.Topic == o.Topic &&
		s.HasTopic == o.HasTopic && s.BlockSize == o.BlockSize && s.DPSize == o.DPSize && maps.Equal(s.Meta, o.Meta)
}

// String is the spec as a value of --worker, keys in a fixed order; ParseWorker reads it back.
func (s Spec) String() string {
	var b strings.Builder
	b.WriteString(s.URL.String())
	add := func(key, value string, is bool) {
		if is {
			b.WriteString("," + key + "=" + value)
		}
	}
	add("model", s.Model, s.Model != "")
	add("role", string(s.Role), s.Role != Mixed)
	add("engine", s.Engine, s.Engine != "")
	add("events", s.Events, s.Events != "")
	add("replay", s.Replay, s.Replay != "")
	add("topic", s.Topic, s.HasTopic)
	add("block-size", strconv.Itoa(s.BlockSize), s.BlockSize != 0)
	add("dp-size", strconv.Itoa(s.DPSize), s.DPSize != 0)
	for _, name := range slices.Sorted(maps.Keys(s.Meta)) {
		add("meta."+name, s.Meta[name], true)
	}
	return b.String()
}

// RankEndpoint is the endpoint of a data-parallel rank: the rank is added to the port of tcp, and appended
// as _dp<rank> elsewhere, as engines do. bind says that the engine dials and we listen: the host is '*'.
func RankEndpoint(endpoint string, rank int) (at string, bind bool) {
	if endpoint == Poll {
		return endpoint, false
	}
	address, tcp := strings.CutPrefix(endpoint, "tcp://")
	if !tcp {
		if rank > 0 {
			return endpoint + "_dp" + strconv.Itoa(rank), false
		}
		return endpoint, false
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return endpoint, false // was refused when it was parsed
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return endpoint, false
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), host == "*"
}

// Diff compares two sets of workers. Changed are the new specs of workers that are in both and differ.
func Diff(old, now []Spec) (added, changed []Spec, removed []string) {
	was := make(map[string]*Spec, len(old))
	for i := range old {
		was[old[i].ID] = &old[i]
	}
	for i := range now {
		switch o := was[now[i].ID]; {
		case o == nil:
			added = append(added, now[i])
		case !o.Equal(now[i]):
			changed = append(changed, now[i])
		}
		delete(was, now[i].ID)
	}
	for i := range old {
		if was[old[i].ID] != nil {
			removed = append(removed, old[i].ID)
		}
	}
	return added, changed, removed
}

// Error is what is wrong with a worker's description.
type Error struct {
	Where string // flag or file:line; "" where the caller knows
	Why   string
	Hint  string // what to do; "" where there is nothing to say
}

// Error is one line without the hint.
func (e *Error) Error() string {
	if e.Where == "" {
		return e.Why
	}
	return e.Where + ": " + e.Why
}

func wrong(why, hint string) *Error { return &Error{Why: why, Hint: hint} }

// CheckUnique refuses a set in which an address is there twice: each would count the other's requests.
func CheckUnique(specs []Spec) error {
	first := map[string]*Spec{}
	for i := range specs {
		s := &specs[i]
		if o := first[s.ID]; o != nil {
			where := ""
			if o.Origin != "" {
				where = " (" + o.Origin + ")"
			}
			return &Error{
				Where: s.Origin, Why: "worker " + s.ID + " is there already" + where,
				Hint: "data-parallel ranks behind one address are one worker with dp-size",
			}
		}
		first[s.ID] = s
	}
	return nil
}

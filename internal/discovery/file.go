package discovery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/kvroute/kvroute/internal/report"
)

// Source tells which workers there are, always all of them.
type Source interface {
	// Watch calls f with the whole set, first with what there is at the start and then whenever it has
	// changed, one call after the other, until ctx is done. It returns nil then, or an error if there
	// was no set to start with.
	Watch(ctx context.Context, f func(full []Spec)) error
}

// Static is a set that does not change.
type Static []Spec

// Watch calls f once and waits.
func (s Static) Watch(ctx context.Context, f func(full []Spec)) error {
	if err := CheckUnique(s); err != nil {
		return err
	}
	f(s)
	<-ctx.Done()
	return nil
}

// File watches a file of workers by looking at it again and again, which works on every file system and
// with files that are replaced rather than written.
type File struct {
	Path string
	// Interval between looks; 0: one second.
	Interval time.Duration
	// Bad is told when the file cannot be used any more, once for each reason, and nil when it can again.
	// Until then the last good set stands. May be nil.
	Bad func(error)

	ticks  <-chan time.Time // tests: instead of Interval
	now    func() time.Time // tests
	looked chan<- struct{}  // tests: after each look
}

// settle is how long after its last change a file may change again without another time or size.
const settle = 2 * time.Second

// MaxFile is the greatest length of a file of workers in bytes.
const MaxFile = 16 << 20

// state is what the last look found.
type state struct {
	time    time.Time
	size    int64
	settled bool
	hash    [sha256.Size]byte
	err     error  // what is wrong with the content of that hash
	set     []Spec // last good one
	told    string
}

// Watch follows the file.
func (w *File) Watch(ctx context.Context, f func(full []Spec)) error {
	now := time.Now
	if w.now != nil {
		now = w.now
	}
	var st state
	if _, err := w.look(&st, now()); err != nil {
		return err
	}
	f(st.set)
	ticks := w.ticks
	if ticks == nil {
		interval := w.Interval
		if interval <= 0 {
			interval = time.Second
		}
		t := time.NewTicker(interval)
		defer t.Stop()
		ticks = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		}
		changed, err := w.look(&st, now())
		w.tell(&st, err)
		if changed {
			f(st.set)
		}
		if w.looked != nil {
			w.looked <- struct{}{}
		}
	}
}

// tell reports a reason once.
func (w *File) tell(st *state, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != st.told && w.Bad != nil {
		w.Bad(err)
	}
	st.told = text
}

// look reads the file if it may have changed, and says whether the set has. On an error the set is as it was.
func (w *File) look(st *state, now time.Time) (changed bool, err error) {
	info, err := os.Stat(w.Path)
	if err != nil {
		st.settled = false
		return false, fmt.Errorf("reading workers: %w", err)
	}
	if st.settled && info.ModTime().Equal(st.time) && info.Size() == st.size {
		return false, st.err
	}
	data, err := readFile(w.Path)
	if err != nil {
		st.settled = false
		return false, fmt.Errorf("reading workers: %w", err)
	}
	st.time, st.size = info.ModTime(), info.Size()
	st.settled = now.Sub(st.time) > settle && int64(len(data)) == st.size
	hash := sha256.Sum256(data)
	if hash == st.hash {
		return false, st.err
	}
	st.hash = hash
	set, err := ParseFile(w.Path, data)
	if st.err = err; err != nil {
		return false, err
	}
	changed = !equalSets(st.set, set)
	st.set = set
	return changed, nil
}

func equalSets(a, b []Spec) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(data) > MaxFile {
		err = fmt.Errorf("%s: longer than %d bytes", path, MaxFile)
	}
	return data, err
}

// ParseFile reads a file of workers, YAML or JSON: a list, or a list under "workers". An entry is a text as
// --worker takes it, or has the URL under "url" and the keys of --worker beside it, with meta a map of its
// own. Errors are *Error with file and line.
func ParseFile(name string, data []byte) (set []Spec, err error) {
	root, err := parseYAML(name, data)
	if err != nil {
		return nil, err
	}
	if m, ok := mapping(root); ok {
		if root, err = workersOf(name, m); err != nil {
			return nil, err
		}
	}
	set = []Spec{}
	switch list := root.(type) {
	case nil:
		// Not an empty set: this is what a file looks like between being emptied and being written.
		return nil, &Error{Where: name, Why: "no list of workers", Hint: "write [] where there are none"}
	case *ast.SequenceNode:
		for _, n := range list.Values {
			s, err := parseEntry(name, n)
			if err != nil {
				return nil, err
			}
			s.Origin = place(name, n)
			set = append(set, s)
		}
	default:
		return nil, at(name, root, wrong("no list of workers", "write a list of URLs, or of maps with url and further keys"))
	}
	if err := CheckUnique(set); err != nil {
		return nil, err
	}
	return set, nil
}

// parseYAML returns the one document of a file, nil where there is none.
func parseYAML(name string, data []byte) (root ast.Node, err error) {
	defer func() {
		if r := recover(); r != nil { // of the parser, on input that it does not expect
			err = &Error{Where: name, Why: fmt.Sprintf("not YAML: %v", r)}
		}
	}()
	if !utf8.Valid(data) {
		return nil, &Error{Where: name, Why: "not UTF-8"}
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		var se *yaml.SyntaxError
		if errors.As(err, &se) && se.Token != nil && se.Token.Position != nil {
			return nil, &Error{Where: name + ":" + strconv.Itoa(se.Token.Position.Line), Why: "not YAML: " + se.Message}
		}
		return nil, &Error{Where: name, Why: "not YAML: " + err.Error()}
	}
	var docs []ast.Node
	for _, d := range file.Docs {
		if d.Body != nil {
			docs = append(docs, d.Body)
		}
	}
	switch len(docs) {
	case 0:
		return nil, nil
	case 1:
		return docs[0], nil
	}
	return nil, at(name, docs[1], wrong("a second document", "put all workers into one list"))
}

// workersOf takes the list out of {workers: list}.
func workersOf(name string, m []*ast.MappingValueNode) (ast.Node, error) {
	var list ast.Node
	for _, v := range m {
		if key, _ := scalar(v.Key); key != "workers" {
			return nil, at(name, v, wrong(fmt.Sprintf("unknown key %q", key), report.DidYouMean(key, []string{"workers"})))
		}
		if list != nil {
			return nil, at(name, v, wrong(`key "workers" is there twice`, ""))
		}
		list = v.Value
	}
	return list, nil
}

// mapping returns the pairs of a map.
func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}, true
	}
	return nil, false
}

func parseEntry(name string, n ast.Node) (Spec, error) {
	pairs, ok := mapping(n)
	if !ok {
		text, ok := scalar(n)
		if !ok {
			return Spec{}, at(name, n, wrong("a worker is a URL or a map", ""))
		}
		s, err := ParseWorker(text)
		if err != nil {
			return Spec{}, at(name, n, err)
		}
		return s, nil
	}
	b := newBuilder()
	for _, v := range pairs {
		if err := b.entry(v); err != nil {
			return Spec{}, at(name, v, err)
		}
	}
	if b.s.URL == nil {
		return Spec{}, at(name, n, wrong(`key "url" is missing`, ""))
	}
	s, err := b.finish()
	if err != nil {
		return Spec{}, at(name, n, err)
	}
	return s, nil
}

// entry takes one pair of a worker's map.
func (b *builder) entry(v *ast.MappingValueNode) error {
	key, ok := scalar(v.Key)
	if !ok {
		return wrong("a key that is not a name", "")
	}
	if key == "meta" {
		pairs, ok := mapping(v.Value)
		if !ok {
			return wrong("meta is not a map", "")
		}
		for _, p := range pairs {
			name, ok1 := scalar(p.Key)
			value, ok2 := scalar(p.Value)
			if !ok1 || !ok2 {
				return wrong("meta holds more than names and values", "")
			}
			if err := b.meta(name, value); err != nil {
				return err
			}
		}
		return nil
	}
	value, ok := scalar(v.Value)
	if !ok {
		return wrong(fmt.Sprintf("key %q: not a plain value", key), "")
	}
	if key == "url" {
		if b.s.URL != nil {
			return wrong(`key "url" is there twice`, "")
		}
		return b.address(value)
	}
	return b.set(key, value)
}

// scalar is the text of a plain value as it was written.
func scalar(n ast.Node) (string, bool) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return s.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return s.GetToken().Value, true
	}
	return "", false
}

// place is where a node stands.
func place(name string, n ast.Node) string {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		n = m.Values[0].Key // the node itself begins at the first colon
	}
	if m, ok := n.(*ast.MappingValueNode); ok {
		n = m.Key
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return name + ":" + strconv.Itoa(t.Position.Line)
	}
	return name
}

// at gives an error its place.
func at(name string, n ast.Node, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Why: err.Error()}
	}
	if e.Where == "" {
		e.Where = place(name, n)
	}
	return e
}

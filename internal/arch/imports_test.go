package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kvroute/kvroute"

// layers names every package of the project, so that a new one has to be given its place.
var layers = map[string]string{
	"cmd/kvroute":          "entry",
	"internal/cli":         "entry",
	"internal/replay":      "driver",
	"internal/sim":         "driver",
	"internal/sweep":       "driver",
	"internal/router":      "driver",
	"internal/fleet":       "driver",
	"internal/admin":       "driver",
	"internal/fit":         "driver",
	"internal/tui":         "driver",
	"internal/playback":    "driver",
	"internal/watchssh":    "driver",
	"internal/pool":        "live",
	"internal/vitals":      "live",
	"internal/snapshot":    "core",
	"internal/record":      "core",
	"internal/recorder":    "live",
	"internal/openai":      "edge",
	"internal/sse":         "edge",
	"internal/tokenize":    "edge",
	"internal/tokenize/hf": "edge",
	"internal/tinymodel":   "edge",
	"internal/kvevent":     "edge",
	"internal/feed":        "edge",
	"internal/feed/zmq":    "edge",
	"internal/probe":       "edge",
	"internal/discovery":   "edge",
	"internal/mirrorfile":  "edge",
	"internal/decodelog":   "edge",
	"internal/fakeengine":  "engine",
	"internal/report":      "results",
	"internal/plot":        "results",
	"internal/engine":      "engine",
	"internal/block":       "core",
	"internal/target":      "core",
	"internal/index":       "core",
	"internal/load":        "core",
	"internal/score":       "core",
	"internal/trace":       "core",
	"internal/tracestats":  "core",
	"internal/prefixcache": "core",
	"internal/arch":        "tests",
	"traces":               "data",
	"internal/testtraces":  "tests",
	"internal/quality":     "tests",
	"internal/plantedlog":  "tests",
}

// rules say which package (or layer) must not reach which (or which layer), directly or through others.
var rules = []struct{ pkg, mustNotReach, because string }{
	{"core", "engine", "what decides live requests must not know simulated engines"},
	{"core", "results", "the core returns values; printing and drawing is for those who called it"},
	{"core", "driver", "drivers own time and order, the core has neither"},
	{"core", "net", "the core does no I/O, so that a replay decides as the live router did"},
	{"core", "net/http", "the core does no I/O, so that a replay decides as the live router did"},
	{"engine", "driver", "models are driven, they do not drive"},
	{"engine", "internal/score", "a model that saw the scorer could favour it"},
	{"engine", "results", "models return values"},
	{"results", "driver", "results are plain data and must be printable without running anything"},
	{"internal/block", "internal/index", "block is the vocabulary below the index"},
	{"internal/block", "internal/load", "block is the vocabulary below the ledger"},
	{"internal/target", "internal/block", "a target is only a name"},
	{"internal/index", "internal/load", "the index knows caches, the ledger knows requests"},
	{"internal/index", "internal/score", "nothing in the core imports the scorer"},
	{"internal/load", "internal/index", "the index knows caches, the ledger knows requests"},
	{"internal/load", "internal/score", "nothing in the core imports the scorer"},
	{"internal/trace", "internal/score", "traffic does not depend on who places it"},
	{"internal/trace", "internal/index", "traffic does not depend on who places it"},
	{"internal/prefixcache", "internal/score", "the true cache must not see the router's opinion"},
	{"internal/prefixcache", "internal/index", "the true cache must not see the router's mirror"},
	{"internal/replay", "internal/sim", "drivers share the core, not each other"},
	{"internal/sim", "internal/replay", "drivers share the core, not each other"},
	{"internal/replay", "internal/engine", "a replay has no clock, hence no engine model"},
	{"internal/sweep", "internal/sim", "a sweep runs any function, whoever made it"},
	{"internal/sweep", "internal/replay", "a sweep runs any function, whoever made it"},
	{"entry", "tests", "what serves tests must not reach the program"},
	{"driver", "tests", "what serves tests must not reach the program"},
	{"core", "tests", "what serves tests must not reach the program"},
	{"internal/plot", "net/http", "pictures are made offline"},
	{"edge", "driver", "an edge translates between the world and the core, it drives nothing"},
	{"edge", "live", "an edge hands over values, it does not know who keeps them"},
	{"edge", "internal/score", "an edge knows prompts, events and workers, not how they are judged"},
	{"edge", "engine", "what meets real engines must not know simulated ones"},
	{"edge", "tests", "what serves tests must not reach the program"},
	{"live", "net/http", "state that decides does no I/O"},
	{"live", "driver", "state is driven, it does not drive"},
	{"live", "edge", "state that decides is fed with core types only"},
	{"internal/router", "internal/fleet", "the proxy knows a fleet by its interface"},
	{"internal/tui", "internal/router", "watch sees only what the admin API serves"},
	{"internal/tui", "internal/fleet", "watch sees only what the admin API serves"},
	{"internal/tui", "internal/admin", "watch sees only what the admin API serves"},
	{"internal/tui", "internal/pool", "watch sees only what the admin API serves"},
	{"internal/watchssh", "internal/router", "watch sees only what the admin API serves"},
	{"internal/watchssh", "internal/fleet", "watch sees only what the admin API serves"},
	{"internal/snapshot", "internal/score", "what is shown is plain data"},
	{"internal/fit", "internal/router", "a fit reads logs, it needs no fleet"},
	{"internal/fit", "internal/sim", "drivers share the core, not each other"},
	{"internal/router", "internal/sim", "drivers share the core, not each other"},
	{"internal/router", "internal/replay", "drivers share the core, not each other"},
}

// coreForbidden are the packages of the standard library that core packages must not import themselves.
var coreForbidden = []struct {
	pkg     string
	but     []string // packages that may
	because string
}{
	{"net", nil, "no I/O in the core"},
	{"net/http", nil, "no I/O in the core"},
	{"os", nil, "readers and writers are handed in"},
	{"os/exec", nil, "no I/O in the core"},
	{"path/filepath", nil, "the core knows no files, only their names"},
	{"log", nil, "the core returns errors and counts, it does not talk"},
	{"log/slog", nil, "the core returns errors and counts, it does not talk"},
	{"math/rand", nil, "random numbers come from one seeded stream per purpose"},
	{"math/rand/v2", nil, "random numbers come from one seeded stream per purpose"},
	{"context", nil, "core calls are short and end by themselves"},
	{"sync", []string{"internal/load"}, "core types are owned by one goroutine"},
	{"sync/atomic", []string{"internal/load"}, "core types are owned by one goroutine"},
}

// thirdParty says who may import what from outside, and why it is there. Anything else fails.
var thirdParty = []struct {
	prefix  string
	users   []string
	because string
}{
	{"github.com/zeebo/xxh3", []string{"internal/block", "internal/score", "internal/report", "internal/index", "internal/trace", "internal/mirrorfile", "internal/record", "internal/openai", "internal/feed", "internal/decodelog", "internal/vitals"}, "block hashes, image keys, digests, content hashes, checksums"},
	{"github.com/klauspost/compress", []string{"internal/trace", "internal/cli"}, "gzip and zstd"},
	{"github.com/spf13/cobra", []string{"internal/cli"}, "the command line lives in one package"},
	{"github.com/spf13/pflag", []string{"internal/cli"}, "the command line lives in one package"},
	{"golang.org/x/term", []string{"internal/cli", "internal/tui"}, "only who meets terminals knows them"},
	{"golang.org/x/sync", []string{"internal/cli", "internal/sweep"}, "groups of goroutines"},
	{"github.com/goccy/go-yaml", []string{"internal/cli", "internal/engine", "internal/discovery"}, "configuration files, profiles and lists of workers"},
	{"gonum.org/v1/plot", []string{"internal/plot"}, "pictures"},
	{"github.com/pebbe/zmq4", []string{"internal/feed/zmq", "internal/fakeengine"}, "ZeroMQ, what engines publish their events over"},
	{"github.com/tinylib/msgp", []string{"internal/fakeengine"}, "events as engines encode them, by other code than what decodes them"},
	{"github.com/cespare/xxhash", []string{"internal/fakeengine"}, "XXH64, which one engine names blocks by"},
	{"github.com/daulet/tokenizers", []string{"internal/tokenize/hf"}, "the reference encoder"},
	{"github.com/prometheus/client_golang", []string{"internal/router", "internal/fleet", "internal/admin", "internal/cli", "internal/fakeengine", "internal/watchssh"}, "metrics in the form everybody scrapes"},
	{"github.com/prometheus/common", []string{"internal/probe"}, "reading engines' metrics"},
	{"github.com/prometheus/client_model", []string{"internal/probe"}, "reading engines' metrics"},
	{"charm.land/bubbletea/v2", []string{"internal/tui", "internal/cli", "internal/watchssh"}, "terminals: keys in, changed cells out"},
	{"charm.land/bubbles/v2", []string{"internal/tui"}, "a line that is typed, names of keys"},
	{"charm.land/lipgloss/v2", []string{"internal/tui"}, "colours"},
	{"github.com/charmbracelet/x/ansi", []string{"internal/tui"}, "widths of text as terminals have them"},
	{"github.com/charmbracelet/colorprofile", []string{"internal/tui", "internal/watchssh"}, "how many colours a terminal has"},
	{"github.com/charmbracelet/ultraviolet", []string{"internal/watchssh"}, "keys of terminals that are far away"},
	{"charm.land/wish/v2", []string{"internal/watchssh"}, "serving SSH"},
	{"charm.land/ssh", []string{"internal/watchssh"}, "serving SSH: what wish is made of"},
	{"golang.org/x/crypto/ssh", []string{"internal/watchssh", "internal/cli"}, "public keys, the protocol"},
	{"gonum.org/v1/gonum", []string{"internal/plot", "internal/sweep", "internal/fit"}, "pictures, intervals, least squares"},
}

type goPackage struct {
	Dir, ImportPath                          string
	GoFiles                                  []string
	Imports, TestImports, XTestImports, Deps []string
}

func (p *goPackage) name() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// is says whether pattern names the package or its layer.
func (p *goPackage) is(pattern string) bool {
	return p.name() == pattern || layers[p.name()] == pattern
}

func project(t *testing.T) []*goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=Dir,ImportPath,GoFiles,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []*goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &goPackage{}
		err := dec.Decode(p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("output of go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 10 {
		t.Fatalf("go list found %d packages, want the whole project", len(pkgs))
	}
	return pkgs
}

func TestEveryPackageHasAPlace(t *testing.T) {
	for _, p := range project(t) {
		if layers[p.name()] == "" {
			t.Errorf("package %s is in no layer: give it one in this test and in ARCHITECTURE.md", p.name())
		}
	}
}

func TestImportRules(t *testing.T) {
	pkgs := project(t)
	byPath := map[string]*goPackage{}
	for _, p := range pkgs {
		byPath[p.ImportPath] = p
	}
	reaches := func(dep, pattern string) bool {
		if dep == pattern {
			return true
		}
		q := byPath[dep]
		return q != nil && q.is(pattern)
	}
	for _, r := range rules {
		used := false
		for _, p := range pkgs {
			if !p.is(r.pkg) {
				continue
			}
			used = true
			for _, dep := range p.Deps {
				if reaches(dep, r.mustNotReach) {
					t.Errorf("%s reaches %s, which %s must not: %s", p.name(), strings.TrimPrefix(dep, module+"/"), r.pkg, r.because)
				}
			}
		}
		if !used {
			t.Errorf("rule about %s (must not reach %s) applies to no package", r.pkg, r.mustNotReach)
		}
	}
}

func TestNobodyImportsTheCommandLine(t *testing.T) {
	for _, p := range project(t) {
		if p.name() == "cmd/kvroute" || p.name() == "internal/cli" {
			continue
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if imp == module+"/internal/cli" {
				t.Errorf("%s imports internal/cli: flags, environment and files end there", p.name())
			}
		}
	}
}

func TestCoreIsPure(t *testing.T) {
	for _, p := range project(t) {
		if !p.is("core") {
			continue
		}
		for _, f := range coreForbidden {
			if slices.Contains(p.Imports, f.pkg) && !slices.Contains(f.but, p.name()) {
				t.Errorf("%s imports %s: %s", p.name(), f.pkg, f.because)
			}
		}
		if slices.Contains(p.Imports, "time") {
			checkNoClock(t, p)
		}
	}
}

// checkNoClock allows lengths of time, but neither clocks nor timers nor dates.
func checkNoClock(t *testing.T, p *goPackage) {
	t.Helper()
	allowed := []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}
	for _, name := range p.GoFiles {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && x.Obj == nil && !slices.Contains(allowed, sel.Sel.Name) {
				t.Errorf("%s: time.%s: the core knows lengths of time, no clock", fset.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}

func TestThirdPartyHasAPlace(t *testing.T) {
	for _, p := range project(t) {
		for _, imp := range p.Imports {
			first, _, _ := strings.Cut(imp, "/")
			if !strings.Contains(first, ".") || strings.HasPrefix(imp, module) {
				continue
			}
			ok := false
			for _, tp := range thirdParty {
				if imp == tp.prefix || strings.HasPrefix(imp, tp.prefix+"/") {
					ok = slices.Contains(tp.users, p.name())
					if !ok {
						t.Errorf("%s imports %s, which is for %s (%s)", p.name(), imp, strings.Join(tp.users, ", "), tp.because)
						ok = true
					}
					break
				}
			}
			if !ok {
				t.Errorf("%s imports %s, which is not in this test's table: say who may use it and why", p.name(), path.Clean(imp))
			}
		}
	}
}

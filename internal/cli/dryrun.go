package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/probe"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// dryRunTime bounds the questions to one worker.
const dryRunTime = 15 * time.Second

// dryRun asks every worker what it is and prints what serve would do with it.
func (a *app) dryRun(ctx context.Context, f *serveFlags, toks func(model string) tokenize.Tokenizer) error {
	specs := f.workers
	if f.workersFile != "" {
		var err error
		if specs, err = readWorkers(f.workersFile); err != nil {
			return err
		}
	}
	conn, err := router.NewHTTP(f.workerCA, f.connectTimeout)
	if err != nil {
		return usage("bad certificates", "--worker-ca", err.Error(), "")
	}
	client := &http.Client{Transport: roundTripper{conn}}
	table := grid{
		head:  []string{"worker", "engine", "version", "model", "tokenizer", "ranks", "block size", "events", "replay", "caches"},
		right: []bool{5: true, 6: true},
	}
	var notes []string
	down := 0
	for _, s := range specs {
		info, err := probeOne(ctx, client, s)
		if err != nil {
			down++
			notes = append(notes, fmt.Sprintf("%s: %v", s.ID, err))
			table.add(s.ID, orUnknown(s.Engine), "-", orUnknown(s.Model), "-", "-", "-", orUnknown(s.Events), orUnknown(s.Replay), "cannot be reached")
			continue
		}
		model := s.Model
		if model == "" {
			model = f.model
		}
		if model == "" {
			model = info.BaseModel()
		}
		events, replay := s.Events, s.Replay
		if events == "" {
			events = info.Events.Live
			if replay == "" {
				replay = info.Events.Replay
			}
		}
		block, ranks := s.BlockSize, s.DPSize
		if block == 0 {
			block = info.BlockSize
		}
		if ranks == 0 {
			ranks = info.DPSize
		}
		tok, caches := "yes", "mirrored"
		if toks(model) == nil {
			tok = "none"
		}
		if events == "" || tok == "none" {
			caches = "approximate"
		}
		table.add(s.ID, orUnknown(info.Engine), orUnknown(info.Version), model, tok, number(ranks), number(block), orUnknown(events), orUnknown(replay), caches)
		for _, u := range info.Unknown {
			notes = append(notes, s.ID+": "+u)
		}
	}
	if err := a.emit(func(w io.Writer) error { return table.writeTable(w, a.bold) }); err != nil {
		return err
	}
	for _, n := range notes {
		a.note(oneLine(n))
	}
	if down > 0 {
		return &fault{code: exitUnreachable, what: fmt.Sprintf("%d of %d workers cannot be reached", down, len(specs)), where: "--dry-run", why: "the notes above say why"}
	}
	return nil
}

func probeOne(ctx context.Context, client *http.Client, s discovery.Spec) (probe.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunTime)
	defer cancel()
	return probe.Probe(ctx, client, s.URL, s.Engine)
}

// orUnknown shows what is not known as such.
func orUnknown(s string) string {
	if strings.TrimSpace(s) == "" {
		return "unknown"
	}
	return s
}

func number(n int) string {
	if n == 0 {
		return "unknown"
	}
	return strconv.Itoa(n)
}

// readWorkers reads a file of workers once.
func readWorkers(path string) ([]discovery.Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("cannot read the workers", path, pathWhy(err), "")
	}
	specs, err := discovery.ParseFile(path, data)
	if err == nil {
		err = discovery.CheckUnique(specs)
	}
	var e *discovery.Error
	if errors.As(err, &e) {
		return nil, usage("bad workers", "", e.Error(), e.Hint)
	}
	return specs, err
}

package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// telling is the admin API of a router that tells of one worker and then nothing new. Below other paths it is one
// that wants a token, one of another form, one that is none.
func telling() http.Handler {
	data, err := json.Marshal(&snapshot.Snapshot{
		Schema: snapshot.Schema, Run: "r", Seq: 1, AtMS: 1_700_000_000_000, Router: snapshot.Router{Ready: true, Policy: "least-work", Version: "v1"},
		Workers: []snapshot.Worker{{WorkerID: "worker-0", RouteKey: "worker-0", Health: "healthy", Trust: "trusted"}},
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		where, path, _ := strings.Cut(r.URL.Path, "/v1/admin/")
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case where == "/closed" && r.Header.Get("Authorization") != "Bearer open":
			http.Error(w, `{"error":{"message":"a token is needed"}}`, http.StatusUnauthorized)
		case where == "/newer":
			fmt.Fprintln(w, `{"schema":"kvroute.snapshot/v9"}`)
		case where == "/garbage":
			fmt.Fprintln(w, "<html>\x1b[2J")
		case where != "" && where != "/closed":
			http.NotFound(w, r)
		case path == "snapshot":
			w.Write(data) //nolint:errcheck // the client may have gone
		case path == "stream":
			fmt.Fprintf(w, "data: %s\n\n", data)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			http.NotFound(w, r)
		}
	})
}

// tellingRouter serves telling.
func tellingRouter(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(telling())
	t.Cleanup(srv.Close)
	return srv
}

// cmdRouter: router starts a router to watch, whose address is $ROUTER.
func cmdRouter(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: router")
	}
	srv := httptest.NewServer(telling())
	ts.Defer(srv.Close)
	ts.Setenv("ROUTER", srv.URL)
}

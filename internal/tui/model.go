package tui

import (
	"context"
	"time"

	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// Options set up a screen.
type Options struct {
	ASCII   bool  // only ASCII is drawn
	NoColor bool  // no colours; bold, faint and reverse stay
	Dark    *bool // the background; nil: the terminal is asked
	Mouse   bool  // wheel and clicks
	Width   int   // of the screen, until the terminal tells; 0: nothing is drawn until then
	Height  int
}

type page uint8

// The pages.
const (
	fleetPage page = iota
	workerPage
	picksPage
	cachePage
	numPages
)

// panel is a list on a page. Each keeps what is selected, how far it is scrolled and its filter.
type panel uint8

const (
	workersPanel panel = iota
	warningsPanel
	prefixesPanel
	ownPicksPanel
	picksPanel
	cachePanel
	numPanels
)

// panelPage says on which page a panel is.
var panelPage = [numPanels]page{fleetPage, fleetPage, workerPage, workerPage, picksPage, cachePage}

// list is the state of a panel. What is selected is a name (a route key, a hash, a number of a decision), never a
// row: rows move. "" is the first row, whichever it is.
type list struct {
	sel    string
	top    int // first row shown
	filter string
}

// overlay is what lies over the page.
type overlay uint8

const (
	noOverlay overlay = iota
	helpOverlay
	explainOverlay
)

// explained is the decision that is shown in full.
type explained struct {
	pick   uint64
	run    string // of the router that was asked
	busy   bool
	err    string
	lines  []string // clean
	width  int      // of the widest line
	top    int
	column int
}

// turn is a change of a target's trust that was seen while watching.
type turn struct {
	atMS       int64
	from, into string
	reason     string
}

// maxTurns bounds the turns kept of a target.
const maxTurns = 8

// Model is the state of a screen: a tea.Model that is fed with Updates as messages. It does no I/O and has no
// clock: what takes time is a command, and time passes by messages. Copies are independent but for the picture,
// which is never changed after it was made.
type Model struct {
	name    string
	explain func(ctx context.Context, pick uint64) ([]byte, error)
	player  Player // nil: not a played file
	opts    Options
	dark    bool
	few     bool // not more than 16 colours
	theme   *theme
	keys    keyMap

	w, h int

	update  Update // the last one; its Snap is the newest
	pic     *picture
	waiting bool // a picture newer than pic is held back until the next tick
	frozen  bool // by p
	beats   int64
	ticking bool
	early   bool // the picture came between two beats: the next one is less than a beat later

	page   page
	focus  panel
	lists  [numPanels]list
	back   page   // where esc goes from the worker page
	worker string // route key on the worker page
	order  order
	column string // prefix selected in the cache map
	left   int    // first column shown in it
	over   overlay
	helpAt int
	full   explained

	typing bool
	input  textinput.Model

	turns map[string][]turn
	run   string

	frame *frame // of this state; every change makes a new one, see settle
}

// frame is what a state looks like, drawn when it is first asked for: a screen is asked for its looks after every
// message, and most messages change nothing that is seen.
type frame struct {
	drawn bool
	text  string
}

// New makes the screen of what src tells. Feed carries src's updates to it.
func New(src Source, o Options) Model {
	m := Model{name: src.Name(), explain: src.Explain, opts: o, dark: true, w: o.Width, h: o.Height, keys: newKeys()}
	if p, ok := src.(Player); ok {
		m.player = p
	}
	if o.Dark != nil {
		m.dark = *o.Dark
	}
	m.theme = newTheme(o.ASCII, !o.NoColor, m.dark, false)
	m.input = textinput.New()
	m.input.Prompt = ""
	m.input.CharLimit = 200
	m.input.SetVirtualCursor(false)
	// Its own paste reads the clipboard of the machine it runs on, which over SSH is not the user's; what the
	// terminal pastes comes as a message.
	m.input.KeyMap.Paste = key.NewBinding()
	m.turns = map[string][]turn{}
	m.pic = draw(nil, order{}, &m.lists, "", nil)
	m.frame = &frame{}
	return m
}

// Init asks for the background's colour, where nobody said it.
func (m Model) Init() tea.Cmd {
	if m.opts.Dark == nil && !m.opts.NoColor {
		return tea.RequestBackgroundColor
	}
	return nil
}

// beat is how often the picture changes at most while nothing remarkable happens, and how often ages are looked
// at: numbers that dance faster than one reads cost bytes and rest.
const beat = time.Second

// calm is the time between two pictures in which nothing remarkable happens, and what a router is asked for: a beat,
// and no more than one waits for the other because of a tick that came late.
const calm = beat - beat/8

// beatMsg is the passing of a beat.
type beatMsg struct{}

// explainedMsg is the answer to what explain was asked.
type explainedMsg struct {
	pick uint64
	body []byte
	err  error
}

// nowMS is the router's time as well as it is known: that of the picture and the beats since.
func (m *Model) nowMS() int64 {
	if m.pic.snap == nil {
		return 0
	}
	if m.update.Link != Live {
		return m.pic.snap.AtMS
	}
	return m.pic.snap.AtMS + m.beats*int64(beat/time.Millisecond)
}

// staleMS is how old the picture is, where it is out of date.
func (m *Model) staleMS() int64 { return m.update.AgeMS + m.beats*int64(beat/time.Millisecond) }

// still says that time does not pass on the screen.
func (m *Model) still() bool {
	return m.frozen || m.update.Link == Ended || m.update.Play != nil
}

// snap is the picture's snapshot, nil before the first.
func (m *Model) snap() *snapshot.Snapshot { return m.pic.snap }

// SPDX-License-Identifier: Apache-2.0

// Package browser opens the HTML report and the exporter's node page in a real browser and looks at what comes of them.
package browser

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// shots is where pictures are left for people.
const shots = "../../bin/report"

// browserOf is a running Chromium, or the test is skipped and says why.
func browserOf(t *testing.T) context.Context {
	t.Helper()
	said := new(bytes.Buffer)
	find := exec.Command("./chromium.sh")
	find.Stderr = said
	path, err := find.Output()
	if err != nil {
		t.Skipf("no browser: %v\n%s", err, said)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(strings.TrimSpace(string(path))), chromedp.NoSandbox, chromedp.Flag("hide-scrollbars", true))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Skipf("the browser at %s does not run: %v", path, err)
	}
	return ctx
}

// pagesOf has pkg/report write its pages.
func pagesOf(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	write := exec.Command("go", "test", "-count=1", "-run", "^TestPagesForABrowser$", "./pkg/report", "-pages", folder)
	write.Dir = "../.."
	if said, err := write.CombinedOutput(); err != nil {
		t.Fatalf("pkg/report wrote no pages: %v\n%s", err, said)
	}
	return folder
}

// tab is one open page and what it did that it should not.
type tab struct {
	ctx context.Context
	mu  sync.Mutex
	bad []string
}

func (b *tab) blame(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad = append(b.bad, fmt.Sprintf(format, args...))
}

// open opens a page of the folder in a tab of its own.
func open(t *testing.T, browser context.Context, folder, name string) *tab {
	t.Helper()
	return visit(t, browser, "file://"+filepath.Join(folder, name+".html"))
}

// visit opens a page in a tab of its own.
func visit(t *testing.T, browser context.Context, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, time.Minute)
	t.Cleanup(cancel)
	b := &tab{ctx: ctx}
	b.run(t)
	err := chromedp.Listen(ctx, func(event any) {
		switch event := event.(type) {
		case *network.EventRequestWillBeSent:
			if event.Request.URL != url {
				b.blame("it asks for %s", event.Request.URL)
			}
		case *runtime.EventConsoleAPICalled:
			b.blame("it says %s on the console", event.Type)
		case *runtime.EventExceptionThrown:
			b.blame("it throws %v", event.ExceptionDetails)
		case *log.EventEntryAdded:
			b.blame("the browser says: %s", event.Entry.Text)
		case *page.EventJavascriptDialogOpening:
			b.blame("it opens a dialog: %s", event.Message)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run(t, call(network.Enable, network.EnableParams{}), call(log.Enable, cdp.Empty{}), call(runtime.Enable, cdp.Empty{}), chromedp.Navigate(url))
	return b
}

func (b *tab) run(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// got is the value of an action.
func got[T any](t *testing.T, b *tab, action chromedp.Action[T]) T {
	t.Helper()
	v, err := chromedp.Run(b.ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// call is a command of the browser's protocol as an action.
func call[P any](command cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, command, params)
		return err
	})
}

// look is what an expression of JavaScript comes to in the page.
func look[T any](t *testing.T, b *tab, expression string) T {
	t.Helper()
	return got(t, b, chromedp.Evaluate[T](expression))
}

// scheme has the page think that people like it light or dark, on a screen or on paper.
func scheme(medium, name string) chromedp.Action[chromedp.Void] {
	return call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}

// shoot leaves a picture of the whole page.
func (b *tab) shoot(t *testing.T, name string) {
	t.Helper()
	leave(t, name+".png", got(t, b, chromedp.FullScreenshot(100)))
}

func leave(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(shots, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shots, name), content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTheReportInABrowser(t *testing.T) {
	browser := browserOf(t)
	folder := pagesOf(t)
	for _, name := range []string{"march", "hostile", "day", "plain"} {
		t.Run(name, func(t *testing.T) {
			b := open(t, browser, folder, name)
			for _, width := range []int64{1280, 820, 390} {
				b.run(t, chromedp.EmulateViewport(width, 900))
				nothingSticksOut(t, b, width)
				if width != 820 {
					b.shoot(t, fmt.Sprintf("%s-%d", name, width))
				}
			}
			b.run(t, chromedp.EmulateViewport(1280, 900))
			barsAreAsLongAsTheirHours(t, b)
			textStaysText(t, b)
			for _, bad := range b.bad {
				t.Errorf("the page misbehaves: %s", bad)
			}
		})
	}
	t.Run("heat map", func(t *testing.T) { everyHourIsSeen(t, open(t, browser, folder, "march")) })
	t.Run("dark", func(t *testing.T) { darkIsDark(t, open(t, browser, folder, "march")) })
	t.Run("paper", func(t *testing.T) { itPrints(t, open(t, browser, folder, "march")) })
}

// nothingSticksOut: no sideways scrolling of the page, and no part wider than the section it is in.
func nothingSticksOut(t *testing.T, b *tab, width int64) {
	t.Helper()
	if over := look[int](t, b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
		t.Errorf("%d pixels wide, the page is %d too wide", width, over)
	}
	out := look[[]string](t, b, `[...document.querySelectorAll('section, .tile, .status, header')].flatMap(box => {
		const edge = box.getBoundingClientRect();
		return [...box.querySelectorAll('*')].filter(e => !e.closest('.scroll') && e.getClientRects().length && !e.closest('svg[aria-hidden]'))
			.filter(e => { const r = e.getBoundingClientRect(); return r.right > edge.right + 1 || r.left < edge.left - 1 })
			.map(e => (e.className.baseVal ?? e.className) + ' ' + e.tagName + ' of ' + box.className + ': ' + e.textContent.slice(0, 40)) }).slice(0, 5)`)
	for _, e := range out {
		t.Errorf("%d pixels wide, this sticks out: %s", width, e)
	}
}

// segment is one part of a bar, as it was laid out.
type segment struct {
	Group, Class           string
	Hours, Width, Of, Left float64
}

func barsAreAsLongAsTheirHours(t *testing.T, b *tab) {
	t.Helper()
	segments := look[[]segment](t, b, `[...document.querySelectorAll('.stack i, .meter')].map(e => { const r = e.getBoundingClientRect(), s = e.parentElement.getBoundingClientRect();
		return {Group: e.closest('section').className, Class: e.className, Hours: Number((e.dataset.hours || '').replaceAll(',', '')), Width: r.width, Of: s.width, Left: r.left - s.left} })`)
	if len(segments) < 8 {
		t.Fatalf("%d segments are drawn", len(segments))
	}
	// Within a section all bars have one scale.
	most := make(map[string]segment)
	for _, s := range segments {
		if s.Hours > most[s.Group].Hours {
			most[s.Group] = s
		}
		if s.Left+s.Width > s.Of+0.5 {
			t.Errorf("a segment %s of %s ends beyond its bar: %+v", s.Class, s.Group, s)
		}
	}
	for _, s := range segments {
		scale := most[s.Group].Width / most[s.Group].Hours
		padding := 0.0
		if s.Class == "meter" {
			padding = 1.5 // a shown number has one decimal, a meter at least one pixel
		}
		if want := s.Hours * scale; s.Width < want-0.6-padding || s.Width > want+0.6+padding {
			t.Errorf("%s in %s: %g hours are %.1f pixels, want %.1f", s.Class, s.Group, s.Hours, s.Width, want)
		}
	}
}

func textStaysText(t *testing.T, b *tab) {
	t.Helper()
	if n := look[int](t, b, `document.querySelectorAll('script, img, iframe, object, embed, link, form, [onload], [onerror]').length`); n > 0 {
		t.Errorf("%d elements are there that no report has", n)
	}
}

func everyHourIsSeen(t *testing.T, b *tab) {
	t.Helper()
	b.run(t, chromedp.EmulateViewport(1280, 900))
	type heat struct {
		Cells, Maps, Titled, Painted int
		Least                        float64
	}
	h := look[heat](t, b, `(() => { const cells = [...document.querySelectorAll('.maps rect')];
		return {Cells: cells.length, Maps: document.querySelectorAll('.maps svg').length, Titled: cells.filter(c => c.querySelector('title')).length,
			Painted: new Set(cells.map(c => getComputedStyle(c).fill)).size, Least: Math.min(...cells.map(c => c.getBoundingClientRect().width))} })()`)
	if h.Cells != 8*743 || h.Maps != 8 || h.Titled != h.Cells {
		t.Errorf("%d cells in %d maps, %d of them with a title; want 8 of 743", h.Cells, h.Maps, h.Titled)
	}
	if h.Painted < 6 || h.Least < 5 {
		t.Errorf("cells are %.1f pixels at the least, in %d colours", h.Least, h.Painted)
	}
}

func darkIsDark(t *testing.T, b *tab) {
	t.Helper()
	const colours = `['body', '.tile', 'h1'].map(s => getComputedStyle(document.querySelector(s))).map((c, i) => i == 2 ? c.color : c.backgroundColor)
		.map(c => c.match(/\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 765)`
	b.run(t, chromedp.EmulateViewport(1280, 900), scheme("screen", "light"))
	if light := look[[]float64](t, b, colours); light[0] < 0.9 || light[1] < 0.9 || light[2] > 0.3 {
		t.Errorf("in light, paper, sheet and ink are %v", light)
	}
	b.run(t, scheme("screen", "dark"))
	if dark := look[[]float64](t, b, colours); dark[0] > 0.15 || dark[1] > 0.2 || dark[2] < 0.8 {
		t.Errorf("in dark, paper, sheet and ink are %v", dark)
	}
	b.shoot(t, "march-dark")
}

func itPrints(t *testing.T, b *tab) {
	t.Helper()
	b.run(t, scheme("", "dark"))
	paper := got(t, b, chromedp.PrintToPDF(chromedp.PDFPrintBackground(), chromedp.PDFPreferCSSPageSize()))
	if !bytes.HasPrefix(paper, []byte("%PDF-")) || len(paper) < 20_000 {
		t.Errorf("printed were %d bytes: %.20q", len(paper), paper)
	}
	leave(t, "march.pdf", paper)
	// The printable width of A4, landscape, with the page's own margins.
	const a4 = 1031
	b.run(t, scheme("print", "dark"), chromedp.EmulateViewport(a4, 730))
	nothingSticksOut(t, b, a4)
	if wide := look[float64](t, b, `Math.max(...[...document.querySelectorAll('table')].map(e => e.getBoundingClientRect().right))`); wide > a4 {
		t.Errorf("a table ends at %.0f pixels of %d, so that paper cuts it", wide, a4)
	}
	b.shoot(t, "march-print")
	if colour := look[string](t, b, `getComputedStyle(document.body).backgroundColor`); colour != "rgb(255, 255, 255)" {
		t.Errorf("paper is %s, even for who likes it dark", colour)
	}
}

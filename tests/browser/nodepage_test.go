// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var picture = flag.Bool("picture", false, "take docs/node-page.png anew")

// program is where the program for people is, built once for a run of the tests.
var program = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../../bin/browser/gpumeter")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", path, "./cmd/gpumeter")
	build.Dir = "../.."
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gpumeter: %w\n%s", err, said)
	}
	return path, nil
})

// demo runs a pretend node and gives its URL.
func demo(t *testing.T, scenario string) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	node := exec.CommandContext(ctx, path, "demo", "--scenario", scenario, "--address", "127.0.0.1:0", "--month=false")
	said, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = node.Wait() })
	url := ""
	lines := bufio.NewScanner(said)
	for url == "" && lines.Scan() {
		url = regexp.MustCompile(`http://[0-9.:]+/`).FindString(lines.Text())
	}
	if url == "" {
		t.Fatalf("the demo of %s ended before it said where it listens", scenario)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	return url
}

// frozen is the node page of a demo once its body satisfies a condition: it stays as it was then, headers and all.
func frozen(t *testing.T, scenario string, condition func(page string) bool) string {
	t.Helper()
	url := demo(t, scenario)
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if !condition(string(body)) {
			if time.Now().After(end) {
				t.Fatalf("the page of %s never became what this test looks at:\n%s", scenario, body)
			}
			continue
		}
		// It would be gone from under the tests.
		body = regexp.MustCompile(`<meta http-equiv="refresh"[^>]*>\n`).ReplaceAll(body, nil)
		still := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path != "/" {
				http.NotFound(w, q)
				return
			}
			for name, values := range r.Header {
				if name != "Content-Length" && name != "Date" {
					w.Header()[name] = values
				}
			}
			_, _ = w.Write(body)
		}))
		t.Cleanup(still.Close)
		return still.URL + "/"
	}
}

// scenes are the nodes that the test looks at, each when it has something to show.
func scenes() map[string]func(page string) bool {
	has := func(words ...string) func(string) bool {
		return func(page string) bool {
			for _, word := range words {
				if !strings.Contains(page, word) {
					return false
				}
			}
			return true
		}
	}
	return map[string]func(string) bool{
		"default":              has("notebook-2", "speech", "embed-1", "Exporter: <strong><bdi>ready<"),
		"bad-health":           has("XID 79", "<dt>xid_94</dt>", "</span> unknown</span>", "Held by", "recovery_action"),
		"h100x8-mig-timeslice": has("notebook-55", "chat-", "etl-3"),
	}
}

func TestTheNodePageInABrowser(t *testing.T) {
	browser := browserOf(t)
	for name, condition := range scenes() {
		t.Run(name, func(t *testing.T) {
			url := frozen(t, name, condition)
			b := visit(t, browser, url)
			for _, width := range []int64{1280, 820, 380} {
				b.run(t, chromedp.EmulateViewport(width, 900), scheme("screen", "light"))
				nothingSticksOut(t, b, width)
				if width != 820 {
					b.shoot(t, fmt.Sprintf("node-%s-%d", name, width))
				}
			}
			b.run(t, chromedp.EmulateViewport(1280, 900))
			contrastSuffices(t, b, "light")
			b.run(t, scheme("screen", "dark"))
			contrastSuffices(t, b, "dark")
			b.shoot(t, "node-"+name+"-dark")
			b.run(t, scheme("screen", "light"))
			partsAddUp(t, b)
			structureHolds(t, b)
			axeIsContent(t, b)
			textStaysPut(t, b)
			keysReachEverything(t, b)
			switch name {
			case "bad-health":
				troubleIsTold(t, b)
			case "h100x8-mig-timeslice":
				everySeatIsABox(t, b)
			}
			for _, bad := range b.bad {
				t.Errorf("the page misbehaves: %s", bad)
			}
		})
	}
	t.Run("paper", func(t *testing.T) {
		b := visit(t, browser, frozen(t, "default", scenes()["default"]))
		b.run(t, scheme("", "dark"))
		paper := got(t, b, chromedp.PrintToPDF(chromedp.PDFPrintBackground(), chromedp.PDFPreferCSSPageSize()))
		if !bytes.HasPrefix(paper, []byte("%PDF-")) || len(paper) < 20_000 {
			t.Errorf("printed were %d bytes: %.20q", len(paper), paper)
		}
		leave(t, "node-default.pdf", paper)
		b.run(t, scheme("print", "dark"))
		if colour := look[string](t, b, `getComputedStyle(document.body).backgroundColor`); colour != "rgb(255, 255, 255)" {
			t.Errorf("paper is %s, even for who likes it dark", colour)
		}
	})
}

// fractions adds up what a query finds of <data> elements, exactly.
func fractions(t *testing.T, b *tab, query string) *big.Rat {
	t.Helper()
	sum := new(big.Rat)
	for _, text := range look[[]string](t, b, `[...document.querySelectorAll(`+"`"+query+"`"+`)].map(e => e.value)`) {
		f, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%s: %q is no number", query, text)
		}
		sum.Add(sum, f)
	}
	return sum
}

// partsAddUp: what is told of the node, of each GPU, of the namespaces and of the containers is the same GPUs.
func partsAddUp(t *testing.T, b *tab) {
	t.Helper()
	all, gpus := fractions(t, b, ".sum tbody data"), look[int64](t, b, `document.querySelectorAll('.card').length`)
	if gpus != 8 || all.Cmp(big.NewRat(gpus, 1)) != 0 {
		t.Errorf("%d GPUs are shown, and their parts add up to %v", gpus, all)
	}
	shown := look[[]float64](t, b, `[...document.querySelectorAll('.sum tbody data')].map(e => Math.round(1000 * Number(e.textContent)))`)
	total := 0.0
	for _, thousandths := range shown {
		total += thousandths
	}
	if len(shown) != 7 || total != float64(1000*gpus) {
		t.Errorf("to the eye, %v thousandths of %d states are not %d GPUs", total, len(shown), gpus)
	}
	for i := range gpus {
		if one := fractions(t, b, fmt.Sprintf(".card:nth-child(%d) .parts data", i+1)); one.Cmp(big.NewRat(1, 1)) != 0 {
			t.Errorf("the parts of GPU %d add up to %v", i, one)
		}
	}
	held := fractions(t, b, ".sum tbody tr:first-child data")
	if spaces := fractions(t, b, "table.small tbody data"); spaces.Cmp(held) != 0 {
		t.Errorf("%v are held, and by namespace it is %v", held, spaces)
	}
	charged := new(big.Rat)
	rows := look[[]string](t, b, `[...document.querySelectorAll('[aria-label="Holders by container"] tbody tr')].filter(r => !r.textContent.includes('not charged')).map(r => r.querySelector('data').value)`)
	for _, text := range rows {
		f, _ := new(big.Rat).SetString(text)
		charged.Add(charged, f)
	}
	if charged.Cmp(held) != 0 {
		t.Errorf("%v are held, and by container it is %v", held, charged)
	}
}

// contrastSuffices: every text has the contrast to what is behind it that WCAG asks for at level AA.
func contrastSuffices(t *testing.T, b *tab, name string) {
	t.Helper()
	type reading struct {
		Seen int
		Bad  []string
	}
	r := look[reading](t, b, `(() => {
		const rgba = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m };
		const lum = c => { const f = c.slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * f[0] + .7152 * f[1] + .0722 * f[2] };
		const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] == 1) return c } return [255, 255, 255, 1] };
		const seen = new Map(); let n = 0;
		const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		while (walk.nextNode()) {
			const e = walk.currentNode.parentElement;
			if (!walk.currentNode.textContent.trim() || !e.getClientRects().length || e.closest('.hidden, .skip')) continue;
			const s = getComputedStyle(e), a = lum(rgba(s.color)), z = lum(behind(e)), ratio = (Math.max(a, z) + .05) / (Math.min(a, z) + .05);
			const large = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700;
			n++;
			if (ratio < (large ? 3 : 4.5)) seen.set(e.tagName + '.' + e.className, ratio.toFixed(2) + ' of "' + walk.currentNode.textContent.trim().slice(0, 30) + '" in ' + e.tagName + '.' + e.className);
		}
		return {Seen: n, Bad: [...seen.values()]} })()`)
	if r.Seen < 200 {
		t.Errorf("%s: only %d texts were looked at", name, r.Seen)
	}
	for _, bad := range r.Bad {
		t.Errorf("%s: too little contrast: %s", name, bad)
	}
}

// structureHolds: what a screen reader goes by is there, and every link within the page leads somewhere.
func structureHolds(t *testing.T, b *tab) {
	t.Helper()
	for what, expression := range map[string]string{
		"headings skip a level":                    `[...document.querySelectorAll('h1,h2,h3,h4')].map(e => Number(e.tagName[1])).some((n, i, all) => n > (all[i - 1] ?? 0) + 1)`,
		"not one h1, main, header and footer":      `['h1', 'main', 'body > header', 'body > footer'].some(s => document.querySelectorAll(s).length != 1)`,
		"a navigation has no name":                 `[...document.querySelectorAll('nav')].some(e => !e.getAttribute('aria-label'))`,
		"a table has no caption":                   `[...document.querySelectorAll('table')].some(e => !e.caption || !e.caption.textContent.trim())`,
		"a heading of a table has no scope":        `[...document.querySelectorAll('th')].some(e => !e.scope)`,
		"a row is longer or shorter than its head": `[...document.querySelectorAll('table')].some(e => [...e.rows].some(r => r.cells.length != e.tHead.rows[0].cells.length))`,
		"an id is there twice":                     `(ids => new Set(ids).size != ids.length)([...document.querySelectorAll('[id]')].map(e => e.id))`,
		"a link leads nowhere":                     `[...document.querySelectorAll('a[href^="#"]')].some(a => !document.getElementById(decodeURIComponent(a.hash.slice(1))))`,
		"a section is named by nothing":            `[...document.querySelectorAll('[aria-labelledby]')].some(e => !document.getElementById(e.getAttribute('aria-labelledby')))`,
		"a picture is neither named nor hidden":    `[...document.querySelectorAll('svg, img')].some(e => e.getAttribute('aria-hidden') != 'true')`,
		"a verdict is told by colour alone":        `[...document.querySelectorAll('.verdict')].some(e => e.textContent.trim().length < 5)`,
		"a box has no text":                        `[...document.querySelectorAll('.boxes li')].some(e => !e.querySelector('b').textContent.trim())`,
		"a link is not relative":                   `[...document.querySelectorAll('a')].some(a => a.getAttribute('href').startsWith('/'))`,
		"no language":                              `!document.documentElement.lang`,
	} {
		if look[bool](t, b, expression) {
			t.Errorf("for screen readers: %s", what)
		}
	}
}

// axeIsContent: where GPUMETER_AXE names axe-core's axe.min.js, it finds nothing to complain of.
func axeIsContent(t *testing.T, b *tab) {
	t.Helper()
	path := os.Getenv("GPUMETER_AXE")
	if path == "" {
		return
	}
	axe, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	look[bool](t, b, string(axe)+"; true")
	found := got(t, b, chromedp.Evaluate[[]string](`axe.run().then(r => r.violations.map(v => v.id + ': ' + v.help + ', at ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120)).join(' | ')))`, chromedp.EvalAwaitPromise))
	for _, complaint := range found {
		t.Errorf("axe: %s", complaint)
	}
}

// textStaysPut: there is nothing on the page that does anything.
func textStaysPut(t *testing.T, b *tab) {
	t.Helper()
	if n := look[int](t, b, `document.querySelectorAll('script, img, iframe, object, embed, form, [onload], [onerror], [onclick], [style]').length`); n > 0 {
		t.Errorf("%d elements are there that no node page has", n)
	}
	if n := look[int](t, b, `document.styleSheets.length`); n != 1 {
		t.Errorf("%d style sheets are in use: the policy holds one back, or there are others", n)
	}
}

// keysReachEverything: the first stop skips to the GPUs, every link has its turn, and each stop is seen.
func keysReachEverything(t *testing.T, b *tab) {
	t.Helper()
	type stop struct {
		Text, Outline string
		Left          float64
	}
	focus := func() stop {
		b.run(t, chromedp.KeyEvent("\t"))
		return look[stop](t, b, `(e => ({Text: e.textContent.trim(), Outline: getComputedStyle(e).outlineStyle, Left: e.getBoundingClientRect().left}))(document.activeElement)`)
	}
	if first := focus(); first.Text != "Skip to the GPUs" || first.Left < 0 || first.Outline == "none" {
		t.Errorf("the first stop is %+v", first)
	}
	stops := look[int](t, b, `document.querySelectorAll('a, [tabindex]').length`)
	for range min(stops-1, 40) {
		if s := focus(); s.Outline == "none" || s.Text == "" {
			t.Errorf("a stop is not seen: %.60q, outline %s", s.Text, s.Outline)
		}
	}
	if at := look[string](t, b, `document.querySelector('.chips a').click(), location.hash + ' ' + document.querySelector(':target').className`); !strings.HasPrefix(at, "#GPU-") || !strings.Contains(at, "card") {
		t.Errorf("the first chip leads to %q", at)
	}
}

func troubleIsTold(t *testing.T, b *tab) {
	t.Helper()
	now := look[string](t, b, `document.querySelector('[aria-labelledby=now]').innerText`)
	for _, want := range []string{"GPU 0", "unhealthy", "XID 79", "restart the machine", "class node", "drain the GPU and reset it", "Held by ml-research/train-0", "unknown"} {
		if !strings.Contains(now, want) {
			t.Errorf("what is wrong now lacks %q:\n%s", want, now)
		}
	}
	if n := look[int](t, b, `document.querySelectorAll('[aria-labelledby=events] tbody tr').length`); n < 8 {
		t.Errorf("%d events are told", n)
	}
	if title := look[string](t, b, `document.title`); !strings.Contains(title, "unhealthy") || !strings.Contains(title, "gpu-h100-14") {
		t.Errorf("the title is %q", title)
	}
}

func everySeatIsABox(t *testing.T, b *tab) {
	t.Helper()
	type boxes struct{ Held, Unrequested, Gaps, Cards, Bytes int }
	got := look[boxes](t, b, `({Held: document.querySelectorAll('.boxes .held').length, Unrequested: document.querySelectorAll('.boxes .unrequested').length,
		Gaps: document.querySelectorAll('.gap').length, Cards: document.querySelectorAll('.card.mig').length, Bytes: document.documentElement.outerHTML.length})`)
	if got.Held != 208 || got.Unrequested != 16 || got.Gaps != 8 || got.Cards != 8 || got.Bytes > 300_000 {
		t.Errorf("%+v", got)
	}
	if width := look[float64](t, b, `Math.min(...[...document.querySelectorAll('.boxes li')].map(e => e.getBoundingClientRect().width))`); width < 100 {
		t.Errorf("a seat is %.0f pixels wide", width)
	}
	if cut := look[int](t, b, `[...document.querySelectorAll('.boxes b, .boxes span')].filter(e => e.scrollHeight > e.clientHeight + 1).length`); cut > 0 {
		t.Errorf("%d names are cut off", cut)
	}
}

// A reader who has scrolled stays there when the page renews itself.
func TestTheNodePageRenewsItself(t *testing.T) {
	browser := browserOf(t)
	url := demo(t, "default")
	b := visit(t, browser, url+"?refresh=off")
	if look[bool](t, b, `document.querySelector('meta[http-equiv]') != null`) {
		t.Error("a page that is paused renews itself")
	}
	b = visit(t, browser, url)
	b.run(t, chromedp.EmulateViewport(1280, 700))
	before := look[float64](t, b, `(scrollTo(0, 500), performance.timeOrigin)`)
	for end := time.Now().Add(45 * time.Second); look[float64](t, b, `performance.timeOrigin`) == before; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the page has not renewed itself")
		}
	}
	time.Sleep(500 * time.Millisecond)
	if y := look[float64](t, b, `scrollY`); y < 450 || y > 550 {
		t.Errorf("after it renewed itself, the page is scrolled to %v, and was to 500", y)
	}
}

// TestThePictureOfTheNodePage takes the picture for the README.
func TestThePictureOfTheNodePage(t *testing.T) {
	if !*picture {
		t.Skip("no -picture; make renderings gives it")
	}
	browser := browserOf(t)
	b := visit(t, browser, frozen(t, "default", scenes()["default"]))
	b.run(t, chromedp.EmulateViewport(1280, 900), scheme("screen", "light"))
	// It ends below the second row of cards.
	height := look[float64](t, b, `document.querySelector('.card:nth-child(6)').getBoundingClientRect().bottom + scrollY`)
	b.run(t, chromedp.EmulateViewport(1280, int64(height)+20))
	shot := got(t, b, chromedp.CaptureScreenshot())
	if len(shot) > 300_000 {
		t.Errorf("the picture has %d bytes", len(shot))
	}
	if err := os.WriteFile("../../docs/node-page.png", shot, 0o644); err != nil {
		t.Fatal(err)
	}
}

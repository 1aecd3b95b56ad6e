#!/usr/bin/env python3
"""pages.py BROWSER [--site FOLDER] PAGE...: checks how pages look in a real browser, on a phone and on a desk, light and dark.

Each must load without a complaint and without asking for another address, must not be wider than the screen, must give each
of its drawings room, and must keep its texts readable: a contrast of at least 4.5 to 1 (WCAG 2.1, AA). Pages of a site are
served from its folder, and may ask for its files. SCREENSHOTS=FOLDER keeps a picture of each.
"""
import functools
import http.server
import os
import pathlib
import sys
import threading

from browser import Browser

SCREENS = ((360, 800), (1280, 800))

LAYOUT = """(() => {
  document.querySelectorAll('details').forEach(fold => fold.open = true);
  const problems = [], page = document.documentElement;
  if (!document.title || !page.lang) problems.push('no title or language');
  if (page.scrollWidth > screen.width) {
    const wide = [...document.body.querySelectorAll('*')]
      .filter(e => e.getBoundingClientRect().right > screen.width + 1);
    const culprit = wide.find(e => { for (let p = e.parentElement; p; p = p.parentElement)
      if (getComputedStyle(p).overflowX != 'visible') return false; return true; });
    problems.push(`${page.scrollWidth} pixels wide on a screen of ${screen.width}: ${culprit ? culprit.outerHTML.slice(0, 120) : ''}`);
  }
  const shown = e => e.checkVisibility({checkVisibilityCSS: true});
  for (const svg of document.querySelectorAll('main svg, article svg')) {
    const box = svg.getBoundingClientRect();
    if (shown(svg) && !(box.width > 0 && box.height > 0)) problems.push('a drawing without room: ' + svg.outerHTML.slice(0, 120));
  }
  for (const image of document.querySelectorAll('main img, article img'))
    if (shown(image) && !(image.complete && image.naturalWidth > 0)) problems.push('an image that does not show: ' + image.src);
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => channels(color).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const background = e => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor, alpha = channels(color)[3];
      if (alpha === undefined || alpha == 1) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const pale = new Set();
  for (const e of document.querySelectorAll('main p, main td, main th, main small, main li, main a, main code, main h1, main h2')) {
    if (!shown(e) || ![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
    const [dark, light] = [luminance(getComputedStyle(e).color), luminance(background(e))].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) pale.add(`a text with a contrast of ${contrast.toFixed(2)}: ${e.outerHTML.slice(0, 100)}`);
  }
  return problems.concat([...pale].slice(0, 3));
})()"""


def problems_of(page, site):
    strangers = [a for a in page.requests if not (site and a.startswith(site))]
    return page.problems + [f"asks for {address}" for address in strangers] + page.evaluate(LAYOUT)


def check(browser, address, site=None, pictures=None, screens=SCREENS, looks=("light", "dark")):
    """Returns the problems of a page on every screen."""
    found = []
    for width, height in screens:
        for look in looks:
            page = browser.open(address, width, height, dark=look == "dark")
            found += [f"{address}, {width} wide, {look}: {problem}" for problem in problems_of(page, site)]
            if pictures:
                name = "-".join(address.split("/")[-2:]).removesuffix(".html")
                page.screenshot(f"{pictures}/{name}-{width}-{look}.png")
            page.close()
    return found


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve(folder):
    """Serves a folder on this machine alone, and returns its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


# Tests this test: each of these pages must have its problem found.
PLANTED = {
    "asks for": "<img src='http://127.0.0.1:1/x.png' width=1 height=1>",
    "pixels wide": "<div style='width:900px;height:1px'></div>",
    "a drawing without room": "<svg width=0 height=0></svg>",
    "a text with a contrast": "<p style='color:#aaa;background:#fff'>pale</p>",
    "console": "<script>console.error('x')</script>",
    "exception": "<script>throw 1</script>",
}


def test_this_test(browser, folder):
    page = folder / "planted.html"
    for expected, markup in PLANTED.items():
        page.write_text(f"<!DOCTYPE html><html lang=en><meta name=viewport content='width=device-width'><title>x</title><main>{markup}</main>")
        if not any(expected in problem for problem in check(browser, page.as_uri(), screens=SCREENS[:1], looks=("light",))):
            sys.exit(f"FAIL: this test does not see '{expected}' in {markup}")
    page.unlink()


def main():
    program, *pages = sys.argv[1:]
    site = None
    if pages[:1] == ["--site"]:
        site = serve(pages[1])
        addresses = [site + page for page in pages[2:]]
    else:
        addresses = [pathlib.Path(page).resolve().as_uri() for page in pages]
    found = []
    with Browser(program) as browser:
        test_this_test(browser, pathlib.Path(browser.profile))
        for address in addresses:
            found += check(browser, address, site, os.environ.get("SCREENSHOTS"))
    for problem in found:
        print(f"FAIL: {problem}")
    if found or not addresses:
        sys.exit(f"FAIL: {len(found)} problems on {len(addresses)} pages")
    print(f"ok: {len(addresses)} pages on {len(SCREENS)} screens, light and dark")


main()

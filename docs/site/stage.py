#!/usr/bin/env python3
"""stage.py FOLDER: gathers the pages of the site in FOLDER, for mkdocs.

The repository's pages keep their places, those in HTML too. Headers get a page per room, with the comment that opens each header. A link to a file
that is no page leads to a copy of it with numbered lines; with SOURCE_URL=https://host/blob/main/ in the environment, it leads
there. A link to nothing is an error.
"""
import html
import json
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCE_URL = os.environ.get("SOURCE_URL", "")
IMAGES = (".svg", ".png")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")

SOURCE_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{path}</title><link rel="icon" href="data:,"><style>
:root{{color-scheme:light dark;--soft:#59636e;--mark:#fff3b8}}
@media(prefers-color-scheme:dark){{:root{{--soft:#9aa5b3;--mark:#4a3d00}}body{{background:#12161c;color:#e4e8ee}}}}
body{{margin:0 auto;padding:1rem;max-width:70rem;font:16px/1.5 system-ui,sans-serif}}h1{{font-size:1.2rem;overflow-wrap:anywhere}}
pre{{overflow-x:auto;font:.85rem/1.5 ui-monospace,monospace}}pre a{{display:inline-block;width:3.2em;color:var(--soft);
text-decoration:none}}span:target{{background:var(--mark)}}</style></head>
<body><main><h1>{path}</h1><pre>{lines}</pre></main></body></html>
"""


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


class Site:
    def __init__(self, out):
        self.out, self.pages = out, out / "pages"
        self.files = tracked_files()
        self.known = set(self.files)
        self.folders = {str(parent) for name in self.files for parent in pathlib.PurePosixPath(name).parents}
        self.sources = set()  # files and folders that pages link to
        self.problems = []

    def write(self, name, text):
        path = self.pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def source_link(self, page, path, anchor):
        """Returns the address of a file or folder, as seen from a page."""
        if SOURCE_URL:
            return SOURCE_URL + path + anchor
        self.sources.add(path)
        return posixpath.relpath(f"source/{path}.html", posixpath.dirname(page) or ".") + anchor

    def rewritten(self, page, target):
        if re.match(r"[a-z]+:|#", target):
            return target
        path, sharp, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if path.endswith((".md", ".html", *IMAGES)) and path in self.known:
            return target
        if path + "/README.md" in self.known:
            return posixpath.relpath(path + "/README.md", posixpath.dirname(page) or ".") + sharp + anchor
        if path in self.known or path in self.folders:
            return self.source_link(page, path, sharp + anchor)
        self.problems.append(f"{page}: links to {target}, which is not in the repository")
        return target

    def add_page(self, name):
        """Copies a page. Links in code stay as they are."""
        text = (ROOT / name).read_text()
        parts = re.split(r"(^```.*?^```[ ]*$|`[^`\n]+`(?!\]\())", text, flags=re.M | re.S)
        for i in range(0, len(parts), 2):
            parts[i] = LINK.sub(lambda m: m[1] + self.rewritten(name, m[2]) + m[3], parts[i])
        self.write(name, "".join(parts))

    def add_html(self, name):
        """Copies a page in HTML with the files beside it. Its links to pages lead to what mkdocs makes of them."""
        def rewritten(match):
            self.rewritten(name, match[1])  # it must lead somewhere
            return f'href="{re.sub(r"(?:(README)|([^/]*))[.]md", lambda m: ("index" if m[1] else m[2]) + ".html", match[1])}"'

        self.write(name, re.sub(r'href="([^"]+[.]md(?:#[^"]*)?)"', rewritten, (ROOT / name).read_text()))
        for beside in self.files:
            if posixpath.dirname(beside) == posixpath.dirname(name) and beside.endswith((".js", ".css")):
                shutil.copy(ROOT / beside, self.pages / beside)

    def add_source(self, path):
        if path in self.folders:
            below = [name for name in self.files if name.startswith(path + "/")]
            for name in below:
                self.sources.add(name)
            links = (f'<a style="width:auto" href="{posixpath.relpath(name, posixpath.dirname(path) or ".")}.html">'
                     f"{html.escape(name)}</a>" for name in below)
            text = "\n".join(links)
        else:
            lines = (ROOT / path).read_text(errors="replace").splitlines()
            text = "\n".join(f'<span id="L{n}"><a href="#L{n}">{n}</a>{html.escape(line)}</span>' for n, line in enumerate(lines, 1))
        self.write(f"source/{path}.html", SOURCE_PAGE.format(path=html.escape(path), lines=text))

    def add_sources(self):
        done = set()
        while todo := self.sources - done:
            for path in sorted(todo):
                self.add_source(path)
            done |= todo

    def add_headers(self):
        """Writes a page per room, and returns their names."""
        rooms = {}
        for name in self.files:
            if name.startswith(("framework/", "models/")) and name.endswith(".h"):
                rooms.setdefault(posixpath.dirname(name), []).append(name)
        pages = {}
        for room, headers in sorted(rooms.items()):
            page = f"headers/{room.replace('/', '-')}.md"
            text = [f"# {room}\n"]
            for name in headers:
                manual = manual_of((ROOT / name).read_text())
                if not manual:
                    continue
                link = self.source_link(page, name, "")
                text.append(f"## {posixpath.basename(name)}\n\n{manual}\n\n[{name}]({link})\n")
            if len(text) > 1:
                self.write(page, "\n".join(text))
                pages[room] = page
        return pages


def manual_of(header):
    """Returns the first comment of a header as Markdown. Lines that are further in are examples and tables."""
    comment = re.search(r"(?:^//.*\n)+", header, re.M)
    lines = [line[2:] for line in comment[0].splitlines()] if comment else []
    out, block = [], []
    for line in [*lines, None]:
        if line is not None and (line.startswith("   ") or block and not line.strip()):
            block.append(line[1:])
            continue
        if block:
            language = "cpp" if any(each.rstrip().endswith((";", "{")) for each in block) else "text"
            out += ["", f"```{language}", "\n".join(block).rstrip(), "```", ""]
            block = []
        out.append(escaped((line or "").strip()))
    return "\n".join(out).strip()


def escaped(line):
    """Returns a line of prose so that Markdown shows it as it is, apart from code between backquotes and items of a list."""
    item = "- " if line.startswith("- ") else ""
    parts = re.split(r"(`[^`]+`)", line.removeprefix(item))
    return item + "".join(part if part.startswith("`") else re.sub(r"([\\*_{}\[\]<>#|$])", r"\\\1", part) for part in parts)


def title_of(name):
    heading = re.search(r"^# (.+)$", (ROOT / name).read_text(), re.M)
    return re.sub(r"[`*]", "", heading[1]) if heading else name


def navigation(site, headers):
    pages = [name for name in site.files if name.endswith(".md")]
    lessons = [name for name in pages if name.startswith("tutorials/") and name != "tutorials/README.md"]
    mentioned = re.findall(r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text())
    guides = sorted((name for name in pages if name.startswith("docs/")),
                    key=lambda name: (mentioned.index(name) if name in mentioned else len(mentioned), name))
    others = [name for name in pages if name not in {"README.md", "tutorials/README.md", *lessons, *guides}]
    entries = lambda names: [{title_of(name): name} for name in names]
    moving = [{"See it move": name} for name in site.files if name.endswith(".html")]
    return [{"Home": "README.md"}, {"Lessons": ["tutorials/README.md", *entries(lessons)]}, *moving, {"Guides": entries(guides)},
            {"Headers": [{room: page} for room, page in headers.items()]}, {"Project": entries(others)}]


def main():
    out = pathlib.Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    site = Site(out)
    for name in site.files:
        if name.endswith(".md"):
            site.add_page(name)
        elif name.endswith(".html"):
            site.add_html(name)
        elif name.endswith(IMAGES) and name.startswith(("docs/", "tutorials/")):
            (site.pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, site.pages / name)
    headers = site.add_headers()
    site.add_sources()
    if site.problems:
        sys.exit("\n".join(site.problems))
    shutil.copy(HERE / "site.css", site.pages)
    shutil.copy(HERE / "hooks.py", out)
    nav = "\nnav: " + json.dumps(navigation(site, headers)) + "\n"
    (out / "mkdocs.yml").write_text((HERE / "mkdocs.yml").read_text() + nav)
    print(f"{sum(name.endswith('.md') for name in site.files)} pages, {len(headers)} pages of headers, {len(site.sources)} sources")


main()

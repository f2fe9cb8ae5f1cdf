"""Build the documentation as a static site: guides, Python API and lessons with their pictures.

python docs/make_site.py --out site        # runs the lessons first, two at a time
python docs/make_site.py --no-lessons      # text only

One page per Markdown file, without JavaScript and without anything from the network. A dead link stops the build.
"""

from __future__ import annotations

import argparse
import html
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import markdown
from markdown.extensions.codehilite import CodeHiliteExtension
from markdown.extensions.toc import TocExtension

from weft.picture.page import style_of

DOCS = Path(__file__).parent
STYLE = Path(__file__).parent / "site.css"
PICTURES = (".html", ".svg", ".png")
SECTIONS = {"lessons": "Lessons", "": "Guides", "api": "Python API"}
MOST_LINES = 30  # of what a block prints
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWER = "<details><summary>Answer</summary>"


@dataclass
class Lesson:
    """What a lesson printed and wrote when it was run."""

    folder: Path
    printed: Mapping[int, str] = field(default_factory=dict)  # by the number of the block, from 1

    def pictures(self, command: str) -> list[Path]:
        """The pictures that a command names and that are there."""
        names = re.findall(r"(?:--out|--live|--picture)[ =]([\w./-]+)", command)
        paths = [self.folder / name for name in names if Path(name).suffix in PICTURES]
        return [path for path in paths if path.is_file()]


@dataclass(frozen=True)
class SitePage:
    """A Markdown file and where it goes."""

    source: Path
    target: str  # its path in the site
    title: str
    summary: str

    @property
    def section(self) -> str:
        return str(Path(self.target).parent).replace(".", "")


def site_pages(docs: Path = DOCS) -> list[SitePage]:
    """All pages in the order of the navigation; the first of a folder is its README."""
    sources = [*docs.glob("lessons/*.md"), *docs.glob("*.md"), *docs.glob("api/*.md")]
    sources.sort(key=lambda path: (list(SECTIONS).index(folder_of(path, docs)), path.stem != "README", path.name))
    return [site_page(source, docs) for source in sources]


def folder_of(source: Path, docs: Path) -> str:
    return "" if source.parent == docs else source.parent.name


def site_page(source: Path, docs: Path) -> SitePage:
    text = source.read_text(encoding="utf-8")
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    assert title, f"{source} has no title"
    body = FENCE.sub("", text[title.end() :])
    paragraph = next((part for part in body.split("\n\n") if part.strip() and part.strip()[0].isalnum()), "")
    sentence = re.split(r"(?<=[.?!:])\s", " ".join(paragraph.split()))[0]
    target = f"{folder_of(source, docs)}/{target_name(source.name)}".lstrip("/")
    return SitePage(source, target, plain(title[1]), plain(sentence))


def target_name(name: str) -> str:
    return "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"


def plain(text: str) -> str:
    """Markdown of one line without its marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", lambda match: match[1] or "", text)


def slug(title: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


# ------------------------------------------------------------------ one page


def with_results(text: str, page: SitePage, lesson: Lesson | None) -> str:
    """The Markdown of a lesson with what its blocks printed and wrote behind each of them."""
    number = 0

    def block(match: re.Match[str]) -> str:
        nonlocal number
        if match[1] not in ("sh", "python") or lesson is None:
            return match[0]
        number += 1
        parts = [match[0]]
        if printed := lesson.printed.get(number, "").strip("\n"):
            lines = printed.splitlines()
            more = ["..."] if len(lines) > MOST_LINES else []
            shown = html.escape("\n".join([*lines[:MOST_LINES], *more]))
            parts.append(f'<pre class="printed" aria-label="output">{line_breaks(shown)}</pre>')
        parts += [figure(path, Path(page.target).stem) for path in lesson.pictures(match[2])]
        return "\n\n".join(parts)

    return FENCE.sub(block, text)


def line_breaks(text: str) -> str:
    """Lines that stay one block of HTML in Markdown, which would end it at an empty line."""
    return text.replace("\n", "&#10;")


def figure(path: Path, folder: str) -> str:
    address = html.escape(f"{folder}/{path.name}")
    link = f'<a href="{address}">{html.escape(path.name)}</a>'
    if path.suffix == ".html":
        shown = (
            f'<iframe src="{address}" title="{html.escape(path.stem)}" loading="lazy" sandbox="allow-scripts"></iframe>'
        )
    else:
        shown = f'<img src="{address}" alt="{html.escape(path.stem)}" loading="lazy"/>'
    return f'<figure class="picture">{shown}<figcaption>{link}</figcaption></figure>'


def body_of(page: SitePage, lesson: Lesson | None) -> str:
    """The HTML of a page's Markdown."""
    text = with_results(page.source.read_text(encoding="utf-8"), page, lesson)
    text = text.replace(ANSWER, '<details markdown="1">\n<summary>Answer</summary>')
    converter = markdown.Markdown(
        extensions=[
            "fenced_code",
            "tables",
            "md_in_html",
            "sane_lists",
            CodeHiliteExtension(guess_lang=False, css_class="code"),
            TocExtension(slugify=slug),
        ]
    )
    body = converter.convert(text)
    body = re.sub(r'href="([^":#]*?)([\w.-]+\.md)(#[^"]*)?"', link_to_page, body)
    return body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def link_to_page(match: re.Match[str]) -> str:
    return f'href="{match[1]}{target_name(match[2])}{match[3] or ""}"'


def with_files(body: str, page: SitePage, out: Path) -> str:
    """The same with copies of the files of the repository that it links to or shows, such as examples and plots."""

    def copied(match: re.Match[str]) -> str:
        path, root = (page.source.parent / match[2]).resolve(), DOCS.parent.resolve()
        is_page = match[1] == "href" and path.is_relative_to(DOCS.resolve())
        if not path.is_file() or is_page or not path.is_relative_to(root):
            return match[0]
        target = Path("files") / path.relative_to(root)
        (out / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, out / target)
        return f'{match[1]}="{"../" * page.target.count("/")}{target}"'

    return re.sub(r'(href|src)="([^":#]+)"', copied, body)


def navigation(pages: Sequence[SitePage], current: str) -> str:
    """Links to all pages; the section of the current one is open."""
    up = "../" * current.count("/")
    parts = [f'<a class="home" href="{up}index.html">Weft</a>']
    here = str(Path(current).parent).replace(".", "") if current != "index.html" else "lessons"
    for section, name in SECTIONS.items():
        rows = []
        for page in pages:
            if page.section == section:
                mark = ' aria-current="page"' if page.target == current else ""
                rows.append(f'<li><a href="{up}{page.target}"{mark}>{html.escape(page.title)}</a></li>')
        opened = " open" if section == here else ""
        parts.append(f"<details{opened}><summary>{name}</summary><ul>{''.join(rows)}</ul></details>")
    return "\n".join(parts)


def document(title: str, body: str, pages: Sequence[SitePage], target: str) -> str:
    """A whole page of the site."""
    up = "../" * target.count("/")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{html.escape(title)}{"" if title == "Weft" else " - Weft"}</title>
<link rel="stylesheet" href="{up}style.css"/>
</head>
<body>
<a class="skip" href="#text">Skip to the text</a>
<input type="checkbox" id="menu" aria-label="Show the navigation"/><label for="menu">Menu</label>
<nav aria-label="Pages">
{navigation(pages, target)}
</nav>
<main id="text">
{body}
</main>
</body>
</html>
"""


def front_page(pages: Sequence[SitePage]) -> str:
    parts = [
        "<h1>Weft</h1>",
        "<p>Turn your own text into small, fast, private language models, and look inside them.</p>",
    ]
    for section, name in SECTIONS.items():
        rows = [
            f'<li><a href="{page.target}">{html.escape(page.title)}</a><br/>{html.escape(page.summary)}</li>'
            for page in pages
            if page.section == section
        ]
        parts.append(f'<h2>{name}</h2>\n<ul class="cards">{"".join(rows)}</ul>')
    return "\n".join(parts)


# ------------------------------------------------------------------ lessons, links, and the whole


def run_lessons(root: Path, numbers: Sequence[str], workers: int = 2) -> dict[str, Lesson]:
    """Run lessons in folders of their own: what each printed and wrote, by its name."""
    runner: dict[str, Any] = runpy.run_path(str(DOCS / "lessons" / "run.py"))
    chosen = [page for page in runner["lessons"]() if not numbers or page.name[:2] in numbers]

    def one(page: Path) -> tuple[str, Lesson]:
        folder = root / page.stem
        folder.mkdir(parents=True)
        result = runner["run"](page, folder)
        if result.returncode:
            sys.exit(f"{page.name} failed\n{result.stdout}\n{result.stderr}")
        print(f"ran {page.name}", file=sys.stderr)
        parts = re.split(r"^--- block (\d+), line \d+ of .*\n", result.stdout, flags=re.MULTILINE)
        printed = {int(number): text.split("\n--- ")[0] for number, text in zip(parts[1::2], parts[2::2], strict=True)}
        printed = {number: "" if text.startswith("--- ") else text for number, text in printed.items()}
        return page.stem, Lesson(folder, printed)

    with ThreadPoolExecutor(workers) as pool:
        return dict(pool.map(one, chosen))


class _Links(HTMLParser):
    """The addresses and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.addresses.append(value)


def dead_links(site: Path) -> list[str]:
    """Links of the pages in a site to files or headings that are not there."""
    pages = {path: _Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if not is_picture(path)}
    dead = []
    for path, links in pages.items():
        for address in links.addresses:
            if re.match(r"[a-z]+:", address):
                continue
            name, _, anchor = address.partition("#")
            other = (path.parent / name).resolve() if name else path.resolve()
            known = {page.resolve(): found for page, found in pages.items()} if anchor else {}
            if not other.is_file() or (anchor and other in known and anchor not in known[other].anchors):
                dead.append(f"{path.relative_to(site)}: {address}")
    return dead


def is_picture(path: Path) -> bool:
    """Whether a page was written by a lesson: it stands in a folder with a lesson's name."""
    return re.match(r"\d\d-", path.parent.name) is not None


def build(out: Path, lessons: Mapping[str, Lesson], docs: Path = DOCS) -> list[SitePage]:
    """Write the site; a dead link is an error."""
    pages = site_pages(docs)
    out.mkdir(parents=True, exist_ok=True)
    (out / "style.css").write_text(style_of([]) + STYLE.read_text(encoding="utf-8"), encoding="utf-8")
    (out / "index.html").write_text(document("Weft", front_page(pages), pages, "index.html"), encoding="utf-8")
    for page in pages:
        lesson = lessons.get(page.source.stem) if page.section == "lessons" else None
        path = out / page.target
        path.parent.mkdir(exist_ok=True)
        body = with_files(body_of(page, lesson), page, out)
        path.write_text(document(page.title, body, pages, page.target), encoding="utf-8")
        if lesson is not None:
            for _, command in FENCE.findall(page.source.read_text(encoding="utf-8")):
                for picture in lesson.pictures(command):
                    (path.parent / path.stem).mkdir(exist_ok=True)
                    shutil.copy(picture, path.parent / path.stem)
    if dead := dead_links(out):
        sys.exit("dead links:\n" + "\n".join(dead))
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder of the site; replaced where it exists")
    parser.add_argument("--lessons", nargs="*", default=[], metavar="NUMBER", help="lessons to run; all unless given")
    parser.add_argument("--no-lessons", action="store_true", help="run no lesson: pages without pictures")
    options = parser.parse_args()
    if options.out.exists():
        if not (options.out / "style.css").is_file():
            sys.exit(f"{options.out} is not a site: remove it, or give another --out")
        shutil.rmtree(options.out)
    with tempfile.TemporaryDirectory() as scratch:
        lessons = {} if options.no_lessons else run_lessons(Path(scratch) / "lessons", options.lessons)
        pages = build(options.out, lessons)
    print(f"{options.out}/index.html: {len(pages) + 1} pages")


if __name__ == "__main__":
    main()

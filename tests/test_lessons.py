"""The lessons run, and the documentation becomes a site whose links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
RUNNER: dict[str, Any] = runpy.run_path(str(DOCS / "lessons" / "run.py"))
LESSONS: list[Path] = RUNNER["lessons"]()
LONG = ("04", "05", "08", "12")  # they train for more than ten seconds: the other lessons run with the fast tests


def site_builder() -> dict[str, Any]:
    pytest.importorskip("markdown")
    return runpy.run_path(str(DOCS / "make_site.py"))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.stem[:2] in LONG else ()) for page in LESSONS],
    ids=lambda page: page.stem,
)
def test_a_lesson_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block in order, in an empty folder, without real data; the lesson itself asserts its figures."""
    monkeypatch.delenv("WEFT_DATA", raising=False)
    folder = tmp_path / "lesson"
    folder.mkdir()
    result = RUNNER["run"](page, folder)
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    for name in re.findall(r"(?:--out|--live|--picture) ([\w-]+\.(?:html|svg|png))", page.read_text(encoding="utf-8")):
        assert (folder / name).stat().st_size > 1000, name


def test_a_lesson_that_is_wrong_fails(tmp_path: Path) -> None:
    for text in ("```python\nassert 1 + 1 == 3\n```\n", "```sh\nfalse\n```\n"):
        page = tmp_path / "99-wrong.md"
        page.write_text(text)
        assert RUNNER["run"](page, tmp_path).returncode != 0


def test_there_are_twelve_lessons_with_three_exercises_each() -> None:
    assert [page.name[:2] for page in LESSONS] == [f"{number:02}" for number in range(1, 13)]
    for page in LESSONS:
        text = page.read_text(encoding="utf-8")
        exercises = text.split("\n## Exercises\n")[1]
        assert re.findall(r"^\*\*(\d)\.\*\* ", exercises, re.MULTILINE) == ["1", "2", "3"], page.name
        assert exercises.count("<details><summary>Answer</summary>\n\n") == exercises.count("\n</details>\n") == 3, (
            page.name
        )
        assert "\nSources: " in exercises and text.startswith(f"# {int(page.name[:2])}. "), page.name
        assert "weft look" in text, f"{page.name} has no picture"


def test_lessons_stand_alone() -> None:
    """No lesson reads real data, a file of the repository or the folder of another lesson."""
    for page in LESSONS:
        code = "".join(text for _, _, text in RUNNER["blocks"](page))
        assert not re.search(r"WEFT_DATA|examples/|\.\./|http", code), page.name


def test_the_site(tmp_path: Path) -> None:
    """All pages with navigation, hidden answers, colored code and a picture of a lesson, and no script."""
    builder, folder = site_builder(), tmp_path / "06-transformer"
    folder.mkdir()
    (folder / "walk.html").write_text("<!DOCTYPE html><title>a walk</title>")
    lesson = builder["Lesson"](folder, {1: "[14.0, 12.0] <here>\n\n[0.88, 0.12]"})
    pages = builder["build"](tmp_path / "site", {"06-transformer": lesson})
    sources = [*DOCS.glob("*.md"), *DOCS.glob("api/*.md"), *DOCS.glob("lessons/*.md")]
    assert {page.source for page in pages} == set(sources)
    for page in pages:
        text = (tmp_path / "site" / page.target).read_text(encoding="utf-8")
        assert "<script" not in text and "http://" not in text.split("<main")[0] and 'aria-current="page"' in text
        assert text.count("<li>") > len(pages) - 2 and "```" not in re.sub(
            r"<code>.*?</code>", "", text, flags=re.DOTALL
        )
    text = (tmp_path / "site" / "lessons" / "06-transformer.html").read_text(encoding="utf-8")
    assert text.count("<summary>Answer</summary>") == 3 and 'class="code"' in text and '<span class="kn">import' in text
    answers = re.findall(r"<details>\s*<summary>Answer</summary>(.*?)</details>", text, re.DOTALL)
    assert len(answers) == 3 and all("<p>" in answer for answer in answers)
    assert 'src="06-transformer/walk.html"' in text and "[14.0, 12.0] &lt;here&gt;" in text
    assert (tmp_path / "site" / "lessons" / "06-transformer" / "walk.html").is_file()


def test_a_dead_link_stops_the_site(tmp_path: Path) -> None:
    builder, docs = site_builder(), tmp_path / "docs"
    docs.mkdir()
    (docs / "one.md").write_text("# One\n\nSee [two](two.md#there) and [itself](#one).\n")
    (docs / "two.md").write_text("# Two\n\n## There\n\nText.\n")
    builder["build"](tmp_path / "site", {}, docs)
    assert "two.html#there" in (tmp_path / "site" / "one.html").read_text()
    for wrong in ("[two](three.md)", "[two](two.md#nowhere)"):
        (docs / "one.md").write_text(f"# One\n\nSee {wrong}.\n")
        with pytest.raises(SystemExit, match="dead links:\none.html: t"):
            builder["build"](tmp_path / "site", {}, docs)

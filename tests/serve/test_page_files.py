"""The files of the page: nothing is missing, and nothing in them needs what its policy forbids."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

from weft.serve.looking import CHARACTERS, SHOWING
from weft.serve.messages import VIEW_OPTIONS, VIEWS
from weft.serve.pages import CONTENT_SECURITY_POLICY, page_files
from weft.serve.schemas import LookRequest

IMPORT = re.compile(r'^import .* from "([^"]+)";$', re.MULTILINE)
ROOT = Path(__file__).parents[2]


def scripts() -> dict[str, str]:
    return {path: content.decode() for path, (content, _) in page_files().items() if path.endswith(".js")}


def test_every_import_and_link_is_served() -> None:
    files = page_files()
    for path, text in scripts().items():
        for target in IMPORT.findall(text):
            assert target.startswith(("./", "/static/")), f"{path} imports {target}"
            assert target.replace("./", path.rpartition("/")[0] + "/") in files, f"{path} imports {target}"
    page = files["/"][0].decode()
    links = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert len(links) >= 4 and all(link in files for link in links)
    assert {kind for _, kind in files.values()} == {
        "text/html; charset=utf-8", "text/javascript; charset=utf-8", "text/css; charset=utf-8", "image/svg+xml",
    }  # fmt: skip


def test_nothing_needs_what_the_policy_forbids() -> None:
    page = page_files()["/"][0].decode()
    assert not re.search(r"\sstyle=|\son\w+=|<style", page) and re.findall(r"<script[^>]*>(.*?)</script>", page) == [""]
    for path, text in scripts().items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert 'setAttribute("style"' not in text, path
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"):
        assert rule in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_no_file_names_another_machine() -> None:
    for path, (content, _) in page_files().items():
        addresses = re.findall(rb"(?:https?:)?//[\w.-]+\.\w+", content)
        assert not [address for address in addresses if b"www.w3.org" not in address], path


def test_the_files_are_in_the_package() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["weft"]
    assert "serve/page/*" in data


def test_views_that_can_be_asked_for() -> None:
    """Every view is allowed, bounded, and can be shown; the page names no other one."""
    allowed = get_args(LookRequest.model_fields["view"].annotation)
    assert set(allowed) == set(VIEWS) == set(VIEW_OPTIONS) == set(CHARACTERS) == set(SHOWING)
    look, classify = (page_files()[f"/static/page/{name}.js"][0].decode() for name in ("look", "classify"))
    tabs = re.findall(r'\["(\w+)", "[\w ]+"\]', look[look.index("const VIEWS") :].split(";")[0])
    assert len(tabs) >= 5 and {*tabs, *re.findall(r'view: "(\w+)"', classify)} <= set(VIEWS)

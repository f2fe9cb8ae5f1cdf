"""The git commit of the working folder, read from its files.

git itself is not run: the configuration of a repository names programs that git starts (core.fsmonitor, filters,
hooks), and a folder that somebody else has made must not run code.
"""

from __future__ import annotations

import re
from pathlib import Path

from weft.errors import UserError
from weft.files import MEGABYTE, read_text

SHORT = MEGABYTE // 16  # bytes that .git, HEAD, commondir and a file of one reference may have
PACKED = 64 * MEGABYTE  # bytes that packed-refs may have: about a million references


def revision(folder: Path) -> str | None:
    """The commit that is checked out in a folder or one above it; None where there is no repository or no commit."""
    try:
        folder = folder.resolve()
        root = next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)
        return None if root is None else _commit(_git_folder(root))
    except (UserError, OSError, RuntimeError, ValueError):
        return None


def _git_folder(root: Path) -> Path:
    """Where git keeps its files: `.git`, or what that file names in a submodule or a second worktree."""
    named = root / ".git"
    if named.is_dir():
        return named
    return root / read_text(named, SHORT).removeprefix("gitdir:").strip()


def _commit(git: Path) -> str | None:
    head = read_text(git / "HEAD", SHORT).strip()
    if not head.startswith("ref:"):
        return _hash(head)
    name = head.removeprefix("ref:").strip()
    if not re.fullmatch(r"refs/[^\0-\x20\x7f~^:?*\\\[]+", name) or ".." in name:
        return None
    shared = git / read_text(git / "commondir", SHORT).strip() if (git / "commondir").exists() else git
    for folder in (git, shared):
        if (folder / name).is_file():
            return _hash(read_text(folder / name, SHORT).strip())
    lines = read_text(shared / "packed-refs", PACKED).splitlines() if (shared / "packed-refs").exists() else []
    return next((_hash(line.split(" ")[0]) for line in lines if line.endswith(f" {name}")), None)


def _hash(text: str) -> str | None:
    """A commit's name in SHA-1 or SHA-256, or None for anything else."""
    return text if re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", text) else None

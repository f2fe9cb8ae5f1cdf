"""Which tokenizer.json files have been checked on this machine: an empty file of the cache for each.

The checks parse the whole file in Python, which takes several times as long as the library takes to load it. A file is
known by the hash of its content, and only one that the checks leave as it is: what is loaded is what was checked.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from tokenizers import __version__ as library_version

from weft.files import cache_folder
from weft.version import VERSION

CHECKED = "tokenizers"  # room of the cache
LARGE = 1 << 20  # characters of a file from which on the checks take longer than a look into the cache


class Check:
    """The record of one file."""

    def __init__(self, text: str) -> None:
        self.worth = len(text) >= LARGE
        content = hashlib.sha256(text.encode()).hexdigest() if self.worth else ""
        # Another version of either library checks the file again.
        name = hashlib.sha256(json.dumps([VERSION, library_version, content]).encode()).hexdigest()[:40]
        self.path = cache_folder() / CHECKED / name

    def passed(self) -> bool:
        """Whether this content has passed the checks."""
        return self.worth and self.path.is_file()

    def record(self) -> None:
        """It has passed them, and was loaded unchanged."""
        if self.worth:
            with suppress(OSError):  # without a cache it is checked each time
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.touch()

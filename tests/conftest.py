"""Shared by all tests: one thread each, since they run side by side, and where real data may be found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["WEFT_DEBUG"] = "1"  # a fault of ours is an exception in a test, not a line and an exit status

import pytest  # noqa: E402

import weft  # noqa: E402, F401  (turns off telemetry before a test loads any library)

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    settings.register_profile("weft", deadline=None)  # how long an example takes is the machine's business
    settings.load_profile("weft")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; tests that need it are skipped where there is none."""
    if not os.environ.get("WEFT_DATA"):
        pytest.skip("WEFT_DATA is not set: no real data here")
    return Path(os.environ["WEFT_DATA"])


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept for later goes with the tests, not to whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

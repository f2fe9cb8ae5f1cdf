"""Fixtures of the tests of pictures."""

from tests.explain.browser import browser

__all__ = ["browser"]

"""A step of training asks the system for no memory that the step before has freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, torch
from weft.training.allocator import memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        blocks = [torch.ones(1 << 21) for _ in range(4)]  # 8 MB each
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
usual = faults()
with memory_kept():
    faults()
    print(usual, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_freed_memory_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    usual, kept = map(int, done.stdout.split())
    assert kept < 100 < usual

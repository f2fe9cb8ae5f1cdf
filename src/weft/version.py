"""The version and the system, where the lowest floor can read them."""

import platform

VERSION = "0.1.0"


def system_name() -> str:
    """The operating system, its release and the processor; `platform.platform()` would run `uname` from the PATH."""
    return "-".join((platform.system(), platform.release(), platform.machine()))

"""What happens at `import weft` before any other module is loaded: telemetry off, no code from the working folder, and
threads that do not keep a core while they wait.

Only `os` and `sys` are imported here, which Python has loaded already: anything else could be a file of that name in
the working folder.
"""

import os
import sys

# Each is read once, when its library is loaded; docs/security.md says what each library would do without it.
SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime: a device id, a database and uploads, from its import on
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub and hf_xet: versions and transfers, with each download
}

# onnxruntime cannot be silenced once it is loaded: this is asked before the switches are set.
_OFF = os.environ.get("ORT_DISABLE_TELEMETRY", "").lower() in ("1", "true", "yes", "on")
TOO_LATE = "onnxruntime" in sys.modules and not _OFF

os.environ.update(SWITCHES)

# A thread of OpenMP that waits for the others looks so often whether they are done, and then sleeps. libgomp, which
# torch for Linux brings along, reads this when it is loaded. Its own default of 300,000 keeps a core for milliseconds
# from every other program: two runs on the same cores wait for each other's waiting threads. With 4,000 they no longer
# stall, and a run alone takes 0 to 4 % longer (benchmarks/shared_cores.py). Whoever has set either variable is not
# overruled.
SPINS, LOOKS = "GOMP_SPINCOUNT", "4000"
if sys.platform == "linux" and not {SPINS, "OMP_WAIT_POLICY"} & set(os.environ):
    os.environ[SPINS] = LOOKS

# `python -m weft` puts the working folder first on sys.path. Until Python has found the module, sys.argv[0] is "-m",
# and the module's name stands before the rest of the arguments; `python -m your.module` keeps its folder.
_arguments = getattr(sys, "argv", [])  # a program with Python inside may have none
if _arguments[:1] == ["-m"] and not sys.flags.safe_path:
    _module = "".join(sys.orig_argv[-len(_arguments) :][:1]).removeprefix("-m")
    if _module.partition(".")[0] == "weft":
        del sys.path[0]


def drop_working_folder() -> None:
    """Take the working folder off sys.path where only an empty entry of PYTHONPATH put it there ("a::b", "a:")."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if len(entries) < 2 or "" not in entries or sys.flags.ignore_environment:
        return
    try:
        here = os.getcwd()
    except OSError:  # it has been removed, so nothing can be imported from it
        return
    if here not in map(os.path.abspath, filter(None, entries)) and not _holds_libraries(here):
        sys.path[:] = [path for path in sys.path if path and os.path.abspath(path) != here]


def _holds_libraries(folder: str) -> bool:
    """Whether Weft or its libraries are installed in a folder; then it is on sys.path for that reason too."""
    return os.path.samefile(folder, PACKAGE_ROOT) or os.path.basename(folder) in ("site-packages", "dist-packages")


PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the folder that holds `weft`

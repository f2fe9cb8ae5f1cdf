"""The house stands: imports point down, the top is light, and nothing reads or writes pickles."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.table import CASES
from weft.checkpoint.families import FAMILIES

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "weft"
OTHERS = ("tests", "benchmarks", "examples")
LOADERS = ("import_module", "find_spec", "importorskip", "__import__", "peer")  # that take the name of a module
# Floor of each room; code imports from lower floors, or inside its own room.
FLOORS = {
    "errors": 0,
    "startup": 0,
    "version": 0,
    "loading": 0,
    "memory": 0,
    "child": 1,
    "files": 1,
    "config": 1,
    "plugins": 1,
    "timing": 1,
    "budget": 1,
    "spelling": 1,
    "picture": 1,
    "progress": 1,
    "text": 2,
    "nn": 2,
    "ngrams": 2,
    "metrics": 3,
    "data": 3,
    "models": 3,
    "generation": 4,
    "checkpoint": 4,
    "vectors": 4,
    "objectives": 4,
    "training": 5,
    "backends": 5,
    "tasks": 6,
    "runs": 7,
    "client": 7,
    "comparison": 8,
    "explain": 8,
    "exporters": 9,
    "pruning": 9,
    "distillation": 10,
    "quantization": 10,
    "bench": 10,
    "serve": 10,
    "cli": 11,
    "__main__": 12,
    "recipes": 0,
}
# The top of the package hands out what is inside; `files` reads for `config`.
FREE = {("config", "files")}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All that a file is made of."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports_of(path: Path) -> list[str]:
    """Every module that a file imports, wherever in the file."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def rooms() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(SOURCE).parts[0].removesuffix(".py"), path)
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "__init__.py"
    ]


def test_imports_point_down() -> None:
    wrong = []
    for room, path in rooms():
        assert room in FLOORS, f"{room} has no floor yet"
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] != "weft" or len(parts) < 2 or parts[1] == room or parts[1] not in FLOORS:
                continue
            if FLOORS[parts[1]] >= FLOORS[room] and (room, parts[1]) not in FREE:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_no_pickle_and_no_peer_in_the_source() -> None:
    banned = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "transformers", "sentence_transformers"}
    for _, path in rooms():
        assert not banned & {name.split(".")[0] for name in imports_of(path)}, path
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "torch.save", "eval", "exec", "__import__"), f"{path}: {called}"


def test_one_module_imports_onnx_runtime() -> None:
    """Its telemetry starts with the import: only `weft.backends.onnx` knows how to keep it off."""
    for path in [*SOURCE.rglob("*.py"), *(path for name in OTHERS for path in (ROOT / name).rglob("*.py"))]:
        loads = {name.split(".")[0] for name in imports_of(path)}
        for node in nodes_of(path):
            called = getattr(node, "func", None)  # its last name: writing out every call would take seconds
            if (getattr(called, "attr", None) or getattr(called, "id", None)) in LOADERS:
                names = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                loads |= {name.split(".")[0] for name in names if isinstance(name, str)}
        assert "onnxruntime" not in loads or path == SOURCE / "backends" / "onnx.py", path


def test_what_windows_lacks_is_guarded() -> None:
    """`import weft` and `weft --help` work on every system: these names stand beside a question for the platform."""
    for _, path in rooms():
        guarded: set[ast.AST] = set()
        for node in nodes_of(path):
            body = list(ast.iter_child_nodes(node))
            asks = [
                n
                for n, part in enumerate(body)
                if isinstance(part, ast.If) and "sys.platform" in ast.unparse(part.test)
            ]
            if asks:  # the branches, and what follows where they return
                guarded.update(inner for part in body[asks[0] :] for inner in ast.walk(part))
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            lacking = {"fcntl", "resource", "pwd", "grp", "termios", "SIGHUP"} & set(names)
            assert not lacking or node in guarded, f"{path}: {lacking}"


def test_one_module_starts_processes() -> None:
    """`python -c`, `python -m` and multiprocessing run code of the working folder: only `weft.child` avoids that."""
    starts = {"Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "system", "popen"}
    for _, path in rooms():
        calls = [ast.unparse(node.func) for node in nodes_of(path) if isinstance(node, ast.Call)]
        wrong = [name for name in calls if re.match(r"(subprocess|os)\.", name) and name.split(".")[-1] in starts]
        wrong += [name for name in calls if re.match(r"subprocess\.run|os\.(exec|spawn|posix_spawn)", name)]
        wrong += [name for name in calls if re.match(r"platform\.(platform|processor)", name)]  # they run `uname`
        wrong += [name for name in imports_of(path) if name.split(".")[0] == "multiprocessing"]
        wrong += [name for name in imports_of(path) if name.startswith("subprocess.")]
        assert not wrong or path == SOURCE / "child.py", f"{path}: {wrong}"


def test_one_module_writes_safetensors() -> None:
    """The library makes files that only their owner can read: only `save_tensors` gives them the user's umask."""
    for _, path in rooms():
        saves = {"safetensors.torch.save_file", "safetensors.numpy.save_file"} & set(imports_of(path))
        assert not saves or path == SOURCE / "checkpoint" / "tensors.py", path


def test_files_can_be_read_in_one_sitting() -> None:
    for room, path in rooms():
        lines = len(path.read_text().splitlines())
        assert lines <= {"models": 250}.get(room, 620), f"{path}: {lines} lines"


def module_of(path: Path) -> str:
    return ".".join(("weft", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def test_chains_inside_a_room_are_short_and_have_no_cycle() -> None:
    modules = {module_of(path): room for room, path in rooms() if path.name != "__init__.py"}
    uses = {
        module_of(path): {name for name in imports_of(path) if modules.get(name) == room and name != module_of(path)}
        for room, path in rooms()
        if path.name != "__init__.py"
    }
    depths: dict[str, int] = {}

    def depth(module: str, above: tuple[str, ...]) -> int:
        assert module not in above, f"a cycle: {' imports '.join((*above, module))}"
        if module not in depths:
            depths[module] = 1 + max((depth(name, (*above, module)) for name in uses[module]), default=0)
        return depths[module]

    assert not {module for module in modules if depth(module, ()) > 7}


def test_no_class_name_exists_twice() -> None:
    classes = [node.name for _, path in rooms() for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    assert not {name for name in classes if classes.count(name) > 1}


def test_functions_fit_on_a_screen() -> None:
    functions = [node for _, path in rooms() for node in nodes_of(path) if isinstance(node, ast.FunctionDef)]
    sizes = [(node.end_lineno or 0) - node.lineno + 1 for node in functions]
    assert max(sizes) <= 80 and sum(size > 60 for size in sizes) <= 6


def test_capabilities_are_declared() -> None:
    """No sniffing at objects, and no question which task it is: both are methods or fields with a default."""
    calls = [node for _, path in rooms() for node in nodes_of(path) if isinstance(node, ast.Call)]
    names = [ast.unparse(node.func) for node in calls]
    assert names.count("hasattr") + names.count("getattr") <= 40
    checks = [ast.unparse(node.args[1]) for node in calls if ast.unparse(node.func) == "isinstance"]
    assert not [check for check in checks if re.search(r"\w+Task\b", check)]


def test_names_are_the_things_own() -> None:
    """Not `found`, `said`, `told` or `heard`, which every value could be called."""
    words = re.compile(r"(^|_)(found|said|told|heard)(_|$)", re.IGNORECASE)
    for _, path in rooms():
        names = [path.stem]
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.append(node.name)
            if isinstance(node, ast.arg):
                names.append(node.arg)
        assert not [name for name in names if words.search(name)], path


def test_every_family_is_in_the_table() -> None:
    assert {case.family for case in CASES.values()} == set(FAMILIES)


RECIPES = "weft.runs.recipes, weft.runs.recipes, weft.runs.recipes, weft.distillation.recipe"


@pytest.mark.parametrize(
    "code", ["import weft", "from weft.cli.main import app", "import weft.text.records", f"import {RECIPES}"]
)
def test_the_top_is_light(code: str) -> None:
    heavy = "import sys; print([name for name in ('torch', 'numpy', 'tokenizers', 'pyarrow') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", f"{code}; {heavy}"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_verb_does_not_load_the_compiler() -> None:
    """torch's compiler takes as long to import as all the rest of torch, and nobody here has asked for it."""
    code = (
        "import sys, weft; from weft.text.tokenizers.training import learn; "
        "m = weft.new('gpt2', learn(['a b c'] * 3, 'bpe', 270), size='1x64', settings={'context': 8}); "
        "m.save(sys.argv[1]); weft.load(sys.argv[1])('a', max_tokens=2); print('torch._dynamo' in sys.modules)"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, f"{folder}/m"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"


def work_of(command: list[str]) -> float:
    """The time that a processor works for a command, the best of three, so that a busy machine does not count."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_is_quick() -> None:
    """Beside what its library for command lines takes to import, so that a slow machine does not count either."""
    help_ = work_of([str(Path(sys.executable).parent / "weft"), "--help"])
    assert help_ < 4 * work_of([sys.executable, "-c", "import typer"])

"""Transformer-XL beside that of transformers 4.57.1, which lives in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from weft.checkpoint.folder import open_folder, save_folder
from weft.nn.recurrent import Carried
from weft.nn.rows import Ragged

pytestmark = pytest.mark.slow
# Where `make test-all` installs it.
OLDER = Path(os.environ.get("WEFT_OLDER_PYTHON", Path(sys.prefix) / "older" / "bin" / "python"))
BASE: dict[str, Any] = {
    **{"vocab_size": 101, "d_model": 48, "d_embed": 48, "n_head": 3, "d_head": 16, "d_inner": 96, "n_layer": 3},
    **{"cutoffs": [], "div_val": 1, "mem_len": 7, "clamp_len": -1, "same_length": False, "pad_token_id": 100},
}
CLUSTERS = {"cutoffs": [20, 50], "div_val": 2, "d_embed": 32}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clamped": {"clamp_len": 4, "d_head": 20},
    "same-length": {"same_length": True},
    "shared-biases": {"untie_r": False},
    "norm-before": {"pre_lnorm": True},
    "clusters": CLUSTERS,
    "as-published": {**CLUSTERS, "same_length": True, "clamp_len": 5, "mem_len": 9},
    "own-maps": {**CLUSTERS, "proj_share_all_but_first": False},
    "one-cluster": {"div_val": 4, "d_embed": 24},
}
# As STYLE of a parity has it: double precision at two scales, single precision at one.
RULE = [("float64", 0.02, 1e-9), ("float64", 0.3, 1e-9), ("float32", 0.02, 1e-5)]
HEADS = {"TransfoXLLMHeadModel": "words", "TransfoXLForSequenceClassification": "classify", "TransfoXLModel": ""}
TOKENS = [
    torch.randint(0, 100, (2, size), generator=torch.Generator().manual_seed(size)).tolist() for size in (5, 6, 12)
]


def cases() -> dict[str, dict[str, Any]]:
    named = {}
    for dtype, scale, tolerance in RULE:
        about = {"dtype": dtype, "scale": scale, "tolerance": tolerance, "tokens": TOKENS}
        for kind, config in KINDS.items():
            case = {"config": {**BASE, **config}, "architecture": "TransfoXLLMHeadModel", **about}
            named[f"{kind}-{dtype}-{scale}"] = case
        for architecture in list(HEADS)[1:]:
            named[f"{architecture}-{dtype}-{scale}"] = {"config": BASE, "architecture": architecture, **about}
    return named


CASES = cases()


def asked(folder: Path, request: dict[str, Any]) -> None:
    (folder / "request.json").write_text(json.dumps(request))
    script = Path(__file__).with_name("older.py")
    done = subprocess.run([OLDER, script, folder], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not OLDER.is_file():
        pytest.skip(f"{OLDER} is not there: `make test-all` installs transformers 4.57.1 beside the usual one")
    folder = tmp_path_factory.mktemp("older")
    asked(folder, CASES)
    yield folder


@torch.no_grad()
def ours(folder: Path, architecture: str) -> dict[str, Tensor]:
    """What our network makes of the same segments, by the peer's names."""
    network, carried, outputs = open_folder(folder).network, Carried(), dict[str, Tensor]()
    for number, segment in enumerate(TOKENS):
        batch, states = Ragged.of(segment), list[Tensor]()
        hidden = network(batch.tokens, batch.rows, states=states, carried=carried)
        head = HEADS[architecture]
        output = network.logits(head, hidden, batch.rows) if head else hidden
        if head == "words":  # the peer's are always normalized
            output = output.log_softmax(-1)
        outputs[f"{number}.output"] = output if head == "classify" else output.unflatten(0, (len(segment), -1))
        for layer, state in enumerate(states):
            outputs[f"{number}.hidden.{layer}"] = state.unflatten(0, (len(segment), -1))
        assert carried.state is not None
        for layer, (memory,) in enumerate(carried.state[:-1]):
            outputs[f"{number}.memory.{layer}"] = memory
    return outputs


def check(mine: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert mine[name].dtype == tensor.dtype
        largest = max(1.0, tensor.abs().max().item())
        assert (mine[name] - tensor).abs().max().item() <= tolerance * largest, name


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_peer(peers: Path, name: str) -> None:
    case = CASES[name]
    theirs = load_file(peers / name / "outputs.safetensors")
    check(ours(peers / name, case["architecture"]), theirs, case["tolerance"])


def test_the_peer_opens_what_we_save(peers: Path, tmp_path: Path) -> None:
    # Shared biases it only reads from its own folders, where each layer has them.
    names = [name for name in CASES if name.endswith("float32-0.02") and "shared" not in name]
    request = {}
    for name in names:
        save_folder(tmp_path / "ours" / name, open_folder(peers / name))
        case = CASES[name]
        stored = json.loads((tmp_path / "ours" / name / "config.json").read_text())
        assert stored["architectures"] == [case["architecture"]] and stored["model_type"] == "transfo-xl"
        request[name] = {**case, "folder": str(tmp_path / "ours" / name)}
    asked(tmp_path, request)
    for name in names:
        first, again = (load_file(folder / name / "outputs.safetensors") for folder in (peers, tmp_path))
        check(again, first, 1e-6)

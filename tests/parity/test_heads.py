"""Every family and head against randomly initialized peers of transformers, through a saved folder.

In float64 within 1e-9 at weight scales 0.02 and 0.3, in float32 within 1e-5 at 0.02: a large scale hides a wrong
epsilon, a small one a wrong GELU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from torch import Tensor

from tests.table import CASES, PEERED, SPEAKERS, Case
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import open_folder
from weft.nn.rows import Ragged

RULE = [(torch.float64, 0.02, 1e-9), (torch.float64, 0.3, 1e-9), (torch.float32, 0.02, 1e-5)]
SIZES = {
    "usual": {"vocabulary": 101, "context": 40, "width": 48, "layers": 2, "heads": 3, "inner": 192},
    "one layer": {"vocabulary": 101, "context": 40, "width": 48, "layers": 1, "heads": 3, "inner": 192},
    "seven layers": {"vocabulary": 37, "context": 12, "width": 20, "layers": 7, "heads": 5, "inner": 80},
}
# Without 0 and 1, which pad: transformers' RoBERTa counts its positions by them.
TEXTS = [[5, 9, 2, 31, 7], [8], [3, 3, 4, 12, 30, 11, 6, 9, 10], [6, 2]]


def peer_of(case: Case, architecture: str, size: str, scale: float, dtype: torch.dtype) -> Any:
    """A peer whose every parameter is drawn anew: fresh norms and biases would hide a swapped one."""
    config = case.peer(**SIZES[size])
    config._attn_implementation = "eager"
    config.num_labels = 2 if "QuestionAnswering" in architecture else 3
    torch.manual_seed(0)
    peer = getattr(transformers, architecture)(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            parameter.normal_(0.0, scale)
            if parameter.dim() == 1 and name.endswith("weight"):  # a norm
                parameter += 1.0
    for module in peer.modules():
        if case.single and type(module).__name__ == case.single:
            module.forward = in_double(module.forward)
    return peer


def in_double(forward: Any) -> Any:
    """The function, with `Tensor.float` leaving numbers as they are."""

    def changed(*given: Any, **options: Any) -> Any:
        with patch.object(Tensor, "float", lambda tensor: tensor):
            return forward(*given, **options)

    return changed


def outputs_of(case: Case, peer: Any, heads: tuple[str, ...]) -> dict[str, Tensor]:
    """What the peer says for each of our heads, padding taken out."""
    longest = max(map(len, TEXTS))

    def filled_up(rows: list[list[int]], padding: int) -> Tensor:
        rest = [[padding] * (longest - len(row)) for row in rows]
        pairs = zip(rest, rows, strict=True) if case.pads_left else zip(rows, rest, strict=True)
        return torch.tensor([one + two for one, two in pairs])

    ids = filled_up(TEXTS, peer.config.pad_token_id or 0)
    real = filled_up([[1] * len(text) for text in TEXTS], 0)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": real}
    if case.segments:
        segments = segments_of(ids.shape).tolist()
        inputs[case.channel] = filled_up([row[: len(text)] for row, text in zip(segments, TEXTS, strict=True)], 0)
    if heads == ("choose",):
        inputs = {name: value[None] for name, value in inputs.items()}  # the rows are one question's choices
    if "choose" in heads and "words" in heads:
        inputs["mc_token_ids"] = real.sum(1) - 1
    out = peer(**inputs)
    kept = real.bool()
    if heads == ():
        return {"hidden": out.last_hidden_state[kept]}
    if heads == ("answer",):
        return {"answer": torch.stack([out.start_logits[kept], out.end_logits[kept]], -1)}
    if heads == ("words", "next"):
        follows = out.sop_logits if "sop_logits" in out else out.seq_relationship_logits
        return {"words": out.prediction_logits[kept], "next": follows}
    if heads == ("words", "choose"):
        return {"words": out.logits[kept], "choose": out.mc_logits.reshape(-1, 1)}
    if heads == ("choose",):
        return {"choose": out.logits.reshape(-1, 1)}
    return {heads[0]: out.logits[kept] if heads[0] in ("words", "tag") else out.logits}


def segments_of(shape: torch.Size) -> Tensor:
    return (torch.arange(shape[1]) >= 3).long().expand(shape)


@pytest.mark.parametrize("dtype, scale, tolerance", RULE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("family, architecture", [(name, head) for name, case in CASES.items() for head in case.heads])
def test_equal_to_the_peer(
    family: str, architecture: str, dtype: torch.dtype, scale: float, tolerance: float, tmp_path: Path
) -> None:
    compare(CASES[family], architecture, "usual", dtype, scale, tolerance, tmp_path)


@pytest.mark.parametrize("size", ["one layer", "seven layers"])
@pytest.mark.parametrize("family", PEERED)
def test_sizes_that_nobody_planned(family: str, size: str, tmp_path: Path) -> None:
    for architecture in list(CASES[family].heads)[:1]:
        compare(CASES[family], architecture, size, torch.float64, 0.3, 1e-9, tmp_path)


def compare(
    case: Case, architecture: str, size: str, dtype: torch.dtype, scale: float, tolerance: float, folder: Path
) -> None:
    for head, difference in differences(case, architecture, size, dtype, scale, folder).items():
        assert difference <= tolerance, head


def differences(
    case: Case, architecture: str, size: str, dtype: torch.dtype, scale: float, folder: Path
) -> dict[str, float]:
    """The largest difference between a peer and ours for each head, through a saved folder."""
    peer = peer_of(case, architecture, size, scale, dtype)
    peer.save_pretrained(folder / "peer")
    opened = open_folder(folder / "peer")
    heads = case.heads[architecture]
    assert set(opened.heads) == set(heads)
    batch = Ragged.of(TEXTS)
    segments = segments_of(torch.Size([1, max(map(len, TEXTS))]))[0][batch.rows.places(len(batch.tokens))]
    with torch.inference_mode():
        expected = outputs_of(case, peer, heads)
        hidden = opened.network(batch.tokens, batch.rows, segments if case.segments else None)
        found = {head: opened.network.logits(head, hidden, batch.rows) for head in heads} or {"hidden": hidden}
    for head, scores in expected.items():
        assert found[head].dtype == dtype
        assert scores.abs().max() > 1e-3, "the peer says nothing, so equality would prove nothing"
    return {head: (found[head] - scores).abs().max().item() for head, scores in expected.items()}


@pytest.mark.parametrize(
    "family, key, name",
    [
        (family, key, name)
        for family in PEERED
        for key, names in FAMILIES[family].table.values.items()
        for name in names
    ],
)
def test_every_published_activation(family: str, key: str, name: str, tmp_path: Path) -> None:
    """The same word may mean another formula in another family: openai-gpt's gelu is the tanh one."""
    case = CASES[family]
    config = case.peer(**SIZES["one layer"])
    setattr(config, key, name)
    config._attn_implementation = "eager"
    architecture = next(name for name, heads in case.heads.items() if heads == ())
    torch.manual_seed(0)
    peer = getattr(transformers, architecture)(config).double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, 0.3)
    peer.save_pretrained(tmp_path)
    network = open_folder(tmp_path).network
    batch = Ragged.of(TEXTS)
    with torch.inference_mode():
        expected = torch.cat([peer(torch.tensor([text])).last_hidden_state[0] for text in TEXTS])
        assert (network(batch.tokens, batch.rows) - expected).abs().max() <= 1e-9


@pytest.mark.parametrize("family", [name for name in SPEAKERS if name in PEERED and FAMILIES[name].one_way])
def test_cached_decoding_equals_the_peer(family: str, tmp_path: Path) -> None:
    case = CASES[family]
    architecture = next(name for name, heads in case.heads.items() if heads == ("words",))
    for scale in (0.02, 0.3):
        peer = peer_of(case, architecture, "usual", scale, torch.float64)
        peer.save_pretrained(tmp_path / str(scale))
        network = open_folder(tmp_path / str(scale)).network
        following = torch.tensor([[4, 5, 6], [7, 8, 9], [1, 2, 3], [11, 12, 13]])
        with torch.inference_mode():
            scores, state = network.start(Ragged.of(TEXTS))
            steps = [scores] + [network.step(following[:, place], state) for place in range(3)]
            for row, text in enumerate(TEXTS):
                expected = peer(torch.tensor([text + following[row].tolist()])).logits[0, len(text) - 1 :]
                found = torch.stack([step[row] for step in steps])
                assert (found - expected).abs().max() <= 1e-9

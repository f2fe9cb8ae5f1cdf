"""Linear maps by oneDNN: the same numbers as F.linear, and copies that follow the weights."""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
import weft.nn.linear
from weft.generation.generate import generate
from weft.generation.sampling import Sampling, best_token
from weft.generation.search import Beam
from weft.nn import layers
from weft.nn.linear import ONEDNN, Linear, PackedWeight, decoding

needs_onednn = pytest.mark.skipif(not ONEDNN, reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.nn.linear, "SMALL", 0)


def a_map() -> tuple[Linear, Tensor]:
    torch.manual_seed(0)
    return Linear(48, 80).eval(), torch.randn(5, 48)


def plain(module: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, module.weight, module.bias)


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 33, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_same_as_torch(rows: int, bias: bool) -> None:
    module, x = Linear(48, 80, bias=bias).eval(), torch.randn(rows, 96)[:, ::2]
    with torch.no_grad():
        expected = plain(module, x)
        assert torch.allclose(module(x), expected, atol=1e-5)
        with decoding():
            assert torch.allclose(module(x), expected, atol=1e-5)
    assert (module.packed.packed is not None) == (ONEDNN and rows >= 0)


def test_gradients_are_torchs() -> None:
    module, x = a_map()
    with decoding():
        module(x).square().sum().backward()
    assert module.weight.grad is not None and module.weight.grad.abs().max() > 0
    assert module.packed.packed is None


@needs_onednn
def test_copy_only_in_decoding() -> None:
    module, x = a_map()
    with torch.inference_mode():
        module(x)
        assert module.packed.packed is None
        with decoding():
            module(x)
        copied = module.packed.packed
        assert copied is not None
        module(x)
        assert module.packed.packed is copied


@needs_onednn
@pytest.mark.parametrize("change", ["in place", "data", "load", "double", "parameter"])
def test_follows_the_weights(change: str) -> None:
    module, x = a_map()
    with torch.no_grad(), decoding():
        before = module(x)
        if change == "in place":
            module.weight.mul_(2.0)
        elif change == "data":
            module.weight.data = module.weight.data * 2
        elif change == "load":
            module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()}, assign=True)
        elif change == "double":
            module.double().float()
            module.weight.mul_(2.0)
        else:
            module.weight = nn.Parameter(module.weight * 2)
        after = module(x)
        assert torch.allclose(after, plain(module, x), atol=1e-5)
        assert not torch.allclose(after, before, atol=1e-2)


@needs_onednn
def test_copies_are_given_up() -> None:
    module, x = a_map()
    held = PackedWeight.held
    with torch.no_grad(), decoding():
        module(x)
    assert PackedWeight.held == held + module.weight.nbytes
    module.train()
    assert PackedWeight.held == held
    with torch.no_grad(), decoding():
        module.eval()(x)
    del module
    assert PackedWeight.held == held


@needs_onednn
def test_threads_share_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = a_map()
    held, made, together = PackedWeight.held, list[Any](), threading.Barrier(3)
    exact, whole = plain(module, x), weft.nn.linear.laid_out

    def slowly(weight: Tensor) -> Tensor:
        time.sleep(0.05)  # another thread's turn
        made.append(whole(weight))
        return made[-1]

    def answer() -> bool:
        together.wait()
        with torch.no_grad(), decoding():
            return all(torch.allclose(module(x), exact, atol=1e-5) for _ in range(5))

    monkeypatch.setattr(weft.nn.linear, "laid_out", slowly)
    with ThreadPoolExecutor(3) as pool:
        assert all(each.result() for each in [pool.submit(answer) for _ in range(3)])
    assert len(made) == 1 and PackedWeight.held == held + module.weight.nbytes


@needs_onednn
def test_no_copy_beyond_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = a_map()
    monkeypatch.setattr(weft.nn.linear, "SHARE", 0.0)
    with torch.no_grad(), decoding():
        assert torch.allclose(module(x), plain(module, x), atol=1e-5)
    assert module.packed.packed is None


def test_copied_without_it() -> None:
    module, x = a_map()
    with torch.no_grad(), decoding():
        expected = module(x)
        twin = copy.deepcopy(module)
        assert twin.packed.packed is None
        assert torch.equal(twin(x), expected)


def test_other_precisions_are_torchs() -> None:
    module, x = a_map()
    with torch.no_grad(), decoding():
        assert torch.equal(module.double()(x.double()), plain(module, x.double()))
        assert torch.equal(module.bfloat16()(x.bfloat16()), plain(module, x.bfloat16()))
        with torch.autocast("cpu", torch.bfloat16):
            assert module.float()(x).dtype == torch.bfloat16


def test_best_token() -> None:
    scores = torch.randn(4, 1000)
    scores[1, [7, 70]] = 9.0
    scores[2, 5] = torch.nan
    scores[3] = -torch.inf
    assert best_token(scores).tolist() == scores.argmax(-1).tolist()
    assert best_token(scores.bfloat16()).tolist() == scores.bfloat16().argmax(-1).tolist()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a layer's step hands to `step_map` from now on."""
    calls: list[Any] = []
    whole = layers.step_map

    def step_map(*inputs: Any, **options: Any) -> Tensor:
        calls.append(inputs)
        return whole(*inputs, **options)

    monkeypatch.setattr(layers, "step_map", step_map)
    return calls


@needs_onednn
def test_watched_layers_are_called_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    network: Any = weft.new("gpt2", size="2x64", settings={"vocabulary": 300}, seed=1).opened.network
    calls = counted(monkeypatch)
    seen: list[Any] = []
    options: dict[str, Any] = {"choice": Sampling(), "context": 64, "max_tokens": 4}
    expected = generate(network, [[5, 9]], **options)[0][0].tokens
    assert calls
    calls.clear()
    hook = network.layers[1].feedforward.register_forward_hook(lambda *inputs: seen.append(inputs))
    assert generate(network, [[5, 9]], **options)[0][0].tokens == expected
    assert len(seen) == 4 and not calls
    hook.remove()
    network.layers[0].attention.watcher = seen.append
    assert generate(network, [[5, 9]], **options)[0][0].tokens == expected
    assert len(seen) == 8 and not calls


@needs_onednn
@pytest.mark.parametrize("choice", [Sampling(), Sampling(temperature=0.8, n=3), Beam(width=5, n=2)])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt2", {}),
        ("gpt2", {"activation": "silu", "norm": "rms", "positions": "rotary"}),
        ("gpt2", {"activation": "gated-gelu", "positions": "alibi", "norm_place": "after"}),
        ("gpt2", {"activation": "tanh"}),
        ("marian", {}),
        ("t5", {}),
    ],
)
def test_generates_the_same(
    family: str, settings: dict[str, str], choice: Sampling | Beam, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = weft.new(family, size="2x64", settings={"vocabulary": 300, **settings}, seed=1).opened.network
    prompts, sources = ([[5, 9, 80], [7]], None) if "gpt" in family else ([[0], [0]], [[5, 9, 80], [7, 6]])
    options = {"sources": sources, "choice": choice, "context": 64, "max_tokens": 20, "ends": (3,)}
    fused = counted(monkeypatch)
    fast = generate(network, prompts, **options)
    assert bool(fused) == (settings.get("activation") != "tanh")  # which no product ends in
    assert network.heads["words"].packed.packed is not None
    monkeypatch.setattr(weft.nn.linear, "ONEDNN", False)
    for ours, torchs in zip(fast, generate(network, prompts, **options), strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in torchs]
        assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in torchs], abs=1e-3)

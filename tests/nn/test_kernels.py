"""The kernels of decoding compute what torch's own operators do; without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is loaded
pytest.importorskip("triton")

from tests.contracts.test_beam import drawn, sources_of
from weft.generation.beam_slots import BeamSlots
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam, Request
from weft.generation.slots import Slots
from weft.nn import fixed
from weft.nn.choice_kernels import best_few, log_sums, take_best
from weft.nn.kernels import Tile, add_norm, attend_step, linear_step
from weft.nn.layers import FUNCTIONS, activate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"


@pytest.fixture(autouse=True, scope="module")
def bounds_of_loops() -> Iterator[None]:
    """Triton 3.6's interpreter makes the bound of a loop an int by int([n]), which numpy 2.4 and newer refuse."""
    if not INTERPRETED:
        yield
        return
    from triton.runtime import interpreter

    patched = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda bound: bound.handle.data.item())

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
        yield


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.device(DEVICE), torch.inference_mode():
        yield


def own(kind: str, words: int) -> Any:
    """A network that no other test shares."""
    with torch.inference_mode(False), torch.device("cpu"):
        return deepcopy(drawn(kind, words, 3))


def plain(*inputs: Any) -> Tensor:
    """`mix` by torch's operators, whatever the device."""
    query, new, keys, values, lengths, *rest = inputs
    moved = [x if not isinstance(x, Tensor) else x.cpu() for x in rest]
    new = None if new is None else tuple(x.cpu() for x in new)
    return fixed.mix(query.cpu(), new, keys.cpu(), values.cpu(), lengths.cpu(), *moved)


@pytest.mark.parametrize("width", [16, 20])
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("table", ["", "origin", "owner"])
@pytest.mark.parametrize("biases", [0, 1, 5])
def test_attention_of_a_step(width: int, new: bool, table: str, biases: int) -> None:
    rows, places, heads = 5, 90, 2
    if new and table == "owner":
        pytest.skip("a source takes in nothing new")
    keys, values = torch.randn(2, rows, places, heads, width)
    query, key, value = torch.randn(rows, 3, heads, width).unbind(1)
    lengths = torch.tensor([0 if new else 1, 5, 63, 64, 89])
    origin = torch.randint(0, rows, (rows, places)) if table == "origin" else None
    owner = torch.randint(0, rows, (rows,)) if table == "owner" else None
    bias = torch.randn(biases, places, heads).transpose(1, 2)[:, :, None] if biases else None
    own = (keys.clone(), values.clone())
    ours = attend_step(query, (key, value) if new else None, *own, lengths, origin, owner, bias, 0.3)
    theirs = plain(query, (key, value) if new else None, keys, values, lengths, origin, owner, bias, 0.3)
    assert torch.allclose(ours.cpu(), theirs, atol=1e-4)
    if new:
        assert torch.equal(own[0][range(rows), lengths], key) and torch.equal(own[1][range(rows), lengths], value)


def test_a_row_that_sees_nothing_is_zero() -> None:
    """NaN would choose a token beyond the vocabulary, which ends a GPU's program."""
    keys = torch.randn(2, 8, 2, 16)
    mixed = attend_step(torch.randn(2, 2, 16), None, keys, keys, torch.tensor([0, 3]), None, None, None, 1.0)
    assert torch.equal(mixed[0], torch.zeros(2, 16)) and bool(mixed.isfinite().all())


@pytest.mark.parametrize("sizes", [(20, 33), (128, 2100), (1500, 40)])
@pytest.mark.parametrize("kind", [None, nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("activation", ["", "gelu", "gelu-tanh", "relu", "silu"])
def test_a_linear_map_with_its_neighbors(sizes: tuple[int, int], kind: Any, activation: str) -> None:
    inputs, outputs = sizes
    linear, norm = nn.Linear(inputs, outputs, bias=activation != "silu"), None if kind is None else kind(inputs, 1e-5)
    if norm is not None:
        norm.weight.normal_()
    x, residual = torch.randn(3, inputs) * 2 + 1, torch.randn(3, outputs) if activation == "relu" else None
    made = linear(x if norm is None else norm(x))
    made = activate(made, activation) if activation else made
    made = made if residual is None else made + residual
    assert torch.allclose(linear_step(x, linear, norm, activation, residual), made, atol=5e-4)


@pytest.mark.parametrize("rows", [5, 17, 33, 64])
@pytest.mark.parametrize("sizes", [(20, 33), (72, 40), (300, 70)])
@pytest.mark.parametrize("kind", [None, nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("ends", ["", "gelu-tanh", "relu", "residual", "unbiased"])
def test_a_linear_map_of_several_rows(rows: int, sizes: tuple[int, int], kind: Any, ends: str) -> None:
    inputs, outputs = sizes
    activation = ends if ends in FUNCTIONS else ""
    linear, norm = nn.Linear(inputs, outputs, bias=ends != "unbiased"), None if kind is None else kind(inputs, 1e-5)
    if norm is not None:
        norm.weight.normal_()
        if kind is nn.LayerNorm:
            norm.bias.normal_()
    x, residual = torch.randn(rows, inputs) * 2 + 1, torch.randn(rows, outputs) if ends == "residual" else None
    made = linear(x if norm is None else norm(x))
    made = activate(made, activation) if activation else made
    made = made if residual is None else made + residual
    for tile in (None, Tile(16, 16, 64, 4, 1), Tile(64, 32, 32, 4, 2)):
        assert torch.allclose(linear_step(x, linear, norm, activation, residual, tile), made, atol=5e-4)


# numpy has no bf16, so the interpreter cannot multiply it.
@pytest.mark.parametrize("dtype", [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, 8, 32])
def test_a_linear_map_in_half_precision(rows: int, dtype: torch.dtype) -> None:
    linear, norm = nn.Linear(768, 96).to(dtype), nn.LayerNorm(768).to(dtype)
    x, residual = torch.randn(rows, 768).to(dtype), torch.randn(rows, 96).to(dtype)
    exact = F.linear(norm(x).double(), linear.weight.double(), linear.bias.double())
    step = exact.abs().max() * torch.finfo(dtype).eps
    assert (linear_step(x, linear, norm) - exact).abs().max() <= step
    assert (linear_step(x, linear, norm, "gelu") - F.gelu(exact)).abs().max() <= 2 * step
    assert (linear_step(x, linear, norm, "", residual) - exact - residual).abs().max() <= 6 * step
    mixed = nn.Linear(768, 96).to(dtype).float()  # autocast: weights of full precision are rounded as they are read
    usual = F.linear(x.double(), mixed.weight.double(), mixed.bias.double())
    assert (linear_step(x, mixed) - usual).abs().max() <= step


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_a_sum_and_its_norm(kind: Any) -> None:
    norm = kind(100, 1e-5)
    for parameter in norm.parameters():
        parameter.normal_()
    x, residual = torch.randn(2, 5, 100)
    for keeps in (True, False):
        total, normed = add_norm(x, residual, norm, keeps)
        assert torch.allclose(normed, norm(x + residual), atol=1e-5)
        assert not keeps or torch.equal(total, x + residual)


@pytest.mark.parametrize("vocabulary", [50, 5000, 9001])
def test_the_best_token(vocabulary: int) -> None:
    scores = torch.randn(6, vocabulary) * 3
    scores[2, 7] = -torch.inf
    best = scores.argmax(-1)
    tokens, written = torch.zeros(6, dtype=torch.int64), torch.zeros(6, 5, dtype=torch.int64)
    logprobs = torch.zeros(6, 5, dtype=torch.float64)
    counts, limits = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([5, 5, 5, 4, 5, 9])
    done, ends = torch.tensor([False, False, False, False, True, False]), torch.tensor([int(best[0]), 99999])
    take_best(scores, tokens, written, logprobs, counts, limits, done, ends)
    assert torch.equal(tokens, best) and counts.tolist() == [1, 2, 3, 4, 4, 1]
    assert done.tolist() == [True, False, False, True, True, False] and not written[4].any()
    exact = scores.log_softmax(-1)
    for row in (0, 1, 2, 3, 5):
        assert written[row, counts[row] - 1] == best[row]
        assert float(logprobs[row, counts[row] - 1]) == pytest.approx(float(exact[row, best[row]]), abs=1e-4)
    assert torch.allclose(log_sums(scores), scores.logsumexp(-1), atol=1e-5)
    scores[1] = torch.nan
    take_best(scores, tokens, written, logprobs, counts.fill_(0), limits, done.fill_(False), ends)
    assert logprobs[1, 0].isnan() and 0 <= int(tokens[1]) < vocabulary and not logprobs[0, 0].isnan()


@pytest.mark.parametrize(("vocabulary", "few"), [(9, 9), (50, 8), (5000, 8), (9001, 5)])
def test_the_best_few_tokens(vocabulary: int, few: int) -> None:
    scores = torch.randn(6, vocabulary) * 3
    scores[1] = scores[1].round()  # equal scores: the first ones count as better
    scores[2, 7] = -torch.inf
    scores[3, 1:] = -torch.inf
    tokens, logprobs = best_few(scores, few)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :few]
    assert torch.equal(tokens, order)
    assert torch.allclose(logprobs, scores.double().log_softmax(-1).gather(1, order), atol=2e-5)
    scores[0, 3], scores[4] = torch.nan, -torch.inf
    scores[5] = torch.nan
    tokens, logprobs = best_few(scores, few)
    assert logprobs.isnan().any(1).tolist() == [True, False, False, False, True, True]
    assert int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary
    assert torch.equal(tokens[4], torch.arange(few))
    half = scores.half()
    assert torch.equal(best_few(half, few)[0][1], half[1].float().sort(descending=True, stable=True).indices[:few])


@pytest.mark.parametrize(("width", "n"), [(2, 1), (4, 2), (5, 5)])
@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0])
def test_a_step_of_beam_search(width: int, n: int, penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hypotheses that torch's operators choose: of slots that are done, that end, and that find nothing."""
    ends, words, length, slots = [1, 3], 23, 8, 12
    request = Request(
        decoder=own("gpt2", words),
        prompts=[[5]],
        choice=Beam(width=width, n=n, length_penalty=penalty),
        context=40,
        max_tokens=8,
        ends=ends,
        device=DEVICE,
    )
    both = [BeamSlots(request, request.choice, slots, width, 64, 0, length) for _ in range(2)]  # type: ignore[arg-type]
    for ours in both:
        ours.scores = torch.zeros(1)
    plain, fused = both
    changed = ("held", "scored", "finished", "history", "counts", "done", "broken", "tokens")
    for step in range(30):
        plain.counts.random_(0, length)
        plain.limits.copy_((plain.counts + torch.randint(0, 4, (slots,))).clamp(1, length))
        plain.done.copy_(torch.rand(slots) < 0.2)
        plain.held.normal_().sub_(9).masked_fill_(torch.rand(slots, width) < 0.2, -torch.inf)
        plain.scored.copy_(torch.randn(slots, width).sort(descending=True).values - 3)
        plain.scored.masked_fill_((torch.arange(width) >= torch.randint(0, width + 1, (slots, 1))), -torch.inf)
        plain.finished.random_(0, 9)
        plain.history.random_(0, 9)
        for name in (*changed, "limits"):
            getattr(fused, name).copy_(getattr(plain, name))
        tokens = torch.rand(slots * width, words).topk(plain.needed).indices
        tokens = tokens.clamp(max=3) if step % 3 == 1 else tokens  # much ends
        values = -torch.rand(slots * width, plain.needed, dtype=torch.float64) * 9
        values.masked_fill_(torch.rand(slots * width, 1) < (0.9 if step % 3 == 2 else 0.1), -torch.inf)
        if step == 29:
            values[:, 2] = torch.nan
        made = []
        for ours, kernels in ((plain, False), (fused, True)):
            monkeypatch.setattr(Slots, "kernels", kernels)
            made.append(ours._chosen_of(tokens, values.clone()))
        if step == 29:
            assert torch.equal(fused.broken, plain.broken) and bool(fused.broken.any())
            break
        assert torch.equal(*made)
        for name in changed:
            assert torch.allclose(getattr(fused, name), getattr(plain, name), atol=0.0, rtol=1e-14), name


@pytest.mark.parametrize("kind", ["gpt2", "transformer usual", "t5 usual"])
@pytest.mark.parametrize("choice", [Sampling(), Beam(width=2)], ids=["greedy", "beam"])
def test_slots_by_the_kernels(kind: str, choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prompts in four slots: one slot is never used."""
    network, prompts = own(kind, 23).float().to(DEVICE), [[5, 9], [8], [3, 3, 4]]
    mix = fixed.mix

    def by_kernel(query: Tensor, *rest: Any, **named: Any) -> Tensor:
        names = ("new", "keys", "values", "lengths", "origin", "owner", "bias", "scale")
        given = dict(zip(names, rest, strict=False)) | named
        scale = given.get("scale") or (query.shape[-1] ** -0.5 if given.get("scale") is None else given["scale"])
        return attend_step(query, *(given.get(name) for name in names[:-1]), scale)

    options = {"context": 40, "max_tokens": 6, "ends": [1], "device": DEVICE, "choice": choice}
    options |= sources_of(kind, [[2, *prompt] for prompt in prompts])
    try:
        usual = generate(network, prompts, slots=False, **options)
        monkeypatch.setattr(fixed, "mix", by_kernel)
        monkeypatch.setattr(fixed.FixedLayer, "fuses", lambda layer, x, activation: len(x) <= 64)
        monkeypatch.setattr(Slots, "kernels", True)
        in_slots = generate(network, prompts, slots=True, **options)
    finally:
        network.double().to("cpu")
    assert mix is not fixed.mix
    assert [[each.tokens for each in some] for some in in_slots] == [[each.tokens for each in some] for some in usual]

"""The chunked cross-entropy of words is the plain one: loss and gradients, compiled, in half precision and captured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.graphs import CUDA, DEVICES, Recording, needs_gpu
from tests.table import CASES
from weft.checkpoint.families import FAMILIES
from weft.nn import word_loss
from weft.nn.rows import NOTHING, Ragged

ROWS, WIDTH, WORDS = 50, 8, 37
Made = tuple[Tensor, Tensor, Tensor | None, Tensor]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows at a time at most on a CPU, and 37 words filled up to 64."""
    monkeypatch.setattr(word_loss, "WHOLE", 0)
    monkeypatch.setattr(word_loss, "CHUNKS", {"cpu": 7 * 4 * 64, "cuda": 7 * 4 * 64})
    monkeypatch.setattr(word_loss, "TILES", {"cpu": 64, "cuda": 64})


def made(
    kind: torch.dtype, bias: bool = True, missing: Sequence[int] = (), device: Any = "cpu", rows: int = ROWS
) -> Made:
    draws = torch.Generator().manual_seed(0)
    sizes = [(rows, WIDTH), (WORDS, WIDTH), (WORDS,)]
    hidden, table, shift = (torch.randn(size, generator=draws).to(device, kind).requires_grad_() for size in sizes)
    labels = torch.randint(WORDS, (rows,), generator=draws)
    labels[list(missing)] = NOTHING
    return hidden, table, shift if bias else None, labels.to(device)


def taken(loss: Tensor, given: Made) -> list[Tensor]:
    """The loss and its gradients."""
    leaves = [leaf for leaf in given[:3] if leaf is not None and leaf.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def plain(given: Made, smoothing: float = 0.0) -> Tensor:
    hidden, table, bias, labels = given
    return word_loss.cross_entropy(torch.nn.functional.linear(hidden, table, bias), labels, smoothing)


def errors(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[float]:
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("missing", [(), (0, 3, 10, 49), range(ROWS)], ids=["all labeled", "some", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_chunks_give_the_plain_loss_and_gradients(
    bias: bool, smoothing: float, missing: Sequence[int], device: torch.device, chunks: None
) -> None:
    for kind, bound in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        given = made(kind, bias, missing, device)
        ours = taken(3 * word_loss.word_loss(*given, smoothing), given)
        theirs = taken(3 * plain(given, smoothing), given)
        for one, two in zip(ours, theirs, strict=True):
            assert one.dtype == two.dtype and (one - two).abs().max() <= bound * max(1.0, float(two.abs().max()))


def test_without_gradients_there_is_the_loss_alone(chunks: None) -> None:
    given = made(torch.float64, missing=(1,))
    with torch.no_grad():
        assert torch.allclose(word_loss.word_loss(*given), plain(given), rtol=1e-12)
    given[1].requires_grad_(False)  # a frozen table
    ours, theirs = taken(word_loss.word_loss(*given), given), taken(plain(given), given)
    assert len(ours) == 3 and max(errors(ours, theirs)) < 1e-9


def test_without_gradients_none_are_taken(chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the weights ask for some: an evaluation would take three times as long."""
    asked = []
    plainly = word_loss.row_losses

    def row_losses(*given: Any) -> Any:
        asked.append(given[-1])
        return plainly(*given)

    monkeypatch.setattr(word_loss, "row_losses", row_losses)
    given = made(torch.float32)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            word_loss.word_loss(*given)
    assert asked and not any(asked)
    asked.clear()
    word_loss.word_loss(*given)
    assert all(asked)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return result


def test_no_more_than_one_chunk_of_logits_exists_and_none_is_kept(chunks: None) -> None:
    given = made(torch.float32)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        word_loss.word_loss(*given).backward()
    assert max(kept) == ROWS * WIDTH
    arguments = [each.detach() for each in given if each is not None]
    with Largest() as largest, torch.no_grad():
        word_loss._chunked(*arguments, 0.0, [True, True, True])  # type: ignore[arg-type]
    assert largest.numbers == 64 * WIDTH > word_loss.chunk_rows(ROWS, 64, "cpu") * 64, "the table is the largest"
    with Largest() as largest, torch.no_grad():
        plain(given)
    assert largest.numbers == ROWS * WORDS


WITH_WORDS = [
    name
    for name, case in CASES.items()
    if not FAMILIES[name].counts
    and "words" in FAMILIES[name].network.HEADS
    and name != "vec2seq"  # which reads numbers
]


@pytest.mark.parametrize("name", WITH_WORDS)
def test_every_family_learns_the_same_by_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied tables among them, whose gradient adds to that of the embeddings."""
    family, config = FAMILIES[name], CASES[name].config()
    torch.manual_seed(0)
    network: Any = family.network(config, {"words": config.vocabulary})
    network.initialize()
    network.double().eval()  # without dropout
    texts = Ragged.of([[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11, 12]])
    found = []
    for whole in (word_loss.WHOLE, 0):
        monkeypatch.setattr(word_loss, "WHOLE", whole)
        monkeypatch.setattr(word_loss, "CHUNKS", {"cpu": 5 * 4 * config.vocabulary})
        network.zero_grad()
        hidden = network(texts.tokens, texts.rows, **({"source": texts} if family.reads else {}))
        labels = torch.arange(len(hidden)) + 20
        labels[2] = NOTHING
        loss = network.word_loss(hidden, labels, 0.1)
        loss.backward()
        gradients = {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}
        found.append((loss.detach(), gradients))
    (loss, plain), (again, chunked) = found
    assert torch.allclose(loss, again, rtol=1e-12) and plain.keys() == chunked.keys()
    assert all(torch.allclose(plain[name], chunked[name], rtol=1e-9, atol=1e-12) for name in plain)


def test_a_family_with_words_of_its_own_keeps_them(chunks: None) -> None:
    config = CASES["gpt2"].config()

    class Louder(FAMILIES["gpt2"].network):  # type: ignore[name-defined,misc]
        def words(self, hidden: Tensor) -> Tensor:
            return 3 * super().words(hidden)

    network = Louder(config, {"words": config.vocabulary}).double()
    hidden, labels = torch.randn(9, config.width, dtype=torch.float64), torch.arange(9)
    assert torch.equal(network.word_loss(hidden, labels), word_loss.cross_entropy(network.words(hidden), labels))


def test_chunks_are_alike_and_none_is_too_large() -> None:
    for device, rows, words in (("cpu", 1024, 50_257), ("cuda", 32_768, 50_304), ("cuda", 5, 50_304), ("cpu", 0, 9)):
        size = word_loss.chunk_rows(rows, words, device)
        count = -(-rows // size)
        assert size >= 1 and 4 * words * (size - 128 * (device == "cuda")) <= word_loss.CHUNKS[device]
        assert device == "cuda" or not count or rows - (count - 1) * size > size // 2


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_gradients_are_as_near_as_the_plain_ones(half: torch.dtype, chunks: None) -> None:
    """Also with the loss scaled far up and down: the number is applied in full precision."""
    given = made(torch.float32, missing=(4, 5))
    exact = taken(plain(given), given)
    for scale in (1.0, 4096.0, 1e-3):
        with torch.autocast("cpu", half):
            ours = taken(scale * word_loss.word_loss(*given), given)
            theirs = taken(scale * plain(given), given)
        assert all(a.dtype == torch.float32 and a.isfinite().all() for a in ours)
        near, far = (errors([x / scale for x in each], exact) for each in (ours, theirs))
        assert max(near) < max(0.02, 2 * max(far)), (near, far)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_is_plain_and_one_graph_serves_all_numbers_of_rows(dynamic: bool, chunks: None) -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def loss(hidden: Tensor, table: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return 2 * word_loss.word_loss(hidden.tanh(), table, bias, labels, 0.1)

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    hidden, table, bias, labels = made(torch.float32, missing=(7,))
    for rows in (ROWS, 9, 30) if dynamic else (ROWS,):
        given = hidden[:rows].detach().requires_grad_(), table, bias, labels[:rows]
        if dynamic:  # as the trainer does
            for each in (given[0], given[3]):
                torch._dynamo.maybe_mark_dynamic(each, 0)
        ours, theirs = (taken(each(*given), given) for each in (compiled, loss))  # type: ignore[arg-type]
        assert max(errors(ours, theirs)) < 1e-6
    assert len(graphs) == 1


@pytest.mark.skipif(not shutil.which("g++"), reason="the compiler needs g++ on the CPU")
@pytest.mark.skipif("ATEN_CPU_CAPABILITY" in os.environ, reason="it compiles for the processor that is there")
def test_compiled_by_inductor_is_plain(chunks: None) -> None:
    given = made(torch.float32, missing=(7,))
    compiled = torch.compile(lambda *each: word_loss.word_loss(each[0].tanh(), *each[1:]), fullgraph=True)
    ours = taken(compiled(*given), given)
    theirs = taken(plain((given[0].tanh(), *given[1:])), given)
    assert max(errors(ours, theirs)) < 1e-5


def test_it_can_be_captured(chunks: None) -> None:
    """No number of it is read on the way: it would have to be waited for."""
    hidden, table, bias, labels = made(torch.float32)
    with Recording() as recording:  # reading a number raises
        loss = word_loss.word_loss(hidden, table, bias, labels)
        loss.backward()
    assert recording.calls


@needs_gpu
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_chunks_of_a_gpu_add_up(half: torch.dtype, kernel: bool, chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 128 rows at most, whose products are added in float32."""
    given = made(torch.float32, missing=(4, 5), device=CUDA, rows=300)
    exact = taken(plain(given, 0.1), given)
    if not kernel:
        monkeypatch.setattr(word_loss, "has_loss_kernel", lambda logits: False)
    with torch.autocast("cuda", half):
        ours, theirs = (taken(each(*given, 0.1), given) for each in (word_loss.word_loss, lambda *x: plain(x[:4], 0.1)))
    near, far = errors(ours, exact), errors(theirs, exact)
    assert max(near) < max(0.02, 2 * max(far)), (near, far)
    assert word_loss._adds_to_full(given[0].device)


@needs_gpu
def test_nothing_waits_for_the_gpu(chunks: None) -> None:
    given = made(torch.float32, missing=(4,), device=CUDA)
    word_loss.word_loss(*given).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        word_loss.word_loss(*given, 0.1).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_compiled_on_a_gpu_is_plain_and_can_be_captured(chunks: None) -> None:
    given = made(torch.float32, missing=(4,), device=CUDA)
    compiled = torch.compile(lambda *each: word_loss.word_loss(*each, 0.1), fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        theirs = taken(word_loss.word_loss(*given, 0.1), given)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                taken(compiled(*given), given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ours = taken(compiled(*given), given)
    graph.replay()
    assert max(errors(ours, theirs)) < 1e-2

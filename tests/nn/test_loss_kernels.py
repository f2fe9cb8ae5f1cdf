"""The kernel of the word loss computes what torch's own operators do; without a GPU it runs in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is loaded
pytest.importorskip("triton")

from tests.nn.test_word_loss import ROWS, chunks, errors, made, plain, taken
from weft.nn import loss_kernels, word_loss
from weft.nn.rows import NOTHING

__all__ = ["chunks"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a row has several."""
    monkeypatch.setattr(loss_kernels, "BLOCK", 256)
    monkeypatch.setattr(loss_kernels, "WARPS", 4)


def ours(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, words: int, gradients: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    slopes, losses = logits.clone(), torch.full((len(logits),), 7.0, device=DEVICE)
    loss_kernels.row_losses(slopes, labels, losses, smoothing, words, gradients)
    return losses, slopes


def drawn(kind: torch.dtype, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (3 * torch.randn(rows, columns)).to(DEVICE, kind), torch.randint(columns, (rows,)).to(DEVICE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("columns", "words"), [(37, 37), (64, 37), (256, 256), (704, 641), (1000, 999)])
def test_losses_and_gradients_of_rows(columns: int, words: int, kind: torch.dtype, smoothing: float) -> None:
    logits, labels = drawn(kind, 6, columns)
    labels %= words
    labels[1], labels[5], labels[4] = NOTHING, words - 1, 0
    logits[5, words - 1] = 40.0  # a label that is certain
    logits[0, 3] = -torch.inf if not smoothing else -9.0
    losses, slopes = ours(logits, labels, smoothing, words)
    logits[:, words:] = -torch.inf
    right, right_slopes = word_loss.row_losses(logits, labels, smoothing, words, True)
    assert right_slopes is not None
    assert torch.allclose(losses, right, rtol=1e-5, atol=1e-5) and losses[1] == 0
    assert not slopes[1].any() and not slopes[:, words:].any()
    with_label = labels != NOTHING
    step = max(1e-5, torch.finfo(kind).eps)  # one number further
    far = (slopes - right_slopes)[with_label, :words].float().abs()
    assert (far <= step * right_slopes[with_label, :words].float().abs() + 1e-6).all()


def test_without_gradients_the_logits_stay() -> None:
    logits, labels = drawn(torch.bfloat16, 3, 300)
    losses, same = ours(logits, labels, 0.0, 300, gradients=False)
    assert torch.equal(same, logits)
    assert torch.equal(losses, ours(logits, labels, 0.0, 300)[0])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from the interpreter
@pytest.mark.parametrize("place", [0, 299])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_logit_shows_in_the_loss_of_its_row_alone(value: float, place: int) -> None:
    logits, labels = drawn(torch.float32, 4, 300)
    logits[1, place] = logits[2, place] = value
    labels[2] = NOTHING
    losses, slopes = ours(logits, labels, 0.0, 300)
    assert losses.isnan().tolist() == [False, True, False, False]
    assert slopes.isfinite().all(1).tolist() == [True, False, True, True]
    logits[0] = -torch.inf
    assert ours(logits, labels, 0.0, 300)[0][0].isnan()


def test_a_label_that_is_no_word_is_not_read() -> None:
    logits, labels = drawn(torch.float32, 2, 64)
    labels[0], labels[1] = 64_000_000, -3
    assert ours(logits, labels, 0.0, 60)[0].isnan().all()


@pytest.mark.parametrize("missing", [(), (0, 3, 10, 49)], ids=["all labeled", "some"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_chunks_by_the_kernel_give_the_plain_loss_and_gradients(
    bias: bool, smoothing: float, missing: tuple[int, ...], chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_loss, "has_loss_kernel", lambda logits: True)
    given = made(torch.float32, bias, missing, DEVICE)
    exact = taken(plain(given, smoothing), given)
    assert max(errors(taken(word_loss.word_loss(*given, smoothing), given), exact)) < 1e-5
    hidden, table, shift, labels = (None if each is None else each.detach() for each in given)
    whole = word_loss._chunked(hidden, table, shift, labels, smoothing, [True, True, bias])  # type: ignore[arg-type]
    assert max(errors(whole[: len(exact)], exact)) < 1e-5, "rows without a label, which a CPU leaves out above"
    with torch.autocast(DEVICE.type, torch.bfloat16):
        near, far = (errors(taken(each(*given), given), exact) for each in (word_loss.word_loss, old))
    assert smoothing or max(near) < max(0.02, 2 * max(far)), (near, far)


def old(*given: torch.Tensor) -> torch.Tensor:
    return plain(given)  # type: ignore[arg-type]


def test_no_chunk_takes_memory_beside_its_logits(chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_loss, "has_loss_kernel", lambda logits: True)
    logits, labels = drawn(torch.bfloat16, ROWS, 64)
    losses = torch.empty(ROWS, device=DEVICE)
    slopes = word_loss._losses_into(losses, logits, labels, 0.0, 64, True)
    assert slopes is logits
    assert word_loss._losses_into(losses, logits, labels, 0.0, 64, False) is None

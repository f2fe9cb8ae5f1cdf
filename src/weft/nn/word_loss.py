"""The cross-entropy over a vocabulary, a chunk of rows at a time, so that all logits never exist at once.

Logits take more memory than anything else in a step: those of 32 x 1024 tokens and 50,257 words are 6.6 GB in float32,
several times over. Here the gradients of a chunk are computed in the forward pass while its logits exist (as in Liger
Kernel; Hsu et al., 2024), and the backward pass only scales them: the loss is a sum, so its gradient is one number. On
a GPU a kernel writes the gradients by the logits over the logits themselves.

n: predictions; r: those of a chunk; W: width; V: words.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.nn.fixed import has_kernel
from weft.nn.rows import NOTHING

WHOLE = 64 << 20  # bytes of float32 logits up to which they are not split
CHUNKS = {"cpu": WHOLE, "cuda": 2 << 30}  # bytes of the logits of a chunk
# The vocabulary is padded to multiples of this: a GPU multiplies matrices of odd sizes at about half of its speed.
TILES = {"cpu": 1, "cuda": 64}
HALVES = (torch.float16, torch.bfloat16)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Summed over all labels but `NOTHING`; in float32, since half precision cannot hold a sum of many terms."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=NOTHING, label_smoothing=smoothing)


def fits_whole(rows: int, words: int) -> bool:
    """Whether all logits are few enough to exist at once."""
    # A compiled step must not depend on the number of rows, or it would be compiled again for some numbers.
    return not torch.compiler.is_compiling() and 4 * rows * words <= WHOLE


def word_loss(hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """The cross-entropy of the logits `hidden @ table.T + bias`: n W, V W, V, n -> summed, as `cross_entropy`."""
    device = hidden.device.type
    half = torch.is_autocast_enabled(device) and hidden.dtype != torch.float64
    hidden = hidden.to(torch.get_autocast_dtype(device)) if half else hidden
    # `ctx.needs_input_grad` is True for weights even where gradients are disabled.
    learns = torch.is_grad_enabled()
    return Loss.apply(hidden, table, bias, labels, smoothing, learns)  # type: ignore[no-untyped-call]


class Loss(torch.autograd.Function):
    """The loss, whose gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, learns: bool
    ) -> Tensor:
        wanted = [learns and bool(needed) for needed in ctx.needs_input_grad[:3]]
        loss, *gradients = chunked_loss(hidden, table, bias, labels, smoothing, wanted)
        ctx.save_for_backward(*gradients)
        ctx.wanted = wanted
        return loss

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        def scaled(gradient: Tensor) -> Tensor:
            # In full precision: the arriving gradient, such as a loss scale, may not fit into half precision.
            full = gradient.float() if gradient.dtype in HALVES else gradient
            return (full * arriving[0]).to(gradient.dtype)

        pairs = zip(ctx.saved_tensors, ctx.wanted, strict=True)
        return (*(scaled(gradient) if wanted else None for gradient, wanted in pairs), None, None, None)


# A custom operator, into which the compiler does not look: the number of chunks depends on the number of rows.
@torch.library.custom_op("weft::chunked_loss", mutates_args=())
def chunked_loss(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and the gradients by `hidden`, `table` and `bias`: empty where not `wanted`."""
    with torch.autocast(hidden.device.type, enabled=False):
        asked = labels != NOTHING
        if hidden.device.type != "cpu" or bool(asked.all()):
            return _chunked(hidden, table, bias, labels, smoothing, wanted)
        # Rows without a label are left out; not on a GPU, where their number would have to be waited for.
        places = asked.nonzero()[:, 0]
        loss, d_hidden, *more = _chunked(hidden[places], table, bias, labels[places], smoothing, wanted)
        if wanted[0]:
            d_hidden = torch.zeros_like(hidden).index_copy_(0, places, d_hidden)
        return loss, d_hidden, more[0], more[1]


@chunked_loss.register_fake
def _(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = (hidden, table, table if bias is None else bias)
    empty = [torch.empty_like(x) if want else x.new_empty(0) for x, want in zip(given, wanted, strict=True)]
    return hidden.new_empty((), dtype=_full(hidden)), empty[0], empty[1], empty[2]


def _full(x: Tensor) -> torch.dtype:
    """The dtype of sums."""
    return torch.float32 if x.dtype in HALVES else x.dtype


def _chunked(
    hidden: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    words, full, device = len(table), _full(hidden), hidden.device.type
    by_hidden, by_table, by_bias = wanted
    weight, shift = _laid_out(table, bias, hidden.dtype, TILES.get(device, 1))
    empty = weight.new_empty if len(labels) else weight.new_zeros  # the first chunk begins the sums
    d_hidden = torch.empty_like(hidden) if by_hidden else hidden.new_empty(0)
    d_table = empty(weight.shape if by_table else 0, dtype=full)
    d_bias = empty(len(weight) if by_bias else 0, dtype=full)
    labels = labels.contiguous()
    losses = hidden.new_empty(len(labels), dtype=full)
    size = chunk_rows(len(labels), len(weight), device)
    for begin in range(0, len(labels), size):
        here = slice(begin, begin + size)
        x = hidden[here]
        logits = F.linear(x, weight, shift)  # r V
        slopes = _losses_into(losses[here], logits, labels[here], smoothing, words, any(wanted))
        del logits
        if slopes is None:
            continue
        if by_hidden:
            torch.mm(slopes, weight, out=d_hidden[here])
        if by_table:
            _add_product(d_table, slopes.t(), x, begin == 0)
        if by_bias:
            _add_product(d_bias[:, None], slopes.t(), x.new_ones(len(x), 1), begin == 0)
        del slopes  # before the next logits
    return losses.sum(), d_hidden, d_table[:words].to(table.dtype), d_bias[:words].to(table.dtype)


def chunk_rows(rows: int, words: int, device: str) -> int:
    """How many rows a chunk has: alike in all chunks, and on a GPU a multiple of 128."""
    most = max(1, CHUNKS.get(device, CHUNKS["cpu"]) // (4 * words))
    chunks = max(1, -(-rows // most))
    size = max(1, -(-rows // chunks))
    return size if device == "cpu" else -(-size // 128) * 128


def _laid_out(table: Tensor, bias: Tensor | None, kind: torch.dtype, tile: int) -> tuple[Tensor, Tensor | None]:
    """Both as matrix products take them: filled up to whole tiles, with words that nothing is to predict."""
    words = len(table)
    missing = -words % tile
    if not missing:
        return table.to(kind), None if bias is None else bias.to(kind)
    weight = table.new_empty(words + missing, table.shape[1], dtype=kind)
    weight[:words] = table
    weight[words:] = 0
    return weight, None if bias is None else F.pad(bias.to(kind), (0, missing), value=-torch.inf)


@cache
def _adds_to_full(device: torch.device) -> bool:
    """Whether a product of matrices in half precision can be added to a float32 matrix: in newer versions of torch."""
    total, half = (torch.zeros(16, 16, dtype=kind, device=device) for kind in (torch.float32, torch.bfloat16))
    try:
        torch.addmm(total, half, half, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return True


def _add_product(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """Add a product, whose sums are never rounded to half precision on a GPU; the `first` begins the total."""
    if left.dtype == total.dtype:
        torch.addmm(total, left, right, beta=0 if first else 1, out=total)
    elif not left.is_cuda:
        total.copy_(left @ right) if first else total.add_(left @ right)
    elif first:
        torch.mm(left, right, out_dtype=total.dtype, out=total)
    elif _adds_to_full(total.device):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += torch.mm(left, right, out_dtype=total.dtype)


def has_loss_kernel(logits: Tensor) -> bool:
    return logits.is_cuda and logits.dtype != torch.float64 and has_kernel()


def _losses_into(
    losses: Tensor, logits: Tensor, labels: Tensor, smoothing: float, words: int, gradients: bool
) -> Tensor | None:
    """Write the loss of each row into `losses` (r); returns the gradient by the logits, which are overwritten: r V."""
    if has_loss_kernel(logits):
        from weft.nn import loss_kernels

        loss_kernels.row_losses(logits, labels, losses, smoothing, words, gradients)
        return logits if gradients else None
    logits[:, words:] = -torch.inf
    losses[:], slopes = row_losses(logits, labels, smoothing, words, gradients)
    if slopes is not None and not slopes.is_cpu:  # on a CPU all rows have labels
        slopes.masked_fill_((labels == NOTHING)[:, None], 0)
    return slopes


def row_losses(
    logits: Tensor, labels: Tensor, smoothing: float, words: int, gradients: bool
) -> tuple[Tensor, Tensor | None]:
    """r V -> the loss of each row, and its gradient by the logits, r V; the latter also where there is no label."""
    logprobs = logits.log_softmax(-1, dtype=_full(logits))
    place = labels.clamp_min(0)[:, None]
    right = logprobs.gather(1, place)  # r 1
    share = smoothing / words  # that is asked of each word
    losses = -right[:, 0]
    if smoothing:
        losses = (1 - smoothing) * losses - share * logprobs[:, :words].sum(-1)
    losses = losses.masked_fill(labels == NOTHING, 0)
    if not gradients:
        return losses, None
    # The label's own apart: near 1 its probability is too coarse in half precision to be subtracted from.
    of_label = (right.exp() - share - (1 - smoothing)).to(logits.dtype)
    slopes = logprobs.exp_()
    slopes = slopes.sub_(share).to(logits.dtype) if smoothing else slopes.to(logits.dtype)
    return losses, slopes.scatter_(1, place, of_label)

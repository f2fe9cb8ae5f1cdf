"""Heads that a model can do without: how much each matters on labeled rows, and the model without the least of them.

Michel et al. (2019): each head gets a gate of 1, and matters as much as the loss of an example would change with it.

L: layers; H: heads of a layer; D: width of a head; R: rows of a batch; E: its examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.budget import BUDGET
from weft.checkpoint.folder import LoadedModel
from weft.data.batching import every_example
from weft.data.examples import Examples, batch_of
from weft.errors import UserError
from weft.nn.attention import Attention
from weft.nn.rows import Rows
from weft.objectives.base import Objective
from weft.pruning.layers import rebuilt

PARTS = 3  # query, key and value, in one matrix


def attentions_of(opened: LoadedModel) -> list[Attention]:
    """The attention of each layer, the first first; of ALBERT that of its one layer."""
    heads = [layer.attention for layer in opened.network.layers] if opened.config.heads else []
    if not heads:
        why = "its two sides share their positions" if opened.family.reads else "it has none"
        raise UserError(f"heads can be removed from encoders and GPTs, not from {opened.family.name}: {why}")
    if opened.config.positions == "alibi":
        raise UserError("with alibi positions every layer needs the same number of heads: none can be removed")
    return heads


@contextmanager
def gated(attentions: Sequence[Attention], gates: Sequence[Tensor], rows: Rows | None = None) -> Iterator[None]:
    """While it lasts, what each head says is multiplied by its gate: H of a layer, or R H where rows are given."""

    def hook(attention: Attention, gate: Tensor) -> Callable[..., Any]:
        def multiplied(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
            mixed = given[0].view(-1, attention.heads, attention.head_width)  # N H D
            chosen = gate if rows is None else gate[rows.numbers(mixed.shape[0])]  # H or N H
            return ((mixed * chosen[..., None]).flatten(-2),)

        return multiplied

    handles = [
        attention.output.register_forward_pre_hook(hook(attention, gate))
        for attention, gate in zip(attentions, gates, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def importance(
    opened: LoadedModel, objective: Objective, table: Examples, progress: Callable[[int], None] = lambda more: None
) -> list[Tensor]:
    """L tensors of H: how much the loss of an example changes with the gate of each head, in the mean of all examples.

    In each layer divided by the length of all its numbers, as the paper does it: layers differ in scale.
    """
    attentions, network = attentions_of(opened), opened.network
    totals = [torch.zeros(attention.heads, dtype=torch.float64) for attention in attentions]
    network.eval()
    for each in every_example(table, batch_of, BUDGET):
        batch = each.to(opened.device)
        kind = next(network.parameters()).dtype
        gates = [
            torch.ones(batch.rows.count, attention.heads, dtype=kind, device=opened.device, requires_grad=True)
            for attention in attentions
        ]
        with gated(attentions, gates, batch.rows), torch.enable_grad():
            loss = torch.stack([term.double() for term in objective.sums(network, batch).values()]).sum()
        owners = batch.targets["owners"]
        examples = int(owners.max()) + 1
        for total, gradient in zip(totals, torch.autograd.grad(loss, gates), strict=True):
            # A text in several windows is one example.
            whole = (
                gradient.double().new_zeros(examples, gradient.shape[1]).index_add(0, owners, gradient.double())
            )  # E H
            total += whole.abs().sum(0).cpu()
        progress(examples)
    return [total / total.norm().clamp_min(1e-30) for total in totals]


def least(importances: Sequence[Tensor], share: float | None = None, each: int | None = None) -> list[list[int]]:
    """Which heads of each layer stay: less a share of all heads that matter least, or so many less in each layer.

    One at least stays in each layer.
    """
    counts = [len(layer) for layer in importances]
    if (share is None) == (each is None):
        raise UserError("give either a share of all heads or a number for each layer")
    if each is not None:
        if not 1 <= each < min(counts):
            most = min(counts) - 1
            if not most:
                raise UserError(
                    "a layer has only one head, which cannot be removed: give a share of all heads, or remove layers"
                )
            raise UserError(f"between 1 and {most} of the {most + 1} heads of a layer can be removed, not {each}")
        gone = {(n, int(head)) for n, layer in enumerate(importances) for head in layer.argsort(stable=True)[:each]}
    else:
        assert share is not None
        if not 0 < share < 1:
            raise UserError(f"the share of heads to remove must be above 0 and below 1, not {share:g}")
        order = sorted(
            (float(value), n, head) for n, layer in enumerate(importances) for head, value in enumerate(layer)
        )
        wanted, left = round(share * sum(counts)), list(counts)
        gone = set()
        for _, n, head in order:
            if len(gone) < wanted and left[n] > 1:
                gone.add((n, head))
                left[n] -= 1
    return [[head for head in range(count) if (n, head) not in gone] for n, count in enumerate(counts)]


def with_heads(opened: LoadedModel, keep: Sequence[Sequence[int]]) -> LoadedModel:
    """The model with these heads of each layer: what it says is what the whole one says without the others.

    Published formats know one number of heads for all layers, each as wide as its share of the network; so the folder
    of such a model has our own.
    """
    attentions, config = attentions_of(opened), opened.config
    if len(keep) != len(attentions):
        raise UserError(f"heads of {len(keep)} layers are given for a model of {len(attentions)}")
    tensors = dict(opened.network.state_dict())
    for number, (attention, some) in enumerate(zip(attentions, keep, strict=True)):
        if not some or list(some) != sorted(set(some)) or some[0] < 0 or some[-1] >= attention.heads:
            raise UserError(f"layer {number}: heads to keep must be some of 0 to {attention.heads - 1}, in their order")
        before, chosen = f"layers.{number}.attention.", torch.tensor(some, device=opened.device)
        for name in ("qkv.weight", "qkv.bias"):
            cut = tensors[before + name].unflatten(0, (PARTS, attention.heads, attention.head_width))
            tensors[before + name] = cut[:, chosen].flatten(0, 2)
        cut = tensors[before + "output.weight"].unflatten(1, (attention.heads, attention.head_width))
        tensors[before + "output.weight"] = cut[:, chosen].flatten(1)
    counts = [len(some) for some in keep]
    if all(count == attention.heads for count, attention in zip(counts, attentions, strict=True)):
        return opened
    changes: dict[str, Any] = {"head_width": attentions[0].head_width}
    if len(set(counts)) == 1:
        changes |= {"heads": counts[0], **({"layer_heads": None} if config.has("layer_heads") else {})}
    else:
        changes |= {"layer_heads": tuple(counts)}
    return rebuilt(opened, replace(config, **changes), tensors)

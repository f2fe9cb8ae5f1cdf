"""A model with fewer layers or heads: what stays keeps its weights.

Michel et al. (2019): each head gets a gate of 1, and matters as much as the loss of an example would change with it.

L: layers; H: heads of a layer; D: width of a head; R: rows of a batch; E: its examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.budget import BUDGET
from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel, fill
from weft.data.examples import Examples, batch_of
from weft.data.rows import every_example
from weft.errors import UserError
from weft.nn.attention import Attention
from weft.nn.rows import Rows
from weft.objectives.base import Objective

SIDES = ("encoder", "decoder")  # of a network that reads one text and writes another


def evenly(count: int, of: int) -> tuple[int, ...]:
    """Which layers stay, evenly spaced from the first on: 3 of 6 are 0, 2, 4, as DistilBERT begins from BERT's."""
    if not 1 <= count <= of:
        raise UserError(f"between 1 and {of} of {of} layers can be kept, not {count}")
    return tuple(number * of // count for number in range(count))


def layers_in(opened: LoadedModel) -> int:
    """How many layers a model has, or how often it reads its one; of an encoder-decoder those that read."""
    network, config = opened.network, opened.config
    stack = network.encoder if opened.family.reads else network.layers
    if not isinstance(stack, nn.ModuleList) or not config.layers:
        raise UserError(f"{opened.family.name} has no stack of layers to prune")
    return int(config.layers)


def can_take(opened: LoadedModel) -> bool:
    """Whether some of a model's layers may be taken: it has a stack, and writes with as many as it reads with."""
    try:
        count = layers_in(opened)
    except UserError:
        return False
    return not opened.family.reads or len(opened.network.get_submodule("decoder")) == count  # type: ignore[arg-type]


def with_layers(opened: LoadedModel, keep: Sequence[int], written: Sequence[int] | None = None) -> LoadedModel:
    """The model with these of its layers alone, counted from 0, in their order.

    An encoder-decoder keeps these on both sides; `written`: those of the side that writes, where they are others. Of
    ALBERT, which reads one layer again and again, only how many they are counts.
    """
    count = layers_in(opened)
    _check(keep, count, "layers")
    tensors = dict(opened.network.state_dict())
    config = opened.config
    changes: dict[str, Any] = {"layers": len(keep)}
    if opened.family.reads:
        stack = opened.network.get_submodule("decoder")
        assert isinstance(stack, nn.ModuleList)
        if written is None and len(stack) != count:
            raise UserError(
                f"the decoder has {len(stack)} layers, the encoder {count}: give the layers of each to keep"
            )
        written = keep if written is None else written
        _check(written, len(stack), "layers that write")
        changes["decoder_layers"] = len(written)
        for side, chosen in zip(SIDES, (keep, written), strict=True):
            tensors = _renumbered(tensors, side, chosen)
    elif len(opened.network.get_submodule("layers")) == count:  # type: ignore[arg-type]
        tensors = _renumbered(tensors, "layers", keep)
    if config.layer_heads is not None:
        changes["layer_heads"] = tuple(config.layer_heads[number] for number in keep)
    if "mix.shares" in tensors:  # of the embeddings, then of each layer
        tensors["mix.shares"] = tensors["mix.shares"][[0, *(number + 1 for number in keep)]]
    return rebuilt(opened, replace(config, **changes), tensors)


def _check(keep: Sequence[int], count: int, what: str) -> None:
    if not keep:
        raise UserError(f"no {what} would stay: at least one has to")
    if list(keep) != sorted(set(keep)) or keep[0] < 0 or keep[-1] >= count:
        raise UserError(f"{what} to keep must be some of 0 to {count - 1}, in their order, not {list(keep)}")


def _renumbered(tensors: Mapping[str, Tensor], stack: str, keep: Sequence[int]) -> dict[str, Tensor]:
    """The tensors with those of some layers alone, under their new numbers."""
    places = {number: place for place, number in enumerate(keep)}
    renumbered = {}
    for name, tensor in tensors.items():
        layer = re.match(rf"{stack}\.(\d+)\.", name)
        if layer is None:
            renumbered[name] = tensor
        elif int(layer[1]) in places:
            renumbered[f"{stack}.{places[int(layer[1])]}.{name[layer.end() :]}"] = tensor
    return renumbered


def rebuilt(opened: LoadedModel, config: Any, tensors: Mapping[str, Tensor], **changes: Any) -> LoadedModel:
    """The model of another config with these weights, copied; `changes` are those of what was opened."""
    heads = changes.get("heads", opened.heads)
    network = outline(opened.family, config, heads)
    expected = network.state_dict()
    unfit = [name for name, tensor in expected.items() if name not in tensors or tensors[name].shape != tensor.shape]
    if unfit or len(expected) != len(tensors):
        raise UserError(f"the parts that would stay of {opened.family.name} do not fit together ({sorted(unfit)[:1]})")
    fill(network, {name: tensors[name].detach() for name in expected})
    network.to(opened.device)
    return replace(opened, config=config, network=network.eval(), **changes)


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
    """Which heads stay, at least one in each layer: less a share of all that matter least, or so many in each layer."""
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

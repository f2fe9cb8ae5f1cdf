"""How a network knows where a token stands: the vectors or biases of positions, and what they do with distance.

P: positions; W: width; H: heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.errors import UserError, one_of
from weft.explain.plots import GridPlot
from weft.explain.view import LinePlot, Notes, Panel, View
from weft.models.convolution import ConvolutionStack
from weft.models.xlnet import Xlnet
from weft.nn.disentangled import RelativePositions
from weft.nn.positions import Buckets, Positions, alibi_slopes, sinusoids
from weft.nn.relative import Distances, waves
from weft.picture import ChartLine
from weft.tasks.model import Model

KINDS = ("sinusoidal", "sinusoidal-halves", "rotary", "alibi", "buckets")
LENGTH, LONGEST, WIDEST = 128, 4096, 16384  # positions that are shown, at most, and width at most
SHOWN_HEADS = 12  # that have a line
BUCKETS, FARTHEST = 32, 128  # of T5
Floats = NDArray[np.float64]


def positions_view(
    model: Model | None = None,
    *,
    kind: str = "sinusoidal",
    width: int = 128,
    length: int | None = None,
    heads: int = 8,
) -> View:
    """The positions of a model, or of one `kind` that needs no training: a heat map and dot products by distance.

    `width` is that of the model, or of one head for rotary positions; `heads` is for ALiBi. `length`: positions shown.
    """
    for name, value, most in (("length", length, LONGEST), ("width", width, WIDEST), ("heads", heads, 1024)):
        if value is not None and not 2 - (name == "heads") <= value <= most:
            raise UserError(f"{name} must be between {2 - (name == 'heads')} and {most:,}, not {value}")
    if model is not None:
        return _of_model(model, length)
    one_of(kind, KINDS, "kind")
    if kind == "rotary" and width % 2:
        raise UserError(f"width {width}: rotary positions turn pairs of dimensions; try {width + 1}")
    panels = _panels_of_kind(kind, width, length or LENGTH, heads)
    return View(f"Positions: {kind}", tuple(panels), INTROS[kind])


INTROS = {
    "sinusoidal": "Sines and cosines of ever longer waves (Vaswani et al., 2017), added to the token embeddings. "
    "The dot product of two positions depends on their distance alone.",
    "sinusoidal-halves": "The same waves, all sines before all cosines (Marian). Dot products are those of "
    "interleaved sinusoids.",
    "rotary": "Each pair of dimensions of a query and a key is turned by an angle that grows with the position "
    "(Su et al., 2021), so their dot product depends on the distance.",
    "alibi": "Each head lowers the score of a key in proportion to its distance (Press et al., 2022). "
    "Nothing is learned, and nothing is added to the embeddings.",
    "buckets": "T5 (Raffel et al., 2020) learns one bias for each bucket of distances and each head. "
    "Near distances have a bucket each; far ones share buckets on a logarithmic scale.",
    "learned": "One learned vector for each position, added to the token embeddings.",
}
DISTANCES = (
    "Sinusoids of the distance from a query back to a key (Dai et al., 2019). Every layer has its own map of them."
)


def dot_products(table: Floats) -> tuple[Floats, list[ChartLine]]:
    """P P dot products of all positions, and by distance: their mean, and the range of the middle 80 %."""
    products = table @ table.T
    mean, low, high = list[tuple[float, float]](), list[tuple[float, float]](), list[tuple[float, float]]()
    for distance in range(len(table)):
        diagonal = np.diagonal(products, distance)
        mean.append((distance, float(diagonal.mean())))
        low.append((distance, float(np.quantile(diagonal, 0.1))))
        high.append((distance, float(np.quantile(diagonal, 0.9))))
    lines = [ChartLine("", mean)]
    spread = max(top[1] - bottom[1] for top, bottom in zip(high, low, strict=True))
    if spread > 1e-6 * float(np.abs(products).max()):  # of sinusoids all pairs of one distance are equal
        lines = [ChartLine("mean", mean), ChartLine("10 % to 90 % of the pairs", low, upper=high)]
    return products, lines


def _vector_panels(table: Floats, what: str) -> Iterator[Panel]:
    """The panels of positions that are vectors."""
    products, lines = dot_products(table)
    yield GridPlot(
        heading=what, values=table, row="position", column="dimension", value="value", diverging=True,
        note="One row is the vector of one position.",
    )  # fmt: skip
    yield LinePlot(heading="Dot products by distance", lines=lines, x="distance in tokens", y="dot product")
    yield GridPlot(
        heading="Dot products of all positions", values=products, row="position", column="position",
        value="dot product", diverging=bool((products < 0).any()),
    )  # fmt: skip


def rotation_scores(width: int, length: int) -> Floats:
    """The share of a query's dot product with an equal key that is left at each distance: the mean of the cosines."""
    positions = Positions("rotary", context=length, width=width, heads=1, head_width=width)
    turns = positions.turns(torch.arange(length), torch.float64)
    assert turns is not None
    return turns[0, :, 0].mean(-1).numpy()


def _rotary_panels(width: int, length: int) -> Iterator[Panel]:
    positions = Positions("rotary", context=length, width=width, heads=1, head_width=width)
    turns = positions.turns(torch.arange(length), torch.float64)
    assert turns is not None
    table = turns[:, :, 0, : width // 2].numpy()  # 2 P W/2: the second half repeats the first
    yield GridPlot(
        heading="Cosine of the angles", values=table[0], row="position", column="pair of dimensions", value="cosine",
        diverging=True, note="The first pairs turn by 57° a token, the last ones hardly at all.",
    )  # fmt: skip
    scores = rotation_scores(width, length)
    lines = [ChartLine("", [(n, float(value)) for n, value in enumerate(scores)])]
    yield LinePlot(
        heading="Dot products by distance", lines=lines, x="distance in tokens", y="share of the dot product",
        note="For a query and a key that are equal before they are turned, with equal weight in every dimension.",
    )  # fmt: skip


def _bias_panels(biases: Floats, first: int, what: str) -> Iterator[Panel]:
    """The panels of biases by head and distance: H D, of which the first distance is `first`."""
    heads = len(biases)
    names = [f"head {head}" for head in range(heads)]
    places = range(first, first + biases.shape[1])
    lines = [
        ChartLine(name, [(place, float(value)) for place, value in zip(places, row, strict=True)])
        for name, row in list(zip(names, biases, strict=True))[:SHOWN_HEADS]
    ]
    more = "" if heads <= SHOWN_HEADS else f" The first {SHOWN_HEADS} of {heads} heads."
    sign = " Below 0: keys before the query; above 0: keys after it." if first < 0 else ""
    yield LinePlot(
        heading=f"{what} by distance", lines=lines, x="distance in tokens", y="added to the score",
        note=(more + sign).strip(),
    )  # fmt: skip
    yield GridPlot(
        heading=f"{what} of every head", values=biases, row="head", column="distance", value="bias", diverging=True,
        column_from=first,
    )  # fmt: skip


def alibi_biases(heads: int, length: int) -> Floats:
    """H P: what ALiBi adds to the score of a key at each distance."""
    return (-alibi_slopes(heads).double()[:, None] * torch.arange(length)).numpy()


def _bucket_panels(length: int) -> Iterator[Panel]:
    distances = torch.arange(-length + 1, length)
    lines = []
    for name, both in (("encoder, both directions", True), ("decoder, keys before the query", False)):
        numbers = Buckets(BUCKETS, FARTHEST, 1, length, both).numbers(distances)
        points = [(int(distance), float(number)) for distance, number in zip(distances, numbers, strict=True)]
        lines.append(ChartLine(name, [point for point in points if both or point[0] <= 0]))
    yield LinePlot(
        heading="Buckets by distance", lines=lines, x="distance of the key in tokens", y="bucket",
        note=f"{BUCKETS} buckets, the last from distance {FARTHEST} on. A model learns one bias for each of them and "
        "each head: give a T5 model folder to see them.",
    )  # fmt: skip


def _panels_of_kind(kind: str, width: int, length: int, heads: int) -> list[Panel]:
    if kind == "rotary":
        return list(_rotary_panels(width, length))
    if kind == "alibi":
        return list(_bias_panels(alibi_biases(heads, length), 0, "Bias"))
    if kind == "buckets":
        return list(_bucket_panels(length))
    table = sinusoids(torch.arange(length), width, kind == "sinusoidal-halves").numpy()
    return list(_vector_panels(table, "Vectors of positions"))


# ------------------------------------------------------------------------------------------------ of a model


def _of_model(model: Model, length: int | None) -> View:
    if model.opened.exported:
        raise UserError("an exported model shows no positions: give the model folder that it was exported from")
    panels, intro = list[Panel](), ""
    for name, module in model.network.named_modules():
        some, text = _panels_of_module(module, length)
        title = name.replace("_", " ").replace(".", " ")
        if some and ("encoder" in title or "decoder" in title):
            some = [Notes(heading=title.capitalize(), text=text or "Relative positions."), *some]
        panels += some
        intro = intro or text
    if not panels:
        raise UserError(f"a {model.opened.family.name} model has no positions to show")
    name = model.folder.name if model.folder else model.opened.family.name
    return View(f"Positions of {name}", tuple(panels), intro)


def _panels_of_module(module: nn.Module, length: int | None) -> tuple[list[Panel], str]:
    """The panels of one module of positions, and what it does; nothing for any other module."""
    limit = min(length or LENGTH, LONGEST)
    if isinstance(module, RelativePositions):
        table = module.norm(module.distances.weight).detach()
        middle = len(table) // 2
        own = table[max(0, middle - limit) : middle + limit]
        return list(_vector_panels(_floats(own), "Vectors of distances")), (
            "One learned vector for each bucket of relative distances (DeBERTa), keys ahead first, then keys behind. "
            "Every layer turns them into scores by its own maps."
        )
    if isinstance(module, Positions):
        limit = min(limit, module.context)
        if module.table is not None:
            table = module.table.weight.detach()[module.unused :][:limit]
            return list(_vector_panels(_floats(table), "Vectors of positions")), INTROS["learned"]
        if module.kind == "none":
            return [], ""
        width = module.head_width if module.kind == "rotary" else module.width
        return _panels_of_kind(module.kind, width, limit, module.heads), INTROS[module.kind]
    if isinstance(module, Buckets):
        limit = min(limit, module.context)
        distances = torch.arange(-limit + 1, limit if module.both_ways else 1)
        biases = module.table(module.numbers(distances).to(module.table.weight.device)).detach()
        return list(_bias_panels(_floats(biases).T, -limit + 1, "Learned bias")), INTROS["buckets"]
    if isinstance(module, ConvolutionStack):
        return list(_vector_panels(_floats(module.positions.weight[:limit]), "Vectors of positions")), INTROS["learned"]
    if isinstance(module, Distances):
        return list(_vector_panels(_floats(module.vectors(torch.arange(limit))), "Vectors of distances")), DISTANCES
    if isinstance(module, Xlnet):
        table = waves(torch.arange(limit), module.config.width, torch.float64)
        return list(_vector_panels(_floats(table), "Vectors of distances")), DISTANCES
    return [], ""


def _floats(tensor: Tensor) -> Floats:
    return tensor.detach().double().cpu().numpy()

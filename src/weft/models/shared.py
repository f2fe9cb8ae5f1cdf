"""What the Transformer families share: checks of their sizes, the stack of layers, and how fresh weights are drawn.

N: tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import UserError, refuse
from weft.models.limits import LIMITS
from weft.nn.heads import Mix, in_full
from weft.nn.layer_choice import ChosenLayers, LayerChoice
from weft.nn.layers import Layer, norm
from weft.nn.positions import Positions
from weft.nn.recurrent import Recurrent
from weft.nn.rows import Rows

DROPOUTS = [
    f"{place}dropout"
    for place in ("", "attention_", "embedding_", "inner_", "head_", "pooler_", "tag_", "answer_", "word_", "weight_")
]


def check_limits(config: Any) -> None:
    """Refuse sizes that no model can have, before anything is allocated."""
    values = vars(config)
    for name, limit in LIMITS.items():
        size, least = values.get(name), 0 if name in config.MAY_BE_ZERO else 1
        if size is not None and not least <= size <= limit:
            raise UserError(f"{name} must be between {least} and {limit}, not {size}")
    for name in DROPOUTS:
        value = values.get(name)
        if value is not None and not 0.0 <= value < 1.0:
            raise UserError(f"{name} must be at least 0 and below 1, not {value}")
    if config.weight_scale is not None and not 0.0 <= config.weight_scale <= 100.0:
        raise UserError(f"weight_scale must be between 0 and 100, not {config.weight_scale}")


def check_sizes(config: Any) -> None:
    """Refuse sizes that no model can have: of its attention, and of its decoder, where it has them."""
    check_limits(config)
    c = config
    if c.head_layers != "last":
        LayerChoice.of(c.head_layers, c.layers)
        refuse((c.mix, f"the heads read a learned mix of all layers or {c.head_layers}, not both: leave one out"))
    if c.heads:
        width, counts = c.head_width or c.width // c.heads, c.layer_heads or ()
        if c.head_width is None and c.width % c.heads:
            divisors = (n for n in range(1, c.width + 1) if c.width % n == 0)
            near = min(divisors, key=lambda n: abs(n - c.heads))
            raise UserError(f"width {c.width} cannot be cut into {c.heads} equal heads; try heads={near}")
        some = c.layer_heads is None or (len(counts) == c.layers and all(1 <= heads <= c.heads for heads in counts))
        turned = "rotary positions turn pairs of numbers, so the width of a head must be even"
        refuse(
            (c.positions == "rotary" and width % 2 == 1, f"{turned}, not {width}"),
            (not some, f"layer_heads must be {c.layers} numbers between 1 and {c.heads}, not {list(counts)[:20]}"),
            (
                c.layer_heads is not None and c.positions == "alibi",
                "with alibi positions every layer has as many heads: leave out layer_heads",
            ),
            (not 0.0 < c.norm_epsilon <= 1.0, f"norm_epsilon must be above 0 and at most 1, not {c.norm_epsilon}"),
        )
    if c.begin is not None:
        one = c.tied != "all" or c.source_vocabulary in (None, c.vocabulary)
        refuse(
            (
                not 0 <= c.begin < c.vocabulary,
                f"begin must be a token of the vocabulary of {c.vocabulary}, not {c.begin}",
            ),
            (not one, "tied=all needs one vocabulary for what is read and written; try tied=decoder"),
        )


def positions_of(config: Any, width: int | None = None, unused: int = 0) -> Positions:
    """The positions that a config asks for; `width` where embeddings are narrower than layers."""
    c = config
    sizes = {"width": width or c.width, "heads": c.heads, "head_width": c.head_width or c.width // c.heads}
    return Positions(c.positions, context=c.context, unused=unused, **sizes)


def layers_of(
    config: Any,
    causal: bool,
    layers: int | None = None,
    reads: bool = False,
    kind: type[Layer] = Layer,
    **settings: Any,
) -> nn.ModuleList:
    """The stack of layers that a config asks for; `reads`: with attention to an encoder's output."""
    c = config
    sizes = {"width": c.width, "head_width": c.head_width or c.width // c.heads, "inner": c.inner or 4 * c.width}
    norms = {"norm_kind": c.norm, "norm_place": c.norm_place, "norm_epsilon": c.norm_epsilon}
    dropouts = {"attention_dropout": c.attention_dropout, "inner_dropout": c.inner_dropout, "dropout": c.dropout}
    options = {**sizes, **norms, **dropouts, "activation": c.activation, **settings}
    counts = c.layer_heads or [c.heads] * (layers or c.layers)
    return nn.ModuleList(kind(causal=causal, reads=reads, heads=heads, **options) for heads in counts)


def through_layers(
    network: Any,
    layers: Iterable[nn.Module],
    x: Tensor,
    rows: Rows,
    places: Tensor,
    states: list[Tensor] | None,
    cache: Any = None,
) -> Tensor:
    """N width through a stack of layers; `states`, where given, gets the embeddings and what each layer makes.

    `cache`: keys and values of earlier tokens, or a memory of them, by layer.
    """
    x = narrowed(x)
    turns, bias = network.positions.turns(places, x.dtype), network.positions.bias(rows, cache)
    wanted = states is not None or network.mix is not None
    seen = [x]
    for number, layer in enumerate(layers):
        x = layer(x, rows, bias, turns, None if cache is None else cache.layers[number])
        seen = [*seen, x] if wanted else [x]
    seen[-1] = x = network.final_norm(x)
    if states is not None:
        states += seen
    return x if network.mix is None else network.mix(seen)


def narrowed(x: Tensor) -> Tensor:
    """Under autocast to bf16 the sums that go from layer to layer are in bf16 too: half of the memory and traffic."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
        return x.to(torch.bfloat16)
    return x


def mix_of(config: Any) -> nn.Module | None:
    """What the heads read of all layers; None: the last one."""
    if config.mix:
        return Mix(config.layers + 1)
    return None if config.head_layers == "last" else ChosenLayers(LayerChoice.of(config.head_layers, config.layers))


def head_width(config: Any) -> int:
    """Width of what the heads read."""
    return LayerChoice.of(config.head_layers, config.layers).width([config.width] * (config.layers + 1))


def check_read(heads: Iterable[str], config: Any, pooled: tuple[str, ...] = ()) -> None:
    """Refuse concatenated layers for heads that have the width of the last one: words, and those of a pooler."""
    narrow = [head for head in heads if head in ("words", "replaced", *pooled)]
    if narrow and head_width(config) != config.width:
        raise UserError(f"head {narrow[0]} reads one layer, or several added up, not {config.head_layers}")


def final_norm_of(config: Any) -> nn.Module:
    """Where norms stand before each part, one more ends the stack."""
    if config.norm_place == "after":
        return nn.Identity()
    return norm(config.norm, config.width, config.norm_epsilon)


def mean_of(hidden: Tensor, rows: Rows) -> Tensor:
    """B width: the mean of each row, added up in float32 at least; 0 for a row of no words."""
    full = in_full(hidden)
    sums = full.new_zeros(rows.count, full.shape[1]).index_add(0, rows.numbers(full.shape[0]), full)
    return (sums / rows.lengths().clamp(min=1)[:, None]).to(hidden.dtype)


def matrices(*modules: nn.Module | None) -> float:
    """How many weights of these modules are multiplied with whatever goes through them."""
    parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
    return float(sum(parameter.numel() for parameter in parameters if parameter.dim() == 2))


@torch.no_grad()
def start_weights(network: nn.Module, scale: float) -> None:
    """Normal matrices and tables, biases 0, norms 1, as transformers draws them."""
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias":
                parameter.zero_()
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(0.0, scale)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.weight.fill_(1.0)
        elif isinstance(module, Recurrent):
            module.initialize()
        elif isinstance(module, Mix):
            module.shares.zero_()
            module.scale.fill_(1.0)

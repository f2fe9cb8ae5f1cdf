"""What the Transformer families share: checks of their sizes, the stack of layers, and how fresh weights are drawn.

N: tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from weft.errors import UserError
from weft.nn.attention import Cache
from weft.nn.layers import Layer, norm
from weft.nn.positions import Positions
from weft.nn.rows import Rows

# Far above anything published; a config from outside that asks for more would only exhaust the machine.
LIMITS = {
    **dict.fromkeys(("vocabulary", "source_vocabulary"), 1 << 26),
    **dict.fromkeys(("context", "farthest"), 1 << 24),
    **dict.fromkeys(("layers", "decoder_layers"), 2048),
    **dict.fromkeys(("width", "embedding_width", "maps"), 1 << 18),
    **dict.fromkeys(("inner", "decoder_inner", "features"), 1 << 20),
    **dict.fromkeys(("head_width", "segments", "buckets"), 1 << 16),
    **dict.fromkeys(("heads", "decoder_heads"), 1 << 14),
    **{"kernel": 1 << 10, "window": 1 << 12},
}
DROPOUTS = [
    f"{place}dropout"
    for place in ("", "attention_", "embedding_", "inner_", "head_", "tag_", "answer_", "word_", "weight_")
]


def check_limits(config: Any) -> None:
    """Refuse sizes that no model can have, before anything is allocated."""
    values = vars(config)
    for name, limit in LIMITS.items():
        size = values.get(name)
        if size is not None and not 1 <= size <= limit:
            raise UserError(f"{name} must be between 1 and {limit}, not {size}")
    for name in DROPOUTS:
        value = values.get(name)
        if value is not None and not 0.0 <= value < 1.0:
            raise UserError(f"{name} must be at least 0 and below 1, not {value}")
    if config.weight_scale is not None and not 0.0 <= config.weight_scale <= 100.0:
        raise UserError(f"weight_scale must be between 0 and 100, not {config.weight_scale}")


def check_sizes(config: Any) -> None:
    """Refuse sizes that no model can have: of its attention, and of its decoder, where it has them."""
    check_limits(config)
    if config.heads:
        _check_attention(config)
    if config.begin is None:
        return
    if not 0 <= config.begin < config.vocabulary:
        raise UserError(f"begin must be a token of the vocabulary of {config.vocabulary}, not {config.begin}")
    if config.tied == "all" and config.source_vocabulary not in (None, config.vocabulary):
        raise UserError("tied=all needs one vocabulary for what is read and written; try tied=decoder")


def _check_attention(config: Any) -> None:
    if config.head_width is None and config.width % config.heads:
        raise UserError(
            f"width {config.width} cannot be cut into {config.heads} equal heads; "
            f"try heads={nearest_divisor(config.width, config.heads)}"
        )
    if config.positions == "rotary" and (config.head_width or config.width // config.heads) % 2:
        raise UserError(
            f"rotary positions turn pairs of numbers, so the width of a head must be even, "
            f"not {config.head_width or config.width // config.heads}"
        )
    if config.layer_heads is not None:
        counts = config.layer_heads
        if len(counts) != config.layers or not all(1 <= heads <= config.heads for heads in counts):
            raise UserError(
                f"layer_heads must be {config.layers} numbers between 1 and {config.heads}, not {list(counts)[:20]}"
            )
        if config.positions == "alibi":
            raise UserError("with alibi positions every layer has as many heads: leave out layer_heads")
    if not 0.0 < config.norm_epsilon <= 1.0:
        raise UserError(f"norm_epsilon must be above 0 and at most 1, not {config.norm_epsilon}")


def nearest_divisor(number: int, wish: int) -> int:
    """The divisor of a number that is nearest to what was wished for."""
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - wish))


def positions_of(config: Any, width: int | None = None, unused: int = 0) -> Positions:
    """The positions that a config asks for; `width` where embeddings are narrower than layers."""
    return Positions(
        config.positions,
        context=config.context,
        width=width or config.width,
        heads=config.heads,
        head_width=config.head_width or config.width // config.heads,
        unused=unused,
    )


def layers_of(
    config: Any, causal: bool, layers: int | None = None, reads: bool = False, **settings: Any
) -> nn.ModuleList:
    """The stack of layers that a config asks for; `reads`: with attention to what an encoder has read.

    `settings` are those of a layer that the config of most families does not have.
    """
    sizes: dict[str, Any] = {
        "width": config.width,
        "head_width": config.head_width or config.width // config.heads,
        "inner": config.inner or 4 * config.width,
        "activation": config.activation,
        "norm_kind": config.norm,
        "norm_place": config.norm_place,
        "norm_epsilon": config.norm_epsilon,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "inner_dropout": config.inner_dropout,
        **settings,
    }
    counts = config.layer_heads or [config.heads] * (layers or config.layers)
    return nn.ModuleList(Layer(causal=causal, reads=reads, heads=heads, **sizes) for heads in counts)


def through_layers(
    network: Any,
    layers: Iterable[nn.Module],
    x: Tensor,
    rows: Rows,
    places: Tensor,
    states: list[Tensor] | None,
    cache: Cache | None = None,
) -> Tensor:
    """N width through a stack of layers; `states`, where given, gets the embeddings and what each layer makes."""
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


def final_norm_of(config: Any) -> nn.Module:
    """Where norms stand before each part, one more ends the stack."""
    if config.norm_place == "after":
        return nn.Identity()
    return norm(config.norm, config.width, config.norm_epsilon)


def matrices(*modules: nn.Module | None) -> float:
    """How many weights of these modules are multiplied with whatever goes through them."""
    parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
    return float(sum(parameter.numel() for parameter in parameters if parameter.dim() == 2))

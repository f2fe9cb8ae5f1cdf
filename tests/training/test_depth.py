"""Rates by layer and frozen layers mean the same for every family: counted from the output downwards."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import weft
from weft.checkpoint.families import FAMILIES
from weft.errors import UserError
from weft.training.plan import Training
from weft.training.step import depth_of, freeze, make_optimizer

WRITERS = ["transformer", "marian", "t5", "seq2seq", "conv-seq2seq"]
OTHERS = ["bert", "albert", "gpt2", "lstm", "cnn"]


def network_of(family: str, **settings: Any) -> Any:
    fields = FAMILIES[family].config.__dataclass_fields__
    sizes = {"vocabulary": 50, "width": 16, "layers": 2, "heads": 2, "inner": 32, "begin": 0, "embedding_width": 16}
    given = {name: size for name, size in {**sizes, **settings}.items() if name in fields}
    heads = {"words": None} if "words" in FAMILIES[family].names.heads else {"classify": 3}
    return weft.new(family, settings=given, heads=heads).network


def shares_of(network: nn.Module) -> dict[str, float]:
    optimizer = make_optimizer(network, Training(layer_decay=0.5), 1.0)
    by_weight = {id(weight): group["share"] for group in optimizer.param_groups for weight in group["params"]}
    larger = network.rate_factors
    return {
        name: by_weight[id(weight)] / next((share for part, share in larger.items() if name.startswith(part)), 1.0)
        for name, weight in network.named_parameters()
    }


@pytest.mark.parametrize("family", WRITERS)
def test_layers_of_an_encoder_decoder(family: str) -> None:
    network = network_of(family)
    assert len(network.layer_names()) == 4
    shares = shares_of(network)
    inside = "" if isinstance(network.encoder, nn.ModuleList) else "layers."
    wide = len(getattr(network.encoder, "directions", (False,)))
    for side, layer, depth in (("decoder", 1, 1), ("decoder", 0, 2), ("encoder", wide, 3), ("encoder", 0, 4)):
        here = {share for name, share in shares.items() if name.startswith(f"{side}.{inside}{layer}.")}
        assert here == {0.5**depth}, (side, layer)
    assert shares["tokens.weight"] == 0.5**5
    assert all(share == 1.0 for name, share in shares.items() if name.startswith(("heads", "decoder_norm", "combine")))


@pytest.mark.parametrize("family", [*WRITERS, *OTHERS])
def test_the_last_layers_learn_and_nothing_below_them(family: str) -> None:
    count = len(network_of(family).layer_names())
    for kept in range(1, count):
        network = network_of(family)
        freeze(network, f"all-but-{kept}")
        trained = {name for name, weight in network.named_parameters() if weight.requires_grad}
        assert trained == {name for name, _ in network.named_parameters() if depth_of(network, name) <= kept}
        assert {depth_of(network, name) for name in trained} >= set(range(1, kept + 1))
    with pytest.raises(UserError, match=f"the model has only {count} layers"):
        freeze(network_of(family), f"all-but-{count}")


@pytest.mark.parametrize("family", WRITERS)
def test_a_frozen_encoder_leaves_the_decoder_free(family: str) -> None:
    network = network_of(family)
    freeze(network, "encoder")
    free = {name.split(".")[0] for name, weight in network.named_parameters() if weight.requires_grad}
    assert "decoder" in free and not free & {"encoder", "encoder_norm", "source_tokens"}
    assert ("tokens" in free) == (network.source_tokens is not None if hasattr(network, "source_tokens") else False)


def test_what_has_no_layers_says_so() -> None:
    network = network_of("vectors")
    with pytest.raises(UserError, match="layer_decay is for models with layers"):
        make_optimizer(network, Training(layer_decay=0.5), 1.0)
    with pytest.raises(UserError, match="only 0 layers"):
        freeze(network, "all-but-1")

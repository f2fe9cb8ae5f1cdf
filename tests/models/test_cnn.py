"""Kim's network beside loops written out and beside torch's own convolution."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.tasks.small import write_rows
from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, open_folder, save_folder
from weft.errors import UserError
from weft.models.classifiers import Cnn, CnnConfig
from weft.nn.rows import Ragged, Rows
from weft.training.step import freeze

TEXTS = [[5, 9, 2, 31, 7, 1, 1, 3], [8], [3, 3, 4], [6, 2]]


def network_of(**sizes: Any) -> Cnn:
    torch.manual_seed(3)
    network = Cnn(CnnConfig(**{"vocabulary": 40, "width": 6, "maps": 5, **sizes}), {"classify": 3})
    network.initialize()
    for convolution in network.convolutions:
        convolution.bias.data.normal_()  # type: ignore[operator, union-attr]
    return network.double().eval()


def vectors_of(network: Cnn, text: list[int]) -> torch.Tensor:
    """T channels: what the convolutions see of a text."""
    tables = [network.tokens.weight, network.fixed] if network.config.both else [network.tokens.weight]
    return torch.cat([table.detach()[text] for table in tables], -1)


@pytest.mark.parametrize("sizes", [{}, {"both": True}, {"kernels": (1,)}, {"kernels": (2, 7), "both": True}])
def test_it_is_kims_network(sizes: dict[str, Any]) -> None:
    network, batch = network_of(**sizes), Ragged.of(TEXTS)
    if network.config.both:
        network.fixed.normal_()  # the two tables part while one of them learns
    scores = network.logits("classify", network(batch.tokens, batch.rows), batch.rows)
    for row, text in enumerate(TEXTS):
        seen, largest, by_torch = vectors_of(network, text), list[float](), list[torch.Tensor]()
        for kernel, convolution in zip(network.config.kernels, network.convolutions, strict=True):
            weight, bias = convolution.weight.detach(), convolution.bias.detach()
            left = (kernel - 1) // 2
            for number in range(network.config.maps):
                found = []
                for place in range(len(text)):
                    total = bias[number].item()
                    for offset in range(kernel):
                        if 0 <= place + offset - left < len(text):
                            part = weight[number, offset * network.channels : (offset + 1) * network.channels]
                            total += float(part @ seen[place + offset - left])
                    found.append(max(0.0, total))
                largest.append(max(found))
            kernels = weight.unflatten(1, (kernel, -1)).transpose(1, 2)  # maps channels kernel
            around = torch.nn.functional.pad(seen.t(), (left, kernel - 1 - left))
            maps = torch.nn.functional.conv1d(around[None], kernels, bias)
            by_torch.append(maps.relu().amax(-1)[0])
        output = network.get_submodule("heads.classify.output")
        assert torch.allclose(torch.cat(by_torch), torch.tensor(largest, dtype=torch.float64), atol=1e-12)
        assert torch.allclose(scores[row], output(torch.cat(by_torch)), atol=1e-12)


def test_a_row_of_no_words_has_no_features() -> None:
    network, rows = network_of(), Rows.of([2, 0, 3])
    hidden = network(torch.tensor([1, 2, 3, 4, 5]), rows)
    assert network.pooled(hidden, rows)[1].abs().max() == 0 and network.pooled(hidden, rows)[0].max() > 0


def steps_of(network: Cnn) -> None:
    batch = Ragged.of(TEXTS)
    free = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(free, 0.01, weight_decay=0.1)
    for _ in range(3):
        scores = network.logits("classify", network(batch.tokens, batch.rows), batch.rows)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()


def test_a_frozen_table_stays_and_a_free_one_moves() -> None:
    for frozen, both in ((False, False), (True, False), (False, True)):
        network = network_of(both=both).train()
        if frozen:
            freeze(network, "tokens")
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        steps_of(network)
        moved = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
        assert ("tokens.weight" not in moved) == frozen and "fixed" not in moved
        assert {"convolutions.0.weight", "convolutions.2.bias", "heads.classify.output.weight"} <= moved


def test_two_tables_are_saved_and_opened_again(tmp_path: Path) -> None:
    network = network_of(both=True).float()
    network.fixed.normal_()
    opened = LoadedModel(FAMILIES["cnn"], network.config, network, {"classify": 3}, None, Card())
    save_folder(tmp_path / "m", opened)
    again = open_folder(tmp_path / "m")
    assert again.config == network.config and torch.equal(again.network.get_buffer("fixed"), network.fixed)


def test_sizes_that_make_no_sense_are_named() -> None:
    for kernels, said in (([3, 3], "must differ"), ([], "1 to 64 numbers"), ([0], "between 1 and 1024")):
        with pytest.raises(UserError, match=said):
            weft.new("cnn", settings={"kernels": kernels})


def rare_words(count: int, seed: int) -> list[dict[str, str]]:
    """Rows whose label hangs on two words of many, in upper or lower case, among words that say nothing."""
    draw, rows = random.Random(seed), list[dict[str, str]]()
    for number in range(count):
        label = ("good", "bad")[number % 2]
        words = [f"{label[0]}{draw.randrange(120)}" for _ in range(2)] + draw.choices(
            [f"w{n}" for n in range(40)], k=10
        )
        draw.shuffle(words)
        rows.append({"text": " ".join(draw.choice((word, word.capitalize())) for word in words), "label": label})
    return rows


def test_a_fresh_classifier_learns_from_rare_words(tmp_path: Path) -> None:
    """As a bag of words does (TF-IDF + logistic regression: 0.95): kernels of 3 and more tokens, and a vocabulary
    that knows case and leaves out words seen once, reach 0.65."""
    train, dev, test = (
        write_rows(tmp_path / f"{name}.jsonl", rare_words(count, seed))
        for seed, (name, count) in enumerate((("train", 240), ("dev", 60), ("test", 140)))
    )
    model = weft.finetune(
        train,
        task="classify",
        dev=dev,
        model={"family": "cnn", "width": 32, "maps": 32},
        log=lambda line: None,
    )
    assert model.evaluate(test).scores["accuracy"].value > 0.8

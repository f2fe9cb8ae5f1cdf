"""The walk of one head: every matrix follows from those it was made of, and the last one is the model's output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.explain.walk_models import TEXT, check, small, tokenizer_for
from tests.tasks.small import model_for, vocabulary
from weft.cli.main import run
from weft.explain.walk import attention_walk
from weft.explain.walk_record import read_text
from weft.explain.walk_steps import Walk
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.nn.attention import MultiHead
from weft.nn.rows import Ragged

READ = ("bert", "roberta", "xlm-roberta", "albert", "distilbert", "gpt2", "openai-gpt", "xlm")
WRITE = ("t5", "transformer", "marian")
# T5's norm takes its variance in float32, and Marian's and XLM's sinusoids are of single precision.
LOOSE = {"t5": 1e-6}
ALWAYS = (
    "Embeddings", "Queries: W^Q", "Keys: W^K", "Values: W^V", "Logits", "Divide by √d_k", "Softmax", "Weighted sum",
    "Concatenate heads", "Output map: W^O", "Add", "Feed-forward: W_1", "Activation", "Feed-forward: W_2", "Add",
    "The place that predicts", "Product with the tied embeddings", "Softmax", "Top 10 at temperature 1", "The token",
)  # fmt: skip


def in_order(titles: list[str], wanted: tuple[str, ...]) -> bool:
    rest = iter(titles)
    return all(title in rest for title in wanted)


@pytest.mark.parametrize("family", READ)
def test_every_step_follows_from_the_one_before(family: str) -> None:
    model = small(family)
    before = model.logits(TEXT)[0]
    walk = attention_walk(model, TEXT, layer=1, head=2)
    assert check(walk) >= 20
    assert in_order([step.title for step in walk.steps], ALWAYS)
    place = int(walk.matrices["place"].made_from["indices"][0])  # type: ignore[index]
    logits = before[place].double().numpy()
    best = np.argsort(-logits, kind="stable")[:10]
    assert np.abs(walk.values("logits")[0] - logits[best]).max() < 1e-5 * np.abs(logits).max()
    powers = np.exp(logits - logits.max())
    assert abs(walk.values("probabilities").sum() - powers[best].sum() / powers.sum()) < 1e-5
    # Nothing stays behind in the network.
    assert torch.equal(model.logits(TEXT)[0], before)
    assert not any(module._forward_hooks for module in model.network.modules())
    assert all(module.watcher is None for module in model.network.modules() if isinstance(module, MultiHead))


@pytest.mark.parametrize("family", WRITE)
def test_an_encoder_decoder_is_walked_through_twice(family: str) -> None:
    model = small(family)
    walk = attention_walk(model, TEXT, layer=1, head=3, target="the street was wide")
    assert check(walk, LOOSE.get(family, 1e-9)) >= 45
    titles = [step.title for step in walk.steps]
    assert in_order(titles, ALWAYS[:10]) and in_order(titles[titles.index("Embeddings") + 1 :], ALWAYS)
    network: Any = model.network
    writer, given = tokenizer_for(family), read_text(model, TEXT)
    ids = [model.config.begin, *writer.ids(["the street was wide"], specials=False)[0]]
    written = Ragged.of([ids])
    with torch.inference_mode():
        network.eval()
        hidden = network(written.tokens, written.rows, source=Ragged(given.tokens, given.rows))
        logits = network.words(hidden)[-1].numpy()
    assert np.abs(walk.values("logits")[0] - np.sort(logits)[::-1][:10]).max() < 1e-9 * np.abs(logits).max()
    cross = walk.values("decoder.cross.weights")
    assert cross.shape == (len(ids), len(given.ids)) and np.abs(cross.sum(-1) - 1).max() < 1e-9
    mask = walk.values("decoder.weights")
    assert np.array_equal(mask, np.tril(mask)) and "mask" not in walk.matrices


def test_the_decoder_reads_the_beginning_of_its_own_output() -> None:
    model = small("transformer")
    walk = attention_walk(model, TEXT)
    (ids,) = ([*read_text(model, TEXT).ids],)
    end = tokenizer_for("transformer").id_of("end")
    ends = () if end is None else (end,)
    options: dict[str, Any] = {"choice": Sampling(), "context": 40, "max_tokens": 8, "ends": ends}
    own = generate(model.opened.network, [[model.config.begin]], sources=[ids], **options)[0][0].tokens
    names = walk.matrices["decoder.tokens"].rows
    assert len(names) == len(own) and walk.steps[-1].text.startswith(f"The token is '{names_of_last(model, own)}'")


def names_of_last(model: Any, own: list[int]) -> str:
    from weft.explain.walk_record import names_of

    return names_of(model, own[-1:], written=True)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"positions": "rotary"},
        {"positions": "alibi"},
        {"positions": "sinusoidal"},
        {"activation": "gated-silu", "norm": "rms"},
        {"norm_place": "after", "tied": False},
        {"mix": True},
    ],
    ids=str,
)
def test_blocks_that_differ(settings: dict[str, Any]) -> None:
    model = small("gpt2", settings=settings)
    walk = attention_walk(model, TEXT, layer=1, head=1)
    check(walk)
    logits = np.sort(model.logits(TEXT)[0][-1].double().numpy())[::-1]
    assert np.abs(walk.values("logits")[0] - logits[:10]).max() < 1e-5 * np.abs(logits).max()


@pytest.mark.parametrize(
    "family, task, outputs",
    [
        ("bert", "classify", 3), ("roberta", "classify", 3), ("distilbert", "classify", 3), ("gpt2", "classify", 3),
        ("bert", "tag", 4), ("bert", "answer", 2), ("bert", "multilabel", 3), ("bert", "regress", 1),
    ],
)  # fmt: skip
def test_labels_end_the_walk_of_a_classifier(family: str, task: str, outputs: int) -> None:
    tokenizer = tokenizer_for(family) if family != "bert" else vocabulary()
    labels = tuple(f"label{n}" for n in range(outputs)) if task not in ("answer", "regress") else None
    model = model_for(task, outputs, tokenizer, labels, family)
    model.network.double()
    text = "the cat is now"
    walk = attention_walk(model, text)
    check(walk)
    given = read_text(model, text)
    network: Any = model.network
    with torch.inference_mode():
        network.eval()
        hidden = network(given.tokens, given.rows, given.segments)
        expected = network.logits(model.task_object.head, hidden, given.rows).numpy()
    assert np.abs(walk.values("logits") - expected).max() < 1e-9
    assert ("probabilities" in walk.matrices) == (task not in ("answer", "regress"))
    if task == "multilabel":
        assert np.abs(walk.values("probabilities") - 1 / (1 + np.exp(-expected))).max() < 1e-9
    if labels:
        assert list(walk.matrices["logits"].columns) == list(labels)


def test_the_masked_place_predicts() -> None:
    model = small("bert")
    walk = attention_walk(model, "the [MASK] was tired")
    assert walk.matrices["place"].rows == ["[MASK]"]
    assert attention_walk(model, "the street").matrices["place"].rows != ["[SEP]"]


@pytest.mark.parametrize("seed", [0, 3])
def test_the_token_is_drawn_as_generation_draws_it(seed: int) -> None:
    model = small("gpt2")
    walk = attention_walk(model, TEXT, temperature=1.5, top_k=20, seed=seed)
    sampling = Sampling(temperature=1.5, top_k=20)
    ids = read_text(model, TEXT).ids
    options: dict[str, Any] = {"choice": sampling, "context": 40, "max_tokens": 1, "seeds": [seed]}
    token = generate(model.opened.network, [ids], **options)[0][0].tokens[0]
    assert walk.steps[-1].text.startswith(f"The token is '{names_of_last(model, [token])}'")
    table = walk.steps[-1].tables[0]
    assert [row for row in table.rows if row[2] == "drawn"] == [table.rows[cell[0]] for cell in table.marked]
    assert np.abs(walk.values("kept").sum() - 1) < 1e-9


def test_the_norm_opens() -> None:
    model = small("gpt2")
    walk = attention_walk(model, TEXT, layer=0, head=3)
    step = next(step for step in walk.steps if step.title == "Norm before attention")
    (detail,) = step.details
    statistics, gain, bias = (walk.matrices[id] for id in detail.matrices)
    x = walk.values(step.matrices[0])
    assert np.abs(statistics.values - np.stack([x.mean(-1), x.var(-1)], -1)).max() < 1e-12
    norm: Any = model.network.layers[0].attention_norm  # type: ignore[index, union-attr]
    assert np.array_equal(gain.values[0], norm.weight.detach().numpy())
    assert np.array_equal(bias.values[0], norm.bias.detach().numpy())


def test_a_wrong_number_is_noticed() -> None:
    """The check of these tests fails when any matrix is changed by a little."""
    walk = attention_walk(small("gpt2"), TEXT)
    for id in ("Q", "scores", "divided", "masked", "weights", "Z", "heads", "attended", "added", "bent", "logits"):
        matrix = walk.matrices[id]
        values = matrix.values.copy()
        values[-1, 0] += 1e-6 * max(1.0, np.abs(values[np.isfinite(values)]).max())
        broken = Walk("", matrices={**walk.matrices, id: replace(matrix, values=values)}, steps=walk.steps)
        with pytest.raises(AssertionError):
            check(broken)


@pytest.mark.parametrize("family", ["xlnet", "deberta", "transformer-xl", "lstm", "elmo"])
def test_other_families_are_refused_in_one_line(family: str) -> None:
    model = weft.new(family, tokenizer_for(family), size="1x64", settings={"context": 40}, seed=1)
    with pytest.raises(
        weft.UserError, match=f"^{family}: --walk shows plain self-attention, as in albert, bert[^\n]*$"
    ):
        attention_walk(model, TEXT)


def test_what_does_not_fit_is_refused() -> None:
    model = small("gpt2")
    with pytest.raises(weft.UserError, match="--layer 2: this model has layers 0 to 1"):
        attention_walk(model, TEXT, layer=2)
    with pytest.raises(weft.UserError, match="--head 4: this layer has heads 0 to 3"):
        attention_walk(model, TEXT, head=4)
    with pytest.raises(weft.UserError, match="longer than the model's window of 40 tokens"):
        attention_walk(model, TEXT * 9)
    with pytest.raises(weft.UserError, match="temperature must be 0 or more"):
        attention_walk(model, TEXT, temperature=-1.0)
    with pytest.raises(weft.UserError, match="top_k must be at least 1"):
        attention_walk(model, TEXT, top_k=0)
    with pytest.raises(weft.UserError, match="up to 64 tokens; this one has"):
        attention_walk(small("gpt2", settings={"context": 400}), TEXT * 9)


def test_large_weights_are_cut_and_say_so() -> None:
    walk = Walk("")
    walk.weights("w", "W", np.ones((300, 400)))
    matrix = walk.matrices["w"]
    assert matrix.values.shape == (300, 24) and matrix.shape == (300, 400)
    assert matrix.content()["shape"] == [300, 400] and matrix.content()["values"]["shape"] == [300, 24]


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gpt2"
    small("gpt2", double=False).save(folder)
    call = ["look", str(folder), "Thinking Machines", "--walk", "--layer", "0", "--head", "3"]
    assert run([*call, "--out", str(tmp_path / "walk.html")]) == 0
    assert run([*call, "--temperature", "0.7", "--top-k", "5", "--out", str(tmp_path / "walk.json")]) == 0
    content = json.loads((tmp_path / "walk.json").read_text())["panels"][0]
    assert [step["title"] for step in content["steps"]][-2:] == ["Top 5 at temperature 0.7", "The token"]
    assert content["matrices"]["weights"]["made_from"] == {"kind": "softmax", "left": "masked"}
    assert 'data-component="walk"' in (tmp_path / "walk.html").read_text()
    for more, message in (
        (["--window", "2"], "--walk shows a text that fits into one window"),
        (["another text"], "--walk shows one text"),
        (["--out", "walk.png"], "not a plot"),
    ):
        assert run([*call, *more]) == 2
        assert message in capfd.readouterr().err
    assert run([*call[:3], "--seed", "1"]) == 2
    assert "--seed is for --walk" in capfd.readouterr().err

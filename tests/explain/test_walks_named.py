"""The walks by name: textbook examples come out exactly, and all else equals what the production code computes."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from tests.explain.walk_models import TEXT, check, small, tokenizer_for
from weft.cli import look
from weft.cli.main import run
from weft.data.masking import Masking
from weft.explain import walks_basic, walks_models, walks_recurrent, walks_training
from weft.explain.walk_record import read_text
from weft.explain.walks_list import WALKS, make_walk, model_count
from weft.explain.watch import watch
from weft.nn.rows import Rows
from weft.tasks.fill import follows
from weft.tasks.model import Model

CELLS = ("rnn", "lstm", "gru")
SENTENCE = "the animal did not cross the street"


def recurrent(cell: str, size: str = "1x8") -> Model:
    model = weft.new(cell, tokenizer_for(cell), size=size, seed=1)
    model.network.double()
    return model


# ------------------------------------------------------------------------------------------------------------ textbook


def test_the_textbook_softmax_comes_out_exactly() -> None:
    walk = make_walk("softmax")
    assert walk.values("divided").tolist() == [[14.0, 12.0]]
    assert walk.values("shares").round(2).tolist() == [[0.88, 0.12]]
    assert walk.values("quarter").tolist() == (np.array(walks_basic.SCORES) / 4).tolist()
    rows = [[1, 0, 0, 0], [0.48, 0.52, 0, 0], [0.31, 0.35, 0.34, 0], [0.25, 0.26, 0.23, 0.26]]
    assert walk.values("weights").round(2).tolist() == rows
    check(walk)


def test_an_embedding_is_the_row_of_a_one_hot_vector() -> None:
    walk = make_walk("one-hot", texts=["a b a c"])
    assert walk.values("one_hot").tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert np.array_equal(walk.values("product"), walk.values("lookup"))
    for family in ("gpt2", "transformer", "lstm"):
        model = small(family) if family != "lstm" else recurrent(family)
        walk = make_walk("one-hot", [model], [TEXT])
        check(walk)
        ids = read_text(model, TEXT).ids
        network: Any = model.network
        assert np.array_equal(walk.values("lookup"), network.tokens.weight[ids].detach().numpy())
        assert walk.matrices["one_hot"].shape == (len(ids), model.config.vocabulary)


def test_ngrams_are_counted(tmp_path: Path) -> None:
    lines = ["the cat sat on the mat", "the dog sat", "a cat and the dog"]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines))
    walk = make_walk("ngram", texts=[str(path)])
    check(walk)
    split = [["<s>", *line.split(), "</s>"] for line in lines]
    pairs = Counter(pair for line in split for pair in zip(line, line[1:], strict=False))
    counts = walk.matrices["counts"]
    for i, first in enumerate(counts.rows):
        for j, second in enumerate(counts.columns):
            assert counts.values[i, j] == pairs[first, second]
        total = sum(number for (word, _), number in pairs.items() if word == first)
        assert np.abs(walk.values("chances")[i] - counts.values[i] / max(total, 1)).max() < 1e-12
    table = walk.steps[-1].tables[0].rows
    size = len({word for line in split for word in line})
    for order, (_, possible, seen, _, once) in enumerate(table, 1):
        grams = Counter(tuple(line[n : n + order]) for line in split for n in range(len(line) - order + 1))
        grams.pop(("<s>",), None)  # never predicted, so it is not counted by itself
        assert float(possible) == pytest.approx(size**order, rel=0.01)
        assert order == 1 or (int(seen), int(once)) == (len(grams), sum(n == 1 for n in grams.values()))
    packed = tmp_path / "lines.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert make_walk("ngram", texts=[str(packed)]).steps == walk.steps
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(weft.UserError, match="has no words"):
        make_walk("ngram", texts=[str(tmp_path / "empty.txt")])
    with pytest.raises(weft.UserError, match="no such text file"):
        make_walk("ngram", texts=["nowhere.txt"])


# ----------------------------------------------------------------------------------------------------------- recurrent


@pytest.mark.parametrize("given", [False, True], ids=["random", "models"])
def test_one_step_of_each_cell(given: bool) -> None:
    models = [recurrent(cell) for cell in CELLS] if given else []
    walk = make_walk("rnn", models, [SENTENCE])
    assert check(walk, 1e-9 if given else 1e-5) > 40
    for model in models:
        network: Any = model.network
        read = read_text(model, SENTENCE)
        with torch.inference_mode():
            network.eval()
            hidden = network(read.tokens, read.rows)  # by torch's kernels, not by the equations
            logits = network.words(hidden)[-1].numpy()
        new = walk.values(f"{model.config.cell}.new")
        assert np.abs(new[0] - hidden[-1].numpy()).max() < 1e-9
        shown = walk.values(f"{model.config.cell}.o")[0]
        assert np.abs(shown - logits[: len(shown)]).max() < 1e-9
    assert walk.values("lstm.forget").shape == walk.values("gru.update").shape


def test_gates_are_those_that_watch_records() -> None:
    model = recurrent("gru")
    walk = make_walk("rnn", [model], [SENTENCE])
    read = read_text(model, SENTENCE)
    with watch(model.network) as seen, torch.inference_mode():
        model.network.eval()(read.tokens, read.rows)
    for name, gate in seen.gates[0].items():
        own = walk.values(f"gru.{'content' if name == 'new' else name}")
        assert np.abs(own[0] - gate[-1].numpy()).max() < 1e-9


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
def test_terms_of_back_propagation_through_time_sum_to_autograd(cell: str, layers: int) -> None:
    model = recurrent(cell, f"{layers}x8")
    network: Any = model.network
    ids = read_text(model, SENTENCE).tokens
    count = len(ids) - 1
    first, last = 2, count - 2
    terms, _ = walks_recurrent.gradient_terms(network, ids, first, last)
    back = network.layers[0].layers[0].weight_hh_l0
    hidden = network.eval()(ids[:-1], Rows.of([count]))  # by torch's kernels
    losses = F.cross_entropy(network.words(hidden), ids[1:], reduction="none")
    for t in range(first, last + 1):
        gradient = torch.autograd.grad(losses[t], back, retain_graph=True)[0].numpy()
        assert np.abs(terms[t].sum(0) - gradient).max() < 1e-9 * max(1.0, np.abs(gradient).max())
        assert np.abs(terms[t, t + 1 :]).max(initial=0.0) == 0 and np.abs(terms[t, 1 : t + 1]).max() > 0
    ignored = [t for t in range(count) if not first <= t <= last]
    assert not terms[ignored].any()
    walk = make_walk("bptt", [model], [SENTENCE], t_min=first, t_max=last)
    check(walk)
    assert not walk.values("flow")[ignored].any() and walk.values("flow")[first : last + 1].all(-1).all()
    assert np.abs(walk.values("gradient") - terms.sum((0, 1))).max() < 1e-9
    chain = walk.steps[0].chain
    assert chain is not None and [n for n, used in enumerate(chain["used"]) if not used] == ignored


def test_bptt_without_a_model_and_its_limits() -> None:
    check(make_walk("bptt"))
    with pytest.raises(weft.UserError, match=r"0 <= t_min <= t_max <= 6, not 3 and 2"):
        make_walk("bptt", t_min=3, t_max=2)
    with pytest.raises(weft.UserError, match="at least three tokens"):
        make_walk("bptt", texts=["two words"])
    with pytest.raises(weft.UserError, match="recurrent language models"):
        make_walk("bptt", [small("gpt2")])
    with pytest.raises(weft.UserError, match="two gru models"):
        make_walk("rnn", [recurrent("gru"), recurrent("gru")], [SENTENCE])


# ----------------------------------------------------------------------------------------------------- encoder-decoder


def test_grids_of_a_trained_model_are_near_the_target() -> None:
    walk = make_walk("grids")
    check(walk)
    target, before, after = (walk.values(id) for id in ("target", "untrained", "output"))
    assert target.shape == (5, 6) and (target.sum(-1) == 1).all()
    assert after.argmax(-1).tolist() == target.argmax(-1).tolist() == [2, 1, 0, 4, 5]
    assert (after * target).sum(-1).min() > 0.9 and (before * target).sum(-1).mean() < 0.5
    assert np.abs(before.sum(-1) - 1).max() < 1e-9
    losses = walks_training.tiny_transformer(walks_training.STEPS).losses
    assert losses[-1] < 0.1 * losses[0]


def test_an_encoder_decoder_writes_token_by_token() -> None:
    walk = make_walk("seq2seq")
    assert [step.title for step in walk.steps if step.part == "Decoder"] == [
        "Step 1: i", "Step 2: am", "Step 3: a", "Step 4: student", "Step 5: <eos>", "The output"
    ]  # fmt: skip
    alignment = walk.values("alignment")
    assert alignment.shape == (5, 4) and np.abs(alignment.sum(-1) - 1).max() < 1e-5
    assert make_walk("seq2seq", texts=["merci"]).steps[-1].text.startswith("The output is 'thanks <eos>'")
    # The likeliest words of each step are those of one pass over what was written.
    speaker = walks_training.Translator.of(None, None)
    tokens = [walks_training.WRITTEN.index(word) for word in ("<eos>", "i", "am", "a", "student")]
    logits = speaker.logits(tokens)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    for t in range(5):
        shown = walk.values(f"chances_{t}")[0]
        assert np.abs(shown - np.sort(chances[t])[::-1][: len(shown)]).max() < 1e-5


@pytest.mark.parametrize("family", ["transformer", "t5", "seq2seq"])
def test_models_write_token_by_token(family: str) -> None:
    model = small(family, double=False) if family != "seq2seq" else weft.new(family, tokenizer_for(family), size="1x16")
    walk = make_walk("seq2seq", [model], [TEXT])
    assert walk.steps[-1].title == "The output" and "chances_0" in walk.matrices
    with pytest.raises(weft.UserError, match="not an encoder-decoder"):
        make_walk("seq2seq", [small("gpt2")], [TEXT])
    with pytest.raises(weft.UserError, match="the tiny model knows the words je, suis"):
        make_walk("seq2seq", texts=["hello"])


def test_teacher_forcing_and_generation() -> None:
    walk = make_walk("teacher-forcing")
    forced, written, _ = (step.tables[0] for step in walk.steps)
    assert [row[3] for row in forced.rows] == ["i", "am", "a", "student", "<eos>"]
    speaker = walks_training.Translator.of(None, None, walks_training.EARLY)
    tokens = [walks_training.WRITTEN.index(word) for word in ("<eos>", "i", "am", "a", "student")]
    best = speaker.logits(tokens).argmax(-1)
    assert [row[2] for row in forced.rows] == [walks_training.WRITTEN[n] for n in best]
    assert [row[1] for row in written.rows[1:]] == [row[2] for row in written.rows[:-1]]  # it reads its own tokens
    assert [row[1] for row in forced.rows[1:]] == [row[3] for row in forced.rows[:-1]]  # and here the right ones


@pytest.mark.parametrize("family", ["gpt2", "lstm", "transformer"])
def test_teacher_forcing_of_models(family: str) -> None:
    model = recurrent("lstm") if family == "lstm" else small(family)
    options = {"target": "the street was wide"} if family == "transformer" else {}
    walk = make_walk("teacher-forcing", [model], [TEXT], **options)
    forced, written, both = (step.tables[0] for step in walk.steps)
    assert len(forced.rows) == len(both.rows) and written.rows[0][1] == forced.rows[0][1]
    assert forced.rows[0][2] == written.rows[0][2]  # nothing was written yet, so both read the same
    if family == "gpt2":
        cut = len(read_text(model, TEXT).ids) - len(forced.rows)
        chances = model.logits(TEXT)[0].softmax(-1)[cut - 1 : -1]
        right = chances.gather(1, read_text(model, TEXT).tokens[cut:, None])[:, 0]
        assert [row[4] for row in forced.rows] == [f"{p:.4f}" for p in right.tolist()]


def test_teacher_forcing_needs_a_target() -> None:
    with pytest.raises(weft.UserError, match="give --target TEXT"):
        make_walk("teacher-forcing", [small("transformer")], [TEXT])
    with pytest.raises(weft.UserError, match="a model that generates"):
        make_walk("teacher-forcing", [small("bert")], [TEXT])


# -------------------------------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize("family", ["bert", "gpt2", "albert"])
def test_where_it_looks(family: str) -> None:
    model = small(family)
    walk = make_walk("it", [model])
    text = walks_models.SENTENCES[0]
    given = read_text(model, text)
    with watch(model.network) as seen, torch.inference_mode():
        model.network.eval()(given.tokens, given.rows, given.segments)
    span = walks_models.span_of(model, text, "it")
    assert span is not None
    spelled = "".join(given.names[span]).replace("·", "").replace("##", "")
    assert spelled == "it"
    row = seen.attention[1][:, span.stop - 1].numpy()
    assert np.abs(walk.values("0.heads") - row).max() < 1e-9
    assert np.abs(walk.values("0.layers")[1] - row.mean(0)).max() < 1e-9
    animal = walks_models.span_of(model, text, "animal")
    assert animal is not None and walk.steps[-1].tables[0].rows[0][2] == f"{row.mean(0)[animal].sum():.3f}"
    same = np.array_equal(walk.values("0.layers")[:, : span.stop], walk.values("1.layers")[:, : span.stop])
    assert same == (family == "gpt2")  # a decoder does not know what follows


def test_it_needs_the_word_and_attention() -> None:
    with pytest.raises(weft.UserError, match="does not have the word 'it'"):
        make_walk("it", [small("bert")], ["the kitten is bitten"])
    with pytest.raises(weft.UserError, match="an encoder or decoder with attention"):
        make_walk("it", [small("transformer")])


@pytest.mark.parametrize("given", [False, True], ids=["tiny", "roberta"])
def test_masked_words_are_chosen_as_in_training(given: bool) -> None:
    model = small("roberta") if given else walks_models.tiny_bert()
    text = TEXT if given else " ".join(walks_models.STORY[:2])
    walk = make_walk("mlm", [model] if given else [], [text], seed=5)
    read, specials = read_text(model, text), walks_models.specials_of(model)
    assert model.tokenizer is not None
    batch = Masking.of(model.tokenizer, 0.15, False, 5).apply(walks_models.drawn_of([read.ids], specials, 0))
    places = batch.targets["places"].tolist()
    chosen, replaced, shares = (*(step.tables[0] for step in walk.steps[:2]), walk.steps[1].tables[1])
    assert [n for n, row in enumerate(chosen.rows) if row[2]] == places == [int(row[0]) for row in replaced.rows]
    assert not any(read.ids[place] in specials for place in places)
    percents = {row[0]: float(row[2].rstrip(" %")) for row in shares.rows}
    assert abs(percents["mask"] - 80) < 6 and abs(percents["random token"] - 10) < 5
    network: Any = model.network
    with torch.inference_mode():
        chances = network.words(network.eval()(batch.tokens, read.rows, read.segments)[places]).softmax(-1)
    right = chances[range(len(places)), batch.targets["words"]].tolist()
    assert [row[2] for row in walk.steps[2].tables[0].rows] == [f"{p:.4f}" for p in right]


def test_whether_one_sentence_follows_another() -> None:
    walk = make_walk("nsp")
    check(walk, 1e-5)
    assert walk.values("0.p")[0, 0] > 0.8 and walk.values("1.p")[0, 0] < 0.2
    model = small("bert")
    walk = make_walk("nsp", [model], ["the street was wide", "the animal was tired"])
    check(walk)
    (answer,) = follows(model.opened, [("the street was wide", "the animal was tired")])
    assert abs(walk.values("0.p")[0, 0] - answer.probability) < 1e-6
    with pytest.raises(weft.UserError, match="two texts"):
        make_walk("nsp", texts=["one"])
    with pytest.raises(weft.UserError, match="no head"):
        make_walk("nsp", [small("gpt2")])


# ------------------------------------------------------------------------------------------------------------ by name


def test_the_help_lists_every_walk() -> None:
    assert look.walk.__doc__ is not None
    for name, named in WALKS.items():
        assert f"{name:<16} {named.about}\n" in look.walk.__doc__
    for named in WALKS.values():
        assert len(named.about) < 70


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(weft.UserError, match=r"walk 'bppt' is not one of .*; did you mean 'bptt'\?"):
        make_walk("bppt")
    with pytest.raises(weft.UserError, match="walk 'it' takes 1 model, not 0"):
        make_walk("it")
    with pytest.raises(weft.UserError, match="walk 'softmax' takes 0 texts, not 1"):
        make_walk("softmax", texts=["a"])
    with pytest.raises(weft.UserError, match="no tokens that could be masked"):
        make_walk("mlm", texts=[""])
    with pytest.raises(weft.UserError, match="up to 64 words; this one has 80"):
        make_walk("one-hot", texts=["a " * 80])
    with pytest.raises(weft.UserError, match="--t-min is for walk bptt, not for rnn"):
        make_walk("rnn", t_min=1)


def test_folders_come_before_texts(tmp_path: Path) -> None:
    assert model_count(WALKS["rnn"], [str(tmp_path), str(tmp_path), "a text"]) == 2
    assert model_count(WALKS["one-hot"], ["a text"]) == 0
    assert model_count(WALKS["one-hot"], ["runs/none"]) == 1  # so that its absence is noticed
    assert model_count(WALKS["it"], ["cached-name", "a text"]) == 1
    assert model_count(WALKS["ngram"], [str(tmp_path)]) == 0


def test_the_command_line_writes_every_walk(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("one two three\ntwo three four\n")
    small("bert", double=False).save(tmp_path / "bert")
    more = {"it": [str(tmp_path / "bert")], "ngram": [str(tmp_path / "text.txt")]}
    for name in WALKS:
        for suffix in ("html", "json"):
            out = tmp_path / f"{name}.{suffix}"
            assert run(["look", "walk", name, *more.get(name, []), "--out", str(out)]) == 0, name
        content = json.loads((tmp_path / f"{name}.json").read_text())["panels"][0]
        assert len(content["steps"]) >= 3 and 'data-component="walk"' in (tmp_path / f"{name}.html").read_text()
    capfd.readouterr()
    assert run(["look", "walk", "one-hot", str(tmp_path / "nothing")]) == 2
    assert "is not a model folder" in capfd.readouterr().err
    assert run(["look", "walk", "sofmax"]) == 2
    assert "did you mean 'softmax'?" in capfd.readouterr().err

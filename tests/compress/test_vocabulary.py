"""Models with fewer tokens: texts that used only those are read as before, others with smaller pieces."""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import weft
from tests.compress.test_layers import opened_of
from tests.table import CASES, PLAIN
from tests.text.bilingual import bilingual
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import open_folder, read_tokenizers, save_folder
from weft.errors import UserError
from weft.nn.rows import Ragged
from weft.pruning.prune import best_of, chosen, counted, coverage, with_vocabulary
from weft.text.tokenizers.pruning import anatomy_of, pruned_tokenizer
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import KINDS as ALL
from weft.text.tokenizers.training import learn

KINDS = [kind for kind in ALL if kind != "word-bytes"]  # a network that spells words keeps its vocabulary
WORDS = "the weavers carry threads over rivers and know not where they lead; children open sweet books again"
RARE = " zebras quickly jumped, vexing Władysław's fjord"


def lines(words: str, count: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(words.split(), k=dice.randint(1, 9))) for _ in range(count)]


EVERYDAY, OTHERS = lines(WORDS, 80, 0), lines(WORDS + RARE, 80, 1)
AROUND = {"wordpiece": "bert", "bpe": None, "unigram": "t5", "word": None, "character": None}


@pytest.fixture(scope="module")
def vocabularies() -> dict[str, Tokenizer]:
    specials = {"padding": "<pad>", "unknown": "<unk>", "start": "<s>", "separator": "</s>", "mask": "<mask>"}
    specials["end"] = "</s>"
    found = {kind: learn(EVERYDAY + OTHERS, kind, 400) for kind in KINDS}
    found["roberta"] = learn(EVERYDAY + OTHERS, "bpe", 400, specials=specials, around="xlmroberta")
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(4))]
    found["late"] = last(found["wordpiece"], "[CLS]", "[SEP]", "[MASK]")
    found["t5"] = learn(EVERYDAY + OTHERS, "unigram", 200, extra=sentinels, around="t5")
    return found


def last(tokenizer: Tokenizer, *moved: str) -> Tokenizer:
    """The same with these tokens behind all others."""
    pipeline = json.loads(tokenizer.library.to_str())
    vocabulary = pipeline["model"]["vocab"]
    order = sorted(vocabulary, key=lambda name: (name in moved, vocabulary[name]))
    pipeline["model"]["vocab"] = {name: number for number, name in enumerate(order)}
    for token in pipeline["added_tokens"]:
        token["id"] = order.index(token["content"])
    for token in pipeline["post_processor"]["special_tokens"].values():
        token["ids"] = [order.index(token["id"])]
    return Tokenizer(type(tokenizer.library).from_str(json.dumps(pipeline)), tokenizer.roles, {}, tokenizer.whole)


@pytest.mark.parametrize("kind", [*KINDS, "roberta", "t5", "late"])
def test_texts_of_kept_tokens_are_cut_as_before(kind: str, vocabularies: dict[str, Tokenizer]) -> None:
    before = vocabularies[kind]
    keep = {number for ids in before.ids(EVERYDAY, specials=False) for number in ids}
    after, kept = pruned_tokenizer(before, keep)
    assert list(kept) == sorted(kept) and keep <= set(kept) and len(kept) < before.vocabulary
    assert after.vocabulary == len(kept) and type(after) is type(before) and after.kind == before.kind
    same = 0
    for text in EVERYDAY + OTHERS:
        for old, new in (
            (before.encode(text), after.encode(text)),
            (before.encode(text, "the"), after.encode(text, "the")),
        ):
            if set(old.ids) <= set(kept):
                same += 1
                assert [kept[number] for number in new.ids] == old.ids
                assert (new.tokens, new.offsets, new.segments) == (old.tokens, old.offsets, old.segments)
    assert 2 * len(EVERYDAY) <= same < 2 * len(EVERYDAY + OTHERS)
    for number, old in enumerate(kept):
        assert after.token(number) == before.token(old)
    for role, name in vars(before.roles).items():
        if name is not None:
            assert kept[after.id_of(role) or 0] == before.id_of(role)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "roberta", "t5"])
def test_what_is_gone_is_spelled_with_smaller_pieces(kind: str, vocabularies: dict[str, Tokenizer]) -> None:
    before = vocabularies[kind]
    keep = {number for ids in before.ids(EVERYDAY, specials=False) for number in ids}
    after, kept = pruned_tokenizer(before, keep)
    found = coverage(before, after, kept, counted(before, OTHERS), counted(after, OTHERS))
    assert found.dropped > 0 and found.after > found.tokens and found.unknown == 0
    assert "none became unknown" in str(found)
    for text in OTHERS:
        assert after.decode(after.ids([text])[0]) == before.decode(before.ids([text])[0])


@pytest.mark.parametrize("kind", ["word", "character"])
def test_what_is_gone_of_words_is_unknown_and_counted(kind: str, vocabularies: dict[str, Tokenizer]) -> None:
    before = vocabularies[kind]
    keep = {number for ids in before.ids(EVERYDAY, specials=False) for number in ids}
    after, kept = pruned_tokenizer(before, keep)
    found = coverage(before, after, kept, counted(before, OTHERS), counted(after, OTHERS))
    assert found.unknown == found.dropped > 0 and found.after == found.tokens
    assert f"{found.unknown:,} became unknown" in str(found)


@pytest.mark.parametrize("kind", [*KINDS, "roberta", "t5"])
def test_the_most_used_tokens(kind: str, vocabularies: dict[str, Tokenizer]) -> None:
    before = vocabularies[kind]
    least = len(pruned_tokenizer(before, ())[1])
    count = (least + before.vocabulary) // 2
    keep = chosen([before], counted(before, iter(EVERYDAY)), count)
    assert len(keep) == count and pruned_tokenizer(before, keep)[1] == keep  # nothing more is needed
    assert chosen([before], {}, before.vocabulary) == tuple(range(before.vocabulary))
    if least > 1:
        with pytest.raises(UserError, match=f"too small: .* at least {least}"):
            chosen([before], counted(before, EVERYDAY), least - 1)
    with pytest.raises(UserError, match="tokens of the vocabulary can be kept"):
        chosen([before], counted(before, EVERYDAY), before.vocabulary + 1)
    used = {number for ids in before.ids(["rivers"], specials=False) for number in ids}
    assert used <= set(chosen([before], counted(before, ["rivers"] * 5), min(least + 6, before.vocabulary)))


def test_characters_go_only_where_words_cover_more() -> None:
    """A vocabulary with a thousand characters that nobody uses, and one with those of the texts alone."""
    strange = [chr(0x4E00 + number) for number in range(200)]
    before = learn([*EVERYDAY * 3, *strange], "wordpiece", 1200)
    counts = counted(before, EVERYDAY)
    whole = len(anatomy_of(before).closed(()))
    keep, characters = best_of(before, counts, whole + 3)
    assert not characters and len(keep) == whole + 3
    assert sum(counts[n] for n in keep) > sum(counts[n] for n in chosen([before], counts, whole + 3))
    assert best_of(before, counts, before.vocabulary)[1]  # where all fit, all stay
    assert not best_of(before, counts, whole - 50)[1]  # there would be no room for them
    after, kept = pruned_tokenizer(before, keep, characters)
    assert kept == keep and after.ids(EVERYDAY, specials=False)


def test_characters_that_no_text_uses_may_go(data: Path) -> None:
    """A published vocabulary has thousands of single characters: without them there is room for words."""
    before = load_tokenizer(data / "vocabularies" / "bert-base-uncased-vocab.txt")
    texts = [*EVERYDAY, "weißt"]
    keep = chosen([before], counted(before, texts), 600, characters=False)
    after, kept = pruned_tokenizer(before, keep, characters=False)
    assert (
        len(kept) == 600 and coverage(before, after, kept, counted(before, texts), counted(after, texts)).dropped == 0
    )
    assert after.decode(after.ids(["Zyx qüß~"])[0]) == "zyx quß ~"  # what English and the texts are spelled with
    assert after.id("中") is None and before.id("中") is not None


@pytest.mark.slow
def test_published_vocabularies(data: Path) -> None:
    """BERT's and GPT-2's, on text that neither was asked about."""
    for name in ("bert-base-uncased-vocab.txt", "encoder.json"):
        before = load_tokenizer(data / "vocabularies" / name)
        keep = chosen([before], counted(before, EVERYDAY), 6000)
        after, kept = pruned_tokenizer(before, keep)
        assert (
            len(kept) == 6000
            and coverage(before, after, kept, counted(before, EVERYDAY), counted(after, EVERYDAY)).dropped == 0
        )
        assert not any("[unused" in name for name in after.tokens)
        text = "Quaestiones ℵ disputatae of Władysław, 中文 and 😀!"
        assert after.decode(after.ids([text])[0]) == before.decode(before.ids([text])[0])


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("name", PLAIN)
def test_every_family(name: str) -> None:
    """Scores of tokens that stay are as before, to the bit; a family that has counted its words is refused."""
    keep = [0, 1, *range(5, 60, 2)]
    if FAMILIES[name].counts:
        with pytest.raises(UserError, match="learned by counting: its vocabulary cannot be pruned"):
            with_vocabulary(opened_of(name), keep)
        return
    if FAMILIES[name].network.CONTINUES:
        with pytest.raises(UserError, match="spells words it does not know: its vocabulary cannot be pruned"):
            with_vocabulary(opened_of(name), keep)
        return
    for changes in ({}, {"tied": False} if CASES[name].config().has("tied") else {"both": True}):
        if changes == {"both": True} and name != "cnn":
            continue
        opened = opened_of(name, **changes)
        smaller = with_vocabulary(opened, keep)
        assert smaller.config.vocabulary == len(keep) and smaller.family is opened.family
        texts = [[0, 1, 2, 9], [7], [3, 20, 4]]
        old = Ragged.of([[keep[number] for number in text] for text in texts])
        new = Ragged.of(texts)
        before: Any = opened.network
        after: Any = smaller.network
        hidden = before(old.tokens, old.rows)
        assert torch.equal(after(new.tokens, new.rows), hidden)
        for head in before.heads:
            if head == "words":
                assert torch.allclose(after.words(hidden), before.words(hidden)[:, keep], atol=1e-12)
            else:
                assert torch.equal(after.logits(head, hidden, new.rows), before.logits(head, hidden, old.rows))


PUBLISHED = {"bert": "wordpiece", "distilbert": "wordpiece", "roberta": "roberta", "gpt2": "bpe", "t5": "t5"}


@pytest.mark.parametrize("name", [*PUBLISHED, "albert"])
def test_transformers_opens_what_was_cut_down(name: str, vocabularies: dict[str, Tokenizer], tmp_path: Path) -> None:
    """The folder is a published one: its tokenizer and model there say what the whole model says here."""
    tokenizer = vocabularies[PUBLISHED.get(name, "unigram")]
    sizes: dict[str, Any] = {"context": 64, "width": 32, "layers": 2, "heads": 2, "inner": 64}
    sizes |= {"head_width": 16} if name == "t5" else {}
    made = weft.new(name, tokenizer, settings=sizes)
    keep = {number for ids in tokenizer.ids(EVERYDAY) for number in ids}
    last = max(keep)  # an id that moves
    opened = replace(made.opened, carried={"pad_token_id": tokenizer.id_of("padding"), "sep_token_id": last})
    smaller = with_vocabulary(opened, sorted(keep))
    save_folder(tmp_path / "small", smaller)
    again = open_folder(tmp_path / "small")
    assert again.family.name == name and again.config.vocabulary < opened.config.vocabulary
    assert again.tokenizer is not None and again.tokenizer.tokens == smaller.tokenizer.tokens  # type: ignore[union-attr]
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    kept = pruned_tokenizer(tokenizer, keep)[1]
    assert config["model_type"] == name and kept[config["sep_token_id"]] == last
    assert config["pad_token_id"] == again.tokenizer.id_of("padding")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    kind = {"gpt2": "AutoModelForCausalLM", "t5": "AutoModelForSeq2SeqLM"}.get(name, "AutoModelForMaskedLM")
    peer = getattr(transformers, kind).from_pretrained(tmp_path / "small").eval()
    for text in EVERYDAY[:5]:
        ids = again.tokenizer.encode(text).ids
        assert peer_tokenizer(text).input_ids == ids
        old, new = Ragged.of([[kept[number] for number in ids]]), Ragged.of([ids])
        whole: Any = opened.network
        if name == "t5":
            start = Ragged.of([[0, *old.tokens.tolist()[:-1]]])
            expected = whole.words(whole(start.tokens, start.rows, source=old))[:, list(kept)]
            found = peer(input_ids=new.tokens[None], labels=new.tokens[None]).logits[0]
        else:
            expected = whole.words(whole(old.tokens, old.rows))[:, list(kept)]
            found = peer(input_ids=new.tokens[None]).logits[0]
        assert torch.allclose(found, expected, atol=1e-5)


def test_padding_that_moves_takes_the_positions_with_it(vocabularies: dict[str, Tokenizer], tmp_path: Path) -> None:
    """RoBERTa counts places from its padding's number: where that falls, the table loses as many unused rows."""
    tokenizer = last(vocabularies["roberta"], "<pad>")
    made = weft.new("roberta", tokenizer, settings={"context": 32, "width": 32, "layers": 1, "heads": 2, "inner": 64})
    assert made.config.padding == tokenizer.vocabulary - 1
    keep = sorted({number for ids in tokenizer.ids(EVERYDAY) for number in ids})
    smaller = with_vocabulary(made.opened, keep)
    assert smaller.config.padding == smaller.config.vocabulary - 1 < made.config.padding
    save_folder(tmp_path / "small", smaller)
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "small").eval()
    ids = smaller.tokenizer.encode(EVERYDAY[0]).ids  # type: ignore[union-attr]
    old = Ragged.of([tokenizer.encode(EVERYDAY[0]).ids])
    whole: Any = made.network
    kept = pruned_tokenizer(tokenizer, keep)[1]
    expected = whole.words(whole(old.tokens, old.rows))[:, list(kept)]
    assert torch.allclose(peer(input_ids=torch.tensor([ids])).logits[0], expected, atol=1e-5)


@pytest.mark.parametrize("apart", [False, True], ids=["joint", "apart"])
def test_marian(apart: bool, tmp_path: Path) -> None:
    """Both SentencePiece files and the numbering shrink together, and transformers reads them as here."""
    folder = bilingual(tmp_path / "a", apart)
    source, target = read_tokenizers(folder)
    assert source is not None and target is not None
    sizes = {"context": 64, "width": 32, "layers": 1, "heads": 2, "inner": 64}
    made = weft.new("marian", folder, settings=sizes)
    texts = ["The looms weave", "rivers carry", ">>fra<< threads"]
    keep = sorted({number for ids in source.ids(texts) for number in ids})
    if apart:  # what is written stays whole unless it is asked for
        with pytest.raises(UserError, match="one number for the padding of both: keep more tokens of what is read"):
            with_vocabulary(made.opened, keep)
    written = sorted({number for ids in target.ids(["Die Hunde", "Kinder"]) for number in ids}) if apart else None
    save_folder(tmp_path / "b", with_vocabulary(made.opened, keep, written))
    again = open_folder(tmp_path / "b")
    assert again.tokenizer is not None and again.tokenizer.vocabulary < source.vocabulary
    assert (again.config.source_vocabulary is not None) is apart
    if apart:
        assert (
            again.config.vocabulary < target.vocabulary and again.config.source_vocabulary == again.tokenizer.vocabulary
        )
    for text in texts:
        assert [again.tokenizer.token(n) for n in again.tokenizer.ids([text])[0]] == [
            source.token(number) for number in source.ids([text])[0]
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    for text in [*texts, "children open their books"]:
        assert peer(text).input_ids == again.tokenizer.ids([text])[0]
    assert again.writer is not None and again.writer.token(again.config.begin) == "<pad>"
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "b").eval()
    ids = torch.tensor([again.tokenizer.ids([texts[0]])[0]])
    row = Ragged.of(ids.tolist())
    begun = Ragged.of([[again.config.begin, 1]])
    found: Any = again.network
    expected = model(input_ids=ids, decoder_input_ids=begun.tokens[None]).logits[0]
    assert torch.allclose(found.words(found(begun.tokens, begun.rows, source=row)), expected, atol=1e-5)


FEATURES = {"vec2seq": {"features": 4}}


@pytest.mark.parametrize("name", ["transformer", "seq2seq", "conv-seq2seq", "vec2seq"])
def test_our_own_encoder_decoders(name: str, vocabularies: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer = vocabularies["unigram"]
    keep = sorted({number for ids in tokenizer.ids(EVERYDAY) for number in ids})
    begin = max(set(range(tokenizer.vocabulary)) - set(pruned_tokenizer(tokenizer, keep)[1]))  # that nobody asks for
    made = weft.new(name, tokenizer, size="1x64", settings={"begin": begin, **FEATURES.get(name, {})})
    save_folder(tmp_path / "small", with_vocabulary(made.opened, keep))
    again = open_folder(tmp_path / "small")
    kept = pruned_tokenizer(tokenizer, [*keep, begin])[1]
    assert kept[again.config.begin] == begin > again.config.begin
    old = Ragged.of([[made.config.begin, *tokenizer.ids(EVERYDAY[:1])[0]]])
    new = Ragged.of([[again.config.begin, *again.tokenizer.ids(EVERYDAY[:1])[0]]])  # type: ignore[union-attr]
    sources = [Ragged(torch.ones(1, 4), Ragged.of([[1]]).rows)] * 2 if name == "vec2seq" else [old, new]
    whole: Any = made.network
    small: Any = again.network
    expected = whole.words(whole(old.tokens, old.rows, source=sources[0]))[:, list(kept)]
    assert torch.allclose(small.words(small(new.tokens, new.rows, source=sources[1])), expected, atol=1e-5)


def test_what_cannot_be(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = vocabularies["wordpiece"]
    with pytest.raises(UserError, match="tokens to keep must be some of 0 to"):
        pruned_tokenizer(tokenizer, [tokenizer.vocabulary])
    opened = opened_of("bert")
    with pytest.raises(UserError, match="tokens to keep must be some of 0 to 100"):
        with_vocabulary(opened, [3, 101])
    with pytest.raises(UserError, match="reads and writes with one vocabulary"):
        with_vocabulary(opened, [3], [4])

"""SentencePiece models: the ids of the sentencepiece library itself, and damaged files refused."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.text.samples import ODD, folder_of, lines, reviews
from weft.errors import UserError
from weft.text.tokenizers import sentencepiece as pieces_of
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Roles


def trained(**settings: Any) -> bytes:
    """A model of the sentencepiece library itself: the witness."""
    library = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(lines(400)),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **settings,
    )
    return model.getvalue()


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "unigram", "vocab_size": 200},
        {"model_type": "bpe", "vocab_size": 250},
        {"model_type": "unigram", "vocab_size": 480, "byte_fallback": True, "normalization_rule_name": "identity",
         "remove_extra_whitespaces": False},
        {"model_type": "bpe", "vocab_size": 520, "byte_fallback": True, "user_defined_symbols": ["(", "-"]},
        {"model_type": "unigram", "vocab_size": 200, "split_by_whitespace": False, "add_dummy_prefix": False},
        {"model_type": "unigram", "vocab_size": 200, "user_defined_symbols": ["(", ")", "-", "eav"], "pad_id": 3,
         "normalization_rule_name": "nmt_nfkc_cf"},
    ],
)  # fmt: skip
def test_sentencepiece_ids(tmp_path: Path, settings: dict[str, Any]) -> None:
    library = pytest.importorskip("sentencepiece")
    model = trained(**settings)
    witness = library.SentencePieceProcessor(model_proto=model)
    ours = load_tokenizer(folder_of(tmp_path, spiece__model=model))
    assert ours.vocabulary == witness.get_piece_size()
    assert ours.kind == settings["model_type"] and ours.id_of("unknown") == witness.unk_id()
    texts = [*ODD, *lines(200, 7), *(reviews(300) if os.environ.get("WEFT_DATA") else [])]
    for text, mine, theirs in zip(texts, ours.ids(texts), witness.encode(texts), strict=True):
        if mine != theirs:  # only a tie may fall the other way
            assert settings["model_type"] == "unigram", text
            score = [sum(map(witness.get_score, ids)) for ids in (mine, theirs)]
            assert score[0] == pytest.approx(score[1], abs=1e-3) and len(mine) == len(theirs), text
        if ours.id_of("unknown") not in mine:
            assert ours.decode(mine) == witness.decode(theirs)
    ours.save(tmp_path / "out")
    assert load_tokenizer(tmp_path / "out").ids(texts) == ours.ids(texts)


def test_sentencepiece_families(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = trained(model_type="unigram", vocab_size=200, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    t5 = load_tokenizer(folder_of(tmp_path / "t5", spiece__model=model, config__json={"model_type": "t5"}))
    base = t5.vocabulary - 100
    assert t5.id("<extra_id_0>") == t5.vocabulary - 1 and t5.id("<extra_id_99>") == base
    assert t5.roles == Roles(padding="<pad>", unknown="<unk>", end="</s>")
    assert t5.ids(["weave"], specials=True)[0][-1] == 1
    model = trained(model_type="unigram", vocab_size=200)
    config = {"tokenizer_class": "XLMRobertaTokenizer"}
    folder = folder_of(tmp_path / "xlmr", sentencepiece__bpe__model=model, tokenizer_config__json=config)
    xlmr, plain = load_tokenizer(folder), load_tokenizer(folder_of(tmp_path / "plain", spiece__model=model))
    texts = ["weave the looms", *lines(20, 7)]
    assert [[n - 1 for n in ids] for ids in xlmr.ids(texts, specials=False)] == plain.ids(texts)
    assert [xlmr.id_of(r) for r in ("start", "padding", "end", "unknown", "mask")] == [0, 1, 2, 3, xlmr.vocabulary - 1]
    parsed = pieces_of.parse(model, "model")
    scored = [(piece.name, piece.score) for piece in parsed.pieces][3:]
    fair = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    theirs = transformers.XLMRobertaTokenizer(
        [*fair, *scored, ("<mask>", 0.0)], _spm_precompiled_charsmap=parsed.charsmap
    )
    assert xlmr.ids(texts) == theirs(texts)["input_ids"]
    assert xlmr.encode("weave", "looms").ids == theirs("weave", "looms")["input_ids"]
    special = ["[CLS]", "[SEP]", "[MASK]"]
    model = trained(
        model_type="unigram", vocab_size=200, control_symbols=special, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1
    )
    folder = folder_of(tmp_path / "albert", spiece__model=model, config__json={"model_type": "albert"})
    albert, parsed = load_tokenizer(folder), pieces_of.parse(model, "model")
    scored = [(piece.name, piece.score) for piece in parsed.pieces]
    theirs = transformers.AlbertTokenizer(scored, _spm_precompiled_charsmap=parsed.charsmap)
    texts.append("``Naïve''")
    assert albert.ids(texts) == theirs(texts)["input_ids"]
    pair = theirs("weave", "looms", return_token_type_ids=True)
    assert albert.encode("weave", "looms").ids == pair["input_ids"]
    assert albert.encode("weave", "looms").segments == pair["token_type_ids"]
    special = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    model = trained(model_type="unigram", vocab_size=220, control_symbols=special)
    folder = folder_of(tmp_path / "xlnet", spiece__model=model, config__json={"model_type": "xlnet"})
    xlnet, parsed = load_tokenizer(folder), pieces_of.parse(model, "model")
    theirs = transformers.XLNetTokenizer(
        [(piece.name, piece.score) for piece in parsed.pieces], _spm_precompiled_charsmap=parsed.charsmap
    )
    texts += ["  The  LOOM <eod> wove", "a <mask> b"]
    assert xlnet.ids(texts) == theirs(texts)["input_ids"]
    pair = theirs("weave", "looms", return_token_type_ids=True)
    assert xlnet.encode("weave", "looms").ids == pair["input_ids"]
    assert xlnet.encode("weave", "looms").segments == pair["token_type_ids"] == [0, 0, 1, 1, 2]
    xlnet.save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again.padding_side == "left" and again("weave")["token_type_ids"] == [0, 0, 2]
    kept = {"keep_accents": True, "tokenizer_class": "XLNetTokenizer"}
    folder = folder_of(tmp_path / "accents", spiece__model=model, tokenizer_config__json=kept)
    assert load_tokenizer(folder).library.normalizer.normalize_str("``naïve") == '▁"naïve'


def test_sentencepiece_damage(tmp_path: Path) -> None:
    model = trained(model_type="unigram", vocab_size=150)
    dice = random.Random(3)
    normalizer = model.rindex(b"nmt_nfkc")  # the name of the last message that matters
    for end in (*range(0, 4000, 97), *(dice.randrange(normalizer) for _ in range(40))):
        with pytest.raises(UserError, match="^m.spm: "):
            pieces_of.parse(model[:end], "m.spm")
    for trial in range(200):
        broken = bytearray(model[: dice.randrange(len(model))] if trial % 2 else model)
        for _ in range(dice.randrange(1, 6) if broken else 0):
            broken[dice.randrange(min(len(broken), 4000))] = dice.randrange(256)
        try:
            library = pieces_of.build(pieces_of.parse(bytes(broken), "m.spm"), "m.spm")
        except UserError as error:
            assert str(error).startswith("m.spm: ") and "\n" not in str(error)
        except Exception as error:  # noqa: BLE001 - what `load` turns into one line
            assert type(error) is Exception, error
        else:
            library.encode_batch(ODD)
    (tmp_path / "a.spm").write_bytes(model)
    assert load_tokenizer(tmp_path).kind == "unigram"
    (tmp_path / "b.spm").write_bytes(model)
    with pytest.raises(UserError, match="holds a.spm, b.spm; load one of them by its name"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "b.spm").kind == "unigram"


def test_deberta_folders(tmp_path: Path) -> None:
    """The `spm.model` of DeBERTa v2 and v3: control pieces first, and a mask that the file does not have."""
    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("sentencepiece")
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    numbers = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    model = trained(model_type="unigram", vocab_size=200, normalization_rule_name="identity", **names, **numbers)
    witness = library.SentencePieceProcessor(model_proto=model)
    scored = [(witness.id_to_piece(number), witness.get_score(number)) for number in range(len(witness))]
    texts = ["weave the looms", "Weave, the  looms!", *lines(60, 7)]
    for settings in ({}, {"do_lower_case": True}, {"split_by_punct": True}):
        folder = folder_of(
            tmp_path / f"{len(settings)}{next(iter(settings), '')}",
            spm__model=model,
            config__json={"model_type": "deberta-v2"},
            tokenizer_config__json={"vocab_type": "spm", **settings},
        )
        ours = load_tokenizer(folder)
        theirs = transformers.DebertaV2Tokenizer(scored, unk_id=3, **settings)
        assert ours.vocabulary == len(witness) + 1 == len(theirs)
        roles = [ours.id_of(role) for role in ("padding", "start", "separator", "unknown", "mask")]
        assert roles == [0, 1, 2, 3, len(witness)] and theirs.mask_token_id == len(witness)
        assert ours.ids(texts) == theirs(texts)["input_ids"]
        pair = theirs("weave", "looms [MASK] it", return_token_type_ids=True)
        found = ours.encode("weave", "looms [MASK] it")
        assert (found.ids, found.segments) == (pair["input_ids"], pair["token_type_ids"])
        if not settings:
            assert ours.ids(texts, specials=False) == witness.encode(texts)
        ours.save(tmp_path / "out")
        again = load_tokenizer(tmp_path / "out")
        assert again.ids(texts) == ours.ids(texts) and again.roles == ours.roles
        back = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        assert back(texts)["input_ids"] == ours.ids(texts)
    with pytest.raises(UserError, match="split_by_punct in its settings is 3, neither true nor false"):
        folder_of(folder, tokenizer_config__json={"split_by_punct": 3})
        load_tokenizer(folder)

"""A small Marian vocabulary of two languages, made by the sentencepiece library itself."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.text.samples import folder_of, lines

GERMAN = (
    "Die Weber tragen die Fäden über große Flüsse und wissen nicht, wohin sie führen.",
    "Kinder öffnen süße Bücher; das Mädchen weiß es nicht!",
    "Zwei Hunde spielen im Schnee, während der Mann schläft.",
    "Straße, Größe, Übung, ähnlich, möglich – „Zitat“",
)
CODES = [">>fra<<", ">>deu<<"]


def german(number: int, seed: int = 0) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.sample(dice.choice(GERMAN).split(), 5)) for _ in range(number)]


@cache
def _trained(language: str) -> bytes:
    library = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(lines(300) if language == "en" else german(100)),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        model_type="unigram",
        vocab_size=200 if language == "en" else 150,
    )
    return model.getvalue()


def bilingual(path: Path, apart: bool = False, **changes: Any) -> Path:
    """A folder with source.spm, target.spm, vocab.json; some pieces have no number, as in published ones."""
    library = pytest.importorskip("sentencepiece")
    models = {"source": _trained("en"), "target": _trained("de")}
    pieces = {}
    for side, model in models.items():
        found = library.SentencePieceProcessor(model_proto=model)
        pieces[side] = sorted(found.id_to_piece(number) for number in range(3, found.get_piece_size()))[:-5]
    joint = sorted({*pieces["source"], *pieces["target"]})
    files: dict[str, Any] = {"source__spm": models["source"], "target__spm": models["target"]}
    files["vocab__json"] = _numbered(pieces["source"] if apart else joint, [*CODES, "<pad>"])
    files["tokenizer_config__json"] = {"source_lang": "eng", "target_lang": "deu", "separate_vocabs": apart}
    if apart:
        files["target_vocab__json"] = _numbered(pieces["target"], ["<pad>"])
    return folder_of(path, **{**files, **changes})


def _numbered(pieces: list[str], last: list[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(["</s>", "<unk>", *pieces, *last])}


def numbers_of(folder: Path) -> dict[str, int]:
    return json.loads((folder / "vocab.json").read_text())

"""The tokenizer of a published folder: which of its files to read, what stands beside it, and whether it is sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json
from weft.text.tokenizers.checks import check, guarded
from weft.text.tokenizers.marian import SOURCE, TARGET, is_marian, read_sides
from weft.text.tokenizers.schema import check_pipeline
from weft.text.tokenizers.sentencepiece import linear_spaces
from weft.text.tokenizers.special_tokens import check_added_tokens, find_roles, settings_in
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.vocabularies import read_bpe, read_pieces, read_wordpiece

SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
MAX_FILE_BYTES = 128 * MEGABYTE  # a tokenizer.json; the largest published ones have 35
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a folder, or in one vocabulary file; of Marian's two, that of what is read."""
    path = Path(path)
    if is_marian(path) or (path.name in (SOURCE, TARGET) and is_marian(path.parent)):
        return read_sides(path if path.is_dir() else path.parent)[path.name == TARGET]
    if not path.exists():
        raise UserError(f"{path}: not there")
    folder = path if path.is_dir() else path.parent
    file = vocabulary_file(path) if path.is_dir() else path
    if file is None:
        raise UserError(
            f"{folder}: has no tokenizer: none of tokenizer.json, vocab.txt, vocab.json with merges.txt, "
            "encoder.json with vocab.bpe, spiece.model, sentencepiece.bpe.model, *.spm"
        )
    settings = settings_in(folder)
    for first, second in PAIRS:
        file = folder / first if file.name == second else file
    with guarded(file):
        if file.name in dict(PAIRS):
            library = read_bpe(file, folder / dict(PAIRS)[file.name], settings, _family(folder, settings))
        elif file.suffix == ".json":
            library = _read_whole(file)
        elif file.suffix == ".txt":
            library = read_wordpiece(file, settings)
        else:
            library = read_pieces(file, settings, _family(folder, settings))
        check(library, file)
    whole = file.suffix == ".json" and file.name not in dict(PAIRS)
    return Tokenizer(library, find_roles(settings, library, folder), settings, whole)


def vocabulary_file(folder: Path) -> Path | None:
    """The file of a folder that its tokenizer is read from; None where there is none."""
    if is_marian(folder):
        return folder / SOURCE
    names = ["tokenizer.json", "vocab.txt", *(first for first, second in PAIRS if (folder / second).exists())]
    for name in (*names, *SENTENCEPIECE):
        if (folder / name).is_file():
            return folder / name
    models_here = sorted(folder.glob("*.spm"))
    if len(models_here) > 1:
        raise UserError(f"{folder}: holds {listed(file.name for file in models_here)}; load one of them by its name")
    return models_here[0] if models_here else None


def _family(folder: Path, settings: dict[str, Any]) -> str:
    """'gpt2', 'xlmroberta': the tokenizer's class, else the model's type, in small letters."""
    named = str(settings.get("tokenizer_class") or "")
    family = named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    if family in ("", "pretrained", "tokenizersbackend"):
        file = folder / "config.json"
        family = str(read_json(file).get("model_type") or "") if file.is_file() else ""
    return family.lower().replace("-", "").replace("_", "")


def _read_whole(file: Path) -> Library:
    """tokenizer.json, with what would cut, pad or vary the tokens taken out."""
    data = read_json(file, MAX_FILE_BYTES)
    normalizer = data.get("normalizer")
    if isinstance(normalizer, dict) and isinstance(normalizer.get("normalizers"), list):
        normalizer["normalizers"] = linear_spaces(normalizer["normalizers"])
    check_pipeline(data, str(file))
    data["truncation"] = data["padding"] = None
    if "dropout" in data["model"]:
        data["model"]["dropout"] = None  # merges left out at random are for training, and make encoding a lottery
    added = data.get("added_tokens") or []
    if added:
        small = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
        bare = Library.from_str(json.dumps({"normalizer": data.get("normalizer"), "model": small}))
        flags = ("content", "normalized", "lstrip", "rstrip")
        check_added_tokens([AddedToken(**{key: token[key] for key in flags}) for token in added], bare, str(file))
    library = Library.from_str(json.dumps(data))
    for token in added:  # the library gives its own ids, in order, whatever the file says
        name, number = token["content"], token["id"]
        if library.token_to_id(name) != number:
            raise UserError(f"{file}: added token {shown(name)!r} cannot have the id {number}")
    return library

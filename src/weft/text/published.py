"""The tokenizer of a published folder: which of its files to read, what stands beside it, and whether it is sound."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Library

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json
from weft.text.pipeline_schema import check_pipeline
from weft.text.sentencepiece import linear_spaces
from weft.text.vocabularies import Roles, check_added_tokens, find_roles, read_bpe, read_pieces, read_wordpiece

# Keys of tokenizer_config.json that name code, or files on the machine of whoever saved it.
NOT_KEPT = ["auto_map", "custom_pipelines", "trust_remote_code", "code_revision"]
NOT_KEPT += ["tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"]
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
MARIAN = ("source.spm", "target.spm", "vocab.json")  # read by weft.text.marian
LARGEST_FILE = 128 * MEGABYTE  # a tokenizer.json; the largest published ones have 35
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


@dataclass(frozen=True)
class Published:
    """A tokenizer read from files, with what stood beside it."""

    library: Library
    roles: Roles
    settings: dict[str, Any]  # tokenizer_config.json and special_tokens_map.json, less what names code
    whole: bool  # read from tokenizer.json, so that its class in transformers reads the same


def read(path: Path) -> Published:
    """The tokenizer in a folder, or in one vocabulary file."""
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
    return Published(library, find_roles(settings, library, folder), settings, whole)


@contextmanager
def guarded(where: Path | str) -> Iterator[None]:
    """Turn what the library raises on files it cannot use (bare Exception, Rust panics) into one line."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, AssertionError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise UserError(f"{where}: not a usable tokenizer: {shown(str(error), 200)}") from None


def check(library: Library, where: Path | str) -> None:
    """Refuse a tokenizer that would fail on some text, or whose ids could not index an embedding table."""
    vocabulary = library.get_vocab(with_added_tokens=True)
    named: dict[int, str] = {}
    for token, number in vocabulary.items():
        if named.setdefault(number, token) is not token:
            raise UserError(f"{where}: id {number} is both {shown(named[number])!r} and {shown(token)!r}")
    if not named or max(named) >= len(named):
        missing = itertools.islice((str(i) for i in range(len(named) + 1) if i not in named), 3)
        raise UserError(f"{where}: the ids of its {len(named)} tokens have gaps; the first missing: {listed(missing)}")
    model = library.model
    if isinstance(model, models.WordPiece | models.WordLevel | models.BPE):  # BPE may do without, byte by byte
        unknown = model.unk_token
        if (unknown is not None or not isinstance(model, models.BPE)) and model.token_to_id(unknown or "") is None:
            raise UserError(f"{where}: its unknown token {shown(str(unknown))!r} is not in its vocabulary")
    probe = [*library.encode("a").ids, *library.encode("a", "b").ids]
    if max(probe, default=0) >= len(named):
        raise UserError(f"{where}: adds id {max(probe)} to every text, but has only {len(named)} tokens")


def vocabulary_file(folder: Path) -> Path | None:
    """The file of a folder that its tokenizer is read from; None where there is none."""
    if all((folder / name).is_file() for name in MARIAN):
        return folder / MARIAN[0]
    names = ["tokenizer.json", "vocab.txt", *(first for first, second in PAIRS if (folder / second).exists())]
    found = [folder / name for name in (*names, *SENTENCEPIECE) if (folder / name).is_file()]
    if found:
        return found[0]
    models_here = sorted(folder.glob("*.spm"))
    if len(models_here) > 1:
        raise UserError(f"{folder}: holds {listed(file.name for file in models_here)}; load one of them by its name")
    return models_here[0] if models_here else None


def settings_in(folder: Path) -> dict[str, Any]:
    """What stands beside a vocabulary: its special tokens and switches, less what names code."""
    settings: dict[str, Any] = {}
    config = folder / "tokenizer_config.json"
    for file in (config, folder / "special_tokens_map.json"):
        if file.is_file():
            settings = read_json(file) | settings
    cutter = settings.get("word_tokenizer_type", "basic")
    if cutter != "basic" or "BertJapanese" in str(settings.get("tokenizer_class")):
        cutter = "an outside program" if cutter == "basic" else shown(str(cutter))
        raise UserError(f"{config}: words are cut by {cutter}, which Weft does not run; cut the words first")
    return {key: value for key, value in settings.items() if key not in NOT_KEPT}


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
    data = read_json(file, LARGEST_FILE)
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

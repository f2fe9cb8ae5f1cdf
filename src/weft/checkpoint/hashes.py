"""The files of an export, each with its hash in `weft.json`: what was checked when it was written is what is loaded."""

from __future__ import annotations

import warnings
from pathlib import Path, PurePosixPath
from typing import Any

from weft.checkpoint.card import Card
from weft.checksums import digest, digest_of_values
from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, read_json, write_json

CARD = "weft.json"
# Endings of files that a model folder is read from; notes and pictures beside them are nobody's business.
READ = (".json", ".safetensors", ".onnx", ".bin", ".txt", ".model", ".spm", ".vocab")
# Of these endings people have files of their own: only one that a folder is read from, too, is refused when it is new.
COMMON, NAMES = (".json", ".txt"), {
    *(CARD, "config.json", "generation_config.json", "modules.json", "sentence_bert_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("target_vocab.json", "encoder.json", "vocab.txt", "merges.txt", "config_sentence_transformers.json"),
    *("model.safetensors.index.json", "chat_template.json"),
}  # fmt: skip


def record_hashes(folder: Path) -> None:
    """Write the hash of every file of a finished export into its card."""
    values = read_json(folder / CARD, 16 * MEGABYTE)
    write_json(folder / CARD, {**values, "files": _hashes(folder)})


def check_hashes(folder: Path, card: Card | None, trust: bool = False) -> None:
    """Refuse an export whose files are not those that were written; with `trust`, warn and go on.

    Folders without a record of their files, such as those of other programs, are not checked.
    """
    if card is None or not card.files:
        return
    hashes = _hashes(folder)
    names = dict.fromkeys([*card.files, *hashes])
    faults = [_fault(name, hashes.get(name), card.files.get(name)) for name in names]
    wrong = [fault for fault in faults if fault is not None]
    if not wrong:
        return
    message = f"{folder}: not as it was exported: {listed(wrong)}"
    if not trust:
        raise UserError(
            f"{message}; export it again, or use it as it is with --trust (trust=True) or without 'files' in {CARD}"
        )
    warnings.warn(message, stacklevel=2)


def _fault(name: str, hash: str | None, recorded: str | None) -> str | None:
    """What is wrong with one file."""
    if hash is None:
        return f"{shown(name)} is missing"
    if recorded is None:
        path = PurePosixPath(name)
        return None if path.suffix in COMMON and path.name not in NAMES else f"{shown(name)} was added"
    return None if hash == recorded else f"{shown(name)} has changed"


def _hashes(folder: Path) -> dict[str, str]:
    """The hash of each file by its path in the folder; of the card, of all that it holds besides the hashes."""
    paths = [(path.relative_to(folder), path) for path in sorted(folder.rglob("*")) if path.suffix in READ]
    return {
        name.as_posix(): _card_hash(read_json(path, 16 * MEGABYTE)) if name.as_posix() == CARD else digest(path)
        for name, path in paths
        if name.parts[0] != "run" and not any(part.startswith(".") for part in name.parts) and path.is_file()
    }


def _card_hash(values: dict[str, Any]) -> str:
    """Of what the card says, however it is laid out."""
    return digest_of_values({key: value for key, value in values.items() if key != "files"})

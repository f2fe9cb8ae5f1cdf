"""Special tokens: which token has which role, and what a family puts around each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, processors
from tokenizers import Tokenizer as Library

from weft.errors import UserError, shown
from weft.files import read_json

# What each family puts around a text and around a pair, with roles in braces; the number is the segment.
AROUND = {
    "bert": ("{start}:0 $A:0 {separator}:0", "{start}:0 $A:0 {separator}:0 $B:1 {separator}:1"),
    "t5": ("$A:0 {end}:0", "$A:0 {end}:0 $B:0 {end}:0"),
    "xlmroberta": ("{start}:0 $A:0 {end}:0", "{start}:0 $A:0 {end}:0 {end}:0 $B:0 {end}:0"),
    "xlnet": ("$A:0 {separator}:0 {start}:2", "$A:0 {separator}:0 $B:1 {separator}:1 {start}:2"),
    "deberta": ("{start}:0 $A:0 {separator}:0", "{start}:0 $A:0 {separator}:0 {separator}:0 $B:0 {separator}:0"),
}
AROUND |= {"albert": AROUND["bert"], "debertav2": AROUND["bert"], "mt5": AROUND["t5"], "umt5": AROUND["t5"]}


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The special tokens by what they are for; None where a vocabulary has no such token."""

    padding: str | None = None
    unknown: str | None = None
    start: str | None = None
    separator: str | None = None
    mask: str | None = None
    end: str | None = None


# Of each role the settings that name its token, best first, and its well-known names where none does.
ROLES = {
    "padding": (("pad_token",), ("[PAD]", "<pad>")),
    "unknown": (("unk_token",), ("[UNK]", "<unk>")),
    "start": (("cls_token", "bos_token"), ("[CLS]", "<cls>", "<s>", "<|endoftext|>")),
    "separator": (("sep_token",), ("[SEP]", "<sep>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
    "end": (("eos_token",), ("</s>", "<|endoftext|>")),
}


def find_roles(settings: dict[str, Any], library: Library, where: Path | str) -> Roles:
    """The special tokens that the settings name, else those with well-known names, where the vocabulary has them."""
    roles: dict[str, str | None] = {}
    for role, (keys, well_known) in ROLES.items():
        named = [token_name(settings.get(key), key, where) for key in keys]
        names = [name for name in (*named, *well_known) if name is not None]
        roles[role] = next((name for name in names if library.token_to_id(name) is not None), None)
    if roles["separator"] is None and roles["mask"] == "<mask>" and library.token_to_id("</s>") is not None:
        roles["separator"] = "</s>"  # RoBERTa's
    return Roles(**roles)


def spaced(more: Sequence[decoders.Decoder] = ()) -> decoders.Decoder:
    """Whole words back into text: a space between them, but none before a closing mark or after an opening one."""
    return decoders.Sequence(
        [
            decoders.WordPiece(prefix=" ", cleanup=False),  # a space between words; no word begins with one
            decoders.Fuse(),
            decoders.Replace(Regex(r" (?=[.,!?;:)\]}%…])"), ""),
            decoders.Replace(Regex(r"(?<=[(\[{]) "), ""),
            *more,
        ]
    )


def surround(library: Library, roles: Roles, family: str) -> None:
    """Put the family's special tokens around each text, where the vocabulary has them."""
    single, pair = (text.split() for text in AROUND[family])
    used = [role for role in ("start", "separator", "end") if any(part.startswith("{" + role) for part in single)]
    names = {role: vars(roles)[role] for role in used}
    if None not in names.values():
        library.post_processor = processors.TemplateProcessing(
            single=[part.format(**names) for part in single],
            pair=[part.format(**names) for part in pair],
            special_tokens=[numbered(library, name) for name in names.values()],
        )


def check_added_tokens(tokens: Sequence[AddedToken], library: Library, where: str) -> None:
    """Refuse added tokens that the library fails on, or finds in one text and not in the same text tomorrow."""
    forms: dict[str, str] = {}
    for token in tokens:
        name = token.content
        form = library.normalizer.normalize_str(name) if token.normalized and library.normalizer else name
        if not form:
            raise UserError(f"{where}: added token {shown(name)!r} is empty once it is normalized")
        if (token.lstrip or token.rstrip) and form.isspace():
            raise UserError(f"{where}: added token {shown(name)!r} is space, and takes the space around it too")
        if token.normalized and forms.setdefault(form, name) != name:
            raise UserError(
                f"{where}: added tokens {shown(forms[form])!r} and {shown(name)!r} are the same when normalized"
            )


def numbered(library: Library, name: str) -> tuple[str, int]:
    number = library.token_to_id(name)
    assert number is not None, f"{name} was looked up before"
    return name, number


def token_name(value: Any, key: str, where: Path | str) -> str | None:
    """A special token as settings name it: a string, or an object with its content."""
    name = value.get("content") if isinstance(value, dict) else value
    if name is None or isinstance(name, str):
        return name
    raise UserError(f"{where}: {key} in its settings is a {type(name).__name__} where a token is expected")


# Keys of tokenizer_config.json that name code, or files on the machine of whoever saved it.
NOT_KEPT = ["auto_map", "custom_pipelines", "trust_remote_code", "code_revision"]
NOT_KEPT += ["tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"]


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
        raise UserError(f"{config}: words are split by {cutter}, which Weft does not run; split the text first")
    return {key: value for key, value in settings.items() if key not in NOT_KEPT}

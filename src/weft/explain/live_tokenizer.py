"""A tokenizer as JSON for `components/live-tokenizer.js`, or one line that says why a page cannot have it.

What is a letter, a mark or a space is asked of the tokenizer library itself, character by character: a browser has
Unicode tables of another year, and its own idea of `\\w`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

import numpy as np
from tokenizers import Regex, normalizers, pre_tokenizers

from weft.errors import UserError, shown
from weft.explain.live_patterns import Classes, translated
from weft.text.tokenizers.tokenizer import Tokenizer

CHUNK = 1 << 15  # characters that the library is asked about at once
SURROGATES = range(0xD800, 0xE000)
MARK = "|"  # between characters: no normalizer changes it or what stands beside it
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORD_OR_MARKS = r"\w+|[^\w\s]+"
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
Form = Literal["NFD", "NFKD"]
Ranges = list[int]  # first and last character of each range, one after the other


def _chunks() -> Iterator[list[str]]:
    letters = [chr(point) for point in range(0x110000) if point not in SURROGATES]
    for start in range(0, len(letters), CHUNK):
        yield letters[start : start + CHUNK]


def ranges_of(points: Iterable[int]) -> Ranges:
    """Sorted code points as ranges."""
    numbers = np.fromiter(points, dtype=np.int64)
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    lows, highs = numbers[np.r_[0, breaks + 1]], numbers[np.r_[breaks, len(numbers) - 1]]
    return [int(point) for pair in zip(lows, highs, strict=True) for point in pair]


def _mapped(normalizer: Any) -> dict[int, str]:
    """What a normalizer turns single characters into, where that is something else."""
    changed: dict[int, str] = {}
    for letters in _chunks():
        others = [letter for letter in letters if letter != MARK]
        made = normalizer.normalize_str(MARK.join(others)).split(MARK)
        changed |= {ord(a): b for a, b in zip(others, made, strict=True) if a != b}
    return changed


def _removed_by(cutter: Any) -> Ranges:
    """The characters that a pre-tokenizer takes out."""
    points: list[int] = []
    for letters in _chunks():
        pieces, there = cutter.pre_tokenize_str("".join(letters)), np.zeros(len(letters), dtype=bool)
        for _, (start, end) in pieces:
            there[start:end] = True
        points += [ord(letters[n]) for n in np.flatnonzero(~there)]
    return ranges_of(points)


def _words_of_whitespace() -> Ranges:
    """The characters that the pre-tokenizer Whitespace takes for parts of a word."""
    points: list[int] = []
    for letters in _chunks():
        pieces = pre_tokenizers.Whitespace().pre_tokenize_str("".join(f"a{letter}a " for letter in letters))
        points += [ord(letters[start // 4]) for _, (start, end) in pieces if end - start == 3]
    return ranges_of(points)


def _digits() -> Ranges:
    points: list[int] = []
    for letters in _chunks():
        pieces = pre_tokenizers.Digits(True).pre_tokenize_str("".join(f"a{letter}" for letter in letters))
        points += [ord(letters[start // 2]) for _, (start, end) in pieces if end - start == 1 and start % 2]
    return ranges_of(points)


def _inert() -> Ranges:
    """Characters that the library's normal forms leave alone and a browser's may not: younger than its tables."""
    forms: dict[Form, Any] = {"NFD": normalizers.NFD(), "NFKD": normalizers.NFKD()}
    points: list[int] = []
    for point in (point for point in range(0x80, 0x110000) if point not in SURROGATES):
        letter = chr(point)
        if unicodedata.category(letter) == "Cn":
            points.append(point)
        elif unicodedata.decomposition(letter) or unicodedata.combining(letter):
            differs = any(
                own.normalize_str(letter) != unicodedata.normalize(name, letter) for name, own in forms.items()
            )
            moves = any(  # a mark that the library does not know is not put into the order of marks
                forms["NFD"].normalize_str(pair) != unicodedata.normalize("NFD", pair)
                for pair in (f"a{letter}\u0334", f"a\u0345{letter}")
            )
            points += [point] if differs or moves else []
    return ranges_of(points)


def _bert(**switches: bool) -> dict[int, str]:
    names = {"clean_text": "clean_text", "chinese": "handle_chinese_chars", "accents": "strip_accents"}
    settings = dict.fromkeys((*names.values(), "lowercase"), False) | {names[key]: on for key, on in switches.items()}
    return _mapped(normalizers.BertNormalizer(**settings))


def _split(pattern: str) -> Ranges:
    return _removed_by(pre_tokenizers.Split(Regex(pattern), "removed"))


# Classes of characters by name; those of regular expressions are made as they are needed.
CLASSES: dict[str, Callable[[], Ranges]] = {
    "bert-removed": lambda: ranges_of(point for point, made in _bert(clean_text=True).items() if not made),
    "bert-space": lambda: ranges_of(point for point, made in _bert(clean_text=True).items() if made),
    "chinese": lambda: ranges_of(_bert(chinese=True)),
    "bert-mark": lambda: ranges_of(point for point, made in _bert(accents=True).items() if not made),
    "mark": lambda: ranges_of(point for point, made in _mapped(normalizers.StripAccents()).items() if not made),
    "space": lambda: _removed_by(pre_tokenizers.WhitespaceSplit()),
    "punctuation": lambda: _removed_by(pre_tokenizers.Punctuation("removed")),
    "word": _words_of_whitespace,
    "digit": _digits,
    "inert": _inert,
}


@cache
def class_of(name: str) -> tuple[int, ...]:
    """The characters of a class, as ranges."""
    if name in CLASSES:
        return tuple(CLASSES[name]())
    return tuple(_split(rf"\p{{{name}}}" if name not in ("w", "s", "d", "h") else rf"\{name}"))


@cache
def lowered() -> tuple[tuple[int, str], ...]:
    """The characters beyond ASCII that the library makes small, with what they become."""
    return tuple((point, made) for point, made in _mapped(normalizers.Lowercase()).items() if point > 127)


class _Pipeline:
    """Collects the steps of a tokenizer and the classes of characters that they need."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.classes: set[str] = set()
        self.maps: set[str] = set()

    def need(self, *names: str) -> None:
        self.classes |= set(names)

    def refused(self, what: str) -> UserError:
        return UserError(f"a live page cannot run this tokenizer: {what} is not supported there")

    def pattern(self, value: Mapping[str, str]) -> Any:
        """A plain text, or the parts of a regular expression."""
        if "String" in value:
            return value["String"]
        return self.regex(value["Regex"])

    def regex(self, pattern: str) -> list[Any]:
        classes = Classes()
        try:
            parts = translated(pattern, classes)
        except ValueError as error:
            raise self.refused(f"the pattern {shown(pattern, 60)!r} ({error})") from None
        self.need(*classes.names)
        return parts

    def steps(self, stage: str, inside: str) -> Iterator[dict[str, Any]]:
        """The steps of a stage, those of sequences one by one."""
        pending = [self.data[stage]] if self.data.get(stage) else []
        while pending:
            step = pending.pop(0)
            if step["type"] == "Sequence":
                pending = [*step[inside], *pending]
            else:
                yield step

    def normalizer(self, step: Mapping[str, Any]) -> dict[str, Any]:
        kind = step["type"]
        if kind == "BertNormalizer":
            strip = step["lowercase"] if step.get("strip_accents") is None else step["strip_accents"]
            self.need(*(("bert-removed", "bert-space") if step["clean_text"] else ()))
            self.need(*(("chinese",) if step["handle_chinese_chars"] else ()))
            self.need(*(("bert-mark", "inert") if strip else ()))
            self.maps |= {"lower"} if step["lowercase"] else set()
            chinese, clean, lower = step["handle_chinese_chars"], step["clean_text"], step["lowercase"]
            return {"type": "Bert", "clean": clean, "chinese": chinese, "strip": strip, "lower": lower}
        if kind in FORMS:
            self.need("inert")
            return {"type": "Form", "form": kind}
        if kind == "Lowercase":
            self.maps.add("lower")
            return {"type": kind}
        if kind == "StripAccents":
            self.need("mark")
            return {"type": kind}
        if kind == "Strip":
            self.need("space")
            return {"type": kind, "left": step["strip_left"], "right": step["strip_right"]}
        if kind == "Prepend":
            return {"type": kind, "text": step["prepend"]}
        if kind == "Replace":
            return {"type": kind, "pattern": self.pattern(step["pattern"]), "content": step["content"]}
        if kind == "Precompiled":
            return {"type": "Charsmap", "data": step["precompiled_charsmap"]}
        raise self.refused(f"the normalizer {kind}")

    def cutter(self, step: Mapping[str, Any]) -> dict[str, Any]:
        kind = step["type"]
        if kind == "ByteLevel":
            pattern = self.regex(GPT2) if step.get("use_regex", True) else None
            return {"type": kind, "prefix": step["add_prefix_space"], "pattern": pattern}
        if kind == "BertPreTokenizer":
            self.need("space", "punctuation")
            return {"type": "Bert"}
        named = {"WhitespaceSplit": ("space", "Removed"), "Punctuation": ("punctuation", step.get("behavior", ""))}
        named["Digits"] = ("digit", "Isolated" if step.get("individual_digits") else "Contiguous")
        if kind in named:
            name, behavior = named[kind]
            self.need(name)
            return {"type": "Class", "name": name, "behavior": behavior or "Isolated"}
        if kind == "Whitespace":
            self.need("word", "space")
            inside = [{"name": name, "negated": False, "inside": True} for name in ("word", "space")]
            parts = [{"name": "word", "negated": False, "inside": False}, "+|[^", *inside, "]+"]
            return {"type": "Split", "pattern": parts, "behavior": "Removed", "invert": True}
        if kind == "CharDelimiterSplit":
            return {"type": "Delimiter", "delimiter": step["delimiter"]}
        if kind == "Split":
            pattern = self.pattern(step["pattern"])
            return {"type": kind, "pattern": pattern, "behavior": step["behavior"], "invert": step["invert"]}
        if kind == "Metaspace":
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            return {
                "type": kind,
                "replacement": step["replacement"],
                "scheme": scheme,
                "split": step.get("split", True),
            }
        raise self.refused(f"the pre-tokenizer {kind}")

    def decoder(self, step: Mapping[str, Any]) -> dict[str, Any]:
        kind = step["type"]
        if kind in ("ByteLevel", "Fuse", "ByteFallback"):
            return {"type": kind}
        if kind == "WordPiece":
            return {"type": kind, "prefix": step["prefix"], "cleanup": step["cleanup"]}
        if kind == "BPEDecoder":
            return {"type": "BPE", "suffix": step["suffix"]}
        if kind == "Metaspace":
            return {"type": kind, "replacement": step["replacement"], "scheme": step.get("prepend_scheme", "always")}
        if kind == "Replace":
            return {"type": kind, "pattern": self.pattern(step["pattern"]), "content": step["content"]}
        if kind == "Strip":
            return {"type": kind, "content": step["content"], "start": step["start"]}
        raise self.refused(f"the decoder {kind}")

    def model(self, model: Mapping[str, Any]) -> dict[str, Any]:
        kind = model["type"]
        if kind == "Unigram":
            scores = [score for _, score in model["vocab"]]
            unknown = -1 if model["unk_id"] is None else model["unk_id"]
            settings = {"bytes": bool(model.get("byte_fallback")), "lowest": min(scores)}
            return {"type": kind, "scores": scores, "unknown": unknown, **settings}
        vocabulary = model["vocab"]
        unknown = vocabulary.get(model["unk_token"]) if model.get("unk_token") is not None else None
        if kind == "WordLevel":
            return {"type": kind, "unknown": unknown}
        if kind == "WordPiece":
            prefix, longest = model["continuing_subword_prefix"], model["max_input_chars_per_word"]
            return {"type": kind, "unknown": unknown, "prefix": prefix, "longest": longest}
        if model.get("dropout"):
            raise self.refused("BPE with dropout")
        prefix, suffix = (model.get(key) or "" for key in ("continuing_subword_prefix", "end_of_word_suffix"))
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        merges = [vocabulary[t] for a, b in pairs for t in (a, b, a + b[len(prefix) :])]
        switches = {
            "whole": model.get("ignore_merges"),
            "bytes": model.get("byte_fallback"),
            "fuse": model.get("fuse_unk"),
        }
        flags = {name: bool(value) for name, value in switches.items()}
        return {"type": kind, "merges": merges, "unknown": unknown, "prefix": prefix, "suffix": suffix, **flags}

    def trim(self) -> dict[str, bool] | None:
        """Whether offsets leave out the space that a token begins with."""
        for step in self.steps("post_processor", "processors"):
            if step["type"] in ("ByteLevel", "RobertaProcessing") and step["trim_offsets"]:
                self.need("space")
                return {"prefix": step["add_prefix_space"]}
        return None


def tokenizer_data(tokenizer: Tokenizer) -> dict[str, Any]:
    """All that the page needs to cut a text into the same tokens and to write tokens as text."""
    if type(tokenizer) is not Tokenizer:
        raise UserError("a live page cannot run this tokenizer: a program outside of the vocabulary splits its words")
    data = json.loads(tokenizer.library.to_str())
    pipeline = _Pipeline(data)
    added = [{name: token[name] for name in token if name != "type"} for token in data["added_tokens"] or ()]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        pipeline.need("space", "word")
    vocabulary: list[str | None] = [None] * tokenizer.vocabulary
    for name, number in tokenizer.tokens.items():
        vocabulary[number] = name
    made = {
        "normalizers": [pipeline.normalizer(step) for step in pipeline.steps("normalizer", "normalizers")],
        "cutters": [pipeline.cutter(step) for step in pipeline.steps("pre_tokenizer", "pretokenizers")],
        "model": pipeline.model(data["model"]),
        "decoders": [pipeline.decoder(step) for step in pipeline.steps("decoder", "decoders")]
        if data["decoder"]
        else None,
        "trim": pipeline.trim(),
        "added": added,
        "vocabulary": vocabulary,
        "bytes": any(step["type"] == "ByteLevel" for step in pipeline.steps("decoder", "decoders")),
    }
    maps = {"lower": [list(pair) for pair in lowered()]} if "lower" in pipeline.maps else {}
    return {
        **made,
        "tables": {"classes": {name: list(class_of(name)) for name in sorted(pipeline.classes)}, "maps": maps},
    }

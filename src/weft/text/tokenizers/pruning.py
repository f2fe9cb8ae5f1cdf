"""A tokenizer with some of its tokens alone: other texts are spelled with characters, bytes and parts, which stay."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from weft.errors import UserError
from weft.text.tokenizers import sentencepiece
from weft.text.tokenizers.sentencepiece import NUMBERS, SOURCE, TARGET, TARGET_NUMBERS, MarianTokenizer
from weft.text.tokenizers.split import SplitTokenizer
from weft.text.tokenizers.tokenizer import Tokenizer, check

CODE = re.compile(r">>.+<<")  # of a language, in Marian's vocabularies
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a byte that spells what has no piece


@dataclass(frozen=True)
class Anatomy:
    """What a vocabulary is made of: which tokens have to stay, and what each of them needs."""

    size: int
    always: frozenset[int]
    parts: Mapping[int, tuple[int, ...]]  # token -> those that it is merged from, whichever way
    spelling: Mapping[int, str]  # token -> the one character that it is

    def closed(self, keep: Collection[int]) -> tuple[int, ...]:
        """These tokens and all that they need, with those that always stay, in their order."""
        if any(not 0 <= number < self.size for number in keep):
            raise UserError(f"tokens to keep must be some of 0 to {self.size - 1}")
        kept: set[int] = set()
        waiting = [*self.always, *keep]
        while waiting:
            number = waiting.pop()
            if number not in kept:
                kept.add(number)
                waiting += self.parts.get(number, ())
        return tuple(sorted(kept))


def anatomy_of(tokenizer: Tokenizer, characters: bool = True) -> Anatomy:
    """What has to stay of a vocabulary; without `characters`, of single ones only what is asked for."""
    pipeline = json.loads(tokenizer.library.to_str())
    model = pipeline["model"]
    numbers = tokenizer.tokens
    named = {token["content"] for token in pipeline["added_tokens"]}
    named |= {name for name in (*vars(tokenizer.roles).values(), model.get("unk_token")) if name is not None}
    if isinstance(tokenizer, MarianTokenizer):
        named |= {*tokenizer.controls, *(name for name in numbers if CODE.fullmatch(name))}
    spelling: dict[int, str] = {}
    if tokenizer.kind not in ("word", "whitespace", "character"):
        byte_level = '"ByteLevel"' in json.dumps([pipeline["pre_tokenizer"], pipeline["decoder"]])
        around = [model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""]
        characters = characters or byte_level  # its characters are the 256 bytes
        for name, number in numbers.items():
            whole = name.removeprefix(around[0]).removesuffix(around[1])
            if len(whole) <= 1:
                spelling[number] = whole
            if BYTE.fullmatch(name) or (characters and len(whole) <= 1):
                named.add(name)
    if tokenizer.kind == "unigram":
        # What the library takes off for an unknown character is counted from the worst piece of all.
        named |= {model["vocab"][model["unk_id"]][0], min(model["vocab"], key=lambda piece: piece[1])[0]}
    parts: dict[int, tuple[int, ...]] = {}
    for left, right, merged in _merges(model):
        if merged in numbers:
            some = (numbers[part] for part in (left, right) if part in numbers)
            parts[numbers[merged]] = (*parts.get(numbers[merged], ()), *some)
    always = {numbers[name] for name in named if name in numbers}
    always |= {ids[place] for ids, place in _ids_around(pipeline["post_processor"])}
    return Anatomy(tokenizer.vocabulary, frozenset(always), parts, spelling)


def pruned_tokenizer(
    tokenizer: Tokenizer, keep: Collection[int], characters: bool = True
) -> tuple[Tokenizer, tuple[int, ...]]:
    """The tokenizer with these tokens and those that have to stay; with it, the old ids in the order of the new."""
    if isinstance(tokenizer, SplitTokenizer):
        raise UserError("a vocabulary whose words another program splits (MeCab, Moses) cannot be cut down")
    if isinstance(tokenizer, MarianTokenizer):
        raise UserError("Marian's two vocabularies are cut down together: by pruned_sides")
    kept = anatomy_of(tokenizer, characters).closed(keep)
    new = {old: number for number, old in enumerate(kept)}
    pipeline = json.loads(tokenizer.library.to_str())
    model = pipeline["model"]
    if tokenizer.kind == "unigram":
        model["vocab"] = [piece for number, piece in enumerate(model["vocab"]) if number in new]
        model["unk_id"] = new[model["unk_id"]]
    else:
        model["vocab"] = {name: new[number] for name, number in model["vocab"].items() if number in new}
    if "merges" in model:
        stay = {name for name, number in tokenizer.tokens.items() if number in new}
        model["merges"] = [merge[:2] for merge in _merges(model) if stay.issuperset(merge)]
    added = (token for token in pipeline["added_tokens"] if token["id"] in new)
    pipeline["added_tokens"] = [{**token, "id": new[token["id"]]} for token in added]
    for ids, place in _ids_around(pipeline["post_processor"]):
        ids[place] = new[ids[place]]
    library = Library.from_str(json.dumps(pipeline))
    check(library, "the smaller vocabulary")
    if library.get_vocab() != {name: new[number] for name, number in tokenizer.tokens.items() if number in new}:
        raise UserError("this vocabulary numbers its tokens in an order that cannot be kept when some are left out")
    settings = dict(tokenizer.settings)
    if isinstance(listed := settings.get("added_tokens_decoder"), dict):
        numbered = {int(key): token for key, token in listed.items() if str(key).isdecimal()}
        settings["added_tokens_decoder"] = {str(new[key]): numbered[key] for key in numbered if key in new}
    return Tokenizer(library, tokenizer.roles, settings, tokenizer.whole), kept


def pruned_sides(
    source: MarianTokenizer, target: MarianTokenizer, keep: Collection[int], written: Collection[int], characters: bool
) -> tuple[MarianTokenizer, MarianTokenizer, tuple[int, ...], tuple[int, ...]]:
    """Both vocabularies with the tokens to `keep`, and of the `written` ones; with them, the old ids of each."""
    apart = TARGET_NUMBERS in source.files
    anatomies = [anatomy_of(side, characters) for side in (source, target)]
    if apart:
        kept = [anatomies[0].closed(keep), anatomies[1].closed(written)]
    else:  # one numbering for both: what either needs
        both = set(keep)
        while (more := {*anatomies[0].closed(both), *anatomies[1].closed(both)}) != both:
            both = more
        kept = [tuple(sorted(both))] * 2
    both_sides, names = (source, target), (SOURCE, TARGET)
    kept_names = ([side.names[old] for old in ids] for side, ids in zip(both_sides, kept, strict=True))
    numbers = [{name: number for number, name in enumerate(some)} for some in kept_names]
    files = {**source.files, NUMBERS: json.dumps(numbers[0], ensure_ascii=False).encode()}
    if apart:
        files[TARGET_NUMBERS] = json.dumps(numbers[1], ensure_ascii=False).encode()
    for side, stay, name in zip(both_sides, numbers, names, strict=True):
        files[name] = sentencepiece.without(files[name], side.numbers.keys() - stay.keys(), name)
    sides = []
    for side, stay, name in zip(both_sides, numbers, names, strict=True):
        pieces = sentencepiece.parse(files[name], name)
        sides.append(MarianTokenizer(pieces, stay, side.settings, files, Path(name)))
        check(sides[-1].library, name)
    return sides[0], sides[1], kept[0], kept[1]


def _merges(model: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Every two tokens that are merged, and what they become."""
    for merge in model.get("merges") or ():
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right, left + right.removeprefix(model.get("continuing_subword_prefix") or "")


def _ids_around(part: Any) -> Iterator[tuple[list[Any], int]]:
    """Where the id of each token stands that a processor puts around a text: a list, and a place in it."""
    if not isinstance(part, dict):
        return
    yield from ((part[end], 1) for end in ("sep", "cls") if isinstance(part.get(end), list))
    special = part.get("special_tokens")
    for token in special.values() if isinstance(special, dict) else ():
        yield from ((token["ids"], place) for place in range(len(token["ids"])))
    for inner in part.get("processors") or ():
        yield from _ids_around(inner)

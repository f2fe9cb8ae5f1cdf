"""A model with a smaller vocabulary: the tables of its tokens cut down, and its tokenizer with them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.budget import by_budget
from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.pruning.layers import rebuilt
from weft.text.tokenizers.pruning import anatomy_of, pruned_sides, pruned_tokenizer
from weft.text.tokenizers.sentencepiece import MarianTokenizer
from weft.text.tokenizers.tokenizer import Tokenizer

CHARACTERS = 1 << 20  # of texts that are counted at a time
RESERVED = re.compile(r"[\[<]unused_?\d+[\]>]|madeupword\d+")  # room that publishers left in their vocabularies
LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")  # of ids, in a published config


def counted(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[int]:
    """How often each token stands in the texts, which are read once and never held."""
    counts: Counter[int] = Counter()
    for some in by_budget(texts, lambda text: len(text) + 100, CHARACTERS):
        for ids in tokenizer.ids(some, specials=False):
            counts.update(ids)
    return counts


def best_of(tokenizer: Tokenizer, counts: Mapping[int, int], count: int) -> tuple[tuple[int, ...], bool]:
    """As `chosen`, and whether all single characters are among them: not where words cover more of the texts."""
    fewer = chosen([tokenizer], counts, count, characters=False)
    try:
        whole = chosen([tokenizer], counts, count)
    except UserError:  # there is no room for all characters
        return fewer, False
    less, more = (sum(counts[number] for number in some if number in counts) for some in (whole, fewer))
    return (fewer, False) if more > less else (whole, True)


def chosen(
    tokenizers: Sequence[Tokenizer], counts: Mapping[int, int], count: int, characters: bool = True
) -> tuple[int, ...]:
    """The ids of as many tokens of one vocabulary: those that have to stay, then those that the texts use most.

    Without `characters`, single ones stay only where the texts, or English, use them. Where the texts use fewer tokens,
    the first of the others fill up: vocabularies begin with what is frequent.
    """
    anatomies = [anatomy_of(each, characters) for each in tokenizers]
    size = anatomies[0].size
    names = {number: name for name, number in tokenizers[0].tokens.items()}
    # What such texts can be spelled with: their own characters, and those of English.
    seen = {character for number in counts for character in names.get(number, "")} | set(string.printable)
    first = [number for anatomy in anatomies for number, one in anatomy.spelling.items() if one in seen]
    kept: set[int] = set()
    while (more := {each for anatomy in anatomies for each in anatomy.closed((*kept, *first))}) != kept:
        kept = more
    if not 1 <= count <= size:
        raise UserError(f"between 1 and {size:,} tokens of the vocabulary can be kept, not {count:,}")
    if len(kept) > count:
        what = "special tokens, single characters and the like"
        raise UserError(f"a vocabulary of {count:,} is too small: {what} need at least {len(kept):,}")
    used = sorted(counts, key=lambda number: (-counts[number], number))
    others = [number for number in range(size) if not RESERVED.fullmatch(names.get(number, ""))]
    for number in dict.fromkeys((*used, *others, *range(size))):
        if len(kept) == count:
            break
        if number in kept:
            continue
        needed = {number}  # with what it is merged from
        waiting = [number]
        while waiting and len(kept) + len(needed) <= count:
            part = waiting.pop()
            fresh = {each for anatomy in anatomies for each in anatomy.parts.get(part, ())} - kept - needed
            needed |= fresh
            waiting += fresh
        if len(kept) + len(needed) <= count:
            kept |= needed
    return tuple(sorted(kept))


def chosen_for(
    opened: LoadedModel, read: Iterable[str], written: Iterable[str], count: int, characters: bool = True
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Which tokens of a model's vocabulary texts use most; of one that writes with another, which of each."""
    tokenizer, target = opened.tokenizer, opened.target_tokenizer
    if tokenizer is None:
        raise UserError("this model folder has no tokenizer, so the tokens of texts cannot be counted")
    counts = counted(tokenizer, read)
    if opened.config.source_vocabulary is not None:
        assert target is not None
        kept = chosen([tokenizer], counts, count, characters)
        return kept, chosen([target], counted(target, written), count, characters)
    counts += counted(target or tokenizer, written)
    return chosen([each for each in (tokenizer, target) if each is not None], counts, count, characters), None


@dataclass(frozen=True)
class VocabularyCoverage:
    """What a smaller vocabulary makes of texts."""

    tokens: int  # of the texts, as they were
    dropped: int  # of these, tokens that are no more
    after: int  # tokens of the texts now
    unknown: int  # of these, tokens for what cannot be spelled, beyond those that were there before

    def __str__(self) -> str:
        share = self.dropped / max(1, self.tokens)
        more = self.after / max(1, self.tokens) - 1
        unknown = f"; {self.unknown:,} became unknown" if self.unknown else "; none became unknown"
        return f"{share:.2%} of {self.tokens:,} tokens are spelled with smaller ones, {more:+.2%} tokens{unknown}"


def coverage(before: Tokenizer, after: Tokenizer, kept: Sequence[int], texts: Iterable[str]) -> VocabularyCoverage:
    """Count what texts lose by a smaller vocabulary."""
    stay, none = set(kept), before.id_of("unknown")
    still = after.id_of("unknown")
    tokens = dropped = now = unknown = 0
    for some in by_budget(texts, lambda text: len(text) + 100, CHARACTERS):
        for old, new in zip(before.ids(some, specials=False), after.ids(some, specials=False), strict=True):
            tokens, now = tokens + len(old), now + len(new)
            dropped += sum(number not in stay for number in old)
            unknown += sum(number == still for number in new) - sum(number == none for number in old)
    return VocabularyCoverage(tokens, dropped, now, max(0, unknown))


def with_vocabulary(
    opened: LoadedModel, keep: Sequence[int], written: Sequence[int] | None = None, characters: bool = True
) -> LoadedModel:
    """The model with these tokens, and those that have to stay with them, under new numbers in the old order.

    `written`: those of what is written, where it has a vocabulary of its own; without it that one stays whole.
    """
    family, config = opened.family, opened.config
    if family.counts:
        raise UserError(f"{family.name} is learned by counting: its vocabulary cannot be pruned; count again instead")
    size = opened.writer.vocabulary if opened.writer is not None else config.vocabulary
    ids = set[int]()
    _with_ids(opened.carried, ids.add)
    required = {number for number in ids if 0 <= number < size}
    if config.begin is not None:
        required.add(config.begin)
    changes, read, kept = _cut(opened, set(keep), None if written is None else set(written), required, characters)
    new = {old: number for number, old in enumerate(kept)}
    sizes: dict[str, Any] = {"vocabulary": len(kept)}
    if config.source_vocabulary is not None:
        sizes["source_vocabulary"] = len(read)
    if config.begin is not None:
        sizes["begin"] = new[config.begin]
    tensors = dict(opened.network.state_dict())
    if config.padding is not None:  # places are counted from the number of the padding
        sizes["padding"] = new.get(config.padding, config.padding)
        if "positions.table.weight" in tensors:
            tensors["positions.table.weight"] = tensors["positions.table.weight"][config.padding - sizes["padding"] :]
    smaller = replace(config, **sizes)
    heads = {head: len(kept) if head == "words" else outputs for head, outputs in opened.heads.items()}
    for name, expected in outline(family, smaller, heads).state_dict().items():
        if tensors[name].shape != expected.shape:  # only the vocabulary has changed: a row for each token
            rows = read if name.startswith("source_tokens.") else kept
            tensors[name] = tensors[name][torch.tensor(rows, device=opened.device)]
    return rebuilt(
        opened,
        smaller,
        tensors,
        heads=heads,
        carried=_with_ids(opened.carried, lambda number: new.get(number, number)),
        **changes,
    )


def _cut(
    opened: LoadedModel, keep: set[int], written: set[int] | None, required: set[int], characters: bool
) -> tuple[dict[str, Tokenizer], tuple[int, ...], tuple[int, ...]]:
    """The smaller tokenizers, and which tokens stay of what is read and of what is written."""
    tokenizer, target, config = opened.tokenizer, opened.target_tokenizer, opened.config
    apart = config.source_vocabulary is not None
    if written is not None and not apart:
        raise UserError("this model reads and writes with one vocabulary: there are no others to keep of it")
    if tokenizer is None:
        kept = tuple(sorted(keep | required))
        if apart or kept[0] < 0 or kept[-1] >= config.vocabulary:
            raise UserError(f"tokens to keep must be some of 0 to {config.vocabulary - 1}, of one vocabulary")
        return {}, kept, kept
    if apart:
        assert target is not None
        written = required | (set(range(target.vocabulary)) if written is None else written)
    else:
        keep = keep | required
    if isinstance(tokenizer, MarianTokenizer) and isinstance(target, MarianTokenizer):
        one, two, read, kept = pruned_sides(tokenizer, target, keep, written or (), characters)
        if apart and (two.id_of("padding") or 0) >= len(read):
            what = "Marian's format has one number for the padding of both"
            raise UserError(f"{what}: keep more tokens of what is read, or fewer of what is written")
        return {"tokenizer": one, "target_tokenizer": two}, read, kept
    if target is None:
        smaller, kept = pruned_tokenizer(tokenizer, keep, characters)
        return {"tokenizer": smaller}, kept, kept
    if not apart:  # two ways to cut a text into the same tokens
        keep = written = set(anatomy_of(target, characters).closed(anatomy_of(tokenizer, characters).closed(keep)))
    smaller, read = pruned_tokenizer(tokenizer, keep, characters)
    writer, kept = pruned_tokenizer(target, sorted(written or ()), characters)
    if not apart and read != kept:
        raise UserError("what is read and what is written are cut in two ways that need different tokens")
    return {"tokenizer": smaller, "target_tokenizer": writer}, read, kept


def _with_ids(carried: Mapping[str, Any], change: Callable[[int], int | None]) -> dict[str, Any]:
    """A published config with each id that it names changed."""

    def anew(value: Any) -> Any:
        if isinstance(value, list):
            return [anew(part) for part in value]
        return change(value) if type(value) is int else value

    return {key: anew(value) if key.endswith("_token_id") or key in LISTS else value for key, value in carried.items()}

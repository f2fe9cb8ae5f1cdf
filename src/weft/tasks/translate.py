"""A text written from another: translations, summaries, anything that an encoder-decoder has learned to write."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from weft.budget import BUDGET, by_budget
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError
from weft.generation.sampling import Rules
from weft.generation.search import Beam, Completion, Ensemble, Reason, generate
from weft.nn.rows import Source
from weft.tasks.answers import Translation, Wording
from weft.tasks.forward import ON_GPU, naming, tokenizer_of
from weft.tasks.generation import check_beam_size
from weft.text.sentences import sentence_spans
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame

SIDES = ("source", "target")
GRAMS = 60  # of a profile
SAMPLE = 2000  # texts that a profile is counted from
ENOUGH = 40  # pairs of letters, with fewer of which a text does not tell its language
CLEARLY = 1.3  # how much nearer a text must be to the other side


# ---------------------------------------------------------------------------------------------- sides that are swapped


def profile_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The most frequent pairs of letters in some texts, which tell languages apart."""
    counts: Counter[str] = Counter()
    for text in islice(texts, SAMPLE):
        counts.update(_grams(text))
    return tuple(sorted(gram for gram, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:GRAMS]))


def _grams(text: str) -> Iterator[str]:
    folded = " ".join(text[:2000].casefold().split())
    return (a + b for a, b in zip(folded, folded[1:], strict=False))


def nearer_to_other(texts: Sequence[str], own: Sequence[str], other: Sequence[str]) -> bool:
    """Whether texts look like the other side of what a model has learned, clearly, rather than like their own."""
    ours, theirs = set(own) - set(other), set(other) - set(own)
    counts: Counter[str] = Counter()
    for text in texts[:SAMPLE]:
        counts.update(_grams(text))
    for_own, for_other = (sum(counts[gram] for gram in grams) for grams in (ours, theirs))
    if counts.total() < ENOUGH or len(ours) < GRAMS // 6 or for_other < ENOUGH // 8:
        return False  # too little to tell, or two sides in one language
    return for_other > CLEARLY * for_own + 2


def swapped(source: Sequence[str], target: Sequence[str], profiles: Mapping[str, Sequence[str]]) -> bool:
    """Whether source and target look as if they stood in each other's place."""
    if not all(side in profiles for side in SIDES):
        return False
    read, written = profiles["source"], profiles["target"]
    return nearer_to_other(source, read, written) and (not target or nearer_to_other(target, written, read))


def swapped_line(where: str, target: bool = True) -> str:
    """The note about it."""
    what = "source and target look" if target else "what is to be read looks"
    like = "as if they were swapped" if target else "like what the model has learned to write"
    return f"{where}: {what} {like}, by their letters; is it the right way round?"


WIDTH = 5  # default beam size
ROWS = 512  # texts that are generated side by side


@dataclass(frozen=True)
class Part:
    """A piece of a text that is read at once, and what parts it from the next."""

    text: int  # the number of its text
    tokens: list[int]
    after: str


def writer_of(opened: LoadedModel) -> Tokenizer:
    """The tokenizer of what is written."""
    return opened.target_tokenizer or tokenizer_of(opened)


def around(opened: LoadedModel) -> tuple[list[int], list[int]]:
    """The tokens before and after what is read; it always ends with the end token, as Marian and T5 have it."""
    before, after = frame(tokenizer_of(opened))
    end = tokenizer_of(opened).id_of("end")
    return before, after or ([] if end is None else [end])


def limit_of(source: Source) -> int:
    """Tokens that an answer may have where nobody says it: far more than any good one needs."""
    return 3 * len(source) + 32


def translate(
    opened: LoadedModel,
    texts: Sequence[str],
    *,
    others: Sequence[LoadedModel] = (),
    beam_size: int = WIDTH,
    n: int = 1,
    length_penalty: float = 1.0,
    coverage: float = 0.0,
    max_tokens: int | None = None,
    alignments: bool = False,
    prefix: str | None = None,
    watch: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> list[Translation]:
    """Write what each text says, in other words; `others`: models of the same vocabulary that write together with it.

    A text that is longer than the model can read goes through in pieces, split between sentences. `max_tokens` is that
    of a piece; default: three times its source tokens and 32 more, within the context.
    """
    check_writer(opened)
    if opened.family.numbers:
        raise UserError(f"this {opened.family.name} model writes from vectors, not from texts: weft describe")
    together(opened, others)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"text {number} of {len(texts)}: a {type(text).__name__} where a text is expected")
    choice = Beam(width=beam_size, length_penalty=length_penalty, coverage=coverage, n=n)
    check_beam_size(beam_size, opened.config.vocabulary)
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, not {max_tokens}")
    profiles = opened.card.profiles if watch else {}
    if set(SIDES) <= set(profiles) and nearer_to_other(texts, profiles["source"], profiles["target"]):
        warnings.warn(swapped_line("input", target=False), stacklevel=2)
    context = min(each.config.context for each in (opened, *others))
    parts = parts_of(opened, texts, opened.card.prefix or "" if prefix is None else prefix, context)
    limits = [max_tokens or limit_of(part.tokens) for part in parts]
    search = {"choice": choice, "context": context, "attention": alignments}
    hypotheses = _hypotheses(opened, others, parts, limits, beam_size, search, on_progress)
    by_text: list[list[int]] = [[] for _ in texts]
    for number, part in enumerate(parts):
        by_text[part.text].append(number)
    return [
        _answer(opened, [parts[number] for number in some], [hypotheses[number] for number in some], n)
        for some in by_text
    ]


def _hypotheses(
    opened: LoadedModel,
    others: Sequence[LoadedModel],
    parts: list[Part],
    limits: list[int],
    beam_size: int,
    search: Mapping[str, Any],
    on_progress: Callable[[int], None] | None,
) -> list[list[Completion]]:
    """The best completions for each part; parts of similar length are searched together."""
    decoder = decoder_of(opened, others)
    hypotheses: list[list[Completion]] = [[]] * len(parts)
    order = sorted(range(len(parts)), key=lambda number: len(parts[number].tokens))
    end = writer_of(opened).id_of("end")
    budget = ON_GPU if opened.device.type == "cuda" else max(BUDGET, ROWS * 16)
    for some in by_budget(order, lambda number: len(parts[number].tokens) * beam_size, budget):
        with naming(opened.folder):
            completions = generate(
                decoder,
                [[opened.config.begin]] * len(some),
                sources=[parts[number].tokens for number in some],
                ends=() if end is None else (end,),
                rules=Rules(banned=tuple((token,) for token in opened.never)),
                max_tokens=[limits[number] for number in some],
                device=opened.device,
                **search,
            )
        for number, best in zip(some, completions, strict=True):
            hypotheses[number] = best
        if on_progress is not None:
            on_progress(len(some))
    return hypotheses


def decoder_of(opened: LoadedModel, others: Sequence[LoadedModel]) -> Any:
    """The network that writes, or several together."""
    networks: list[Any] = [opened.network, *(other.network for other in others)]
    return Ensemble(networks) if others else opened.network


def check_writer(opened: LoadedModel) -> None:
    if not opened.family.reads or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not read one text and write another")
    tokenizer_of(opened)


def together(opened: LoadedModel, others: Sequence[LoadedModel]) -> None:
    """Models that write together must mean the same by every token."""
    for number, other in enumerate(others, 2):
        check_writer(other)
        for what, one, two in (
            ("vocabulary", tokenizer_of(opened), tokenizer_of(other)),
            ("vocabulary of what is written", writer_of(opened), writer_of(other)),
        ):
            if one.library.to_str() != two.library.to_str():
                sizes = f"{one.vocabulary:,} tokens against {two.vocabulary:,}"
                raise UserError(
                    f"model {number} has another {what} than the first ({sizes}): they cannot write together"
                )
        if opened.config.begin != other.config.begin or (opened.card.prefix or "") != (other.card.prefix or ""):
            raise UserError(f"model {number} begins otherwise than the first: they cannot write together")


# ---------------------------------------------------------------------------------------------------- what is read


def parts_of(opened: LoadedModel, texts: Sequence[str], prefix: str, context: int | None = None) -> list[Part]:
    """The pieces of all texts, none longer than the context; an empty text has none."""
    tokenizer, (before, after) = tokenizer_of(opened), around(opened)
    ahead = tokenizer.ids([prefix], specials=False)[0] if prefix else []
    context = context or opened.config.context
    room = context - len(before) - len(after)
    if len(ahead) >= room:
        what = f"the prefix has {len(ahead)} tokens" if ahead else "there are special tokens"
        raise UserError(f"{what}, which leaves no room in a context of {context} for a text")
    usual = min(opened.card.window.length - len(before) - len(after) if opened.card.window else room, room)
    parts = []
    whole = tokenizer.ids([prefix + text for text in texts], specials=False)
    for number, (text, ids) in enumerate(zip(texts, whole, strict=True)):
        if not text.strip() or not (before or ids or after):
            continue
        if len(ids) <= max(usual, 1):
            parts.append(Part(number, [*before, *ids, *after], ""))
            continue
        for inner, between in _cut(tokenizer, prefix, text, ids, len(ahead), max(usual, 1), room):
            parts.append(Part(number, [*before, *inner, *after], between))
    return parts


def _cut(
    tokenizer: Tokenizer, prefix: str, text: str, ids: list[int], ahead: int, usual: int, room: int
) -> list[tuple[list[int], str]]:
    """A long text in pieces of whole sentences, as many as are usual, and what parts each from the next."""
    spans = list(sentence_spans(text))
    sizes = [len(each) for each in tokenizer.ids([text[a:b] for a, b in spans], specials=False)]
    groups: list[tuple[int, int]] = []  # begin and end, in characters
    held = 0
    for (begin, end), size in zip(spans, sizes, strict=True):
        if groups and ahead + held + size <= usual:
            groups[-1] = (groups[-1][0], end)
            held += size
        else:
            groups.append((begin, end))
            held = size
    pieces = [text[a:b] for a, b in groups if text[a:b].strip()]
    if len(pieces) == 1 and len(ids) <= room:
        return [(ids, "")]
    parts: list[tuple[list[int], str]] = []
    for piece, inner in zip(pieces, tokenizer.ids([prefix + piece for piece in pieces], specials=False), strict=True):
        space = re.search(r"\s*$", piece)
        between = space[0] if space is not None else ""
        if len(inner) <= room:
            parts.append((inner, between))
            continue
        step = room - ahead  # a sentence that is longer than all the room there is, is cut between two tokens
        runs = [inner[ahead + place : ahead + place + step] for place in range(0, len(inner) - ahead, step)]
        parts += [([*inner[:ahead], *run], " ") for run in runs[:-1]]
        parts.append(([*inner[:ahead], *runs[-1]], between))
    return parts


# -------------------------------------------------------------------------------------------------- what is written


def _answer(opened: LoadedModel, parts: list[Part], completions: list[list[Completion]], n: int) -> Translation:
    """The answers to the pieces of a text, put together."""
    if not parts:
        nothing = Wording(text="", score=0.0, logprob=0.0, finish_reason="end")
        empty: dict[str, Any] = {"n_tokens": 0, "n_windows": 0, "source_tokens": (), "target_tokens": ()}
        return Translation(**vars(nothing), best=(nothing,), **empty)
    writer, reader = writer_of(opened), tokenizer_of(opened)
    ways = max(map(len, completions))
    best = tuple(
        _wording(writer, parts, [some[min(way, len(some) - 1)] for some in completions]) for way in range(min(ways, n))
    )
    best_of = [some[0] for some in completions]
    matrix: tuple[tuple[float, ...], ...] | None = None
    if all(each.attention is not None for each in best_of):
        matrix = _joined([each.attention[:, : len(part.tokens)] for each, part in zip(best_of, parts, strict=True)])  # type: ignore[index]
    return Translation(
        **vars(best[0]),
        best=best,
        n_tokens=sum(len(part.tokens) for part in parts),
        n_windows=len(parts),
        source_tokens=tuple(str(reader.token(token)) for part in parts for token in part.tokens),
        target_tokens=tuple(str(writer.token(token)) for each in best_of for token in each.tokens),
        alignments=matrix,
    )


def _wording(writer: Tokenizer, parts: list[Part], completions: list[Completion]) -> Wording:
    text = ""
    for part, each in zip(parts, completions, strict=True):
        text += writer.decode(each.tokens).strip() + part.after
    logprob = sum(each.logprob for each in completions)
    # The mean of the pieces' scores, by what each read: so that the better way of every piece is the better whole.
    read = [len(part.tokens) for part in parts]
    score = sum(each.score * share for each, share in zip(completions, read, strict=True)) / sum(read)
    reason: Reason = next((each.finish_reason for each in completions if each.finish_reason != "end"), "end")
    return Wording(text=text.strip(), score=score, logprob=logprob, finish_reason=reason)


def _joined(matrices: list[torch.Tensor]) -> tuple[tuple[float, ...], ...]:
    """The alignments of pieces as one: nothing of a piece came from another."""
    whole: torch.Tensor = torch.block_diag(*matrices)  # type: ignore[no-untyped-call]
    return tuple(tuple(round(value, 6) for value in row) for row in whole.tolist())

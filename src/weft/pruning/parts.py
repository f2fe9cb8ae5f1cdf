"""A model with fewer layers, heads or tokens: what stays keeps its weights.

Michel et al. (2019): each head gets a gate of 1, and matters as much as the loss of an example would change with it.

L: layers; H: heads of a layer; D: width of a head; R: rows of a batch; E: its examples.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.budget import BUDGET, by_budget
from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel, fill
from weft.data.batching import every_example
from weft.data.examples import Examples, batch_of
from weft.errors import UserError, refuse
from weft.nn.attention import Attention
from weft.nn.rows import Rows
from weft.objectives.base import Objective
from weft.text.tokenizers.marian import MarianTokenizer
from weft.text.tokenizers.pruning import anatomy_of, pruned_sides, pruned_tokenizer, stays
from weft.text.tokenizers.tokenizer import Tokenizer

QKV = 3  # query, key and value, in one matrix
CHARACTERS = 1 << 20  # of texts that are counted at a time
RESERVED = re.compile(r"[\[<]unused_?\d+[\]>]|madeupword\d+")  # room that publishers left in their vocabularies
LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")  # of ids, in a published config


def evenly(count: int, of: int) -> tuple[int, ...]:
    """Which layers stay, evenly spaced from the first on: 3 of 6 are 0, 2, 4, as DistilBERT begins from BERT's."""
    if not 1 <= count <= of:
        raise UserError(f"between 1 and {of} of {of} layers can be kept, not {count}")
    return tuple(number * of // count for number in range(count))


def layers_in(opened: LoadedModel) -> int:
    """How many layers a model has, or how often it reads its one; of an encoder-decoder those that read."""
    network, config = opened.network, opened.config
    stack = network.encoder if opened.family.reads else network.layers
    if not isinstance(stack, nn.ModuleList) or not config.layers:
        raise UserError(f"{opened.family.name} has no stack of layers to prune")
    return int(config.layers)


def can_take(opened: LoadedModel) -> bool:
    """Whether some of a model's layers may be taken: it has a stack, and writes with as many as it reads with."""
    try:
        count = layers_in(opened)
    except UserError:
        return False
    return not opened.family.reads or len(opened.network.get_submodule("decoder")) == count  # type: ignore[arg-type]


def with_layers(opened: LoadedModel, keep: Sequence[int], written: Sequence[int] | None = None) -> LoadedModel:
    """The model with these of its layers alone, counted from 0; `written`: of the decoder, where they are others.

    Of ALBERT, which reads one layer again and again, only how many they are counts.
    """
    count, config = layers_in(opened), opened.config
    _check(keep, count, "layers")
    changes: dict[str, Any] = {"layers": len(keep)}
    stacks: dict[str, Sequence[int]] = {}
    if opened.family.reads:
        total = len(opened.network.decoder)
        if written is None and total != count:
            raise UserError(f"the decoder has {total} layers, the encoder {count}: give the layers of each to keep")
        stacks = {"encoder": keep, "decoder": keep if written is None else written}
        _check(stacks["decoder"], total, "layers of the decoder")
        changes["decoder_layers"] = len(stacks["decoder"])
    elif len(opened.network.layers) == count:
        stacks = {"layers": keep}
    tensors = dict(opened.network.state_dict())
    for stack, kept in stacks.items():
        tensors = _renumbered(tensors, stack, kept)
    if config.layer_heads is not None:
        changes["layer_heads"] = tuple(config.layer_heads[number] for number in keep)
    if "mix.shares" in tensors:  # of the embeddings, then of each layer
        tensors["mix.shares"] = tensors["mix.shares"][[0, *(number + 1 for number in keep)]]
    return rebuilt(opened, replace(config, **changes), tensors)


def _check(keep: Sequence[int], count: int, what: str) -> None:
    if not keep:
        raise UserError(f"no {what} would stay: at least one has to")
    if list(keep) != sorted(set(keep)) or keep[0] < 0 or keep[-1] >= count:
        raise UserError(f"{what} to keep must be some of 0 to {count - 1}, in their order, not {list(keep)}")


def _renumbered(tensors: Mapping[str, Tensor], stack: str, keep: Sequence[int]) -> dict[str, Tensor]:
    """The tensors with those of some layers alone, under their new numbers."""
    places = {number: place for place, number in enumerate(keep)}
    renumbered = {}
    for name, tensor in tensors.items():
        layer = re.match(rf"{stack}\.(\d+)\.", name)
        if layer is None:
            renumbered[name] = tensor
        elif int(layer[1]) in places:
            renumbered[f"{stack}.{places[int(layer[1])]}.{name[layer.end() :]}"] = tensor
    return renumbered


def rebuilt(opened: LoadedModel, config: Any, tensors: Mapping[str, Tensor], **changes: Any) -> LoadedModel:
    """The model of another config with these weights, copied; `changes` are those of what was opened."""
    heads = changes.get("heads", opened.heads)
    network = outline(opened.family, config, heads)
    expected = network.state_dict()
    unfit = [name for name, tensor in expected.items() if name not in tensors or tensors[name].shape != tensor.shape]
    if unfit or len(expected) != len(tensors):
        raise UserError(f"the parts that would stay of {opened.family.name} do not fit together ({sorted(unfit)[:1]})")
    fill(network, {name: tensors[name].detach().clone() for name in expected}, (), 0.0, 0)
    network.to(opened.device)
    return replace(opened, config=config, network=network.eval(), **changes)


def attentions_of(opened: LoadedModel) -> list[Attention]:
    """The attention of each layer, the first first; of ALBERT that of its one layer."""
    heads = [layer.attention for layer in opened.network.layers] if opened.config.heads else []
    if not heads:
        why = "its two sides share their positions" if opened.family.reads else "it has none"
        raise UserError(f"heads can be removed from encoders and GPTs, not from {opened.family.name}: {why}")
    if opened.config.positions == "alibi":
        raise UserError("with alibi positions every layer needs the same number of heads: none can be removed")
    return heads


@contextmanager
def gated(attentions: Sequence[Attention], gates: Sequence[Tensor], rows: Rows | None = None) -> Iterator[None]:
    """While it lasts, the output of each head is multiplied by its gate: H of a layer, or R H where rows are given."""

    def hook(attention: Attention, gate: Tensor) -> Callable[..., Any]:
        def multiplied(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
            mixed = given[0].view(-1, attention.heads, attention.head_width)  # N H D
            chosen = gate if rows is None else gate[rows.numbers(mixed.shape[0])]  # H or N H
            return ((mixed * chosen[..., None]).flatten(-2),)

        return multiplied

    with ExitStack() as hooks:
        for attention, gate in zip(attentions, gates, strict=True):
            hooks.enter_context(attention.output.register_forward_pre_hook(hook(attention, gate)))
        yield


def importance(
    opened: LoadedModel, objective: Objective, table: Examples, progress: Callable[[int], None] = lambda more: None
) -> list[Tensor]:
    """L tensors of H: how much the loss of an example changes with the gate of each head, in the mean of all examples.

    In each layer divided by the length of all its numbers, as the paper does it: layers differ in scale.
    """
    attentions, network = attentions_of(opened), opened.network
    totals = [torch.zeros(attention.heads, dtype=torch.float64) for attention in attentions]
    like: dict[str, Any] = {"dtype": next(network.parameters()).dtype, "device": opened.device, "requires_grad": True}
    network.eval()
    for each in every_example(table, batch_of, BUDGET):
        batch = each.to(opened.device)
        gates = [torch.ones(batch.rows.count, attention.heads, **like) for attention in attentions]
        with gated(attentions, gates, batch.rows), torch.enable_grad():
            loss = torch.stack([term.double() for term in objective.sums(network, batch).values()]).sum()
        owners = batch.targets["owners"]
        examples = int(owners.max()) + 1
        for total, gradient in zip(totals, torch.autograd.grad(loss, gates), strict=True):
            zeros = gradient.double().new_zeros(examples, gradient.shape[1])  # E H
            # A text in several windows is one example.
            total += zeros.index_add(0, owners, gradient.double()).abs().sum(0).cpu()
        progress(examples)
    return [total / total.norm().clamp_min(1e-30) for total in totals]


def least(importances: Sequence[Tensor], share: float | None = None, each: int | None = None) -> list[list[int]]:
    """Which heads stay, at least one in each layer: less a share of all that matter least, or so many in each layer."""
    counts = [len(layer) for layer in importances]
    order = sorted((float(value), n, head) for n, layer in enumerate(importances) for head, value in enumerate(layer))
    if share is not None and each is None:
        if not 0 < share < 1:
            raise UserError(f"the share of heads to remove must be above 0 and below 1, not {share:g}")
        wanted, lowest = round(share * sum(counts)), [1] * len(counts)
    elif share is None and each is not None:
        most = min(counts) - 1
        single = "a layer has only one head, which cannot be removed: give a share of all heads, or remove layers"
        refuse(
            (not most, single),
            (not 1 <= each <= most,
             f"between 1 and {most} of the {most + 1} heads of a layer can be removed, not {each}"),
        )  # fmt: skip
        wanted, lowest = each * len(counts), [count - each for count in counts]
    else:
        raise UserError("give either a share of all heads or a number for each layer")
    kept = [list(range(count)) for count in counts]
    for _, n, head in order:
        if wanted and len(kept[n]) > lowest[n]:
            kept[n].remove(head)
            wanted -= 1
    return kept


def with_heads(opened: LoadedModel, keep: Sequence[Sequence[int]]) -> LoadedModel:
    """The model with these heads of each layer: its output is that of the whole one without the others.

    Published formats have one number of heads for all layers, each as wide as its share of the network; so the folder
    of such a model is `weft-FAMILY`.
    """
    attentions, config = attentions_of(opened), opened.config
    if len(keep) != len(attentions):
        raise UserError(f"heads of {len(keep)} layers are given for a model of {len(attentions)}")
    tensors = dict(opened.network.state_dict())
    for number, (attention, some) in enumerate(zip(attentions, keep, strict=True)):
        if not some or list(some) != sorted(set(some)) or some[0] < 0 or some[-1] >= attention.heads:
            raise UserError(f"layer {number}: heads to keep must be some of 0 to {attention.heads - 1}, in their order")
        before, chosen = f"layers.{number}.attention.", torch.tensor(some, device=opened.device)
        for name in ("qkv.weight", "qkv.bias"):
            cut = tensors[before + name].unflatten(0, (QKV, attention.heads, attention.head_width))
            tensors[before + name] = cut[:, chosen].flatten(0, 2)
        cut = tensors[before + "output.weight"].unflatten(1, (attention.heads, attention.head_width))
        tensors[before + "output.weight"] = cut[:, chosen].flatten(1)
    counts = [len(some) for some in keep]
    if all(count == attention.heads for count, attention in zip(counts, attentions, strict=True)):
        return opened
    changes: dict[str, Any] = {"head_width": attentions[0].head_width}
    if len(set(counts)) == 1:
        changes |= {"heads": counts[0], **({"layer_heads": None} if config.has("layer_heads") else {})}
    else:
        changes |= {"layer_heads": tuple(counts)}
    return rebuilt(opened, replace(config, **changes), tensors)


# ------------------------------------------------------------------------------------------------------ vocabulary


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
        one, two, read, kept = pruned_sides(tokenizer, target, keep, written, characters)
        if apart and (two.id_of("padding") or 0) >= len(read):
            what = "Marian's format has one number for the padding of both"
            raise UserError(f"{what}: keep more tokens of what is read, or fewer of what is written")
        return {"tokenizer": one, "target_tokenizer": two}, read, kept
    if target is None:
        smaller, kept = pruned_tokenizer(tokenizer, keep, characters)
        return {"tokenizer": smaller}, kept, kept
    if not apart:  # two ways to cut a text into the same tokens
        keep = written = set(stays(anatomy_of(target, characters), stays(anatomy_of(tokenizer, characters), keep)))
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

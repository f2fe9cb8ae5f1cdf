"""`weft.prune`: a model with fewer layers, heads or tokens; what stays keeps its weights.

Michel et al. (2019): each head gets a gate of 1, and matters as much as the loss of an example would change with it.
L: layers; H: heads of a layer; D: width of a head; R: rows of a batch; E: its examples.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.budget import BUDGET, by_budget
from weft.checkpoint.card import Made
from weft.checkpoint.families import outline
from weft.checkpoint.folder import LoadedModel, fill, save_folder
from weft.comparison.compare import ComparedRows, Comparison, Table, compared, participants_of, plain, rows_of
from weft.comparison.cost import evenly, parameters_of
from weft.data.examples import Examples, batch_of
from weft.data.rows import every_example
from weft.data.shards import TextFiles
from weft.errors import UserError, one_of, refuse
from weft.files import check_new_folder, temporary_folder
from weft.nn.attention import Attention
from weft.nn.rows import Rows
from weft.objectives.losses import Objective
from weft.progress import Log, Progress, ProgressChoice, progress_of, to_logger
from weft.pruning.options import PruneOptions
from weft.runs.finetune import MOST_WINDOWS
from weft.tasks.base import Example
from weft.tasks.evaluate import Paths, RowOptions, evaluate_examples, named
from weft.tasks.forward import framing_for
from weft.tasks.model import Model, load
from weft.text.tokenizers.pruning import anatomy_of, pruned_sides, pruned_tokenizer
from weft.text.tokenizers.sentencepiece import MarianTokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.version import VERSION

MAX_ROWS = 2000  # rows by which heads and layers are chosen; all of them evaluate


@dataclass(frozen=True)
class Pruned:
    """The smaller model, and what was done."""

    model: Model
    parameters: tuple[int, int]  # before and after
    layers: tuple[int, ...] | None  # those that stayed
    heads: tuple[tuple[int, ...], ...] | None  # those that stayed of each layer
    vocabulary: tuple[int, int] | None  # tokens before and after
    coverage: VocabularyCoverage | None  # what the texts that were counted lose by it
    comparison: Comparison | None  # on the rows to evaluate by

    def lines(self) -> list[str]:
        """What was done, for people."""
        before, after = self.parameters
        lines = [f"parameters: {before:,} -> {after:,} ({after / before - 1:+.1%})"]
        if self.layers is not None:
            lines.append(f"layers that stayed: {', '.join(map(str, self.layers))} (counted from 0)")
        if self.heads is not None:
            lines.append(f"heads that stayed in each layer: {', '.join(str(len(some)) for some in self.heads)}")
        if self.vocabulary is not None:
            lines.append(f"tokens: {self.vocabulary[0]:,} -> {self.vocabulary[1]:,}")
        if self.coverage is not None:
            lines.append(f"of the texts {self.coverage}")
        return lines

    def tables(self) -> list[Table]:
        """Title, header and rows of every table."""
        return [] if self.comparison is None else self.comparison.tables()

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        values = {name: value for name, value in vars(self).items() if name != "model"}
        values["coverage"] = self.coverage and vars(self.coverage)
        values["comparison"] = self.comparison and self.comparison.values()
        return plain(values)


def prune(
    model: str | os.PathLike[str] | Model,
    *,
    out: str | os.PathLike[str] | None = None,
    data: Paths | None = None,
    device: str | None = None,
    online: bool = False,
    trust: bool = False,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **options: Any,
) -> Pruned:
    """Remove layers, heads or tokens from a model, and evaluate what is left; with `out`, write it there.

    The `options`: `layers` to keep, `by` "even" or "importance" on the rows of `data`; the share of `heads` to remove,
    or `heads_each` of a layer; the `vocabulary` to keep, by `text` files or the rows, with all `characters`;
    `max_drop`, the points of the metric beyond which nothing is written; and `costs`, `seconds`, `columns`.
    """
    own = [field.name for field in fields(PruneOptions)]
    for option in options:
        one_of(option, (*own, *RowOptions.__annotations__), "option")
    asked = PruneOptions(**{name: value for name, value in options.items() if name in own})
    rows = {name: value for name, value in options.items() if name not in own}
    has_rows = data is not None or bool(named(rows.get("source")) or named(rows.get("target")))
    asked.check(has_rows)
    if out is not None:
        check_new_folder(Path(out))
    before = model if isinstance(model, Model) else load(model, device=device, online=online, trust=trust)
    if before.opened.exported:
        raise UserError(f"a model for {before.card.backend} cannot be pruned: prune the one it was made from")
    pruner = Pruner(before, asked, {"data": data, **rows}, progress_of(progress))
    if has_rows:
        pruner.rows()  # a file that cannot be read is refused before anything is computed
    smaller, layers, heads, covered = before.opened, None, None, None
    if asked.layers is not None:
        layers = pruner.layers(asked.layers)
        total = len(smaller.network.decoder) if smaller.family.reads else None
        written = None if total is None else spaced_layers(min(asked.layers, total), total)
        smaller = with_layers(smaller, layers, written)
    if asked.heads is not None or asked.heads_each is not None:
        heads = pruner.heads(smaller)
        smaller = with_heads(smaller, heads)
    if asked.vocabulary is not None:
        smaller, covered = pruner.with_vocabulary(smaller, asked.vocabulary)
    name = "model" if isinstance(model, Model) else Path(model).name
    made = replace(before.card.made or Made(), date=datetime.now(UTC).date().isoformat())
    smaller = replace(smaller, card=replace(before.card, weft=VERSION, metrics=(), base=name, made=made))
    after, comparison = Model(smaller, before.task), None
    if has_rows:
        comparison = pruner.compare(after, name, None if isinstance(model, Model) else Path(model))
        if asked.max_drop is not None and comparison.refused:
            raise UserError(f"{comparison.refused[0]}: nothing was written")
        for line in comparison.refused:
            log(f"weft: note: {line}; weft finetune may bring it back")
        after.opened = replace(smaller, card=replace(smaller.card, metrics=comparison.card_metrics(-1)))
    if out is not None:
        save_folder(Path(out), after.opened)
    sizes = None if asked.vocabulary is None else (before.config.vocabulary, smaller.config.vocabulary)
    counts = parameters_of(before) or 0, parameters_of(after) or 0
    return Pruned(after, counts, layers, heads, sizes, covered, comparison)


class Pruner:
    """Chooses the parts that stay, by rows that are read anew each time, so that none need be held."""

    def __init__(self, model: Model, options: PruneOptions, rows: dict[str, Any], progress: Progress) -> None:
        self.model, self.options, self.reading, self.progress = model, options, rows, progress
        self.task = model.task_object

    def rows(self) -> ComparedRows:
        return rows_of(self.task, self.model.card.columns, **self.reading)

    @cached_property
    def labeled(self) -> list[Example]:
        """Rows with labels, evenly from all of them."""
        refuse((not self.task.supervised, f"a model for {self.model.task} has no labels to rank its parts by"))
        sample = evenly([each for each in self.rows().examples if self.task.has_target(each)], MAX_ROWS)
        refuse((not sample, "the data has no labels, so nothing shows which parts matter"))
        return sample

    def layers(self, count: int) -> tuple[int, ...]:
        """The layers that stay; by importance, the layer is removed without which the metric is best, one by one."""
        opened, task, total = self.model.opened, self.task, layers_in(self.model.opened)
        spaced = spaced_layers(count, total)
        if self.options.by == "even":
            return spaced
        refuse(
            (opened.family.reads, "layers of an encoder-decoder stay evenly spaced: leave out --by importance"),
            (len(opened.network.layers) < total, f"{opened.family.name} repeats one layer: leave out --by importance"),
        )
        rows, kept = self.labeled, tuple(range(total))
        with self.progress("ranking layers", "layers") as step:
            while len(kept) > count:
                scores = {}
                for layer in kept:
                    fewer = tuple(each for each in kept if each != layer)
                    smaller = with_layers(opened, fewer)
                    metrics = evaluate_examples(task, smaller, framing_for(smaller), rows).scores
                    value = metrics[task.default_metric].value
                    scores[value if value == value else float("-inf"), layer] = fewer
                    step(1)
                kept = scores[max(scores)]  # of equals the upper one is removed
        return kept

    def heads(self, opened: LoadedModel) -> tuple[tuple[int, ...], ...]:
        """The heads of each layer that stay: without those that matter least."""
        attentions_of(opened)  # a model without heads is refused before anything is read
        dataset: Any = self.task.dataset(self.labeled, opened, framing_for(opened))
        with self.progress("ranking heads", "examples") as count:
            ranked = importance(opened, self.task.objective(), dataset.for_training(MOST_WINDOWS, 0, False), count)
        return tuple(map(tuple, least(ranked, self.options.heads, self.options.heads_each)))

    def with_vocabulary(self, opened: LoadedModel, count: int) -> tuple[LoadedModel, VocabularyCoverage]:
        """The model with the tokens that texts use most, and what those texts lose by it."""
        text, characters, written = named(self.options.text), self.options.characters, None
        tokenizer, target = opened.tokenizer, opened.target_tokenizer
        if text and opened.config.source_vocabulary is not None:
            raise UserError("a model with two vocabularies counts their tokens in rows: give --data, not --text")
        if tokenizer is None:
            raise UserError("this model folder has no tokenizer, so the tokens of texts cannot be counted")

        def inputs() -> Iterator[str]:
            rows = TextFiles(text).read() if text else (each for row in self.rows().examples for each in row.texts)
            return ((opened.card.prefix or "") + each for each in rows)

        def targets() -> Iterator[str]:
            examples: Iterable[Example] = () if text or not opened.family.reads else self.rows().examples
            return (example.target for example in examples if isinstance(example.target, str))

        counts, of_targets = counted(tokenizer, inputs()), counted(target or tokenizer, targets())
        old = counts if target is not None else counts + of_targets
        if opened.config.source_vocabulary is not None and target is not None:
            kept = chosen([tokenizer], counts, count, characters)
            written = chosen([target], of_targets, count, characters)
        else:
            both = [each for each in (tokenizer, target) if each is not None]
            kept = chosen(both, counts + of_targets, count, characters)
        smaller = with_vocabulary(opened, kept, written, characters)
        assert smaller.tokenizer is not None
        new = counted(smaller.tokenizer, inputs() if target is not None else chain(inputs(), targets()))
        return smaller, coverage(tokenizer, smaller.tokenizer, kept, old, new)

    def compare(self, after: Model, name: str, folder: Path | None) -> Comparison:
        """The pruned model beside the one it was made from."""
        options, names = self.options, [name, "pruned" if name != "pruned" else "pruned again"]
        with temporary_folder() as scratch, self.progress("comparing", "examples") as count:
            folders = None if folder is None else [folder, scratch / "pruned"]
            if folder is not None:  # so that both have a size on disk
                save_folder(scratch / "pruned", after.opened)
            limits: Any = {name: vars(options)[name] for name in ("max_drop", "costs", "seconds")}
            models = participants_of([self.model, after], names, folders)
            comparison = compared(models, self.rows(), memory=False, progress=count, **limits)
        return replace(comparison, models=[replace(each, folder=None) for each in comparison.models])


QKV = 3  # query, key and value, in one matrix
CHARACTERS = 1 << 20  # of texts that are counted at a time
RESERVED = re.compile(r"[\[<]unused_?\d+[\]>]|madeupword\d+")  # room that publishers left in their vocabularies
LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")  # of ids, in a published config


def spaced_layers(count: int, of: int) -> tuple[int, ...]:
    """Which layers stay, evenly spaced from the first on: 3 of 6 are 0, 2, 4, as DistilBERT begins from BERT's."""
    refuse((not 1 <= count <= of, f"between 1 and {of} of {of} layers can be kept, not {count}"))
    return tuple(evenly(range(of), count))


def layers_in(opened: LoadedModel) -> int:
    """How many layers a model has, or how often it reads its one; of an encoder-decoder those that read."""
    network, config = opened.network, opened.config
    stack = network.encoder if opened.family.reads else network.layers
    if not isinstance(stack, nn.ModuleList) or not config.layers:
        raise UserError(f"{opened.family.name} has no stack of layers to prune")
    return int(config.layers)


def can_take(opened: LoadedModel) -> bool:
    """Whether some of a model's layers may be taken: it has a stack, and its decoder is as deep as its encoder."""
    with suppress(UserError):
        count = layers_in(opened)
        return not opened.family.reads or len(opened.network.decoder) == count
    return False


def with_layers(opened: LoadedModel, keep: Sequence[int], written: Sequence[int] | None = None) -> LoadedModel:
    """The model with these of its layers alone, counted from 0; `written`: of the decoder, where they are others."""
    count, config = layers_in(opened), opened.config
    # Of ALBERT, which reads one layer again and again, only how many they are counts.
    stacks = {"layers": (keep, count)} if len(opened.network.layers) == count else {}
    changes: dict[str, Any] = {"layers": len(keep)}
    if opened.family.reads:
        total = len(opened.network.decoder)
        if written is None and total != count:
            raise UserError(f"the decoder has {total} layers, the encoder {count}: give the layers of each to keep")
        stacks = {"encoder": (keep, count), "decoder": (keep if written is None else written, total)}
        changes["decoder_layers"] = len(stacks["decoder"][0])
    for some, of in stacks.values() or [(keep, count)]:
        if not some or list(some) != sorted(set(some)) or some[0] < 0 or some[-1] >= of:
            raise UserError(f"layers to keep must be some of 0 to {of - 1}, in their order, not {list(some)}")
    tensors = {}
    for name, tensor in opened.network.state_dict().items():
        stack, _, rest = name.partition(".")
        number, _, rest = rest.partition(".")
        if stack not in stacks:
            tensors[name] = tensor
        elif int(number) in (kept := stacks[stack][0]):
            tensors[f"{stack}.{kept.index(int(number))}.{rest}"] = tensor
    if not config.head_layers.startswith(("last", "second")):
        raise UserError(f"the heads read the layers {config.head_layers}, which would be others after pruning")
    if config.layer_heads is not None:
        changes["layer_heads"] = tuple(config.layer_heads[number] for number in keep)
    if "mix.shares" in tensors:  # of the embeddings, then of each layer
        tensors["mix.shares"] = tensors["mix.shares"][[0, *(number + 1 for number in keep)]]
    return rebuilt(opened, replace(config, **changes), tensors)


def rebuilt(opened: LoadedModel, config: Any, tensors: Mapping[str, Tensor], **changes: Any) -> LoadedModel:
    """The model of another config with these weights, copied; `changes` are those of what was opened."""
    network = outline(opened.family, config, changes.get("heads", opened.heads))
    expected = network.state_dict()
    unfit = [name for name, tensor in expected.items() if name not in tensors or tensors[name].shape != tensor.shape]
    if unfit or len(expected) != len(tensors):
        raise UserError(f"the parts that would stay of {opened.family.name} do not fit together ({sorted(unfit)[:1]})")
    fill(network, {name: tensors[name].detach() for name in expected})
    network.to(opened.device)
    return replace(opened, config=config, network=network.eval(), **changes)


def attentions_of(opened: LoadedModel) -> list[Attention]:
    """The attention of each layer, the first first; of ALBERT that of its one layer."""
    every = [layer.attention for layer in opened.network.layers] if opened.config.heads else []
    heads = [attention for attention in every if isinstance(attention, Attention)]
    if not heads:
        why = "its two sides share their positions" if opened.family.reads else "it has none"
        why = "each has biases of its own for distances" if every else why
        raise UserError(f"heads can be removed from encoders and GPTs, not from {opened.family.name}: {why}")
    if opened.config.positions == "alibi":
        raise UserError("with alibi positions every layer needs the same number of heads: none can be removed")
    return heads


@contextmanager
def gated(attentions: Sequence[Attention], gates: Sequence[Tensor], rows: Rows | None = None) -> Iterator[None]:
    """While it lasts, the output of each head is multiplied by its gate: H of a layer, or R H where rows are given."""

    def multiplied(heads: int, gate: Tensor, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        mixed = inputs[0].view(len(inputs[0]), heads, -1)  # N H D
        chosen = gate if rows is None else gate[rows.numbers(mixed.shape[0])]  # H or N H
        return ((mixed * chosen[..., None]).flatten(-2),)

    with ExitStack() as hooks:
        for attention, gate in zip(attentions, gates, strict=True):
            hooks.enter_context(attention.output.register_forward_pre_hook(partial(multiplied, attention.heads, gate)))
        yield


def importance(
    opened: LoadedModel, objective: Objective, table: Examples, progress: Callable[[int], None] = lambda more: None
) -> list[Tensor]:
    """L tensors of H: how much the loss of an example changes with the gate of each head, in the mean."""
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
    return [total / total.norm().clamp_min(1e-30) for total in totals]  # as in the paper: layers differ in scale


def least(importances: Sequence[Tensor], share: float | None = None, each: int | None = None) -> list[list[int]]:
    """Which heads stay, at least one in each layer: less a share of all that matter least, or so many in each layer."""
    counts = [len(layer) for layer in importances]
    order = sorted((float(value), n, head) for n, layer in enumerate(importances) for head, value in enumerate(layer))
    if share is not None and each is None:
        refuse((not 0 < share < 1, f"the share of heads to remove must be above 0 and below 1, not {share:g}"))
        wanted, lowest = round(share * sum(counts)), [1] * len(counts)
    elif share is None and each is not None:
        most = min(counts) - 1
        refuse(
            (not most, "a layer has only one head, which cannot be removed: give --heads SHARE, or remove layers"),
            (not 1 <= each <= most, f"1 to {most} of the {most + 1} heads of a layer can be removed, not {each}"),
        )
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
    """The model with these heads of each layer alone; its folder is `weft-FAMILY`, as published formats have none."""
    attentions, config = attentions_of(opened), opened.config
    refuse((len(keep) != len(attentions), f"heads of {len(keep)} layers are given for a model of {len(attentions)}"))
    tensors = dict(opened.network.state_dict())
    for number, (attention, some) in enumerate(zip(attentions, keep, strict=True)):
        if not some or list(some) != sorted(set(some)) or some[0] < 0 or some[-1] >= attention.heads:
            raise UserError(f"layer {number}: heads to keep must be some of 0 to {attention.heads - 1}, in their order")
        before, chosen = f"layers.{number}.attention.", torch.tensor(some, device=opened.device)
        for name in ("qkv.weight", "qkv.bias"):
            cut = tensors[before + name].unflatten(0, (QKV, attention.heads, attention.head_width))
            tensors[before + name] = cut[:, chosen].flatten(0, 2)
        for name in (f"{part}.{kind}" for part in ("distance_key", "distance_query") for kind in ("weight", "bias")):
            if before + name in tensors:  # of DeBERTa
                cut = tensors[before + name].unflatten(0, (attention.heads, attention.head_width))
                tensors[before + name] = cut[chosen].flatten(0, 1)
        cut = tensors[before + "output.weight"].unflatten(1, (attention.heads, attention.head_width))
        tensors[before + "output.weight"] = cut[:, chosen].flatten(1)
    counts = tuple(len(some) for some in keep)
    if all(count == attention.heads for count, attention in zip(counts, attentions, strict=True)):
        return opened
    changes: dict[str, Any] = {"head_width": attentions[0].head_width, "layer_heads": counts}
    if len(set(counts)) == 1:
        changes |= {"heads": counts[0], "layer_heads": None}
    changes = {name: value for name, value in changes.items() if value is not None or config.has(name)}
    return rebuilt(opened, replace(config, **changes), tensors)


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
    """The ids of as many tokens of one vocabulary: those that have to stay, then those that the texts use most."""
    anatomies = [anatomy_of(each, characters) for each in tokenizers]
    size = anatomies[0].size
    names = {number: name for name, number in tokenizers[0].tokens.items()}
    # Without `characters`, single ones stay only where the texts, or English, use them.
    seen = {character for number in counts for character in names.get(number, "")} | set(string.printable)
    first = [number for anatomy in anatomies for number, one in anatomy.spelling.items() if one in seen]
    kept: set[int] = set()
    while (more := {each for anatomy in anatomies for each in anatomy.closed((*kept, *first))}) != kept:
        kept = more
    smallest = f"special tokens, single characters and the like need at least {len(kept):,}"
    refuse(
        (not 1 <= count <= size, f"between 1 and {size:,} tokens of the vocabulary can be kept, not {count:,}"),
        (len(kept) > count, f"a vocabulary of {count:,} is too small: {smallest}"),
    )
    # Where the texts use fewer tokens, the first of the others fill up: vocabularies begin with what is frequent.
    used = sorted(counts, key=lambda number: (-counts[number], number))
    others = [number for number in range(size) if not RESERVED.fullmatch(names.get(number, ""))]
    for number in dict.fromkeys((*used, *others, *range(size))):
        if len(kept) == count:
            break
        if number in kept:
            continue
        needed, waiting = {number}, [number]  # with what it is merged from
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
    """The tokens of texts in a smaller vocabulary."""

    tokens: int  # of the texts in the vocabulary before
    dropped: int  # of these, tokens that are no more
    after: int  # tokens of the texts now
    unknown: int  # of these, tokens for what cannot be spelled, beyond those that were there before

    def __str__(self) -> str:
        share, more = self.dropped / max(1, self.tokens), self.after / max(1, self.tokens) - 1
        unknown = f"; {self.unknown:,} became unknown" if self.unknown else "; none became unknown"
        return f"{share:.2%} of {self.tokens:,} tokens are spelled with smaller ones, {more:+.2%} tokens{unknown}"


def coverage(
    before: Tokenizer, after: Tokenizer, kept: Collection[int], old: Counter[Any], new: Counter[Any]
) -> VocabularyCoverage:
    """What texts lose by a smaller vocabulary; `old`, `new`: their tokens, counted by either tokenizer."""
    dropped = old.total() - sum(old[number] for number in kept)
    unknown = max(0, new[after.id_of("unknown")] - old[before.id_of("unknown")])
    return VocabularyCoverage(old.total(), dropped, new.total(), unknown)


def with_vocabulary(
    opened: LoadedModel, keep: Sequence[int], written: Sequence[int] | None = None, characters: bool = True
) -> LoadedModel:
    """The model with these tokens, and those they need; `written`: of a decoder with a vocabulary of its own."""
    family, config = opened.family, opened.config
    if family.counts:
        raise UserError(f"{family.name} is learned by counting: its vocabulary cannot be pruned; count again instead")
    if opened.network.CONTINUES:
        raise UserError(f"{family.name} spells words it does not know: its vocabulary cannot be pruned")
    size = opened.writer.vocabulary if opened.writer is not None else config.vocabulary
    ids = set[int]()
    _with_ids(opened.carried, ids.add)
    required = {number for number in ids if 0 <= number < size}
    if config.begin is not None:
        required.add(config.begin)
    changes, read, kept = _cut(opened, set(keep), None if written is None else set(written), required, characters)
    new = {old: number for number, old in enumerate(kept)}
    sizes: dict[str, Any] = {"vocabulary": len(kept)}
    sizes |= {} if config.source_vocabulary is None else {"source_vocabulary": len(read)}
    sizes |= {} if config.begin is None else {"begin": new[config.begin]}
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
    carried = _with_ids(opened.carried, lambda number: new.get(number, number))
    return rebuilt(opened, smaller, tensors, heads=heads, carried=carried, **changes)


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

"""Published tensor names to ours and back, as two-way rules with `{}` for the layer; nothing may be left over."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal

import torch
from torch import Tensor

from weft.errors import UserError, listed, shown


@dataclass(frozen=True)
class Rule:
    """One tensor of ours, and the tensor or tensors that publish it."""

    theirs: tuple[str, ...]
    ours: str  # empty: what is published is no weight
    how: Literal["same", "transposed", "joined", "row", "dropped"]
    beside: str = ""  # holds only where the network has this tensor too
    without: str = ""  # holds only where it has not

    def holds(self, tensors: Collection[str]) -> bool:
        return (not self.beside or self.beside in tensors) and (not self.without or self.without not in tensors)


MODULES = ("attention.output", "attention_norm", "feedforward.up", "feedforward.down", "feedforward_norm")


def same(theirs: str, ours: str, beside: str = "", without: str = "") -> Rule:
    return Rule((theirs,), ours, "same", beside, without)


def both(theirs: str, ours: str) -> tuple[Rule, Rule]:
    """The weight and the bias of one module."""
    return same(f"{theirs}.weight", f"{ours}.weight"), same(f"{theirs}.bias", f"{ours}.bias")


def joined(theirs: Iterable[str], ours: str, kinds: tuple[str, ...] = ("weight", "bias")) -> tuple[Rule, ...]:
    """Several modules, their weights (and biases) one below the other, are one of ours."""
    theirs = tuple(theirs)
    return tuple(Rule(tuple(f"{name}.{kind}" for name in theirs), f"{ours}.{kind}", "joined") for kind in kinds)


def layer(theirs: str, ours: str, maps: Iterable[str], modules: Iterable[str]) -> tuple[Rule, ...]:
    """A Transformer layer: the maps to queries, keys and values, and its other modules in the order of `MODULES`."""
    pairs = zip(modules, MODULES, strict=True)
    return (
        *joined([f"{theirs}.{name}" for name in maps], f"{ours}.attention.qkv"),
        *(rule for name, own in pairs for rule in both(f"{theirs}.{name}", f"{ours}.{own}")),
    )


def dropped(theirs: str, beside: str = "") -> Rule:
    """Stored, but no weight: a mask or a row of numbers that anyone can work out."""
    return Rule((theirs,), "", "dropped", beside)


@dataclass(frozen=True)
class Names:
    """How one family publishes its tensors."""

    prefix: str = ""  # stands before the body's tensors when a head is saved with it
    body: tuple[Rule, ...] = ()
    heads: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    tied: tuple[tuple[str, str], ...] = ()  # (theirs, ours): may be stored a second time, and must then be equal
    spellings: tuple[tuple[str, str], ...] = ()  # older ways to write a name: pattern, replacement

    def rules(self, heads: Iterable[str]) -> tuple[Rule, ...]:
        return (*self.body, *(rule for head in heads for rule in self.heads[head]))

    def spelled(self, name: str) -> str:
        """A published name in its one canonical spelling."""
        name = name.removeprefix(self.prefix)
        for pattern, replacement in self.spellings:
            name = re.sub(pattern, replacement, name)
        return name

    @cached_property
    def head_names(self) -> dict[str, tuple[str, ...]]:
        """The published names of each head's tensors."""
        return {head: tuple(name for rule in rules for name in rule.theirs) for head, rules in self.heads.items()}


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\{\}", r"(0|[1-9][0-9]{0,4})"))


def to_ours(
    names: Names,
    heads: Iterable[str],
    stored: Mapping[str, Tensor],
    expected: Mapping[str, torch.Size],
    fresh: set[str],
) -> dict[str, Tensor]:
    """The network's tensors out of the stored ones; every fault of the whole folder comes in one error.

    `expected` has the network's own names and shapes; those in `fresh` belong to a new head and may be absent.
    """
    rules = [(rule, [_pattern(name) for name in rule.theirs]) for rule in names.rules(heads) if rule.holds(expected)]
    tied = dict(names.tied)
    parts: dict[str, dict[int, Tensor]] = {}  # ours -> which part -> tensor
    hows: dict[str, Rule] = {}
    copies: list[tuple[str, str]] = []
    extra: list[str] = []
    for name, tensor in stored.items():
        for rule, patterns in rules:
            matches = [(number, match) for number, p in enumerate(patterns) if (match := p.fullmatch(name))]
            if not matches:
                continue
            number, match = matches[0]
            ours = rule.ours.format(*match.groups())
            if rule.how != "dropped" and ours in expected:
                parts.setdefault(ours, {})[number] = tensor
                hows[ours] = rule
                break
            if rule.how == "dropped":
                break
        else:
            if name in tied and tied[name] in expected:
                copies.append((name, tied[name]))
            else:
                extra.append(name)
    complete = {ours: rule for ours, rule in hows.items() if len(parts[ours]) == len(rule.theirs)}
    lone = [(theirs, ours) for theirs, ours in copies if ours not in parts]  # stored under the second name alone
    there = {*complete, *fresh, *(ours for _, ours in lone)}
    sought = [rule for rule, _ in rules]
    missing = [_sought(sought, ours, parts.get(ours, {})) for ours in expected if ours not in there]
    faults = [f"missing: {listed(missing)}"] if missing else []
    if extra:
        faults.append(f"extra: {listed(shown(name, 100) for name in extra)}")
    pieces = {ours: [parts[ours][number] for number in range(len(rule.theirs))] for ours, rule in complete.items()}
    shapes = {ours: _shape(rule, pieces[ours]) for ours, rule in complete.items()}
    shapes |= {ours: tuple(stored[theirs].shape) for theirs, ours in lone}
    for ours, shape in shapes.items():
        if shape != tuple(expected[ours]):
            faults.append(f"{ours}: checkpoint {shape}, model {tuple(expected[ours])}")
    if not faults:  # only now is anything copied
        result = {ours: _ours(rule, pieces[ours]) for ours, rule in complete.items()}
        result |= {ours: stored[theirs].clone() for theirs, ours in lone}
        for theirs, ours in copies:
            if not torch.equal(stored[theirs], result[ours]):
                faults.append(f"{theirs}: stored a second time and not equal to {ours}, though the config ties them")
    if faults:
        raise unfit(faults)
    return result


def unfit(faults: list[str]) -> UserError:
    """The one error for all faults of a checkpoint."""
    more = [f"and {len(faults) - 20} more"] if len(faults) > 20 else []
    return UserError("the checkpoint does not fit the model\n  " + "\n  ".join([*faults[:20], *more]))


def _shape(rule: Rule, tensors: list[Tensor]) -> tuple[int, ...]:
    """The shape that a tensor of ours will have; parts that do not fit together keep their own and are refused."""
    shape = tuple(tensors[0].shape)
    if rule.how == "transposed":
        return shape[::-1]
    if rule.how == "row" and shape[:1] == (1,):
        return shape[1:]
    if rule.how == "joined" and shape and all(part.shape == tensors[0].shape for part in tensors):
        return (len(tensors) * shape[0], *shape[1:])
    return shape


def _ours(rule: Rule, tensors: list[Tensor]) -> Tensor:
    if rule.how == "joined":
        return torch.cat(tensors)
    if rule.how == "row":
        return tensors[0].flatten().clone()
    # A clone, so that the model does not hang on the file that it was read from.
    return tensors[0].t().contiguous() if rule.how == "transposed" else tensors[0].clone()


def _sought(rules: Iterable[Rule], ours: str, tensors: Mapping[int, Tensor]) -> str:
    """The published name under which a tensor of ours was looked for."""
    for rule in rules:
        match = _pattern(rule.ours).fullmatch(ours) if rule.ours else None
        if match:
            return next(name for number, name in enumerate(rule.theirs) if number not in tensors).format(
                *match.groups()
            )
    return ours


def to_theirs(names: Names, heads: Iterable[str], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's tensors under their published names, in the network's order."""
    heads = list(heads)
    rules = [(rule, _pattern(rule.ours), rule in names.body) for rule in names.rules(heads) if rule.ours]
    rules = [(rule, pattern, of_body) for rule, pattern, of_body in rules if rule.holds(ours)]
    result: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        rule, match, of_body = next((r, m, b) for r, pattern, b in rules if (m := pattern.fullmatch(name)))
        pieces = tensor.chunk(len(rule.theirs)) if rule.how == "joined" else (tensor,)
        for theirs, piece in zip(rule.theirs, pieces, strict=True):
            full = (names.prefix if of_body and heads else "") + theirs.format(*match.groups())
            assert full not in result, f"two heads would both be stored as {full}"
            if rule.how == "row":
                piece = piece[None]
            result[full] = (piece.t() if rule.how == "transposed" else piece).contiguous()
    return result

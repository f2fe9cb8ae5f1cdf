"""Published names of tensors and keys of `config.json` to ours and back; nothing may be left over or unknown."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from weft.config import build
from weft.errors import UserError, listed, shown

# ------------------------------------------------------ tensors: two-way rules with `{}` for the number of the layer


@dataclass(frozen=True)
class Rule:
    """One tensor of ours, and the tensor or tensors that publish it."""

    theirs: tuple[str, ...]
    ours: str  # empty: what is published is no weight
    how: Literal["same", "transposed", "joined", "row", "heads", "flat", "dropped"]
    beside: str = ""  # holds only where the network has this tensor too
    without: str = ""  # holds only where it has not
    like: str = ""  # a tensor of ours of the shape H D, where theirs has a dimension for heads and one for their width

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


def by_heads(theirs: Iterable[str], ours: str, like: str) -> Rule:
    """Maps of the shape width H D, one below the other as H D width."""
    return Rule(tuple(theirs), ours, "heads", like=like)


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

    def only(self, heads: Iterable[str]) -> Names:
        """The names of a model with these heads."""
        return replace(self, heads={head: self.heads[head] for head in heads})

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*self.body, *(rule for rules in self.heads.values() for rule in rules))

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
    names: Names | None, stored: Mapping[str, Tensor], expected: Mapping[str, Tensor], fresh: set[str]
) -> dict[str, Tensor]:
    """The network's tensors out of the stored ones; every fault of the whole folder comes in one error.

    `names` None: under the network's own. `expected`: its names and shapes, of which those in `fresh` may be absent.
    """
    names = names or Names(body=tuple(same(name, name) for name in expected))
    rules = [(rule, [_pattern(name) for name in rule.theirs]) for rule in names.rules if rule.holds(expected)]
    tied = dict(names.tied)
    parts: dict[str, dict[int, Tensor]] = {}  # ours -> which part -> tensor
    hows: dict[str, Rule] = {}
    copies: list[tuple[str, str]] = []
    extra: list[str] = []
    for name, tensor in stored.items():
        for rule, patterns in rules:
            number, match = next(((n, m) for n, p in enumerate(patterns) if (m := p.fullmatch(name))), (0, None))
            ours = rule.ours.format(*match.groups()) if match else ""
            if match and rule.how != "dropped" and ours in expected:
                parts.setdefault(ours, {})[number] = tensor
                hows[ours] = rule
                break
            if match and rule.how == "dropped":
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
    faults += [f"extra: {listed(shown(name, 100) for name in extra)}"] if extra else []
    pieces = {ours: [parts[ours][number] for number in range(len(rule.theirs))] for ours, rule in complete.items()}
    shapes = {ours: _shape(rule, pieces[ours]) for ours, rule in complete.items()}
    shapes |= {ours: tuple(stored[theirs].shape) for theirs, ours in lone}
    models = {ours: tuple(expected[ours].shape) for ours in shapes}
    faults += [f"{o}: checkpoint {shape}, model {models[o]}" for o, shape in shapes.items() if shape != models[o]]
    if not faults:  # only now is anything copied
        result = {ours: _ours(rule, pieces[ours]) for ours, rule in complete.items()}
        result |= {ours: stored[theirs] for theirs, ours in lone}
        for theirs, ours in copies:
            if not torch.equal(stored[theirs], result[ours]):
                faults.append(f"{theirs}: stored a second time and not equal to {ours}, though the config ties them")
    if faults:
        more = [f"and {len(faults) - 20} more"] if len(faults) > 20 else []
        raise UserError("the checkpoint does not fit the model\n  " + "\n  ".join([*faults[:20], *more]))
    return result


def _shape(rule: Rule, tensors: list[Tensor]) -> tuple[int, ...]:
    """The shape that a tensor of ours will have; parts that do not fit together keep their own and are refused."""
    shape = tuple(tensors[0].shape)
    if rule.how == "transposed":
        return shape[::-1]
    if rule.how == "row" and shape[:1] == (1,):
        return shape[1:]
    if rule.how == "flat" and len(shape) == 3:
        return (shape[0], shape[1] * shape[2])
    if rule.how == "heads" and len(shape) == 3 and all(part.shape == tensors[0].shape for part in tensors):
        return (len(tensors) * shape[1] * shape[2], shape[0])
    if rule.how == "joined" and shape and all(part.shape == tensors[0].shape for part in tensors):
        return (len(tensors) * shape[0], *shape[1:])
    return shape


def _ours(rule: Rule, tensors: list[Tensor]) -> Tensor:
    if rule.how == "joined":
        return torch.cat(tensors)
    if rule.how == "row":
        return tensors[0].flatten()
    if rule.how == "flat":
        return tensors[0].flatten(1)
    if rule.how == "heads":
        return torch.cat([tensor.flatten(1).t() for tensor in tensors])
    return tensors[0].t().contiguous() if rule.how == "transposed" else tensors[0]


def _sought(rules: Iterable[Rule], ours: str, tensors: Mapping[int, Tensor]) -> str:
    """The published name under which a tensor of ours was looked for."""
    for rule in rules:
        if rule.ours and (match := _pattern(rule.ours).fullmatch(ours)):
            name = next(name for number, name in enumerate(rule.theirs) if number not in tensors)
            return name.format(*match.groups())
    return ours


def to_theirs(names: Names, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's tensors under their published names, in the network's order."""
    held = [rule for rule in names.rules if rule.ours and rule.holds(ours)]
    rules = [(rule, _pattern(rule.ours), rule in names.body) for rule in held]
    result: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        rule, match, of_body = next((r, m, b) for r, pattern, b in rules if (m := pattern.fullmatch(name)))
        pieces = tensor.chunk(len(rule.theirs)) if rule.how in ("joined", "heads") else (tensor,)
        for theirs, piece in zip(rule.theirs, pieces, strict=True):
            full = (names.prefix if of_body and names.heads else "") + theirs.format(*match.groups())
            assert full not in result, f"two heads would both be stored as {full}"
            if rule.how == "row":
                piece = piece[None]
            if rule.like:
                piece = piece.t() if rule.how == "heads" else piece
                piece = piece.reshape(len(piece), *ours[rule.like.format(*match.groups())].shape)
            result[full] = (piece.t() if rule.how == "transposed" else piece).contiguous()
    return result


# ------------------------- config.json: each key is read, fixed or ignored with a reason; others are named

# Keys by which a folder asks for its own Python code to be run. Weft runs none.
CODE = ("auto_map", "custom_pipelines", "trust_remote_code")

# Defaults of another library's decoding that older files repeat in every config.
DECODING = (
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty"),
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
    *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores"),
    *("return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
    *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
)
# Keys that every published config may have and that change nothing about the numbers.
HARMLESS = {
    *DECODING,
    *("transformers_version", "_name_or_path", "name_or_path", "_commit_hash"),  # where the file is from
    *("torch_dtype", "dtype"),  # the tensors have it
    *("_attn_implementation_autoset", "use_cache", "gradient_checkpointing", "output_attentions"),  # of one run
    *("output_hidden_states", "output_past", "return_dict", "torchscript", "use_bfloat16", "chunk_size_feed_forward"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id"),  # the tokenizer has them
    *("tokenizer_class", "decoder_start_token_id", "prefix", "directionality"),  # of other families, or unused
    *("finetuning_task", "task_specific_params", "problem_type", "num_labels", "num_choices"),  # of another library
    *("architectures", "model_type", "id2label", "label2id"),  # read elsewhere
}
# Their names of activations -> ours; the first name of each is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
ACTIVATIONS |= {"silu": "silu", "swish": "silu", "tanh": "tanh"}

# Keys that would change the numbers unless they have this value.
ALWAYS: dict[str, Any] = {
    **dict.fromkeys(("is_encoder_decoder", "is_decoder", "add_cross_attention", "tie_encoder_decoder"), False),
    **{"tf_legacy_loss": False, "cross_attention_hidden_size": None, "quantization_config": None, "pruned_heads": {}},
}


@dataclass(frozen=True)
class Together:
    """Several of their keys that only together say several fields of ours."""

    keys: tuple[str, ...]
    fields: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]  # the published config -> our fields
    write: Callable[[Any], dict[str, Any]]  # our config -> their keys
    says: Callable[[Any], bool]  # whether their keys can say what our config has in these fields


@dataclass(frozen=True)
class ConfigTable:
    """How one family publishes its sizes."""

    read: Mapping[str, str]  # their key -> our field
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)  # their key -> their value -> ours
    fixed: Mapping[str, Any] = field(default_factory=dict)  # their key -> the one value that we have
    ignored: Mapping[str, str] = field(default_factory=dict)  # their key -> why it does not matter
    of_heads: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)  # head -> their key -> ours
    absent: Mapping[str, Any] = field(default_factory=dict)  # what a key that is not there means, where not our default
    counted_in: Mapping[str, str] = field(default_factory=dict)  # their key -> our field that theirs is larger by, + 1
    together: Together | None = None

    @property
    def keys(self) -> set[str]:
        """The keys that our fields are read from."""
        return {*self.read, *(self.together.keys if self.together else ())}

    def check_heads(self, heads: Iterable[str], published: Mapping[str, Any], where: str) -> None:
        """Refuse values that would change the outputs of one of these heads."""
        for key, allowed in (item for head in heads for item in self.of_heads.get(head, {}).items()):
            if key in published and published[key] not in allowed:
                choices = " or ".join(map(str, allowed))
                raise UserError(f"{where}: {key} is {shown(str(published[key]))}; only {choices} is supported")


def read_config(
    table: ConfigTable, kind: type[Any], standard: Mapping[str, Any], published: Mapping[str, Any], where: str
) -> Any:
    """Our config out of a published one; `standard` has the fields in which the family differs from the defaults."""
    for key in CODE:
        if published.get(key):
            raise UserError(
                f"{where}: {key} names code ({shown(str(published[key]))}), and Weft runs no code from a model folder"
            )
    fixed = {**ALWAYS, **table.fixed}
    for key, wanted in fixed.items():
        if key in published and published[key] != wanted and published[key] is not None:
            raise UserError(f"{where}: {key} is {shown(str(published[key]))}; only {wanted} is supported")
    known = {*table.keys, *fixed, *table.ignored, *HARMLESS, *CODE}
    unknown = [shown(str(key)) for key in published if key not in known]
    if unknown:
        warnings.warn(f"{where}: not used, since no rule knows them: {listed(unknown)}", stacklevel=2)
    sizes: dict[str, Any] = dict(standard)
    for theirs, ours in table.read.items():
        value = published.get(theirs, table.absent.get(theirs))
        if value is None:
            continue
        if theirs in table.values:
            choices = table.values[theirs]
            if not isinstance(value, str) or value not in choices:
                raise UserError(
                    f"{where}: {theirs} is {shown(str(value))!r}; supported are {listed(map(str, choices), 20)}"
                )
            value = choices[value]
        sizes[ours] = value
    for theirs, field_name in table.counted_in.items():
        ours = table.read[theirs]
        more = sizes.get(field_name, vars(kind)[field_name])
        if type(sizes.get(ours)) is int and type(more) is int:  # of any other kind they are refused below
            sizes[ours] -= more + 1
    try:
        if table.together is not None:
            sizes |= table.together.read({**table.absent, **published})
        return build(kind, sizes, where)
    except UserError as error:  # about one of our fields: it also names the key of the file that it came from
        message = str(error)
        for theirs, ours in table.read.items():
            message = message.replace(f": {ours} must", f": {theirs} ({ours}) must")
        raise UserError(message) from None


def write_config(table: ConfigTable, config: Any) -> dict[str, Any]:
    """The published keys of our config."""
    sizes, written = vars(config), dict[str, Any]()
    for theirs, ours in table.read.items():
        value = sizes[ours]
        if theirs in table.values:
            value = next(their for their, our in table.values[theirs].items() if our == value)
        if theirs in table.counted_in:
            value += sizes[table.counted_in[theirs]] + 1
        written[theirs] = value
    return {**written, **(table.together.write(config) if table.together else {}), **table.fixed}


def is_published(table: ConfigTable, config: Any, standard: Mapping[str, Any]) -> bool:
    """Whether the published format can say this config: no block swapped for one that it does not know."""
    usual = {"head_width": config.width // config.heads, "inner": 4 * config.width}  # what None stands for
    theirs_of = {ours: theirs for theirs, ours in table.read.items()}
    if table.together is not None and not table.together.says(config):
        return False
    for spec in fields(config):
        if table.together is not None and spec.name in table.together.fields:
            continue
        value = vars(config)[spec.name]
        theirs = theirs_of.get(spec.name)
        if theirs is not None:
            if theirs in table.values and value not in table.values[theirs].values():
                return False
        elif spec.name == "pooler":  # seen from the tensors
            continue
        elif value not in (standard.get(spec.name, spec.default), usual.get(spec.name)):
            return False
    return True

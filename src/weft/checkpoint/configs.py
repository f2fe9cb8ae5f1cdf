"""Published `config.json` keys to ours and back: each is read, fixed or ignored with a reason; others are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from weft.config import build
from weft.errors import UserError, listed, shown

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
    except UserError as error:
        raise UserError(_in_their_words(str(error), table)) from None


def check_heads_config(table: ConfigTable, heads: Iterable[str], published: Mapping[str, Any], where: str) -> None:
    """Refuse values that would change what one of these heads says."""
    for head in heads:
        for key, allowed in table.of_heads.get(head, {}).items():
            if key in published and published[key] not in allowed:
                choices = " or ".join(map(str, allowed))
                raise UserError(f"{where}: {key} is {shown(str(published[key]))}; only {choices} is supported")


def _in_their_words(message: str, table: ConfigTable) -> str:
    """An error about one of our fields also names the key of the file that it came from."""
    for theirs, ours in table.read.items():
        if f": {ours} must" in message:
            return message.replace(f": {ours} must", f": {theirs} ({ours}) must")
    return message


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

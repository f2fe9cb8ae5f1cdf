"""`weft.export`: a model for another engine, written only if it gives the same answers there."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.backends.ct2_files import ENGINE, named_tokens, settings_of
from weft.backends.ctranslate2 import HEADS, PATIENCE, kept_names, library
from weft.checkpoint.card import record_hashes
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel, write_files
from weft.checkpoint.formats import is_published
from weft.checkpoint.tensors import save_tensors
from weft.comparison.compare import compare
from weft.data.columns import paired_columns
from weft.data.tables import Table
from weft.errors import UserError, listed, one_of, refuse, shown
from weft.exporters.onnx_export import write_onnx
from weft.files import unwritable, whole_folder
from weft.models.encoders import Bert, DistilBert, Roberta
from weft.models.gpt import Gpt
from weft.models.transformer import T5, Transformer, of_decoder
from weft.nn.layers import Layer
from weft.nn.positions import WAVES, Positions
from weft.tasks.complete import complete, prompts_of
from weft.tasks.evaluate import RowOptions, table_of
from weft.tasks.evaluate import rows_of as table_rows
from weft.tasks.forward import evaluating, tokenizer_of
from weft.tasks.model import Model, load
from weft.text.rows import Skipped
from weft.text.sources import SUFFIXES, format_suffix
from weft.version import VERSION

TOLERANCE = 1e-4  # of the largest logit: far above what another order of sums makes, far below what a fault makes
SAMPLES = 24  # texts that are made up where none are given
# How far the probabilities of a text may differ, in a batch and alone, by the precision of the weights.
BOUNDS = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 2e-2, "int8": 5e-3, "int4": 5e-3}
MIXED = 200  # inputs on which that is tested
PROMPTS = 64  # texts, of a model that generates
MAX_CHARACTERS = 4000  # of one such text: enough for several windows
MAX_TOKENS = 24  # that a model generates for each of them
TIED = 1e-3  # how far two log-probabilities may differ where another token is generated
SAME = 0.9  # share of the generated texts that must be the same, word for word
NEAR = {"fp32": 1e-3, "fp16": 1e-2, "int8": 0.3}  # how far the log-probability of a token may be off
EXHAUSTIVE = 1000.0  # patience of a search to the end, so that only the models are compared
CHECKED = 512  # texts of a file that an export is checked on
DIFFERS = "the exported model differs from its source"
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "tanh": "Tanh"}
KINDS: dict[str, str | None] = {"fp32": None, "fp16": "float16", "int8": "int8_float32"}  # in the engine's words


def write_ct2(inside: Path, opened: LoadedModel, task: str, precision: str = "fp32") -> None:
    """The files of a CTranslate2 folder, for this task, one by one."""
    refuse((precision not in KINDS, f"CTranslate2 has the precisions {', '.join(KINDS)}, not {shown(precision)}"))
    if task == "fill" and opened.family.sentinels:
        task = "complete"  # gaps are filled step by step, which the engine does not do
    spec = spec_of(opened)
    spec.validate()
    spec.optimize(KINDS[precision])
    card = replace(opened.card, task=task, backend="ctranslate2", precision=precision, weft=VERSION)  # type: ignore[arg-type]
    write_files(inside, replace(opened, card=card), weights=False)
    try:
        (inside / ENGINE).mkdir()
        spec.save(str(inside / ENGINE))
        state = opened.network.state_dict()
        names = [] if opened.family.generates else kept_names(list(state), opened.config, opened.heads)
        if kept := {name: state[name].detach().cpu().contiguous() for name in names}:
            save_tensors(inside / HEADS, kept, {"format": "pt"})
    except OSError as error:
        raise unwritable(inside, error) from None


def spec_of(opened: LoadedModel) -> Any:
    """The whole model as a spec, with its vocabularies and the tokens that the engine must know by name."""
    network, config = opened.network, opened.config
    decodes = isinstance(network, Gpt)
    refuse(
        (opened.family.series, f"CTranslate2 reads tokens, and a {opened.family.name} reads numbers; try --to onnx"),
        (config.layer_heads is not None, "CTranslate2 has one number of heads for all layers; try --to onnx"),
        (decodes and set(opened.heads) != {"words"}, "CTranslate2 has no decoder with another head; try --to onnx"),
        (config.head_layers != "last", f"CTranslate2 returns the last layer only, not {config.head_layers}"),
        (config.mix, "CTranslate2 returns the last layer only, and the heads of this model read a mix of all layers"),
        (config.positions == "alibi" and not decodes, "CTranslate2 has alibi positions for decoders only"),
    )
    specs = library("specs.transformer_spec")
    words = named_tokens(opened.writer, config.vocabulary)
    if decodes:
        spec = specs.TransformerDecoderModelSpec(_decoder_spec(opened))
    elif isinstance(network, Bert | DistilBert | Roberta):
        spec = specs.TransformerEncoderModelSpec(_encoder_spec(opened))
    elif isinstance(network, Transformer | T5) and "words" in opened.heads:
        spec = specs.TransformerSpec(_encoder_spec(opened), _decoder_spec(opened))
        spec.register_source_vocabulary(named_tokens(opened.tokenizer, config.source_vocabulary or config.vocabulary))
        spec.register_target_vocabulary(words)
    else:
        raise UserError(f"CTranslate2 cannot run a {opened.family.name} model")
    if not opened.family.reads:
        spec.register_vocabulary(words)
    for name, value in settings_of(config, spec.name, opened.writer, words).items():
        if name != "multi_query_attention":  # the engine's spec says it by itself
            setattr(spec.config, name, value)
    return spec


def _encoder_spec(opened: LoadedModel) -> Any:
    config, alone = opened.config, not opened.family.reads
    network: Any = opened.network
    settings = _settings(config)
    if alone:
        settings |= {"embeddings_merge": library("specs.common_spec").EmbeddingsMerge.ADD, "layernorm_embedding": True}
        settings["num_source_embeddings"] = 1 if network.segments is None else 2
    encoder = library("specs.transformer_spec").TransformerEncoderSpec(config.layers, config.heads, **settings)
    table = network.tokens if network.source_tokens is None else network.source_tokens
    encoder.embeddings[0].weight = _array(table.weight)
    if network.segments is not None:
        encoder.embeddings[1].weight = _array(network.segments.weight)
    if alone:
        _fill_norm(encoder.layernorm_embedding, network.embedding_norm)
        return _filled(opened, encoder, network.layers, network.final_norm)
    return _filled(opened, encoder, network.encoder, network.encoder_norm, "encoder_positions")


def _decoder_spec(opened: LoadedModel) -> Any:
    alone, near = not opened.family.reads, opened.config.buckets > 0
    network: Any = opened.network
    config = opened.config if near or alone else of_decoder(opened.config)
    layers, norm = (network.layers, network.final_norm) if alone else (network.decoder, network.decoder_norm)
    settings = {"with_encoder_attention": not alone, **_settings(config)}
    decoder = library("specs.transformer_spec").TransformerDecoderSpec(len(layers), config.heads, **settings)
    if near and config.scaled:
        decoder.scale_outputs = config.width**-0.5
    decoder.embeddings.weight = _array(network.tokens.weight)
    head = network.heads["words"]
    decoder.projection.weight = decoder.embeddings.weight if head.decoder is None else _array(head.decoder.weight)
    if head.bias is not None:
        decoder.projection.bias = _array(head.bias)
    return _filled(opened, decoder, layers, norm, "decoder_positions")


def _settings(config: Any) -> dict[str, Any]:
    """The settings of a stack of layers; positions that are no table turn queries and keys, or lower far scores."""
    plain = config.activation.removeprefix("gated-")
    positions: dict[str, dict[str, Any]] = {
        "rotary": {"rotary_dim": 0, "rotary_interleave": False},
        "alibi": {"alibi": True, "alibi_use_positive_positions": True},
    }
    return {
        "pre_norm": config.norm_place == "before",
        "activation": library("specs.common_spec").Activation[ACTIVATIONS[plain]],
        "ffn_glu": plain != config.activation,
        "rms_norm": config.norm != "layer",
        "head_dim": config.head_width or config.width // config.heads,
        **({"relative_attention_bias": True} if config.buckets else positions.get(config.positions, {})),
    }


def _filled(opened: LoadedModel, stack: Any, layers: Iterable[Any], final: nn.Module, distances: str = "") -> Any:
    """A stack with its positions, its layers, and the norm after the last where norms come first."""
    config, near = opened.config, opened.config.buckets > 0
    network: Any = opened.network
    stack.scale_embeddings = False
    if opened.family.reads:
        stack.scale_embeddings = config.width**0.5 if config.scaled and not near else 1.0
    if near:  # T5's biases by distance: one table, which every layer of a stack reads
        module = network.get_submodule(distances)
        table = _array(module.table.weight)
        for spec in stack.layer:
            spec.self_attention.relative_attention_bias = table
            spec.self_attention.relative_attention_max_distance = np.dtype("int32").type(module.farthest)
    elif "position_encodings" in vars(stack) and network.positions.kind not in ("rotary", "alibi"):
        stack.position_encodings.encodings = _array(_position_table(network.positions))
    for spec, layer in zip(stack.layer, layers, strict=True):
        assert isinstance(layer, Layer)
        parts: list[Any] = [(spec.self_attention, layer.attention, layer.attention_norm, ("qkv", "output"))]
        if layer.reads:
            parts.append((spec.attention, layer.cross, layer.cross_norm, ("query", "key_value", "output")))
        for attention, module, norm, names in parts:
            for inner, name in zip(attention.linear, names, strict=True):
                _fill_linear(inner, module.get_submodule(name).weight, module.get_submodule(name).bias)
            _fill_norm(attention.layer_norm, norm)
            if module.scale is not None:
                attention.queries_scale = module.scale
        up = layer.feedforward.up
        if layer.feedforward.gated:  # the first half is bent, and multiplied by the second
            biases = (None, None) if up.bias is None else up.bias.chunk(2)
            _fill_linear(spec.ffn.linear_0, up.weight.chunk(2)[0], biases[0])
            _fill_linear(spec.ffn.linear_0_noact, up.weight.chunk(2)[1], biases[1])
        else:
            _fill_linear(spec.ffn.linear_0, up.weight, up.bias)
        _fill_linear(spec.ffn.linear_1, layer.feedforward.down.weight, layer.feedforward.down.bias)
        _fill_norm(spec.ffn.layer_norm, layer.feedforward_norm)
    if config.norm_place == "before":
        _fill_norm(stack.layer_norm, final)
    return stack


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _fill_norm(spec: Any, module: Any) -> None:
    spec.gamma = _array(module.weight)
    if isinstance(module, nn.LayerNorm) and module.bias is not None:
        spec.beta = _array(module.bias)


def _position_table(positions: Positions) -> Tensor:
    """The table of positions, worked out where it is not learned; without one the engine would use its own."""
    if positions.table is not None:
        return positions.table.weight[positions.unused :]
    if positions.context > WAVES:
        raise UserError(f"a context of {positions.context} tokens is too long for CTranslate2's table of positions")
    return positions.add(torch.zeros(positions.context, positions.width), torch.arange(positions.context))


def _array(tensor: Tensor) -> NDArray[np.float32]:
    # A copy: the engine's quantization multiplies in place, and these are the weights of a model that others hold.
    return np.array(tensor.detach().float().cpu().numpy(), order="C", copy=True)


def check_agreement(source: Model, exported: Model, inputs: Sequence[Any], tolerance: float = TOLERANCE) -> float:
    """The largest difference of the logits, as a share of the largest; refused beyond the tolerance."""
    share, place = difference(logits_of(source, inputs), logits_of(exported, inputs), relative=True)
    if not share <= tolerance:
        limit = f"{share:.3g} of the largest (limit {tolerance:g})"
        raise UserError(f"{DIFFERS}: logits by {limit}, on {_shown(inputs[place])}")
    for value, one, two in zip(inputs, source(list(inputs)), exported(list(inputs)), strict=True):
        if one.decision != two.decision:
            first, second = (shown(str(each.decision), 40) for each in (one, two))
            raise UserError(f"{DIFFERS}: {second} in place of {first} on {_shown(value)}")
    return share


def logits_of(model: Model, inputs: Sequence[Any]) -> list[NDArray[Any]]:
    """The output of a network for each input, before it becomes an answer; empty where it generates text."""
    with evaluating(model.network):
        return model.task_object.logits_of(model.opened, inputs)


def check_generation(source: Model, exported: Model, texts: Sequence[str], precision: str = "fp32") -> float:
    """How far log-probabilities of the source's tokens are off; in fp32 the generated texts must be the same too."""
    prompts = short_prompts(source.opened, texts)
    width = min(4, source.config.vocabulary)
    greedy: list[Any] = complete(source.opened, prompts, max_tokens=MAX_TOKENS)
    answers = [(prompt, answer) for prompt, answer in zip(prompts, greedy, strict=True) if answer.tokens]
    tokens = [list(answer.tokens) for _, answer in answers]
    logprobs, largest = _logprobs(exported.opened, [prompt for prompt, _ in answers], tokens), 0.0
    for (prompt, answer), logprob in zip(answers, logprobs, strict=True):
        error = abs(logprob - answer.logprob) / len(answer.tokens)
        if not error <= NEAR[precision]:
            limit = f"{error:.3g} (limit {NEAR[precision]:g})"
            raise UserError(f"{DIFFERS}: the log-probability of a token by {limit}, on {_shown(prompt)}")
        largest = max(largest, error)
    if precision == "fp32":
        exported.network.patience = EXHAUSTIVE  # type: ignore[assignment]
        beams = complete(source.opened, prompts, max_tokens=MAX_TOKENS, beam_size=width)
        for beam, first in ((None, greedy), (width, beams)):
            second = complete(exported.opened, prompts, max_tokens=MAX_TOKENS, beam_size=beam)
            pairs = [(one.text, two.text) for one, two in zip(first, second, strict=True) if one.text != two.text]
            if len(pairs) > (1 - SAME) * len(prompts):
                one, two = (shown(text, 40) for text in pairs[0])
                such = f"{two!r} in place of {one!r}"
                raise UserError(f"{DIFFERS}: {len(pairs)} of {len(prompts)} texts, such as {such}")
        exported.network.patience = PATIENCE  # type: ignore[assignment]
    return largest


def _logprobs(opened: LoadedModel, prompts: Sequence[str], tokens: Sequence[list[int]]) -> list[float]:
    """The log-probability of tokens after each prompt, by an engine that generates."""
    if not prompts:
        return []
    asked = prompts_of(opened, prompts)
    sources = [prompt.source for prompt in asked] if opened.family.reads else None
    return opened.network.scored([prompt.tokens for prompt in asked], sources, tokens)  # type: ignore[operator]


def short_prompts(opened: LoadedModel, texts: Sequence[str]) -> list[str]:
    """The texts, truncated so that generated tokens still fit into the context."""
    tokenizer = tokenizer_of(opened)
    room = max(1, min(opened.config.context - 4 - (0 if opened.family.reads else MAX_TOKENS), 200))
    prompts = [tokenizer.decode(ids[:room]) for ids in tokenizer.ids(list(texts), specials=False)]
    return [text for text in prompts if text.strip()]


def check_batch_single(model: Model, inputs: Sequence[Any]) -> None:
    """Refuse a model whose answer to a text in a batch is not near enough to the one to the text alone."""
    task = model.task_object
    if task.writes:
        # Smaller numbers may well change a token by rounding; and torch itself is not in question.
        if model.opened.exported and model.card.precision == "fp32":
            _check_generated(model, short_prompts(model.opened, mixed(model, inputs, PROMPTS)))
        return
    inputs = mixed(model, inputs, MIXED)
    largest, place = largest_difference(model, inputs)
    bound = BOUNDS[model.card.precision or "fp32"]
    if not largest <= bound:
        what = f"{'values' if task.unbounded else 'probabilities'} of a text alone and among {len(inputs)}"
        limit = f"{largest:.3g} (limit {bound:g})"
        raise UserError(f"its answers depend on the batch: {what} differ by {limit}, on {_shown(inputs[place])}")


def largest_difference(model: Model, inputs: Sequence[Any]) -> tuple[float, int]:
    """How far the probabilities of an input in a batch are from those of the input alone, and of which input."""
    task, opened = model.task_object, model.opened
    alone = [task.numbers_of(opened, [each])[0] for each in inputs]
    return difference(task.numbers_of(opened, inputs), alone, relative=task.unbounded)


def difference(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], relative: bool) -> tuple[float, int]:
    """The largest difference of two lists of arrays, and where; `relative`: as a share of the largest number."""
    unit = max((float(np.abs(each).max()) for each in one if each.size), default=0.0) if relative else 1.0
    largest = [np.abs(first - second).max(initial=0.0) for first, second in zip(one, other, strict=True)] or [0.0]
    place = int(np.argmax(largest))  # what is not a number counts as the largest
    return float(largest[place]) / (unit or 1.0), place


def _check_generated(model: Model, prompts: Sequence[str]) -> None:
    """Refuse a model that generates another text for a prompt in a batch, unless two tokens were equally likely."""
    together: list[Any] = complete(model.opened, prompts, max_tokens=MAX_TOKENS)
    for prompt, first in zip(prompts, together, strict=True):
        second: Any = complete(model.opened, [prompt], max_tokens=MAX_TOKENS)[0]
        one, two = list(first.tokens), list(second.tokens)
        parting = next((n for n, pair in enumerate(zip(one, two, strict=False), 1) if pair[0] != pair[1]), None)
        if parting is not None:
            logprobs = _logprobs(model.opened, [prompt] * 2, [one[:parting], two[:parting]])
            if abs(logprobs[0] - logprobs[1]) <= TIED:
                continue
        if one != two:
            texts = f"{shown(first.text, 40)!r} among {len(prompts)} prompts, {shown(second.text, 40)!r} alone"
            raise UserError(f"its answers depend on the batch: {texts}, on {_shown(prompt)}")


def made_up_inputs(model: Model, count: int = SAMPLES, seed: int = 0) -> list[Any]:
    """Inputs of all lengths made of the tokenizer's own words, or the task's own, for a check without data."""
    if (inputs := model.task_object.made_up_inputs(count, seed)) is not None:
        return inputs
    tokenizer, chance = tokenizer_of(model.opened), random.Random(seed)
    special = {tokenizer.id_of(role) for role in ("padding", "unknown", "start", "end", "mask", "separator")}
    numbers = [number for number in sorted(tokenizer.tokens.values()) if number not in special]
    window = model.card.window
    longest = min(model.config.context + 8, 600, *([] if window is None else [window.length + 8]))

    def text(length: int) -> str:
        return tokenizer.decode([chance.choice(numbers) for _ in range(length)]).strip() or "a"

    lengths = [1, 2, longest, *(1 + int(longest ** chance.random()) for _ in range(count - 3))]
    task, first = model.task_object, [2] if model.task_object.pair else []
    return [task.sample_input([text(min(length, most)) for most in (*first, length)], tokenizer) for length in lengths]


def mixed(model: Model, inputs: Sequence[Any], total: int) -> list[Any]:
    """Short and long inputs: up to three quarters from those given, evenly by length; the rest is made up."""

    def truncated(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(text[:MAX_CHARACTERS] for text in value)
        return value[: MAX_CHARACTERS if isinstance(value, str) else MAX_CHARACTERS // 5]  # characters, or words

    if (more := model.task_object.made_up_inputs(total - min(total, len(inputs)), 0)) is not None:
        return [*inputs[:total], *more]  # windows of one length
    order = sorted(inputs, key=lambda value: len("".join(value)))
    count = min(total * 3 // 4, len(order))
    given = [truncated(order[number * (len(order) - 1) // max(1, count - 1)]) for number in range(count)]
    return [*given, *made_up_inputs(model, total - count)]


def _shown(value: Any) -> str:
    return repr(shown(value if isinstance(value, str) else " | ".join(map(str, value)), 50))


def write_transformers(inside: Path, opened: LoadedModel, task: str) -> None:
    """The files of a folder that transformers opens; refused with what the published format has no words for."""
    family, config = opened.family, opened.config
    if family.architecture(config, opened.heads) is not None:
        write_files(inside, replace(opened, card=replace(opened.card, task=task, weft=VERSION)))
        return
    why = f"transformers has no {family.name} model with these blocks"
    if not family.architectures:
        known = [each.name for each in FAMILIES.values() if each.architectures]
        why = f"transformers has no {family.name} models; it has {listed(known, 20)}"
    elif is_published(family.table, config, family.standard):
        why = f"transformers has no {family.name} model with these heads together: {listed(opened.heads)}"
    elif config.layer_heads is not None:
        why = "transformers has one number of heads for all layers, and this model has several"
    else:
        for spec in fields(config):
            value = vars(config)[spec.name]
            usual = not value if isinstance(value, bool) else family.standard.get(spec.name, spec.default)
            with suppress(UserError):  # what is usual may not go with the other sizes
                usually = replace(config, **{spec.name: usual}) if value != usual else None
                if usually is not None and is_published(family.table, usually, family.standard):
                    why = f"transformers has no {family.name} model with {spec.name}={value}"
                    break
    raise UserError(why)


def check_same(ours: Model, theirs: Model, inputs: Sequence[Any], tolerance: float) -> float:
    """That a folder, read back, has the same config, weights, tokens and outputs."""
    one, two = ours.opened, theirs.opened
    first, second = one.network.state_dict(), two.network.state_dict()
    both = {name for name in first if name in second and torch.equal(first[name].cpu(), second[name])}
    other = [name for name in {**first, **second} if name not in both]
    # None stands for what is usual; dropouts and the like are for training alone.
    usual = {"head_width": one.config.width // one.config.heads, "inner": 4 * one.config.width}
    values = {spec.name: (vars(one.config)[spec.name], vars(two.config)[spec.name]) for spec in fields(one.config)}
    unequal = [
        name for name, pair in values.items()
        if pair[0] != pair[1] and {*pair} != {None, usual.get(name)}
        and not name.endswith(("dropout", "weight_scale", "mix"))
    ]  # fmt: skip
    texts = [each if isinstance(each, str) else " ".join(map(str, each)) for each in inputs]
    tokenizers = ((one.tokenizer, two.tokenizer), (one.target_tokenizer, two.target_tokenizer))
    same = all(mine is None or (copy is not None and mine.ids(texts) == copy.ids(texts)) for mine, copy in tokenizers)
    refuse(
        (bool(other), f"the folder, read back, holds other weights: {listed(other)}"),
        (bool(unequal), f"the folder, read back, has another config: {listed(unequal)}"),
        (not same, "the folder, read back, tokenizes texts differently"),
    )
    return 0.0 if one.family.generates else check_agreement(ours, theirs, inputs, tolerance)


@dataclass(frozen=True)
class Exported:
    """What was written, and how near it is to its source."""

    folder: Path
    to: str
    bytes: int
    max_difference: float  # as a share of the largest score; of a model that writes, in log-probability of a token
    texts: int  # on which that was measured


# Each writes the files of a folder, which is then loaded and checked.
WAYS: dict[str, Callable[..., Any]] = {"onnx": write_onnx, "ctranslate2": write_ct2, "transformers": write_transformers}


def export(
    model: Model | str | os.PathLike[str],
    to: str = "onnx",
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    task: str | None = None,
    tolerance: float = TOLERANCE,
    online: bool = False,
    trust: bool = False,
) -> Exported:
    """Write a model for another engine; `weft.load` opens it like any other folder.

    Before the folder appears, both answer the texts of `data` (made-up ones where there is none): where scores differ
    by more than `tolerance` of the largest, or one answer differs, nothing is written. Nor is it where the answer to a
    text depends on the others of its batch.
    """
    one_of(to, WAYS, "to")
    model = model.plain() if isinstance(model, Model) else load(model, task=task, online=online, trust=trust)
    refuse_exported(model)
    inputs, damaged = texts_of(model, data, columns=columns), None
    if data is not None and model.task_object.supervised and not model.task_object.writes:
        with suppress(UserError):  # rows with other labels show nothing
            damaged = compare([model], data, columns=columns, costs=False, task=model.task).models[0].damaged
    try:
        refuse((bool(damaged), f"the model itself is damaged: {damaged}"))
        with whole_folder(Path(out)) as inside:
            WAYS[to](inside, model.opened, model.task)
            exported = load(inside)
            if to == "transformers":
                largest = check_same(model, exported, inputs, tolerance)
            elif model.opened.family.generates and to == "ctranslate2":
                largest = check_generation(model, exported, inputs)
            else:
                largest = check_agreement(model, exported, inputs, tolerance)
            if exported.opened.exported:
                check_batch_single(exported, inputs)
            record_hashes(inside)
            needed = (path for path in inside.rglob("*") if path.is_file() and "run" not in path.parts)
            size = sum(path.stat().st_size for path in needed)
    except UserError as error:
        raise UserError(f"{error}; nothing was written") from None
    return Exported(Path(out), to, size, largest, len(inputs))


def refuse_exported(model: Model) -> None:
    """A model that another engine runs has no weights to make another one of."""
    if model.opened.exported:
        raise UserError(f"this is a model for {model.card.backend} already; give the model it was made from")


def texts_of(model: Model, data: Any, **options: Unpack[RowOptions]) -> list[Any]:
    """The inputs on which two models are compared: the first of a file, else made-up ones."""
    if data is None:
        return made_up_inputs(model)
    task = model.task_object
    if task.writes or (model.opened.family.generates and not task.supervised):
        return read_from(data, options.get("columns") or {})
    table = table_of(data, options)
    if task.reads_tables:
        windows = task.table_inputs(table)[:CHECKED]
        return [*windows, *made_up_inputs(model, max(0, SAMPLES - len(windows)))]
    rows = table_rows(model, table, Skipped())
    inputs = list(islice((row.input for row in rows if row.problem is None), CHECKED))
    refuse((not inputs, f"{table.name}: there are no rows"))
    return inputs


def read_from(data: Any, columns: Mapping[str, str]) -> list[str]:
    """The first texts of what a model that writes is given: lines of a plain file, or the sources of a table."""
    texts, whole = list[str](), Table(data, columns)
    files = [] if whole.in_memory else whole.data
    formats = [SUFFIXES.get(format_suffix(PurePath(name)), "txt") for name in files]  # .en and .de name none: lines
    tables = [replace(whole, data=name, format=kind) for name, kind in zip(files, formats, strict=True)] or [whole]
    for record in islice(chain.from_iterable(table.records() for table in tables), PROMPTS):
        names = paired_columns(list(record.values)) or ("text",)
        name = columns.get("source") or columns.get("text") or names[0]
        if name not in record.values:
            raise UserError(f"{record.where}: has no column {shown(name)!r}; name it with --column source=NAME")
        texts.append(str(record.values[name]))
    refuse((not any(text.strip() for text in texts), f"{whole.name}: there are no texts"))
    return texts

"""Model folders: `config.json`, `model.safetensors`, the tokenizer's files and `weft.json`, opened and written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.checkpoint.card import (
    Card,
    card_values,
    check_hashes,
    check_labels,
    labels_of,
    read_card,
    sentence_settings,
    write_sentence_settings,
)
from weft.checkpoint.families import FAMILIES, Family, check_config, check_heads, family_of_type, outline
from weft.checkpoint.finite import tensor_is_finite
from weft.checkpoint.formats import CODE, DECODING, Names, read_config, to_ours, to_theirs, write_config
from weft.checkpoint.hdf5 import published_sizes, published_weights
from weft.checkpoint.tensors import SHARD, read_tensors, write_tensors
from weft.config import build, values_of
from weft.errors import UserError, did_you_mean, listed, refuse, shown
from weft.files import MEGABYTE, read_json, whole_folder, write_json
from weft.models.base import Network
from weft.models.shared import start_weights
from weft.nn.halved import Precision
from weft.text.tokenizers.published import load_tokenizer, vocabulary_file
from weft.text.tokenizers.sentencepiece import is_marian, read_sides
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import word_bytes

OWN = "weft-"  # before the model_type of a model that the published format cannot say
Published = Mapping[str, Any]
Tensors = Mapping[str, Tensor]
LABEL_KEYS = ("id2label", "label2id", "num_labels", "problem_type")
TARGET = "target_tokenizer"  # the folder inside, of the tokenizer of what is written


@dataclass(frozen=True)
class LoadedModel:
    """What is in a model folder."""

    family: Family
    config: Any
    network: Network
    heads: Mapping[str, int]
    tokenizer: Tokenizer | None
    card: Card
    carried: Mapping[str, Any] = field(default_factory=dict)  # published keys that mean nothing here, kept for saving
    target_tokenizer: Tokenizer | None = None  # of what is written, where that has a vocabulary of its own
    folder: Path | None = None  # that it was loaded from, for messages
    precision: Precision = "auto"  # of answers on a GPU
    predictor: Any = None  # a faster backend of the same weights (see `weft.backends.predictors`); None: the network

    graph: ClassVar[Any] = None  # of a model that is run without a network: see `weft.tasks.light`

    def answering(self, head: str | None) -> Any:
        """What answers are computed by: the network, or a faster backend of it; `head`: None for the hidden states."""
        return self.network if self.predictor is None else self.predictor.network_for(self.network, head)

    @property
    def device(self) -> torch.device:
        """Where the network is; one that counts has tables and no weights to ask."""
        modules = list[Any]([self.network])
        for module in modules:  # in order, up to the first weight: every call asks for it
            for tensor in chain(module._parameters.values(), module._buffers.values()):
                if tensor is not None:
                    return tensor.device
            modules += [child for child in module._modules.values() if child is not None]
        raise AssertionError("a network has weights or tables")

    @property
    def exported(self) -> bool:
        """Whether another engine runs it: the network is then a stand-in without PyTorch weights."""
        return self.card.backend not in (None, "torch")

    @property
    def row(self) -> int:
        """Tokens of a row in pre-training, unless another number is asked for."""
        return self.family.row or self.config.segment or self.config.context

    @property
    def writer(self) -> Tokenizer | None:
        """The tokenizer of what is written."""
        return self.target_tokenizer or self.tokenizer

    @property
    def never(self) -> tuple[int, ...]:
        """The tokens that are never written: those of the family, and those that the folder says."""
        tokens = {self.token_of(role) for role in self.family.never}
        banned = self.carried.get("bad_words_ids")
        for word in banned if isinstance(banned, list) else ():
            if isinstance(word, list) and len(word) == 1 and type(word[0]) is int:
                tokens.add(word[0])
        return tuple(sorted(number for number in tokens if number is not None and 0 <= number < self.config.vocabulary))

    def in_language(self, name: str) -> LoadedModel:
        """The same model, which from now on takes every text for one in this language."""
        languages = self.config.languages
        refuse(
            (not languages, f"language {shown(name)!r}: {self.family.name} has no languages to choose from"),
            (name not in languages, f"language {shown(name)!r} is not one of the model's: {listed(languages, 20)}"),
            (self.exported, f"a model for {self.card.backend} is of one language: export it in another"),
        )
        self.network.config = replace(self.config, language=languages.index(name))
        tokenizer = self.tokenizer and self.tokenizer.in_language(name)
        return replace(self, config=self.network.config, tokenizer=tokenizer)

    def token_of(self, role: str) -> int | None:
        """The id of the token with this role in what is written, from the tokenizer, else from the config."""
        if self.writer is not None:
            return self.writer.id_of(role)
        token = self.carried.get({"padding": "pad_token_id", "start": "bos_token_id", "end": "eos_token_id"}[role])
        begins = self.config.begin if self.family.reads and role == self.family.begins else None
        return token if type(token) is int else begins


def open_folder(
    folder: Path,
    new_heads: Mapping[str, int] | None = None,
    keep: Collection[str] = (),
    seed: int = 0,
    mix: bool = False,
    trust: bool = False,
    head_layers: str | None = None,
) -> LoadedModel:
    """Read a model folder; `new_heads` get fresh weights, and of the stored heads only those in `keep` stay then.

    `mix` puts a fresh mix of all layers below the heads; `head_layers`: which layers the heads read. `trust`: see
    `check_hashes`.
    """
    new_heads = dict(new_heads or {})
    published, where = read_published(folder)
    family, own = family_of(published, where)
    stored_card = read_card(folder)
    if stored_card is not None and stored_card.backend not in (None, "torch"):
        raise UserError(
            f"{folder}: a model for {stored_card.backend} has no PyTorch weights; use the folder it was exported from"
        )
    check_hashes(folder, stored_card, trust)
    check_heads(family, new_heads)
    if own:
        config, heads = own_config(family, published, where)
        own_files = (folder / "config.json").is_file()
        stored = read_tensors(folder) if own_files else published_weights(folder, config)
    else:
        stored = read_tensors(folder)
        stored = _spelled(family, stored, folder)
        if family.as_stored is not None:
            published = family.as_stored(published, stored, where)
        config = read_config(family.table, family.config, family.standard, published, where)
        heads = _heads(family, published, stored, config.vocabulary, where)
        family.table.check_heads(heads, published, where)
    if new_heads:
        gone = {head for head in heads if head in new_heads or head not in keep}
        stored = _without(family, stored, gone, own, config.tied in (True, "all", "decoder"))
        heads = {head: outputs for head, outputs in heads.items() if head not in gone}
    everything = {**heads, **new_heads}
    config = config.with_heads(everything)
    fresh = [f"heads.{head}." for head in new_heads]
    pooled = any(head in family.network.POOLED for head in everything)
    pooler_stored = any(name.startswith("pooler.") for name in stored)
    if config.has("pooler") and (pooled or not own):  # the published format does not say it: the tensors do
        config = replace(config, pooler=pooled or pooler_stored)
    if pooled and new_heads and not pooler_stored:
        fresh.append("pooler.")
    if mix and not config.has("mix"):
        raise UserError(f"{folder}: {family.name} has no layers to mix")
    if head_layers is not None and not config.has("head_layers"):
        raise UserError(f"{folder}: the heads of {family.name} have no choice of layers to read")
    if mix and not config.mix:
        config = replace(config, mix=True, head_layers="last")
        fresh.append("mix.")
    elif head_layers is not None:
        stored = {name: tensor for name, tensor in stored.items() if not name.startswith("mix.")}
        config = replace(config, mix=False, head_layers=head_layers)
    network = outline(family, config, everything)
    try:
        fill(network, stored, tuple(fresh), seed, None if own else family.names_of(config).only(everything))
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    labels = labels_of(published, where) if {"classify", "tag"} & set(heads) else None
    card = card_of(folder, labels, heads)
    if new_heads:  # what the folder says of its old task is not true of the new one
        card = replace(card, task=None, labels=None, columns={}, thresholds={}, temperature=None, metrics=())
    tokenizer, target = read_tokenizers(folder, config)
    known = LABEL_KEYS if card.labels is not None or new_heads else ()
    carried = {} if own else carried_keys(folder, family, published, known)
    return LoadedModel(family, config, network.eval(), everything, tokenizer, card, carried, target)


def read_published(folder: Path) -> tuple[dict[str, Any], str]:
    """The `config.json` of a folder, and its name for messages."""
    path = folder / "config.json"
    if not path.is_file():
        if (published := published_sizes(folder)) is not None:
            return published
        why = "it has no config.json" if folder.is_dir() else "there is no such folder"
        raise UserError(f"{str(folder)!r} is not a model folder: {why}")
    return read_json(path, 16 * MEGABYTE), str(path)


def carried_keys(folder: Path, family: Family, published: Published, known: Collection[str] = ()) -> dict[str, Any]:
    """The published keys that mean nothing here, kept for saving; newer folders have a file of those of decoding."""
    if family.reads and (folder / "generation_config.json").is_file():
        decoding = read_json(folder / "generation_config.json", MEGABYTE)
        published = {**{key: decoding[key] for key in DECODING if key in decoding}, **published}
    known = {*family.table.keys, "architectures", "model_type", "dtype", "torch_dtype", *CODE, *known}
    return {key: value for key, value in published.items() if key not in known}


def read_tokenizers(folder: Path, config: Any = None) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The tokenizer of a folder, and that of the target side where there is one; both must fit the config."""
    tokenizer: Tokenizer | None
    target: Tokenizer | None
    if is_marian(folder):
        tokenizer, target = read_sides(folder)
    else:
        tokenizer = load_tokenizer(folder) if vocabulary_file(folder) else None
        if tokenizer is None and not (folder / "config.json").is_file():  # ELMo as published knows characters alone
            tokenizer = word_bytes()
        target = load_tokenizer(folder / TARGET) if (folder / TARGET).is_dir() else None
    try:
        if config is not None:
            check_vocabularies(config, tokenizer, target)
        if tokenizer is not None and config is not None and config.languages:
            tokenizer = tokenizer.in_language(config.languages[config.language])
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    return tokenizer, target


def check_vocabularies(config: Any, tokenizer: Tokenizer | None, target: Tokenizer | None) -> None:
    """Refuse a vocabulary that has tokens for which the model has no vector, and one where there should be two."""
    source = config.source_vocabulary
    if tokenizer is None:
        return
    if source is not None and target is None:
        raise UserError(f"the model writes with another vocabulary than it reads with, and {TARGET}/ is missing")
    if source is None and target is None and tokenizer.vocabulary > config.vocabulary:
        raise UserError(f"the tokenizer has {tokenizer.vocabulary} tokens, the model only {config.vocabulary}")
    sides = (("source", tokenizer, source or config.vocabulary), ("target", target, config.vocabulary))
    for side, vocabulary, size in sides:
        if vocabulary is not None and vocabulary.vocabulary > size:
            raise UserError(f"the {side} tokenizer has {vocabulary.vocabulary} tokens, the model only {size} for it")


def _spelled(family: Family, stored: Tensors, folder: Path) -> dict[str, Tensor]:
    """The tensors under their names in the one canonical spelling."""
    spelled: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if family.names.spelled(name) in spelled:
            raise UserError(f"{folder}: tensor {shown(name)} stands there under two names")
        spelled[family.names.spelled(name)] = tensor
    return spelled


def family_of(published: Published, where: str) -> tuple[Family, bool]:
    """The family that a config names, and whether the config is of our own format."""
    name = published.get("model_type")
    if not isinstance(name, str):
        raise UserError(f"{where}: model_type must name the kind of model, such as bert or gpt2")
    own = name.startswith(OWN)
    family = family_of_type(name)
    if family is not None and family.causal and not own and published.get("causal") is True:
        family = FAMILIES[family.causal]
    if family is None or not (own or family.architectures):  # those that nobody publishes have our own format alone
        choices = [each.model_type if each.architectures else OWN + each.name for each in FAMILIES.values()]
        choices = list(dict.fromkeys(choices))
        listing = listed(choices, 20)
        raise UserError(f"{where}: model_type {shown(name)!r} is not one of {listing}{did_you_mean(name, choices)}")
    return family, own


def _heads(family: Family, published: Published, stored: Tensors, vocabulary: int, where: str) -> dict[str, int]:
    """Which heads a published folder has, by its architecture and by its tensors, and how many outputs each has."""
    architectures = published.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UserError(f"{where}: architectures must be a list of names")
    heads: dict[str, None] = {}
    for name in architectures:
        if name not in family.architectures:
            choices = f"{family.name} has {listed(family.architectures, 20)}{did_you_mean(name, family.architectures)}"
            raise UserError(f"{where}: architecture {shown(name)!r} is not supported; {choices}")
        heads |= dict.fromkeys(family.architectures[name])
    names = family.names.head_names
    for head, tensors in names.items():
        # A published folder may hold more than its architecture says: bert-base-uncased has both pre-training heads.
        unique = [name for name in tensors if sum(name in other for other in names.values()) == 1]
        if any(name in stored for name in unique):
            heads[head] = None
    if not heads:
        heads |= dict.fromkeys(_guessed(family, stored))
    outputs = {}
    for head in family.network.HEADS:
        if head in heads:  # the outputs of its last map
            weight = stored.get(next((name for name in reversed(names[head]) if name.endswith(".weight")), ""))
            outputs[head] = weight.shape[0] if weight is not None and weight.dim() == 2 else 2
    return outputs | ({"words": vocabulary} if "words" in outputs else {})


def _guessed(family: Family, stored: Tensors) -> list[str]:
    """The head of a folder without architecture: that of most stored tensors, then one that reads the stored pooler."""
    pooled = family.network.POOLED if any(name.startswith("pooler.") for name in stored) else ()
    rules = family.names.head_names
    there = [
        head
        for head in family.network.HEADS
        if head not in ("words", "choose")
        and (head in pooled or head not in family.network.POOLED)
        and all(name in stored for name in rules.get(head, ("",)))
    ]
    return sorted(there, key=lambda head: (-len(rules[head]), head not in pooled))[:1]


def _without(family: Family, stored: Tensors, heads: Collection[str], own: bool, tied: bool) -> dict[str, Tensor]:
    """The stored tensors less those of some heads."""
    if own:
        return {name: t for name, t in stored.items() if not any(name.startswith(f"heads.{head}.") for head in heads)}
    names = {name for head in heads for name in family.names.head_names[head]}
    for theirs, ours in family.names.tied:
        if any(ours.startswith(f"heads.{head}.") for head in heads):
            names.add(theirs)
        elif tied:  # the body's own tensor, which some files hold under this name alone
            names.discard(theirs)
    return {name: tensor for name, tensor in stored.items() if name not in names}


def fill(
    network: Network, stored: Tensors, fresh: tuple[str, ...] = (), seed: int = 0, names: Names | None = None
) -> None:
    """Put stored tensors into a network that has none yet; those whose names begin with `fresh` get new weights."""
    state = network.state_dict()
    new = {name for name in state if name.startswith(fresh)}
    tensors = to_ours(names, stored, state, new)
    broken = [name for name, tensor in tensors.items() if not tensor_is_finite(tensor)]
    refuse((bool(broken), f"weights that are not numbers (NaN or infinite): {listed(broken)}"))
    places = {name for name, tensor in state.items() if not tensor.is_floating_point()}  # in a table
    for kind_of_number, wrong in (("whole numbers", False), ("not whole numbers, where places are stored", True)):
        named = [name for name, t in tensors.items() if (name in places) is wrong and t.is_floating_point() is wrong]
        refuse((bool(named), f"weights that are {kind_of_number}: {listed(named)}"))
    broken = network.unsound(tensors)
    refuse((bool(broken), f"tables whose places are out of order or lead nowhere: {listed(broken)}"))
    floats = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    kind = reduce(torch.promote_types, floats)  # mixed: what holds them all
    parts = {".".join(name.split(".")[: 2 if name.startswith("heads.") else 1]) for name in new}  # heads.NAME, pooler
    scale = network.config.weight_scale
    scale = network.config.width**-0.5 if scale is None else scale
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name in sorted(parts):
            # `to_empty` asks torch for tensors like those on no device, which imports its compiler: a second or more.
            module: Any = network.get_submodule(name)
            module._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
            start_weights(module, scale)
            tensors |= {f"{name}.{inner}": tensor for inner, tensor in module.state_dict().items()}
    filled = {name: tensor if name in places else tensor.to(kind) for name, tensor in tensors.items()}
    network.load_state_dict(filled, assign=True)
    for parameter in network.parameters():
        parameter.requires_grad_(True)


def card_of(folder: Path, labels: tuple[str, ...] | None, heads: Mapping[str, int]) -> Card:
    """What `weft.json` says, or what a folder without one tells; labels in both must agree."""
    card = read_card(folder)
    check_labels(folder, labels, card.labels if card else None, heads)
    return Card(labels=labels, **sentence_settings(folder)) if card is None else card


# ---------------------------------------------- models that the published format cannot say, in our own words


@dataclass(frozen=True, kw_only=True)
class Own:
    """`config.json` of a model that the published format cannot say: our own words, and nothing else."""

    model_type: str
    architectures: tuple[str, ...]
    heads: dict[str, int]
    sizes: dict[str, Any]
    id2label: dict[str, str] | None = None
    label2id: dict[str, int] | None = None


def own_config(family: Family, published: Published, where: str) -> tuple[Any, dict[str, int]]:
    file = build(Own, published, where)
    check_heads(family, file.heads)
    for head, outputs in file.heads.items():
        if not 1 <= outputs <= 1 << 26:
            raise UserError(f"{where} [heads]: {head} must be between 1 and {1 << 26}, not {outputs}")
    config = build(family.config, {**family.standard, **file.sizes}, where, "sizes")
    check_config(family, config)
    if file.heads.get("words", config.vocabulary) != config.vocabulary:
        raise UserError(f"{where} [heads]: words must be the vocabulary, {config.vocabulary}")
    return config, dict(file.heads)


# --------------------------------------------------------------------------------------------------- writing


def save_folder(folder: Path, opened: LoadedModel, shard: int = SHARD) -> None:
    """Write a model folder, whole or not at all; the folder must be new or empty."""
    with whole_folder(folder) as inside:
        write_files(inside, opened, shard)


def write_files(inside: Path, opened: LoadedModel, shard: int = SHARD, weights: bool = True) -> None:
    """The files of a model folder, one by one; without `weights`, all that an engine's own files stand beside."""
    family, config, card, tokenizer = opened.family, opened.config, opened.card, opened.tokenizer
    if family.generates and "classify" in opened.heads and tokenizer is not None and tokenizer.roles.padding is None:
        # Others fill a batch up, and read the last token that is no filling: any that no text ends with will do.
        tokenizer = tokenizer.with_padding(tokenizer.roles.end)
    architecture = family.architecture(config, opened.heads)
    state = {name: tensor.detach().cpu() for name, tensor in opened.network.state_dict().items()}
    if architecture is not None:
        tensors = to_theirs(family.names_of(config).only(opened.heads), state) if weights else {}
        values = {
            "architectures": [architecture],
            "model_type": family.model_type,
            **write_config(family.table, config),
        }
        values["dtype"] = str(next(iter(state.values())).dtype).removeprefix("torch.")
        values |= {key: value for key, value in opened.carried.items() if key not in values}
        for key, role in (("pad_token_id", "padding"), ("bos_token_id", "start"), ("eos_token_id", "end")):
            if values.get(key) is None and family.reads:
                values[key] = opened.token_of(role)
            elif values.get(key) is None and family.generates and tokenizer is not None:
                values[key] = tokenizer.id_of(role)
        if family.never:  # in transformers' words; what it takes for granted are the ids of one vocabulary
            values.setdefault("forced_eos_token_id", values["eos_token_id"])
            values.setdefault("bad_words_ids", [[number] for number in opened.never])
    else:
        tensors = {name: tensor.contiguous() for name, tensor in state.items()}
        values = {"model_type": OWN + family.name, "architectures": [f"Weft-{family.name}"]}
        values |= {"heads": dict(opened.heads), "sizes": values_of(config)}
    if card.labels is not None:
        values["id2label"] = {str(number): label for number, label in enumerate(card.labels)}
        values["label2id"] = {label: number for number, label in enumerate(card.labels)}
    elif architecture is not None and {"classify", "tag"} & set(opened.heads):
        values["num_labels"] = opened.heads.get("classify", opened.heads.get("tag"))  # labels that have no names yet
    if architecture is not None and "classify" in opened.heads and card.task is not None:
        # So that others put the right function on the scores: one number as it is, several labels each by itself.
        value = card.labels is None and opened.heads["classify"] == 1
        kind = {"multilabel": "multi_label_classification", "regress": "regression"}
        values["problem_type"] = kind.get(card.task, "regression" if value else "single_label_classification")
    if weights:
        write_tensors(inside, tensors, shard)
    write_json(inside / "config.json", values)
    write_json(inside / "weft.json", card_values(replace(card, files={})))  # those of where it came from
    if card.pooling is not None:
        write_sentence_settings(inside, card, config.width)
    if tokenizer is not None:
        tokenizer.save(inside)
    if opened.target_tokenizer is not None and not is_marian(inside):  # Marian's were both written
        opened.target_tokenizer.save(inside / TARGET)

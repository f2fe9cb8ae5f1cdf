"""Model folders: `config.json`, `model.safetensors`, the tokenizer's files and `weft.json`, opened and written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoint.card import (
    Card,
    card_values,
    check_hashes,
    labels_of,
    read_card,
    sentence_settings,
    write_sentence_settings,
)
from weft.checkpoint.configs import CODE, DECODING, check_heads_config, read_config, write_config
from weft.checkpoint.families import FAMILIES, Family, check_config, check_heads, family_named, outline
from weft.checkpoint.names import to_ours, to_theirs, unfit
from weft.checkpoint.tensors import SHARD, read_tensors, write_tensors
from weft.config import build, values_of
from weft.errors import UserError, did_you_mean, listed, shown
from weft.files import MEGABYTE, read_json, whole_folder, write_json
from weft.models.base import Network, start_weights
from weft.ngrams import unsound
from weft.text.tokenizers.published import load_tokenizer, vocabulary_file
from weft.text.tokenizers.sentencepiece import is_marian, read_sides
from weft.text.tokenizers.tokenizer import Tokenizer

OWN = "weft-"  # before the model_type of a model that the published format cannot say
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

    @property
    def device(self) -> torch.device:
        """Where the network is; one that counts has tables and no weights to ask."""
        return next(chain(self.network.parameters(), self.network.buffers())).device

    @property
    def exported(self) -> bool:
        """Whether another engine runs it: the network is then a stand-in, without weights of our own."""
        return self.card.backend not in (None, "torch")

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
) -> LoadedModel:
    """Read a model folder.

    `new_heads` are the only parts that may be absent from it, and get fresh weights; with them, only those stored heads
    stay that `keep` names, and `mix` puts a fresh mix of all layers below them. `trust`: see `check_hashes`.
    """
    new_heads = dict(new_heads or {})
    published, where = read_published(folder)
    family, own = family_of(published, where)
    stored_card = read_card(folder)
    if stored_card is not None and stored_card.backend not in (None, "torch"):
        raise UserError(
            f"{folder}: a model for {stored_card.backend} has no weights of our own; take the one it was made of"
        )
    check_hashes(folder, stored_card, trust)
    stored = read_tensors(folder)
    check_heads(family, new_heads)
    if own:
        config, heads = own_config(family, published, where)
    else:
        stored = _spelled(family, stored, folder)
        if family.as_stored is not None:
            published = family.as_stored(published, stored, where)
        config = read_config(family.table, family.config, family.standard, published, where)
        heads = _heads(family, published, stored, config.vocabulary, where)
        check_heads_config(family.table, heads, published, where)
    if new_heads:
        gone = {head for head in heads if head in new_heads or head not in keep}
        stored = _without(family, stored, gone, own, config.tied in (True, "all", "decoder"))
        heads = {head: outputs for head, outputs in heads.items() if head not in gone}
    everything = {**heads, **new_heads}
    fresh = [f"heads.{head}." for head in new_heads]
    pooled = any(head in family.network.POOLED for head in everything)
    pooler_stored = any(name.startswith("pooler.") for name in stored)
    if config.has("pooler") and (pooled or not own):  # the published format does not say it: the tensors do
        config = replace(config, pooler=pooled or pooler_stored)
    if pooled and new_heads and not pooler_stored:
        fresh.append("pooler.")
    if mix and not config.has("mix"):
        raise UserError(f"{folder}: {family.name} has no layers to mix")
    if mix and not config.mix:
        config = replace(config, mix=True)
        fresh.append("mix.")
    try:
        network = _filled(family, config, everything, stored, tuple(fresh), own, seed)
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
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a model folder: there is no such folder")
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{str(folder)!r} is not a model folder: it has no config.json")
    return read_json(path, 16 * MEGABYTE), str(path)


def carried_keys(
    folder: Path, family: Family, published: Mapping[str, Any], known: Collection[str] = ()
) -> dict[str, Any]:
    """The published keys that mean nothing here, kept for saving; newer folders have a file of those of decoding."""
    if family.reads and (folder / "generation_config.json").is_file():
        decoding = read_json(folder / "generation_config.json", MEGABYTE)
        published = {**{key: decoding[key] for key in DECODING if key in decoding}, **published}
    known = {*family.table.keys, "architectures", "model_type", "dtype", "torch_dtype", *CODE, *known}
    return {key: value for key, value in published.items() if key not in known}


def _filled(
    family: Family,
    config: Any,
    heads: Mapping[str, int],
    stored: Mapping[str, Tensor],
    new: tuple[str, ...],
    own: bool,
    seed: int,
) -> Network:
    """The network with the stored tensors; those whose names begin with one of `new` get fresh weights."""
    network = outline(family, config, heads)
    expected = {name: tensor.shape for name, tensor in network.state_dict().items()}
    fresh = {name for name in expected if name.startswith(new)} if new else set()
    if own:
        tensors = own_tensors(stored, expected, fresh)
    else:
        tensors = to_ours(family.names_of(config), heads, stored, expected, fresh)
    scale = config.width**-0.5 if config.weight_scale is None else config.weight_scale
    fill(network, tensors, fresh, scale, seed)
    return network


def read_tokenizers(folder: Path, config: Any = None) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The tokenizer of a folder, and that of the target side where there is one; both must fit the config."""
    tokenizer: Tokenizer | None
    target: Tokenizer | None
    if is_marian(folder):
        tokenizer, target = read_sides(folder)
    else:
        tokenizer = load_tokenizer(folder) if vocabulary_file(folder) else None
        target = load_tokenizer(folder / TARGET) if (folder / TARGET).is_dir() else None
    try:
        if config is not None:
            check_vocabularies(config, tokenizer, target)
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
    for vocabulary, size, what in (
        (tokenizer, source or config.vocabulary, "read"),
        (target, config.vocabulary, "written"),
    ):
        if vocabulary is not None and vocabulary.vocabulary > size:
            raise UserError(
                f"the tokenizer of what is {what} has {vocabulary.vocabulary} tokens, the model only {size} for it"
            )


def _spelled(family: Family, stored: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The tensors under their names in the one canonical spelling."""
    spelled: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if family.names.spelled(name) in spelled:
            raise UserError(f"{folder}: tensor {shown(name)} stands there under two names")
        spelled[family.names.spelled(name)] = tensor
    return spelled


def family_of(published: Mapping[str, Any], where: str) -> tuple[Family, bool]:
    """The family that a config names, and whether the config is of our own format."""
    name = published.get("model_type")
    if not isinstance(name, str):
        raise UserError(f"{where}: model_type must name the kind of model, such as bert or gpt2")
    own = name.startswith(OWN)
    family = family_named(name.removeprefix(OWN))
    if family is None or not (own or family.architectures):  # those that nobody publishes have our own format alone
        choices = [each.name if each.architectures else OWN + each.name for each in FAMILIES.values()]
        listing = listed(choices, 20)
        raise UserError(f"{where}: model_type {shown(name)!r} is not one of {listing}{did_you_mean(name, choices)}")
    return family, own


def _heads(
    family: Family, published: Mapping[str, Any], stored: Mapping[str, Tensor], vocabulary: int, where: str
) -> dict[str, int]:
    """Which heads a published folder has, by its architecture and by its tensors, and how many outputs each has."""
    architectures = published.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UserError(f"{where}: architectures must be a list of names")
    heads: dict[str, None] = {}
    for name in architectures:
        if name not in family.architectures:
            raise UserError(
                f"{where}: architecture {shown(name)!r} is not supported; {family.name} has "
                f"{listed(family.architectures, 20)}{did_you_mean(name, family.architectures)}"
            )
        heads |= dict.fromkeys(family.architectures[name])
    names = family.names.head_names
    for head, tensors in names.items():
        # A published folder may hold more than its architecture says: bert-base-uncased has both pre-training heads.
        unique = [name for name in tensors if sum(name in other for other in names.values()) == 1]
        if any(name in stored for name in unique):
            heads[head] = None
    if not heads:
        heads |= dict.fromkeys(_guessed(family, stored))
    order = [head for head in family.network.HEADS if head in heads]
    return {head: vocabulary if head == "words" else _outputs(family, head, stored) for head in order}


def _guessed(family: Family, stored: Mapping[str, Tensor]) -> list[str]:
    """The head of a folder that has no architecture, where several heads are stored under one name.

    Of those that are all there: the one of most tensors, then one that reads the pooler where there is a pooler.
    """
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


def _outputs(family: Family, head: str, stored: Mapping[str, Tensor]) -> int:
    """What the last of a head's maps puts out."""
    weight = stored.get(next(name for name in reversed(family.names.head_names[head]) if name.endswith(".weight")))
    return weight.shape[0] if weight is not None and weight.dim() == 2 else 2


def _without(
    family: Family, stored: Mapping[str, Tensor], heads: Collection[str], own: bool, tied: bool
) -> dict[str, Tensor]:
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


def fill(network: nn.Module, tensors: dict[str, Tensor], fresh: Collection[str], scale: float, seed: int) -> None:
    """Put the tensors into a network that has none yet; what is new gets fresh weights."""
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise UserError(f"weights that are not numbers (NaN or infinite): {listed(broken)}")
    places = {name for name, tensor in network.state_dict().items() if not tensor.is_floating_point()}  # in a table
    for kind_of_number, wrong in (("whole numbers", False), ("not whole numbers, where places are stored", True)):
        named = [name for name, t in tensors.items() if (name in places) is wrong and t.is_floating_point() is wrong]
        if named:
            raise UserError(f"weights that are {kind_of_number}: {listed(named)}")
    broken = unsound(tensors, network.config.vocabulary) if places else []  # type: ignore[union-attr, arg-type]
    if broken:
        raise UserError(f"tables whose places are out of order or lead nowhere: {listed(broken)}")
    floats = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    kind = reduce(torch.promote_types, floats)  # mixed: what holds them all
    new = {".".join(name.split(".")[: 2 if name.startswith("heads.") else 1]) for name in fresh}  # heads.NAME, pooler
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name in sorted(new):
            module = network.get_submodule(name).to_empty(device="cpu")
            start_weights(module, scale)
            tensors |= {f"{name}.{inner}": tensor for inner, tensor in module.state_dict().items()}
    filled = {name: tensor if name in places else tensor.to(kind) for name, tensor in tensors.items()}
    network.load_state_dict(filled, assign=True)
    for parameter in network.parameters():
        parameter.requires_grad_(True)


def card_of(folder: Path, labels: tuple[str, ...] | None, heads: Mapping[str, int]) -> Card:
    """What `weft.json` says, or what a folder without one tells; labels in both must agree."""
    card = read_card(folder)
    outputs = heads.get("classify", heads.get("tag"))
    for name, names in (("config.json", labels), ("weft.json", card.labels if card else None)):
        if names is not None and outputs is not None and len(names) != outputs:
            raise UserError(f"{folder / name}: {len(names)} labels for a head of {outputs} outputs")
    if card is None:
        return Card(labels=labels, **sentence_settings(folder))
    if card.labels is not None and labels is not None and card.labels != labels:
        differing = next((a, b) for a, b in zip(card.labels, labels, strict=True) if a != b)
        raise UserError(
            f"{folder}: the labels of weft.json and config.json differ: {differing[0]!r} against {differing[1]!r}"
        )
    return card


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


def own_config(family: Family, published: Mapping[str, Any], where: str) -> tuple[Any, dict[str, int]]:
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


def own_tensors(stored: Mapping[str, Tensor], expected: Mapping[str, torch.Size], fresh: set[str]) -> dict[str, Tensor]:
    missing = [name for name in expected if name not in stored and name not in fresh]
    extra = [shown(name, 100) for name in stored if name not in expected]
    faults = [f"missing: {listed(missing)}"] if missing else []
    faults += [f"extra: {listed(extra)}"] if extra else []
    faults += [
        f"{name}: checkpoint {tuple(stored[name].shape)}, model {tuple(shape)}"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]
    if faults:
        raise unfit(faults)
    return {name: tensor.clone() for name, tensor in stored.items()}


# --------------------------------------------------------------------------------------------------- writing


def save_folder(folder: Path, opened: LoadedModel, shard: int = SHARD) -> None:
    """Write a model folder, whole or not at all; the folder must be new or empty."""
    with whole_folder(folder) as inside:
        write_files(inside, opened, shard)


def write_files(inside: Path, opened: LoadedModel, shard: int = SHARD, weights: bool = True) -> None:
    """The files of a model folder, one by one; without `weights`, all that an engine's own files stand beside."""
    family, config, card, tokenizer = opened.family, opened.config, opened.card, opened.tokenizer
    if family.speaks and "classify" in opened.heads and tokenizer is not None and tokenizer.roles.padding is None:
        # Others fill a batch up, and read the last token that is no filling: any that no text ends with will do.
        tokenizer = tokenizer.with_padding(tokenizer.roles.end)
    architecture = family.architecture(config, opened.heads)
    state = {name: tensor.detach().cpu() for name, tensor in opened.network.state_dict().items()}
    if architecture is not None:
        tensors = to_theirs(family.names_of(config), opened.heads, state) if weights else {}
        values = {"architectures": [architecture], "model_type": family.name, **write_config(family.table, config)}
        values["dtype"] = str(next(iter(state.values())).dtype).removeprefix("torch.")
        values |= {key: value for key, value in opened.carried.items() if key not in values}
        for key, role in (("pad_token_id", "padding"), ("bos_token_id", "start"), ("eos_token_id", "end")):
            if values.get(key) is None and family.reads:
                values[key] = opened.token_of(role)
            elif values.get(key) is None and family.speaks and tokenizer is not None:
                values[key] = tokenizer.id_of(role)
        if family.never:  # in transformers' words; what it takes for granted are the ids of one vocabulary
            values.setdefault("forced_eos_token_id", values["eos_token_id"])
            values.setdefault("bad_words_ids", [[number] for number in opened.never])
    else:
        tensors = {name: tensor.contiguous() for name, tensor in state.items()}
        own = Own(
            model_type=OWN + family.name,
            architectures=(f"Weft-{family.name}",),
            heads=dict(opened.heads),
            sizes=values_of(config),
        )
        values = values_of(own)
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

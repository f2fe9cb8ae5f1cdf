"""Model folders, written whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from weft.checkpoint.card import card_values, write_sentence_settings
from weft.checkpoint.configs import write_config
from weft.checkpoint.folder import TARGET, LoadedModel
from weft.checkpoint.names import to_theirs
from weft.checkpoint.own import OWN, Own
from weft.checkpoint.tensors import SHARD, write_tensors
from weft.config import values_of
from weft.files import whole_folder, write_json
from weft.text.tokenizers.marian import is_marian


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

"""`weft.load`: a model that answers by the backend that `weft bench` has chosen for it on this machine, if any."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from weft.backends.choice import BACKENDS, TORCH, stored
from weft.backends.opening import ENGINES, backend_of
from weft.backends.predictors import generates, made_for, with_predictor
from weft.checkpoint.locate import find_folder
from weft.errors import UserError, listed, one_of
from weft.nn.halved import Precision
from weft.progress import to_logger
from weft.tasks import model as plain
from weft.tasks.model import Model
from weft.tasks.registry import task_class


def load(
    name: str | os.PathLike[str],
    task: str | None = None,
    device: str | torch.device | None = None,
    backend: str | None = None,
    online: bool = False,
    trust: bool = False,
    language: str | None = None,
    precision: Precision = "auto",
) -> Model:
    """A model from a folder, else from the local Hugging Face cache, else, only when `online`, from its hub.

    `backend`: torch, onednn, onednn-bf16, onnx, onnx-int8, or for a model that generates ctranslate2 or
    ctranslate2-int8; by default the one that `weft bench` has chosen for this model on this machine, else torch.
    `trust` opens an exported folder whose files have changed since, with a warning. `language`: of the texts, for a
    model with language embeddings; by default the one that it was fine-tuned in, or its first. `precision`: of answers
    on a GPU, fp32, bf16 or fp16; auto: bf16 where a model generates, else fp16.
    """
    if backend is not None:
        one_of(backend, dict.fromkeys((*BACKENDS, *ENGINES)), "backend")
    if isinstance(name, str | os.PathLike) and backend not in (None, TORCH):
        if backend_of(find_folder(os.fspath(name), online)) is None:
            loaded = plain.load(name, task, device, None, online, trust, language, precision)
            return answering_by(loaded, backend)
        if backend not in ENGINES:
            raise UserError(f"{name}: was exported for another engine, and backend {backend} runs PyTorch weights")
    loaded = plain.load(name, task, device, backend, online, trust, language, precision)
    fixed = backend is not None or loaded.opened.exported or language is not None or loaded.folder is None
    if fixed or loaded.opened.device.type != "cpu" or loaded.folder is None:
        return loaded
    choice = stored(loaded.folder, measured_as(loaded))
    if choice is None or choice.backend == TORCH or choice.backend not in BACKENDS:
        return loaded
    try:
        fast = answering_by(loaded, choice.backend)
        fast.opened.predictor.ready()
    except UserError as error:  # its export is gone, or its package
        to_logger(f"weft: note: {error}; plain torch is used")
        return loaded
    to_logger(choice.line())
    return fast


def measured_as(model: Model) -> str:
    """What a choice of a backend is stored under: its task; one name for all that write, one for all with vectors."""
    return made_for(model.opened, task_class(model.task), model.task)


def answering_by(model: Model, backend: str) -> Model:
    """The same model, answering by a backend."""
    kind, limits = task_class(model.task), BACKENDS[backend]
    writes = generates(model.opened, kind)
    if writes and not limits.nats and backend != TORCH:
        able = listed([name for name, each in BACKENDS.items() if each.nats])
        raise UserError(
            f"backend {backend} runs models that read texts; a model for {model.task} runs in torch, {able}"
        )
    if not writes and (not limits.tolerance or model.opened.family.series):
        does = "generate" if limits.nats and not limits.tolerance else "read texts"
        raise UserError(f"backend {backend} runs models that {does}; a model for {model.task} runs in torch")
    opened = with_predictor(backend, model.opened, model.task_object)  # a class may stand for several tasks
    return Model(replace(opened, folder=model.folder), model.task, model.folder)

"""Other libraries on the same weights and texts, run as their users do; each is imported only when it is asked for.

A peer takes texts and gives what its users get: vectors if the model embeds texts, else labels with scores. The gate
compares its numbers with those of torch: vectors, or logits.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from weft.backends.choice import version_of
from weft.backends.ct2_files import ENGINE
from weft.backends.ctranslate2 import engine_of
from weft.backends.onnx import GRAPH, runtime
from weft.bench.square import rectangle
from weft.checkpoint.folder import save_folder
from weft.errors import UserError, shown
from weft.exporters.export import write_ct2
from weft.exporters.onnx_builder import Precision
from weft.exporters.onnx_export import write_onnx
from weft.files import temporary_folder
from weft.nn.rows import Rows
from weft.progress import Log
from weft.tasks.embed import Embedder
from weft.tasks.model import Model

PEERS = ("transformers", "sentence-transformers", "onnxruntime", "ctranslate2")
BATCH = 32  # texts at a time, for libraries that do not choose it themselves
P = TypeVar("P")


@dataclass(frozen=True)
class Peer:
    """One way to run another library."""

    name: str
    call: Callable[[list[Any]], Any]  # texts -> what its users get
    numbers: Callable[[list[Any]], list[NDArray[Any]]]  # texts -> vectors or logits, as torch gives them
    int8: bool = False
    refused: str | None = None


def peers_of(model: Model, names: Sequence[str], log: Log) -> list[Peer]:
    """The peers of these libraries, as far as they are installed; one that cannot run this model is refused."""

    def refused(name: str, reason: str) -> Peer:
        return Peer(name, lambda texts: None, lambda texts: [], refused=reason)

    return installed_peers(names, lambda name: MAKERS[name](model), refused, log)


def installed_peers(
    names: Sequence[str], make: Callable[[str], list[P]], refused: Callable[[str, str], P], log: Log
) -> list[P]:
    """The peers that `make` gives for installed libraries; `refused`: a peer with the reason, for one that fails."""
    peers: list[P] = []
    for name in names:
        if version_of(name) is None:
            log(f"{name} is not installed: not compared")
            continue
        log(f"preparing {name}")
        try:
            peers += make(name)
        except (UserError, ImportError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
            peers.append(refused(name, f"cannot run it: {shown(' '.join(str(error).split()), 160)}"))
    return peers


def folder_for(name: str) -> Path:
    """A temporary folder until this process ends; if it is killed, a later process removes the folder."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(temporary_folder()) / name
    folder.mkdir()
    return folder


def transformers() -> Any:
    """The package, without its progress bars and warnings."""
    library = import_module("transformers")
    library.utils.logging.disable_progress_bar()
    library.utils.logging.set_verbosity_error()
    return library


def published(model: Model) -> Path:
    """A folder that transformers opens: the model's own, or a copy in the published format."""
    if model.folder is not None and model.opened.family.architectures:
        return model.folder
    folder = folder_for("folder") / "model"
    save_folder(folder, model.opened)
    return folder


def _embeds(model: Model) -> bool:
    """Whether vectors are compared; else the logits of a head that classifies single texts."""
    task = model.task_object
    if task.embeds:
        return True
    if task.pair or task.head != "classify" or "classify" not in model.opened.heads:
        raise UserError(f"only models that embed or classify single texts are compared, not one for {model.task}")
    return False


def _transformers(model: Model) -> list[Peer]:
    """Its tokenizer and model on padded batches of 32; and its pipeline, which most of its users call."""
    embeds, library = _embeds(model), transformers()
    folder = published(model)
    options = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = library.AutoTokenizer.from_pretrained(folder, **options)
    kind = library.AutoModel if embeds else library.AutoModelForSequenceClassification
    network = kind.from_pretrained(folder, dtype=torch.float32, **options).eval()
    pool = _pooled(model)

    def forward(texts: list[Any]) -> list[NDArray[Any]]:
        parts = []
        with torch.inference_mode():
            for first in range(0, len(texts), BATCH):
                batch = texts[first : first + BATCH]
                fed = tokenizer(batch, padding=True, truncation=True, max_length=_longest(model), return_tensors="pt")
                output = network(**fed)
                if embeds:
                    parts += list(pool(output.last_hidden_state.numpy(), fed["attention_mask"].numpy()))
                else:
                    parts += list(output.logits.numpy())
        return parts

    peers = [Peer("transformers", forward, forward)]
    if not embeds:
        pipe = library.pipeline("text-classification", model=network, tokenizer=tokenizer, device="cpu")
        cut = {"truncation": True, "max_length": _longest(model)}
        peers.append(Peer("transformers pipeline", lambda texts: pipe(texts, batch_size=BATCH, **cut), forward))
    return peers


def _sentence_transformers(model: Model) -> list[Peer]:
    """`SentenceTransformer.encode`, which sorts by length."""
    if not _embeds(model):
        raise UserError(f"it embeds texts, and this model is for {model.task}")
    transformers()
    library = import_module("sentence_transformers")
    encoder = library.SentenceTransformer(str(published(model)), device="cpu", local_files_only=True)
    encoder.max_seq_length = _longest(model)

    def encode(texts: list[Any]) -> list[NDArray[Any]]:
        return list(encoder.encode(texts, batch_size=BATCH, show_progress_bar=False))

    return [Peer("sentence-transformers", encode, encode)]


def _onnxruntime(model: Model) -> list[Peer]:
    """An export in fp32 and in int8, run by a plain session on padded batches."""
    embeds, pool, peers = _embeds(model), _pooled(model), []
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    for precision in precisions:
        folder = folder_for("onnx")
        write_onnx(folder, model.opened, model.task, precision)
        options = runtime().SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = runtime().InferenceSession(str(folder / GRAPH), options, providers=["CPUExecutionProvider"])
        inputs = [each.name for each in session.get_inputs()]

        def forward(texts: list[Any], session: Any = session, inputs: Any = inputs) -> list[NDArray[Any]]:
            parts = []
            for first in range(0, len(texts), BATCH):
                ids, mask = rectangle(model, texts[first : first + BATCH], _longest(model))
                fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
                output = session.run(None, {name: fed[name] for name in inputs})[0]
                parts += list(pool(output, mask) if embeds else output)
            return parts

        peers.append(Peer(f"onnxruntime {precision}", forward, forward, precision == "int8"))
    return peers


def _ctranslate2(model: Model) -> list[Peer]:
    """Its encoder in fp32 and in int8, on lists of tokens; vectors are pooled in NumPy, and heads run in torch."""
    embeds, peers, pool = _embeds(model), [], _pooled(model)
    network: Any = model.network
    for precision in ("fp32", "int8"):
        folder = folder_for("ctranslate2")
        write_ct2(folder, model.opened, model.task, precision)
        engine = engine_of("Encoder", folder / ENGINE, precision)

        def forward(texts: list[Any], engine: Any = engine) -> list[NDArray[Any]]:
            parts: list[NDArray[Any]] = []
            for first in range(0, len(texts), BATCH):
                ids, mask = rectangle(model, texts[first : first + BATCH], _longest(model))
                rows = [row[:length].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
                hidden = np.asarray(engine.forward_batch(rows).last_hidden_state)
                if embeds:
                    parts += list(pool(hidden, mask))
                else:
                    with torch.inference_mode():
                        firsts = torch.from_numpy(hidden[:, 0].copy())  # the head reads the first token of a text
                        parts += list(network.logits("classify", firsts, Rows.single(len(firsts))).numpy())
            return parts

        peers.append(Peer(f"ctranslate2 {precision}", forward, forward, precision == "int8"))
    return peers


def _longest(model: Model) -> int:
    window = model.card.window
    return min(model.config.context, model.config.context if window is None else window.length)


def _pooled(model: Model) -> Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]:
    """b t W and b t -> b W: the vectors of texts, pooled as the model's card says."""
    if not model.task_object.embeds:
        return lambda hidden, mask: hidden
    embedder = Embedder(model.opened)

    def pool(hidden: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        if embedder.pooling == "first":
            vectors = hidden[:, 0]
        elif embedder.pooling == "max":
            vectors = np.where(mask[..., None] > 0, hidden, -np.inf).max(1)
        else:
            vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if embedder.normalize else vectors

    return pool


MAKERS: dict[str, Callable[[Model], list[Peer]]] = {
    "transformers": _transformers,
    "sentence-transformers": _sentence_transformers,
    "onnxruntime": _onnxruntime,
    "ctranslate2": _ctranslate2,
}

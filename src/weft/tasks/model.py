"""`weft.load` and `weft.new`: a model with its tokenizer, ready to be called, saved and looked into."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, overload

import torch
from torch import Tensor, nn

from weft.backends.opening import ENGINES, backend_of
from weft.backends.opening import opened as open_exported
from weft.checkpoint.card import Card, Made
from weft.checkpoint.families import Family, check_config, check_heads, find_size, measure, usual_heads
from weft.checkpoint.folder import LoadedModel, check_vocabularies, open_folder, read_tokenizers, save_folder
from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.tables import Table
from weft.errors import UserError, listed, one_of, shown
from weft.files import memory_here
from weft.generation.text import Stream
from weft.loading import collector_paused
from weft.nn.halved import Precision
from weft.nn.rows import Rows
from weft.progress import ProgressChoice, log_notes, progress_of, silent, to_logger
from weft.tasks.answers import Answer, Forecast, Text
from weft.tasks.base import Prediction, Task
from weft.tasks.classify import TextTask
from weft.tasks.complete import stream
from weft.tasks.embed import embed
from weft.tasks.evaluate import CHUNK, Evaluation, evaluate, inputs_in_call
from weft.tasks.forecast import forecasts_of
from weft.tasks.forward import batches, evaluating, framing_for, tokenizer_of
from weft.tasks.registry import task_class, task_for
from weft.text.rows import Skipped
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.version import VERSION


class Model:
    """A network, its tokenizer and its card; `model(texts)` answers as its task says."""

    def __init__(self, opened: LoadedModel, task: str, folder: Path | None = None) -> None:
        self.opened = opened
        self.task = task
        self.folder = folder  # that it was opened from

    def __repr__(self) -> str:
        parts = [f"{self.task}: {self.opened.family.name}"]
        layers, width = self.config.layers, self.config.width
        parts[0] += f" {layers}x{width}" if layers and width else ""
        if not self.opened.exported:
            parts.append(f"{sum(parameter.numel() for parameter in self.network.parameters()):,} parameters")
        parts += [f"labels {shown(listed(self.card.labels, 8), 200)}"] if self.card.labels else []
        parts += [str(self.folder)] if self.folder else []
        return f"<weft.Model {', '.join(parts)}>"

    @property
    def network(self) -> nn.Module:
        """The PyTorch module."""
        return self.opened.network

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of what the model reads; None for a model that reads vectors."""
        return self.opened.tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        """Of what is written, where that has a vocabulary of its own."""
        return self.opened.target_tokenizer

    @property
    def config(self) -> Any:
        """The sizes and settings of the network."""
        return self.opened.config

    @property
    def card(self) -> Card:
        """Task, labels, windows, thresholds and metrics, as `weft.json` stores them."""
        return self.opened.card

    @property
    def task_object(self) -> Task:
        """The task with the labels and settings of this model."""
        return task_for(self.opened, self.task)

    @overload
    def __call__(self, texts: str | tuple[str, str], /, **options: Any) -> Answer: ...
    @overload
    def __call__(self, texts: list[Any], /, **options: Any) -> list[Answer]: ...
    @overload
    def __call__(self, texts: Any, /, **options: Any) -> Any: ...
    def __call__(
        self,
        texts: Any,
        /,
        *,
        columns: Mapping[str, str] | None = None,
        progress: ProgressChoice = None,
        **options: Any,
    ) -> Answer | list[Answer]:
        """Answer one text or a list of them; a pair, or a question and its context, is a tuple of two.

        A dict is one row, and a data frame, a Dataset or a list of dicts are rows: their text column is taken by its
        name, or named by `columns={"text": "summary"}`. A model that describes vectors takes one list of numbers, or
        many. `options` are those of the task (see `weft.tasks`).
        """
        task, answers, options = self.task_object, list[Any](), _with_others(options)
        inputs, one = inputs_in_call(self, texts, columns, task)
        bar = progress_of(progress) if len(inputs) > CHUNK and task.independent else silent
        if bar is silent:
            # Vectors are made by an `Embedder`, which sees to the mode itself where the network is asked at all.
            with nullcontext() if task.embeds else evaluating(self.network):
                answers = task.answers(self.opened, inputs, **options) if inputs else []
            return answers[0] if one else answers
        with evaluating(self.network), bar(f"{self.task}: {len(inputs):,} inputs", "answered") as count:
            for first in range(0, len(inputs), CHUNK):
                answers += task.answers(self.opened, inputs[first : first + CHUNK], **options)
                count(len(answers) - first)
        return answers[0] if one else answers

    def predict(self, texts: Any, /, *, columns: Mapping[str, str] | None = None) -> list[Prediction]:
        """The prediction of the network for each input, before it becomes an answer; inputs as for a call.

        `prediction.output` holds logits of labels (classify, pair, multilabel), a value (regress), logits of tags for
        each word (tag), the best spans (answer), a vector (embed) or the written text.
        """
        task = self.task_object
        inputs, _ = inputs_in_call(self, texts, columns)
        checked = task.check_inputs(inputs)
        with evaluating(self.network):
            return task.predict(self.opened, framing_for(self.opened), checked) if checked else []

    def forecast(
        self, data: Any, /, *, columns: Mapping[str, str] | None = None, back: int = 0, **reading: Any
    ) -> list[Forecast]:
        """Forecast every series of a table: the steps after its last one, or from `back` steps before it.

        `data`: a file, or rows in memory; `columns={"time": "date", "series": "store", "value": "sales"}` names its
        columns where their names and cells do not tell. `reading`: `format`, `delimiter`, `encoding`, `on_bad_row`.
        """
        skipped = Skipped()
        with evaluating(self.network):
            forecasts = self.forecasts(Table(data, columns or {}, **reading), skipped, back)
        log_notes(skipped.lines(), to_logger)
        return [forecast for forecast, _ in forecasts]

    def forecasts(self, table: Table, skipped: Skipped, back: int = 0) -> list[tuple[Forecast, Any]]:
        """The forecast of every series of a table, each with the window of the series that it was made from."""
        if not self.task_object.reads_tables:
            raise UserError(f"a model for {self.task} forecasts no series; weft finetune --task forecast makes one")
        return forecasts_of(self.opened, table, skipped, back)

    def logits(self, texts: str | Sequence[Any], /) -> list[Tensor]:
        """The logits of the task's head for each text, as float32 tensors on the CPU.

        (outputs) for heads of whole texts or pairs, (tokens, outputs) for heads of tokens and of words. Special tokens
        are included. A text has to fit into one window.
        """
        task = self.task_object
        if self.opened.family.reads or task.head not in self.opened.heads:
            raise UserError(f"a model for {self.task} has no head whose logits could be given for a text")
        network: Any = self.network
        words, logits = task.head == "words", list[Tensor]()
        for hidden, rows in self._passes(texts):
            outputs = (network.words(hidden) if words else network.logits(task.head, hidden, rows)).float().cpu()
            logits.append(outputs if words or task.by_token else outputs[0])
        return logits

    def hidden_states(self, texts: str | Sequence[Any], /, layers: Sequence[int] | None = None) -> list[list[Tensor]]:
        """The hidden states of each text by layer, each (tokens, width) in float32 on the CPU.

        `layers`: numbers of layers, 0 for the embeddings, negative from the end; all of them unless given. Special
        tokens are included. A text has to fit into one window.
        """
        by_text: list[list[Tensor]] = []
        for states, _ in self._passes(texts, states=True):
            numbers = range(len(states)) if layers is None else layers
            for number in numbers:
                if not -len(states) <= number < len(states):
                    raise UserError(f"layer {number}: this model has layers {-len(states)} to {len(states) - 1}")
            by_text.append([states[number].float().cpu() for number in numbers])
        return by_text

    def embed(self, texts: Any, /, **options: Any) -> Any:
        """The vector of a text or of each of several, whatever the task of the model is.

        `per="token"` or `"word"` gives the vectors of a text's tokens or words with their offsets. `layers`, `pooling`
        and `normalize` as for `weft embed`: `model.embed(texts, per="word", layers="last4-concat")`.
        """
        task_class("embed").check_model(self.opened, "embed")
        one = isinstance(texts, str)
        vectors = embed(self.opened, [texts] if one else texts, **options)
        return vectors[0] if one else vectors

    def _passes(self, texts: str | Sequence[Any], states: bool = False) -> Iterator[tuple[Any, Rows]]:
        """Each text alone through the network: its hidden states, or those of all layers, and its row."""
        if self.opened.exported or self.opened.family.reads:
            raise UserError(f"{self.opened.family.name}: only an encoder or decoder of our own shows its inside")
        task: Any = self.task_object if self.task_object.pair else TextTask("classify", either=True)
        framing = framing_for(self.opened)
        checked = task.check_inputs([texts] if isinstance(texts, str) else texts)
        windows = task.encode(checked, tokenizer_of(self.opened), framing)
        for number, pieces in enumerate(windows.pieces, 1):
            if len(pieces) > 1:
                raise UserError(f"text {number} is longer than a window of {framing.length} tokens")
        with evaluating(self.network), torch.inference_mode():
            for pieces in windows.pieces:
                _, batch = next(batches(pieces, self.opened.device, framing.marks(task.pair)))
                batch = batch.to(self.opened.device)
                layers: list[Tensor] | None = [] if states else None
                hidden = self.network(batch.tokens, batch.rows, batch.segments, states=layers)
                yield layers if states else hidden, batch.rows

    def stream(self, text: Any, /, **options: Any) -> Stream[Text]:
        """Answer one text (or vector) piece by piece, in whole characters; at the end the stream has its `answer`."""
        if not self.task_object.writes:
            raise UserError(f"a model for {self.task} writes nothing that could be streamed")
        return stream(self.opened, text, **options)

    def evaluate(self, data: Any = None, **options: Any) -> Evaluation:
        """Evaluate the model on rows of data: metrics with confidence intervals, tables, the worst mistakes.

        `data`: files, or rows in memory: a data frame, a Dataset, dicts or tuples, a generator of them.
        A model that writes may be given two files instead, line for line: `source` and `target`.
        """
        if not task_class(self.task).supervised:
            raise UserError(f"a model for {self.task} cannot be evaluated on rows; fine-tune it for a task first")
        with evaluating(self.network):
            return evaluate(self.opened, self.task, data, **_with_others(options))

    def fit(self, data: Any = None, **recipe: Any) -> Model:
        """Fine-tune this model on rows of data; data and `recipe` as for `weft.finetune`.

        The model becomes what was learned; with other labels than it had, its head is replaced.
        """
        import weft  # the runs stand on a higher floor; the package hands them out

        recipe.setdefault("task", self.task if task_class(self.task).supervised else None)
        device = self.opened.device
        tuned = weft.finetune(data, base=self, **recipe)
        self.opened, self.task, self.folder = tuned.opened, tuned.task, tuned.folder
        return self.to(device)

    def plain(self) -> Model:
        """The same model, answering by its PyTorch network alone."""
        return Model(replace(self.opened, predictor=None), self.task, self.folder)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder, which transformers opens too; the folder must be new or empty."""
        if self.opened.exported:
            raise UserError(f"a model for {self.card.backend} has no PyTorch weights to save: copy its folder")
        save_folder(Path(folder), replace(self.opened, card=replace(self.card, weft=VERSION)))

    def to(self, device: str | torch.device) -> Model:
        """Move the network: cpu, cuda, cuda:1, mps; an exported one runs on the CPU."""
        if self.opened.exported and str(device) != "cpu":
            raise UserError(f"a model for {self.card.backend} runs on the cpu, not on {device}")
        self.network.to(device_of(device))
        return self


def _with_others(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a task; models that answer together with this one become loaded models."""
    rest = {name: value for name, value in options.items() if name != "others"}
    others = [each.opened if isinstance(each, Model) else each for each in options.get("others", ())]
    return {**rest, "others": others} if others else rest


def device_of(name: str | torch.device) -> torch.device:
    """A device by its name, tried out."""
    if not re.fullmatch(r"cpu|(cuda|mps)(:[0-9]+)?", str(name)):
        raise UserError(f"device {str(name)!r} is not cpu, cuda, cuda:NUMBER or mps")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {str(name)!r} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)


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

    `trust` opens an exported folder whose files have changed since, with a warning. `language`: of the texts, for a
    model with language embeddings; by default the one that it was fine-tuned in, or its first. `precision`: of answers
    on a GPU, fp32, bf16 or fp16; auto: bf16 where a model generates, fp16 where it gives labels or vectors.
    """
    if not isinstance(name, str | os.PathLike):
        raise UserError(f"a model is loaded by the name of its folder, not from a {type(name).__name__}")
    folder = find_folder(os.fspath(name), online)
    engine = backend_of(folder)
    if backend is not None and one_of(backend, ("torch", *ENGINES), "backend") != (engine or "torch"):
        has = "no PyTorch weights" if backend == "torch" else f"nothing for {backend}"
        raise UserError(f"{folder}: has {has}: it is a model for {engine or 'torch'} (see weft export)")
    with collector_paused():
        opened = open_folder(folder, trust=trust) if engine is None else open_exported(folder, trust)
    one_of(precision, get_args(Precision), "precision")
    opened = replace(opened, folder=folder, precision=precision)
    opened = opened if language is None else opened.in_language(language)
    stored = opened.card.task or _task(opened)
    made_for, chosen = task_class(stored, f"{name}: weft.json: task"), task or stored
    does = made_for if task is None else task_class(task)
    try:
        does.check_model(opened, chosen)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    if engine == "onnx" and chosen != opened.card.task and not (does.embeds and made_for.gives_vectors):
        raise UserError(f"{name}: was exported for {opened.card.task}, and does nothing else")
    model = Model(opened, chosen, folder)
    return model if device is None else model.to(device)


def _task(opened: LoadedModel) -> str:
    """What a published folder is for: its head says it; without a head it embeds."""
    if "spans" in opened.heads:
        return "answer"
    for head in ("answer", "tag", "choose"):
        if head in opened.heads and (head != "choose" or "words" not in opened.heads):
            return head
    if "classify" in opened.heads:
        names = {"regression": "regress", "multi_label_classification": "multilabel"}
        value = opened.heads["classify"] == 1 and opened.card.labels in (None, ("LABEL_0",))
        return names.get(str(opened.carried.get("problem_type")), "regress" if value else "classify")
    return opened.family.task if "words" in opened.heads else "embed"


def new(
    model: str,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    *,
    target_tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    size: str | None = None,
    settings: Mapping[str, Any] | None = None,
    heads: Mapping[str, int | None] | None = None,
    seed: int = 0,
    where: str = "--set model",
) -> Model:
    """A model with fresh weights: a family or a published size, its blocks swapped by `settings`.

    `heads` are those with which the family is pre-trained unless given; None: as many outputs as the vocabulary.
    `target_tokenizer` is for what an encoder-decoder writes, where it has not one vocabulary for both.
    """
    family, config = find_size(model, size, (settings or {}).get("heads"))
    if isinstance(tokenizer, str | os.PathLike):
        folder = Path(tokenizer)
        tokenizer = load_tokenizer(folder)
        if family.reads and target_tokenizer is None and folder.is_dir():
            target_tokenizer = read_tokenizers(folder)[1]
    if isinstance(target_tokenizer, str | os.PathLike):
        target_tokenizer = load_tokenizer(Path(target_tokenizer))
    if tokenizer is not None and family.series:
        raise UserError(f"{family.name} reads numbers, so it has no tokenizer")
    if target_tokenizer is not None and (tokenizer is None or not family.reads):
        raise UserError(f"{family.name}: a second tokenizer is for encoder-decoders, beside a first")
    if tokenizer is not None:
        sizes = vocabularies_of(family, config, tokenizer, target_tokenizer, settings or {})
        config = replace(config, **sizes)
    padding = tokenizer.id_of("padding") if tokenizer is not None else None
    if padding is not None and config.has("padding"):  # positions are counted from it
        config = replace(config, padding=padding)
    config = changed(config, settings or {}, where)
    check_config(family, config)
    check_vocabularies(config, tokenizer, target_tokenizer)
    if heads is None:
        outputs = usual_heads(family, config)
    else:
        outputs = {head: config.vocabulary if given is None else given for head, given in heads.items()}
        if config.has("pooler"):  # only where something learns from it
            config = replace(config, pooler=any(head in family.network.POOLED for head in outputs))
        check_heads(family, outputs)
    needed, there = measure(family, config, outputs).bytes("fp32"), memory_here()
    if needed > there:
        raise UserError(f"a model of {needed / 1e9:.1f} GB does not fit into the {there / 1e9:.1f} GB of this machine")
    if not 0 <= seed < 1 << 63:
        raise UserError(f"a seed must be between 0 and {(1 << 63) - 1}, not {seed}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = family.network(config, outputs)
        network.initialize()
    if tokenizer is not None:
        network.read_vocabulary(tokenizer.tokens)
    made = Made(seed=seed, date=datetime.now(UTC).date().isoformat())
    card = Card(weft=VERSION, task=family.task, made=made)
    opened = LoadedModel(family, config, network.eval(), outputs, tokenizer, card, target_tokenizer=target_tokenizer)
    return Model(opened, family.task)


def vocabularies_of(
    family: Family, config: Any, tokenizer: Tokenizer, target: Tokenizer | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a config that its vocabularies decide, where the settings do not."""
    writer = target or tokenizer
    fields: dict[str, Any] = {"vocabulary": settings.get("vocabulary", writer.vocabulary)}
    if not family.reads:
        return {} if "vocabulary" in settings else fields
    begin = settings.get("begin", writer.id_of(family.begins))
    if begin is None:
        raise UserError(
            f"{family.name} begins to write from its {family.begins} token, and this vocabulary has none; "
            f"one that has: weft tokenizer learn --model {family.name}"
        )
    fields["begin"] = begin
    if "source_vocabulary" not in settings and config.has("source_vocabulary"):
        fields["source_vocabulary"] = None  # one vocabulary for both, whatever the paper of a size had
    if target is not None and target.tokens != tokenizer.tokens:  # two vocabularies, so no table for both
        fields["source_vocabulary"] = tokenizer.vocabulary
        if config.tied == "all":
            fields["tied"] = "decoder"
    return fields

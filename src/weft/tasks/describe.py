"""A text written from a vector: captions of images by their features, words for whatever comes as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from weft.checkpoint.card import Window
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.examples import Sequences, VectorSide
from weft.errors import UserError
from weft.generation.options import SAMPLING
from weft.progress import Log
from weft.tasks.answers import Text
from weft.tasks.base import Example, Prediction
from weft.tasks.complete import VectorInputs, check_length, generator_of, options_for, prompts_of, vector_in
from weft.tasks.seq2seq import SequenceTask, chrf_near, together
from weft.text.records import Record
from weft.text.windows import Framing

BEAM = 3  # as Vinyals et al. (2017) found best


def describe(
    opened: LoadedModel,
    vectors: Sequence[Any],
    *,
    others: Sequence[LoadedModel] = (),
    on_progress: Callable[[int], None] | None = None,
    **options: Any,
) -> list[Text]:
    """Write a text from each vector, by default with a beam of 3; `options`: `GenerationOptions`; `others` join it."""
    if not opened.family.numbers or "words" not in opened.heads:
        raise UserError(f"this {opened.family.name} model does not write from vectors")
    for number, other in enumerate(others, 2):
        if not other.family.numbers or other.config.features != opened.config.features:
            raise UserError(f"model {number} does not read the vectors of the first: they cannot write together")
    together(opened, others)
    chosen = options_for(opened, options)
    if chosen.beam_size is None and not chosen.given(SAMPLING):
        chosen = replace(chosen, beam_size=min(max(BEAM, chosen.n), opened.config.vocabulary))
    if chosen.max_tokens is not None and chosen.max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, not {chosen.max_tokens}")
    return generator_of(opened, others).write(prompts_of(opened, vectors), chosen, on_progress)


@dataclass(frozen=True)
class DescribeTask(VectorInputs, SequenceTask):
    """A text written from a vector; all texts of one vector stand on one side of a split, and are references."""

    features: int = 0  # numbers of a vector, once that is known

    needs = "writes from vectors"
    parallel = False
    pair_names = ("vector", "text")
    whole_groups = True
    independent = False  # row n draws from seed + n
    default_metric = "bleu"

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> DescribeTask:
        cls.check_recipe(work)
        return cls("describe", smoothing=work.smoothing, max_evaluated=work.max_evaluated)

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> DescribeTask:
        return cls("describe", beam_size=BEAM, features=model.config.features)

    @classmethod
    def fits(cls, family: Family) -> bool:
        return family.reads and family.numbers

    def read_input(self, record: Record, columns: Mapping[str, str]) -> Example:
        return Example((), None, record.where, vector_in(record, columns["vector"]).tobytes())

    def inputs(self, example: Example) -> Any:
        return np.frombuffer(example.numbers, dtype=np.float32)

    def to_record(self, example: Example) -> dict[str, Any]:
        return {"vector": self.inputs(example).tolist(), "text": example.target}

    def select(self, examples: Sequence[Example], log: Log) -> list[Example]:
        return list(examples)

    def fit_labels(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> DescribeTask:
        """The rows decide how many numbers a vector has."""
        counts = Counter(len(example.numbers) // 4 for example in examples)
        return replace(self, features=self.features or counts.most_common(1)[0][0])

    def check_targets(self, examples: Sequence[Example]) -> None:
        for example in examples:
            check_length(len(example.numbers) // 4, self.features, example.where)

    def groups(self, examples: Sequence[Example]) -> list[Any]:
        return [example.numbers for example in examples]

    def merge_references(self, examples: Iterable[Example]) -> Iterable[Example]:
        """One example for each vector, with all its texts, in the order in which the vectors came."""
        by_vector: dict[bytes, list[Example]] = {}
        for example in examples:
            by_vector.setdefault(example.numbers, []).append(example)
        for same in by_vector.values():
            yield replace(same[0], target=tuple(example.target for example in same))

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> SequenceTask:
        raise UserError("a model that writes from vectors does not teach")

    def sources(self, examples: Sequence[Example], model: LoadedModel) -> list[Any]:
        return [[self.inputs(example)] for example in examples]

    def read_side(self, sources: list[Any]) -> VectorSide:
        return VectorSide(np.stack([vector for (vector,) in sources]))

    def network_settings(self) -> dict[str, Any]:
        return {"features": self.features}

    def prepare(self, model: LoadedModel, examples: Sequence[Example], fresh: bool) -> DescribeTask:
        """A new network learns the mean and spread of the vectors."""
        rows, features = self.features, model.config.features
        if rows != features:
            raise UserError(f"the rows have vectors of {rows} numbers, the model takes {features}")
        if fresh:
            network: Any = model.network
            network.settle(torch.from_numpy(np.stack([self.inputs(example) for example in examples])))
        return self

    def card_window(self, window: Window, dataset: Sequences) -> Window:
        length = min(window.length, dataset.written.longest)
        return Window(length=length, stride=length)

    def sample(self, examples: Sequence[Example]) -> Sequence[Example]:
        return super().sample(list(self.merge_references(examples)))

    comparable = False

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return describe(model, inputs, **options)

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        texts = describe(model, inputs, beam_size=self.beam_size, others=self.others)
        return [Prediction(text, text.n_tokens, text.n_windows, text.truncated) for text in texts]

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Example]) -> None:
        metrics.add([each.output.text for each in predictions], [example.target for example in examples])

    def mistake(self, prediction: Prediction, example: Example) -> tuple[float, dict[str, str]] | None:
        text = prediction.output.text.strip()
        if text in [reference.strip() for reference in example.target]:
            return None
        near, reference = max((chrf_near(text, reference), reference) for reference in example.target)
        return 1 - near, {"near": f"{near:.3f}", "target": reference, "prediction": text, "where": example.where}

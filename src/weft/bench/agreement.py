"""The agreement gate: a backend or peer is timed only if its answers agree with those of plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.choice import Backend
from weft.errors import shown
from weft.exporters.export import difference, largest_difference, logits_of
from weft.tasks.model import Model

BATCHED = 64  # texts that are answered alone and in a batch
VALUE = 0.1  # share of the tolerance for values: they are the answer itself, while logits are only compared


def limits_for(backend: Backend, task: Any) -> Backend:
    """A backend with its tolerance for this task."""
    return replace(backend, tolerance=VALUE * backend.tolerance) if task.unbounded and not task.embeds else backend


def fault_of(
    source: Model,
    candidate: Model,
    inputs: Sequence[Any],
    backend: Backend,
    reference: Sequence[NDArray[Any]] | None = None,
) -> str | None:
    """Why a backend may not be chosen; None if its answers agree with those of plain torch.

    `reference`: the logits of plain torch, if they are known already.
    """
    backend = limits_for(backend, source.task_object)
    one, two = logits_of(source, inputs) if reference is None else reference, logits_of(candidate, inputs)
    if (fault := numbers_fault(one, two, backend, source.task_object.embeds)) is not None:
        return fault
    if not source.task_object.embeds:
        answers = zip(inputs, source(list(inputs)), candidate(list(inputs)), strict=True)
        for value, first, second in answers:
            if first.decision != second.decision:
                text = shown(value if isinstance(value, str) else " | ".join(map(str, value)), 40)
                given, expected = (shown(str(each.decision), 30) for each in (second, first))
                return f"answers {given} in place of {expected} on {text!r}"
    largest, _ = largest_difference(candidate, inputs[:BATCHED])
    if not largest <= backend.tolerance:
        return f"a text alone and in a batch differ by {largest:.2g} (limit {backend.tolerance:g})"
    return None


def numbers_fault(
    one: Sequence[NDArray[Any]], two: Sequence[NDArray[Any]], backend: Backend, vectors: bool
) -> str | None:
    """Why numbers are not close enough to torch's; for vectors also by their directions and nearest neighbors."""
    if len(one) != len(two) or any(first.shape != second.shape for first, second in zip(one, two, strict=True)):
        return "gives arrays of other shapes"
    largest, _ = difference(one, two, relative=True)
    if not largest <= backend.tolerance:
        return f"differs by {largest:.2g} of the largest number (limit {backend.tolerance:g})"
    if not vectors:
        return None
    first, second = (_unit(np.stack(each)) for each in (one, two))
    turned = 1 - float((first * second).sum(-1).min())
    if not turned <= backend.angle:
        return f"vectors turn by 1 - cosine = {turned:.2g} (limit {backend.angle:g})"
    if (place := _other_nearest(first, second, backend.angle)) is not None:
        return f"another text is nearest to text {place + 1}"
    return None


def _unit(vectors: NDArray[Any]) -> NDArray[np.float64]:
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)


def _other_nearest(one: NDArray[Any], two: NDArray[Any], near: float) -> int | None:
    """A text that has another nearest neighbor by the second vectors; None if there is none, up to ties of `near`."""
    if len(one) < 2:
        return None
    first, second = one @ one.T, two @ two.T
    np.fill_diagonal(first, -2)
    np.fill_diagonal(second, -2)
    gaps = first.max(1) - first[np.arange(len(first)), second.argmax(1)]
    place = int(gaps.argmax())
    return place if gaps[place] > near else None

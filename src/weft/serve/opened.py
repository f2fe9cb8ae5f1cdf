"""A model as a worker serves it: its tasks, its description for clients, and the plans that answer jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import UserError, listed, shown
from weft.serve.messages import VIEWS
from weft.serve.plans import (
    CallPlan,
    Cost,
    EmbedPlan,
    Fault,
    HeadPlan,
    PairRankPlan,
    Plan,
    RankPlan,
    SeriesPlan,
    ViewPlan,
)
from weft.tasks.light import LightModel, open_light
from weft.tasks.registry import FROM_TEXT, LABELS

PLANS = 64  # sets of options whose plans are kept
SMALL = 1_000_000  # parameters of a model that is fast in any backend
TRANSLATING = ("beam_size", "n", "length_penalty", "coverage", "max_tokens", "alignments")
CHOOSING = ("choices", "normalize", "prior", "between", "slide")
SUGGESTING = ("top", "tokens", "complete_word", "width")


@dataclass(frozen=True)
class Opening:
    """Which folder a worker opens, and how."""

    name: str
    folder: str
    task: str | None = None
    backend: str | None = None
    device: str | None = None
    threads: int = 0  # 0: as many as the machine has
    trust: bool = False


class OpenedModel:
    """A model in memory, with the plans for its tasks."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.folder = opening, Path(opening.folder)
        self.model: Any = opened(opening)
        self.light = isinstance(self.model, LightModel)
        self.loaded: Any = self.model.opened
        self.task = self.model.task_object
        self.plans: dict[Any, Plan] = {}
        self.planning = threading.Lock()
        self.alone = threading.Lock()  # a view watches modules, so no step of generation may run at the same time
        self.makers = self._makers()

    # ------------------------------------------------------------------------------------------------------ its tasks

    def _makers(self) -> dict[str, Callable[[Mapping[str, Any]], Plan]]:
        """Factories of plans for the tasks that this model can do, by the names of their routes."""
        task, loaded, makers = self.task, self.loaded, dict[str, Callable[[Mapping[str, Any]], Plan]]()
        own = "classify" if task.name in LABELS else task.name
        if task.windowed and task.head in loaded.heads:
            makers[own] = lambda given: HeadPlan(loaded, task, given, self._cost(own))
            if task.pair and own == "classify":
                makers["rank"] = lambda given: PairRankPlan(loaded, task, given)
        elif task.reads_tables:
            makers[own] = lambda given: SeriesPlan(loaded, task)
        if self.light:
            return makers
        if task.writes and task.supervised:
            makers[own] = self._calling(own, TRANSLATING)
        elif loaded.family.reads and "words" in loaded.heads:
            makers |= {name: self._calling(name, TRANSLATING) for name in FROM_TEXT}
        return {**makers, **{name: maker for name, maker in self._others().items() if name not in makers}}

    def _others(self) -> dict[str, Callable[[Mapping[str, Any]], Plan]]:
        """Factories for tasks that need no fine-tuning, such as embed, fill and complete."""
        loaded, family, words = self.loaded, self.loaded.family, "words" in self.loaded.heads
        makers = dict[str, Callable[[Mapping[str, Any]], Plan]]()
        if not loaded.exported or self.task.gives_vectors:
            try:
                EmbedPlan(loaded, {})
                makers["embed"] = lambda given: EmbedPlan(loaded, given)
                makers["rank"] = lambda given: RankPlan(loaded, given)
            except UserError:  # it gives no vectors of texts
                pass
        if loaded.heads.get("next") == 2 and not loaded.exported:
            makers["next"] = self._calling("next", ())
        if not words or loaded.tokenizer is None or family.numbers or family.series:
            return makers
        if self._gap() is not None:
            makers["fill"] = self._calling("fill", ("top",))
        if family.generates and not family.reads:
            makers["complete"] = lambda given: CallPlan(loaded, self._task("complete"), given, ())
            makers["choose"] = self._calling("choose", CHOOSING)
            if not loaded.exported:
                makers["suggest"] = lambda given: CallPlan(
                    loaded, self._task("complete"), given, SUGGESTING, self._suggestions
                )
        return makers

    @property
    def can_write(self) -> bool:
        """Whether it generates text."""
        return "complete" in self.makers or self.task.writes or bool(self.rewrites)

    @property
    def rewrites(self) -> tuple[str, ...]:
        """The sequence-to-sequence tasks that it can do."""
        reads = not self.light and self.loaded.family.reads
        return tuple(name for name in FROM_TEXT if reads and name in self.makers)

    def _gap(self) -> str | None:
        """The token that marks a gap, or the first of T5's numbered ones; None if the model fills no gaps."""
        from weft.data.masking import sentinel, sentinels_of
        from weft.tasks.fill import filler

        tokenizer = self.loaded.tokenizer
        if self.loaded.family.sentinels:
            return sentinel(0) if sentinels_of(tokenizer) and not self.loaded.exported else None
        try:
            filler(self.loaded)
        except UserError:
            return None
        return str(tokenizer.roles.mask)

    def _task(self, name: str) -> Any:
        from weft.tasks.registry import task_for

        return self.task if self.task.name == name else task_for(self.loaded, name)

    def _calling(self, name: str, options: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Plan]:
        return lambda given: CallPlan(self.loaded, self._task(name), given, options, cost=self._cost(name))

    @staticmethod
    def _cost(name: str) -> Cost | None:
        """A function that counts the tokens a task reads, for tasks that read some of them several times."""
        if name == "choose":
            from weft.tasks import choose

            return choose.tokens_read
        if name == "fill":
            from weft.tasks import fill

            return fill.tokens_read
        return None

    def _suggestions(self, inputs: list[Any], given: Mapping[str, Any]) -> list[Any]:
        from weft.tasks.suggest import suggest

        return [suggest(self.loaded, text, **given) for text in inputs]

    # ------------------------------------------------------------------------------------------------------ its plans

    def plan(self, kind: str, name: str, given: Mapping[str, Any]) -> Plan:
        """The plan of a job; `name`: its task or view."""
        if kind == "look":
            return self._view(name, given)
        key = (name, _hashable(given))
        with self.planning:  # jobs are tokenized by two threads
            plan = self.plans.get(key)
            if plan is None:
                plan = self._plan(name, given)
                if len(self.plans) >= PLANS:
                    self.plans.pop(next(iter(self.plans)))
                self.plans[key] = plan
            return plan

    def _plan(self, name: str, given: Mapping[str, Any]) -> Plan:
        name = "classify" if name in LABELS else name
        if name not in self.makers:
            able = listed([task for task in self.makers if task != "complete"], 12) or "generate text"
            raise Fault(422, f"this model does not {name}: it can {able}", "model")
        try:
            plan = self.makers[name](given)
        except UserError as error:
            raise error if isinstance(error, Fault) else Fault(422, str(error)) from None
        for option in given:
            if option not in plan.options:
                raise Fault(422, f"{shown(str(option))} is no option of {name}", shown(str(option)))
        return plan

    def _view(self, name: str, given: Mapping[str, Any]) -> Plan:
        from weft.serve.looking import view_of

        if name not in VIEWS:
            raise Fault(422, f"view {shown(name)!r} is not one of {listed(VIEWS, 12)}", "view")

        def view(inputs: list[Any], options: Mapping[str, Any]) -> dict[str, Any]:
            with self.alone:
                return view_of(self.model, name, inputs, options)

        return ViewPlan(self.loaded, view, given)

    # ------------------------------------------------------------------------------------------------ about the model

    def info(self) -> dict[str, Any]:
        """The description of this model for clients."""
        from weft.text.sources import folder_digest

        loaded, card, config = self.loaded, self.loaded.card, self.loaded.config
        window, tokenizer = card.window, loaded.tokenizer
        embedding = self.makers["embed"]({}) if "embed" in self.makers else None
        network = None if self.light or loaded.exported else loaded.network
        return {
            "task": self.task.name,
            "tasks": list(self.makers),
            "views": self._views(),
            "family": loaded.family.name,
            "labels": list(self.task.labels) or None,
            "values": None if card.forecast is None else list(card.forecast.values),
            "features": None if card.forecast is None else list(card.forecast.features),
            "parameters": None if network is None else sum(each.numel() for each in network.parameters()),
            "layers": None if self.light else config.layers,
            "context": config.context,
            "vocabulary": config.vocabulary,
            "window": None if window is None else window.length,
            "width": embedding.embedder.width if isinstance(embedding, EmbedPlan) else None,
            "version": folder_digest(self.folder)[:12],
            "backend": self.backend(),
            "device": "cpu" if self.light else str(loaded.device),
            "unmeasured": self._is_unmeasured(),
            "memory": memory(),
            "can_stream": self.can_write,
            "has_tokenizer": tokenizer is not None,
            "pair": bool(self.task.pair),
            "mask": self._gap() if "fill" in self.makers else None,
        }

    def backend(self) -> str:
        if self.light or self.loaded.exported:
            return str(self.loaded.card.backend)
        return "torch" if self.loaded.predictor is None else str(self.loaded.predictor.name)

    def _is_unmeasured(self) -> bool:
        """Whether `weft bench` may find a faster backend: on this machine none was measured, and none is asked for."""
        loaded = self.loaded
        if self.opening.backend is not None or self.backend() != "torch" or loaded.device.type != "cpu":
            return False
        if loaded.family.series or sum(each.numel() for each in loaded.network.parameters()) < SMALL:
            return False
        from weft.backends.choice import stored
        from weft.tasks.chosen import measured_as

        return stored(self.folder, measured_as(self.model)) is None

    def _views(self) -> list[str]:
        from weft.serve.looking import views_of

        return views_of(self.model)

    def warm_up(self) -> None:
        """Run the model's own task once, so that the first client does not wait for lazy initialization."""
        task = self.task
        if task.windowed and task.head in self.loaded.heads and self.loaded.tokenizer is not None:
            plan = self.plan("task", "classify" if task.name in LABELS else task.name, {})
            for text in ("a", " ".join(["a b c"] * 40)):
                with suppress(UserError):  # a question of this length may be too long for a window
                    prepared = plan.prepare([task.sample_input([text, text], self.loaded.tokenizer)])
                    plan.finish(prepared, plan.run(prepared.units))


def opened(opening: Opening) -> Any:
    """Load the model of a folder: without torch if that is possible, with the stored backend if there is one."""
    folder = Path(opening.folder)
    if opening.device in (None, "cpu") and opening.backend in (None, "onnx"):
        light = open_light(folder, opening.trust)
        if light is not None and opening.task in (None, light.task):
            return light
    import torch

    import weft
    from weft.backends.opening import backend_of

    device = opening.device or ("cuda" if torch.cuda.is_available() else "cpu")
    backend = opening.backend
    if backend is None and device != "cpu":
        backend = backend_of(folder) or "torch"
    model = weft.load(folder, task=opening.task, backend=backend, trust=opening.trust)
    model.network.eval()
    fixed = model.opened.exported or model.opened.predictor is not None
    return model.to(opening.device or ("cpu" if fixed else device))


def memory() -> int:
    """Resident memory of this process in bytes; 0 if the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _hashable(value: Any) -> Any:
    """Options as the key of a dict."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _hashable(part)) for name, part in value.items()))
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else (type(value).__name__, value)

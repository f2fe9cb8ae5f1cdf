"""Forecasts of time series: the next steps from a window of those before, with intervals and baselines beside them.

H: steps ahead; T: numbers of a step that are forecast; F: numbers of a step that are read; W: steps of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.budget import BUDGET
from weft.checkpoint.card import Card, ForecastSettings, SimpleForecast
from weft.checkpoint.families import Family
from weft.checkpoint.folder import LoadedModel
from weft.data.forecast import Windows, joined
from weft.data.series import Floats, Layout
from weft.data.tables import Table
from weft.errors import UserError, refuse
from weft.metrics.forecast import ForecastMetrics, widening
from weft.metrics.numeric import RegressionMetrics
from weft.nn.rows import Rows
from weft.objectives.forecast import SHARE, TEACHER, SquaredErrors
from weft.objectives.losses import SoftTargets
from weft.tasks.answers import Forecast
from weft.tasks.base import Difference, Example, Prediction, Task, TeacherArrays, TeacherRows
from weft.tasks.forward import ON_GPU, check_finite, framing_for, stacked
from weft.tasks.series import SeriesTask, SeriesWindow
from weft.text.rows import Skipped
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing

MOST_HELD = 2000  # held-out windows that a run is evaluated on
FITTED = 20_000  # windows that least squares takes
WIDEST = 4096  # numbers of a window from which least squares forecasts
RIDGE = 1e-6  # keeps least squares defined where columns are alike
LEVELS = 0.5  # windows whose means differ by this share of their own deviation are scaled one by one
STEPS = 2000  # of training
PRIOR = 2  # blocks of windows that equal shares of network and baseline are worth
ALONE = 0.99  # share from which on a network forecasts alone
FADING = 0.7  # share of the steps in which the loss of all steps fades


@dataclass(frozen=True)
class ForecastTask(SeriesTask):
    """The next steps of a series, several numbers each where it has several, with an interval for each number."""

    name: str = "forecast"
    strategy: str = "seq2seq"
    interval: float = 0.9  # share of the true values that intervals should hold
    scaling: str | None = None  # window or training; None: by the data
    blend: bool = True  # let held-out windows decide how much of a baseline goes into the forecasts
    share: float = 1.0  # of the network in the forecasts; the rest is this baseline
    partner: SimpleForecast = ""
    margins: tuple[tuple[float, ...], ...] = ()  # H T: half of an interval, in spreads
    coefficients: NDArray[Any] | None = field(default=None, compare=False, repr=False)  # of least squares

    head = "forecast"
    needs = "forecasts series"
    settings: ClassVar[tuple[str, ...]] = (
        *("horizon", "window", "strategy", "season", "interval", "scaling", "blend"),
    )
    averages = combines = True
    linear_baseline = True
    prediction_columns: ClassVar[tuple[str, ...]] = ("time", "forecast", "low", "high")
    metric_names = ("skill",)
    chance_metric = "skill"

    @classmethod
    def from_recipe(cls, work: Any, data: Any) -> ForecastTask:
        cls.check_recipe(work)
        chosen = {name: vars(work)[name] for name in ("horizon", "season", "scaling")}
        return cls(
            **chosen,
            size=work.window,
            strategy=work.strategy or "seq2seq",
            interval=work.interval or 0.9,
            blend=work.blend is not False,
            learning=True,
        )

    @classmethod
    def from_model(cls, model: LoadedModel, name: str) -> ForecastTask:
        c, card = model.config, model.card.forecast or ForecastSettings(values=("value",))
        network: Any = model.network
        stored = dict(network.named_buffers()).get("least_squares")
        coefficients = None if stored is None or not bool(stored.any()) else stored.double().cpu().numpy()
        layout = Layout("wide", values=card.values, features=card.features, apart=card.apart)
        return cls(
            name=name, horizon=c.horizon, size=c.context, strategy=c.strategy, season=card.season, layout=layout,
            every=card.every,
            interval=card.interval, features=c.features, center=card.center, spread=card.spread, margins=card.margins,
            share=card.share, partner=card.baseline, coefficients=coefficients,
        )  # fmt: skip

    @classmethod
    def check_model(cls, model: LoadedModel, name: str) -> None:
        super().check_model(model, name)
        c, card = model.config, model.card.forecast
        if card is not None:
            numbers = len(card.values), len(card.values) + len(card.features), len(card.center) or c.features
            shape = len(card.margins) in (0, c.horizon) and {len(step) for step in card.margins} <= {c.targets}
            fits = numbers == (c.targets, c.features, c.features) and shape
            stored = dict(model.network.named_buffers()).get("least_squares")
            has = {
                "seasonal naive": 1 < card.season <= c.context,
                "least squares": stored is not None and bool(stored.any()),
            }.get(card.baseline, True)
            refuse(
                (not fits, "weft.json: forecast does not fit the sizes in config.json"),
                (not has, f"weft.json: forecast: this model has no {card.baseline} to blend with"),
            )

    @classmethod
    def fits(cls, family: Family) -> bool:
        return family.series

    def to_card(self, card: Card) -> Card:
        layout = self.layout or Layout("wide", values=("value",))
        settings = ForecastSettings(
            values=layout.values,
            features=layout.features,
            apart=layout.apart,
            season=self.season or 1,
            every=self.every,
            interval=self.interval,
            center=self.center,
            spread=self.spread,
            share=self.share,
            baseline=self.partner,
            margins=self.margins,
        )
        return replace(card, labels=None, forecast=settings)

    @property
    def outputs(self) -> int:
        return self.targets * (1 if self.strategy == "step" else self.steps)

    def fit_labels(self, examples: Sequence[Any], labels: Sequence[str] = ()) -> ForecastTask:
        values = {id(each.series): each.series.values[:, : self.targets] for each in examples}
        if all(np.ptp(each, axis=0).max() == 0 for each in values.values()):
            raise UserError(f"{examples[0].where}: the series never changes: there is nothing to learn")
        return replace(self, series_table=None, table=None)

    # ------------------------------------------------------------------------------------------------------- learning

    def network_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        assert self.size is not None
        settings = {"features": self.features, "targets": self.targets, "horizon": self.steps}
        layers = {"wavenet": max(2, (self.size - 1).bit_length()), "transformer": 3}.get(given.get("encoder", ""), 2)
        return {
            **settings,
            "strategy": self.strategy,
            "context": self.size,
            **({} if "size" in given else {"layers": layers}),
        }

    def prepare(self, model: LoadedModel, examples: Sequence[Any], fresh: bool) -> ForecastTask:
        """The scale of the numbers, and least squares as the baseline, both from the rows to learn from alone."""
        c, network = model.config, model.network
        has = f"forecasts {c.horizon} steps of {c.targets} from windows of {c.context} x {c.features} numbers"
        same = (c.horizon, c.context, c.features, c.targets) == (self.steps, self.size, self.features, self.targets)
        refuse((not same, f"the base {has}: give --horizon {c.horizon} --window {c.context} and as many columns"))
        some = examples[:: max(1, len(examples) // FITTED)]
        windows = np.stack([each.history for each in some])  # n W F
        task = replace(self, strategy=c.strategy)
        means, deviations = windows.mean(1), windows.std(1)
        differ = means.std(0) > LEVELS * np.maximum(deviations.mean(0), 1e-12)
        if self.scaling != "training" and (self.scaling == "window" or bool(differ[: self.targets].any())):
            task = replace(task, center=(), spread=())
        else:
            spread = windows.reshape(-1, self.features).std(0)
            center = windows.reshape(-1, self.features).mean(0)
            task = replace(
                task, center=tuple(center.tolist()), spread=tuple(np.where(spread > 0, spread, 1.0).tolist())
            )
        known = [each for each in some if each.target is not None]
        if fresh and known and c.context * c.features <= WIDEST:
            task = replace(task, coefficients=task.least_squares(known))
            network.get_buffer("least_squares").copy_(torch.from_numpy(task.coefficients))
        return task

    def least_squares(self, examples: Sequence[Any]) -> Floats:
        """HT WF+1: the linear forecast of the lowest squared error, in closed form."""
        rows, aims = list[Floats](), list[Floats]()
        for each in examples:
            center, spread = self.scale(each.history)
            rows.append(np.r_[((each.history - center) / spread).ravel(), 1.0])
            aims.append(((each.target - center[: self.targets]) / spread[: self.targets]).ravel())
        x, y = np.stack(rows), np.stack(aims)
        return np.asarray(np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y).T, dtype=np.float64)

    def dataset(
        self, examples: Sequence[Any], model: LoadedModel, windows: Framing, teacher_outputs: TeacherRows = None
    ) -> Windows:
        series = {id(each.series): each.series for each in examples}
        values, begins = joined([each.values for each in series.values()])
        first = dict(zip(series, begins.tolist(), strict=True))
        starts = np.array([first[id(each.series)] + each.origin - each.size for each in examples])
        ends = np.array([first[id(each.series)] + len(each.series) for each in examples])
        scales = [self.scale(each.history) for each in examples]
        center, spread = (np.stack([scale[side] for scale in scales]) for side in (0, 1))
        more = {}
        horizon = 1 if self.strategy == "step" else self.steps
        if teacher_outputs is not None:
            forecasts = stacked(teacher_outputs, "output").astype(np.float64)[:, :horizon]  # E H T
            scaled = (forecasts - center[:, None, : self.targets]) / spread[:, None, : self.targets]
            more[TEACHER] = scaled.reshape(len(examples), -1)
        how = "its own mean and deviation" if not self.center else "the mean and deviation of the training part"
        about = f"windows of {self.size} steps in {len(series):,} series, each scaled by {how}"
        sizes = np.array([each.size for each in examples])
        every = self.strategy == "seq2seq" and teacher_outputs is None
        return Windows(values, starts, sizes, ends, center, spread, horizon, self.targets, every, more, about)

    def objective(self) -> SquaredErrors:
        return SquaredErrors(self.outputs, self.strategy == "seq2seq", self.soft)

    def pace(self, steps: int) -> Callable[[int], dict[str, Tensor]] | None:
        """Less and less of the loss is that of all steps of a window: at last, only its last step counts."""
        if self.strategy != "seq2seq":
            return None
        return lambda step: {SHARE: torch.tensor(max(0.0, 1 - step / (FADING * steps)))}

    def usual_plan(self, train: Any, from_scratch: bool) -> tuple[int, float, float]:
        batch = next(size for most, size in ((500, 16), (4000, 32), (20_000, 64), (1 << 60, 128)) if train.count < most)
        batch = min(batch, train.count)
        return batch, max(1.0, STEPS * batch / train.count), 3e-3 if from_scratch else 1e-3

    def sample(self, examples: Sequence[Example]) -> Sequence[Example]:
        count = min(len(examples), MOST_HELD)
        return [examples[number * len(examples) // count] for number in range(count)]

    # ------------------------------------------------------------------------------------------------------ answering

    def predict(self, model: LoadedModel, windows: Framing, inputs: Sequence[Any]) -> list[Prediction]:
        predictions = list[Prediction]()
        together = max(1, (ON_GPU if model.device.type == "cuda" else BUDGET) // (self.size or 1))
        for first in range(0, len(inputs), together):
            some = inputs[first : first + together]
            scales = [self.scale(each) for each in some]
            scaled = [(each - center) / spread for each, (center, spread) in zip(some, scales, strict=True)]
            outputs = self.forward(model, scaled)  # n H T
            for each, output, (center, spread) in zip(some, outputs, scales, strict=True):
                forecast = output * spread[: self.targets] + center[: self.targets]
                if self.partner:
                    simple = self.simple_forecasts(each, each)[self.partner]
                    forecast = self.share * forecast + (1 - self.share) * simple
                predictions.append(Prediction(forecast, len(each), 1, False))
        return predictions

    def forward(self, model: LoadedModel, windows: Sequence[Floats]) -> Floats:
        """n H T: the outputs of the network for scaled windows; one step at a time where that is its strategy."""
        network: Any = model.network
        steps = 1 if self.strategy == "step" else self.steps
        parts = list[Floats]()
        with torch.inference_mode():
            for _ in range(self.steps // steps):
                tokens = torch.from_numpy(np.concatenate(windows).astype(np.float32)).to(model.device)
                rows = Rows.of([len(each) for each in windows], model.device)
                outputs = check_finite(model, network.forecasts(tokens, rows).float().cpu())
                parts.append(outputs.double().numpy().reshape(len(windows), steps, self.targets))
                if steps < self.steps:
                    windows = [np.concatenate([a[1:], b]) for a, b in zip(windows, parts[-1], strict=True)]
        return np.concatenate(parts, 1)

    def half_width(self, history: Floats) -> Floats | None:
        """H T: half of the interval around a forecast after this window; None where none was calibrated."""
        if not self.margins:
            return None
        return np.array(self.margins) * self.scale(history)[1][: self.targets]

    def answer(self, prediction: Prediction, input: Any = None, **options: Any) -> Forecast:
        return self.forecast(prediction, input, "", tuple(f"+{step + 1}" for step in range(self.steps)))

    def forecast(self, prediction: Prediction, history: Any, series: str, times: tuple[str, ...]) -> Forecast:
        """A prediction for people, with the times that it is for."""
        names = self.layout.values if self.layout else ("value",)
        half, values = self.half_width(history), prediction.output
        low, high = (None, None) if half is None else (_columns(values - half), _columns(values + half))
        return Forecast(
            series=series, times=times, names=names, values=_columns(values), low=low, high=high,
            interval=self.interval, **prediction.reading,
        )  # fmt: skip

    def mean_prediction(self, predictions: Sequence[Prediction], tasks: Sequence[Task] = ()) -> Prediction:
        return replace(predictions[0], output=np.mean([each.output for each in predictions], axis=0))

    def logits_of(self, model: LoadedModel, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        """Forecasts in spreads, so that the level of a series hides no difference."""
        checked = self.check_inputs(inputs)
        scales = [self.scale(each) for each in checked]
        predictions = self.predict(model, framing_for(model), checked)
        return [
            (prediction.output - center[: self.targets]) / spread[: self.targets]
            for prediction, (center, spread) in zip(predictions, scales, strict=True)
        ]

    # ----------------------------------------------------------------------------------------- comparing, evaluating

    def key(self, prediction: Prediction) -> Hashable:
        return tuple(np.round(prediction.output, 9).ravel().tolist())

    def agreement(self) -> Any:
        return RegressionMetrics()

    def compare(self, prediction: Prediction, reference: Prediction, example: Example, task: Any) -> Difference:
        one, two = prediction.output.ravel().tolist(), reference.output.ravel().tolist()
        return (one, two), float(np.abs(prediction.output - reference.output).mean())

    def describe(self, prediction: Prediction, other: Prediction, example: Any) -> str:
        return _few(prediction.output)

    def describe_target(self, example: Example) -> str:
        return _few(np.asarray(example.target))

    def metrics(self) -> ForecastMetrics:
        return ForecastMetrics()

    def add(self, metrics: Any, predictions: Sequence[Prediction], examples: Sequence[Any]) -> None:
        tasks = [self] * len(examples)
        if self.margins and self.learning:  # by the intervals of the other half, which these windows did not calibrate
            later = self._later(examples)
            halves = [self.tune(*_some(predictions, examples, later == side)) for side in (True, False)]
            tasks = [halves[side] for side in later.astype(int)]
        for prediction, example, task in zip(predictions, examples, tasks, strict=True):
            truth, half = np.asarray(example.target), task.half_width(example.history)
            inside = None if half is None else np.abs(prediction.output - truth) <= half
            past, block = self.past_error(example), self._block(example)
            metrics.add(prediction.output, truth, inside, past, self.baselines(example), block)

    def _block(self, example: Any) -> Hashable:
        """Windows of one block forecast steps in common: together they say as much as one."""
        return id(example.series), (len(example.series) - example.origin) // self.steps

    def _later(self, examples: Sequence[Any]) -> NDArray[Any]:
        """Which held-out windows are those of the later half of the time; of the last series, where all are of one."""
        left = np.array([len(each.series) - each.origin for each in examples])
        later = left <= np.median(left)
        return np.arange(len(left)) >= len(left) / 2 if later.all() else later

    def past_error(self, example: Any) -> Floats:
        """T: the mean absolute error of the (seasonal) naive forecast over the past of a series."""
        past = example.series.values[: example.origin, : self.targets]
        lag = self.season or 1
        lag = lag if len(past) > 2 * lag else 1
        return np.asarray(np.abs(past[lag:] - past[:-lag]).mean(0), dtype=np.float64)

    def baselines(self, example: Any) -> dict[str, Floats]:
        """H T each: the simple forecasts of the steps after a window."""
        return self.simple_forecasts(example.series.values[: example.origin], example.history)

    def simple_forecasts(self, past: Floats, history: Floats) -> dict[str, Floats]:
        """H T each: the last value again, that of a season ago, and least squares from the window."""
        past, season, ahead = past[:, : self.targets], self.season or 1, self.steps
        forecasts = {"naive": np.repeat(past[-1:], ahead, 0)}
        if 1 < season <= len(past):
            forecasts["seasonal naive"] = past[len(past) - season + np.arange(ahead) % season]
        if self.coefficients is not None and len(history) == self.size:
            center, spread = self.scale(history)
            row = np.r_[((history - center) / spread).ravel(), 1.0]
            outputs = (self.coefficients @ row).reshape(ahead, self.targets)
            forecasts["least squares"] = outputs * spread[: self.targets] + center[: self.targets]
        return forecasts

    def blended(
        self, predictions: Sequence[Prediction], examples: Sequence[Any]
    ) -> tuple[ForecastTask, list[Prediction]]:
        """Forecasts of network and baseline in the shares of the lowest squared error on these held-out windows.

        So a network that has learned nothing more than a baseline is never worse than it by more than chance. The
        forecasts of each half are made with the shares that the other half asks for, so that their score is honest.
        """
        if not (self.blend and self.learning and predictions):
            return self, list(predictions)
        unit = np.ones(1)
        if self.targets > 1:
            unit = np.maximum(np.stack([self.past_error(each) for each in examples])[:, None], 1e-12)
        network = np.stack([each.output for each in predictions])  # n H T
        truth = np.stack([each.target for each in examples])
        simple = [self.simple_forecasts(each.history, each.history) for each in examples]
        baselines = {name: np.stack([each[name] for each in simple]) for name in simple[0]}
        blocks = np.array([hash(self._block(each)) for each in examples])

        def best(some: NDArray[Any]) -> tuple[float, SimpleForecast]:
            """The share of the network and the baseline that has the rest."""
            units, count = np.broadcast_to(unit, truth.shape)[some], len(np.unique(blocks[some]))
            mixes = []
            for name, forecasts in baselines.items():
                gap, error = ((each - forecasts)[some] / units for each in (network, truth))
                share = float(np.clip((gap * error).sum() / max(np.square(gap).sum(), 1e-300), 0.0, 1.0))
                share = (count * share + 0.5 * PRIOR) / (count + PRIOR) if share else 0.0
                mixes.append((float(np.square(error - share * gap).sum()), share, cast(SimpleForecast, name)))
            return min(mixes)[1:]

        later, mixed = self._later(examples), network.copy()
        for half in (later, ~later):
            share, name = best(~half if len(half) > 1 else ~half | half)
            mixed[half] = (share * network + (1 - share) * baselines[name])[half]
        share, name = best(np.ones(len(later), dtype=bool))
        task = replace(self, share=share, partner=name) if share < ALONE else self
        return task, [replace(one, output=output) for one, output in zip(predictions, mixed, strict=True)]

    def composition(self) -> str:
        if not self.partner:
            return ""
        return f" ({100 * self.share:.0f} % network, {100 - 100 * self.share:.0f} % {self.partner})"

    def baseline_predictions(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, list[Prediction]]:
        rows = [self.baselines(example) for example in dev]
        names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
        return {name: [Prediction(row[name], 0, 1, False) for row in rows] for name in names}

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> ForecastTask:
        """Intervals by split conformal prediction: the errors on held-out windows decide how wide each step's is."""
        errors = np.stack([
            np.abs(prediction.output - example.target) / self.scale(example.history)[1][: self.targets]
            for prediction, example in zip(predictions, examples, strict=True)
        ])  # fmt: skip
        place = min(len(errors), math.ceil((len(errors) + 1) * self.interval)) - 1
        wider = widening(self.interval, len({self._block(example) for example in examples}))
        return replace(self, margins=tuple(map(tuple, (wider * np.sort(errors, 0)[place]).tolist())))

    def tables(self, metrics: Any) -> dict[str, Any]:
        return {"by_forecast": metrics.compared(), "by_step": metrics.steps() if self.steps > 1 else []}

    def mistake(self, prediction: Prediction, example: Any) -> tuple[float, dict[str, str]]:
        row = {"mase": f"{self.loss(prediction, example):.3f}", "target": self.describe_target(example)}
        return self.loss(prediction, example), row | {"prediction": _few(prediction.output), "where": example.where}

    def loss(self, prediction: Prediction, example: Any) -> float:
        scale = np.maximum(self.past_error(example), 1e-12)
        return float((np.abs(prediction.output - example.target) / scale).mean())

    # ------------------------------------------------------------------------------------------------------- teaching

    def learning_from(self, settings: Any, teachers: Sequence[LoadedModel]) -> ForecastTask:
        soft = SoftTargets(settings.temperature, settings.hard)
        return replace(self, soft=soft, learning=True, share=1.0, partner="")

    def teacher_key(self, example: Any) -> Any:
        return example.history.tolist()

    def same_outputs(self, other: Any) -> bool:
        sizes = (self.horizon, self.size, self.features, self.targets)
        return sizes == (other.horizon, other.size, other.features, other.targets)

    def with_teacher_answer(self, example: Example, outputs: TeacherArrays) -> Example:
        return replace(example, target=np.asarray(outputs["output"], dtype=np.float64))

    def vocabulary_texts(self, examples: Any, outputs: Any) -> Iterator[str]:
        return iter(())

    def sample_input(self, texts: Sequence[Any], tokenizer: Tokenizer | None) -> Any:
        return list(texts)


def forecasts_of(
    model: LoadedModel, table: Table, skipped: Skipped, back: int = 0
) -> list[tuple[Forecast, SeriesWindow]]:
    """The forecast of every series of a table, and the window that it was made from."""
    task = ForecastTask.from_model(model, "forecast")
    windows = task.last_windows(table, skipped, back)
    framing = Framing((), (), None, False, task.size or 1, task.size or 1)
    predictions = task.predict(model, framing, [each.history for each in windows])
    answers = []
    for prediction, each in zip(predictions, windows, strict=True):
        times = tuple(each.series.shown_time(each.origin + step) for step in range(task.steps))
        answers.append((task.forecast(prediction, each.history, each.series.name, times), each))
    return answers


def _columns(values: Floats) -> tuple[tuple[float, ...], ...]:
    """H T -> by number of a step: its values at each step."""
    return tuple(tuple(column) for column in values.T.tolist())


def _some(predictions: Sequence[Any], examples: Sequence[Any], chosen: NDArray[Any]) -> tuple[list[Any], list[Any]]:
    """Those that are chosen; all where none is."""
    numbers = np.flatnonzero(chosen).tolist() or range(len(chosen))
    return [predictions[number] for number in numbers], [examples[number] for number in numbers]


def _few(values: Floats) -> str:
    some = " ".join(f"{value:.4g}" for value in values.ravel()[:5])
    return some + (" ..." if values.size > 5 else "")

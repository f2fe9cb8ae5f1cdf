"""Forecasting from a table to a model: windows, splits that leak nothing, strategies, intervals, baselines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.data.series import Series, read_series
from weft.data.tables import Table
from weft.errors import UserError
from weft.tasks.answers import Forecast
from weft.tasks.base import Prediction
from weft.tasks.forecast import ForecastTask
from weft.tasks.forward import framing_for
from weft.tasks.series import SeriesWindow
from weft.text.rows import Skipped

STEPS: dict[str, Any] = {"steps": 120, "batch": 32, "learning_rate": 1e-2, "evaluate_every": 120}


def weekly(series: int = 2, steps: int = 160, seed: int = 0) -> list[dict[str, Any]]:
    """Long rows: a week that repeats, a trend and a little noise, at a level of its own."""
    chance, rows = np.random.default_rng(seed), []
    for number in range(series):
        for step in range(steps):
            week = [1.0, 1.1, 1.2, 1.3, 1.8, 2.0, 0.6][step % 7]
            value = (10 + 90 * number + 0.02 * step) * week * (1 + 0.02 * chance.normal())
            rows.append({"store": f"s{number}", "day": step, "sales": round(value, 4), "promo": float(step % 7 == 4)})
    return rows


def sines(count: int = 60, steps: int = 40, seed: int = 0) -> list[dict[str, list[float]]]:
    """Rows of one series each."""
    chance = np.random.default_rng(seed)
    times, shift = np.arange(steps), chance.uniform(0, 6, (count, 1))
    return [{"values": row} for row in (np.sin(times / 3 + shift) + 0.05 * chance.normal(size=(count, steps))).tolist()]


def quiet(**more: Any) -> dict[str, Any]:
    return {"log": lambda text: None, "progress": False, **more}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small GRU on two stores."""
    out, lines = tmp_path_factory.mktemp("forecast") / "run", list[str]()
    model = weft.finetune(
        weekly(), task={"name": "forecast", "horizon": 7, "window": 21},
        model={"family": "gru", "width": 24, "layers": 1},
        training={**STEPS, "steps": 300, "evaluate_every": 100}, out=out, log=lines.append, progress=False,
    )  # fmt: skip
    return model, out, lines


def test_it_beats_the_naive_forecast_and_says_how_it_stands(taught: Any) -> None:
    model, out, lines = taught
    scores = {metric.name: metric.value for metric in model.card.metrics}
    assert set(scores) == {"skill", "mse", "mae", "mase", "coverage"}
    assert scores["skill"] > 0.8 and scores["mase"] < 2
    text = "\n".join(lines)
    for name in ("naive", "seasonal naive", "least squares"):
        assert f"baseline: {name}: skill" in text
    assert "result: skill" in lines[-1] and ("least squares" in lines[-1] or "naive" in lines[-1])
    assert "long (series by store): 2 series of 160 steps by 'day'; forecasts sales" in text
    assert "season 7" in text and "the last 16 steps of each series are held out" in text
    assert "each scaled by its own mean and deviation" in text
    baselines = json.loads((out / "run" / "baseline.json").read_text())["baselines"]
    assert {each["name"] for each in baselines} == {"naive", "seasonal naive", "least squares"}
    page = (out / "run" / "report.html").read_text()
    assert "By forecast" in page and "seasonal naive" in page
    card = json.loads((out / "weft.json").read_text())
    assert card["task"] == "forecast" and card["forecast"]["season"] == 7 and len(card["forecast"]["margins"]) == 7
    assert json.loads((out / "config.json").read_text())["model_type"] == "weft-forecaster"


def test_forecasts_have_times_and_intervals(taught: Any) -> None:
    model, out, _ = taught
    answers = weft.load(out).forecast(weekly())
    assert [answer.series for answer in answers] == ["s0", "s1"]
    first = answers[0]
    assert first.times == tuple(str(step) for step in range(160, 167)) and first.names == ("sales",)
    assert first.low and first.high
    assert all(
        low < value < high for low, value, high in zip(first.low[0], first.values[0], first.high[0], strict=True)
    )
    assert first.values[0][6] > 2 * first.values[0][0]  # step 166 is a day 5 of the week, 160 a day 6
    rows = first.rows()
    assert rows[0]["time"] == "160" and rows[0]["column"] == "sales" and rows[0]["low"] < rows[0]["forecast"]
    back = model.forecast(weekly(), back=7)[0]
    truth = [row["sales"] for row in weekly()[153:160]]
    assert back.times[0] == "153" and np.abs(np.array(back.values[0]) - truth).mean() < 3


def test_rows_show_a_narrow_interval_at_a_high_level() -> None:
    forecast = Forecast(
        series="", times=("1",), names=("value",), values=((1e9 + 0.0914,),), low=((1e9 + 0.0864,),),
        high=((1e9 + 0.0964,),), interval=0.9, n_tokens=1, n_windows=1, truncated=False,
    )  # fmt: skip
    row = forecast.rows()[0]
    assert row["high"] - row["low"] == pytest.approx(0.01, rel=0.02) and row["low"] < row["forecast"] < row["high"]


def test_calls_with_numbers(taught: Any) -> None:
    model, _, _ = taught
    values = [row["sales"] for row in weekly()[:160]]
    one, many = model(values), model([values, values[:-7]])
    assert one.values == model(np.array(values)).values and one.values[0] == pytest.approx(many[0].values[0], rel=1e-5)
    assert model(weekly())[0].values[0] == pytest.approx(one.values[0])
    assert model.predict([values])[0].output.shape == (7, 1)
    with pytest.raises(UserError, match="a series of 5 steps is shorter than the window of 21"):
        model(values[:5])
    with pytest.raises(UserError, match="is no number"):
        model([*values[:-1], float("nan")])


def test_an_evaluation_rolls_its_origin(taught: Any) -> None:
    model, _, _ = taught
    rows = weekly(seed=1)
    evaluation = model.evaluate(rows, origins=3, progress=False)
    assert evaluation.examples == 6  # three origins of two series, a horizon apart
    names = [row["forecast"] for row in evaluation.by_forecast]
    assert names == ["model", "naive", "seasonal naive", "least squares"]
    assert len(evaluation.by_step) == 7 and {"mse", "mae", "coverage"} <= set(evaluation.by_step[0])
    assert evaluation.scores["mse"].value == pytest.approx(evaluation.by_forecast[0]["mse"])
    every = model.evaluate(rows, progress=False)
    assert every.examples == 2 * ((160 - 21) // 7)
    with pytest.raises(UserError, match="origins must be at least 1"):
        model.evaluate(rows, origins=0, progress=False)
    assert model.evaluate(rows, progress=False).values()["by_forecast"]


def table_task(rows: Any, **settings: Any) -> tuple[ForecastTask, list[Any]]:
    table, skipped = Table(rows), Skipped()
    task = ForecastTask(learning=True, **settings).with_table(table, skipped)
    return task, list(task.read_table(table, lambda record: ({}, lambda r: r), skipped))


def test_nothing_leaks_from_the_future() -> None:
    task, windows = table_task(weekly(), horizon=7, size=21)
    train, held = task.split(windows, 0.1, 0)
    for name in ("s0", "s1"):
        learned = max(windows[n].origin + 7 for n in train if windows[n].series.name == name)
        first = min(windows[n].origin for n in held if windows[n].series.name == name)
        assert learned <= first == 160 - 16
    assert all(windows[n].origin + 7 <= 160 for n in held)
    # What a batch asks for lies before the border, at every step of its windows.
    dataset = task.dataset([windows[n] for n in train], None, None)  # type: ignore[arg-type]
    numbers = np.arange(dataset.count)
    last = dataset.begins[numbers] + dataset.sizes[numbers] - 1 + dataset.horizon
    assert (last % 160 < 160 - 16).all()
    # The scale is that of a window: changing what follows changes nothing.
    example = windows[train[0]]
    assert task.scale(example.history)[0] == pytest.approx(example.history.mean(0))


def test_many_short_series_are_held_out_whole() -> None:
    task, windows = table_task(sines(), horizon=5)
    assert task.size == 35 and len(windows) == 60
    train, held = task.split(windows, 0.1, 0)
    assert len(held) == 6 and not {id(windows[n].series) for n in train} & {id(windows[n].series) for n in held}


def test_a_short_series_among_long_ones_decides_nothing() -> None:
    rows = weekly(series=6) + [{"store": "new", "day": day, "sales": 1.0 + day % 7, "promo": 0.0} for day in range(9)]
    with pytest.raises(UserError, match="series 'new' has 9 steps.*--on-bad-row skip to leave out short series"):
        ForecastTask(learning=True).with_table(Table(rows, {"value": "sales"}), Skipped())
    skipped = Skipped()
    task = ForecastTask(learning=True).with_table(Table(rows, {"value": "sales"}, on_bad_row="skip"), skipped)
    assert (task.horizon, task.size) == (7, 24) and skipped.count == 1
    assert any("the last 16 steps of each series are held out" in line for line in skipped.lines())
    rows += [{"store": "new", "day": day, "sales": 1.0 + day % 7, "promo": 0.0} for day in range(9, 32)]
    task, windows = table_task(rows, season=7)
    train, held = task.split(windows, 0.1, 0)  # by time, though the new store has no step to hold out
    assert {windows[n].series.name for n in held} == {f"s{n}" for n in range(6)} and len(train) > len(held)


def test_targets_of_every_step_are_the_next_ones() -> None:
    task, windows = table_task(sines(8, 30), horizon=3, size=20)
    task = ForecastTask(horizon=3, size=20, center=(0.5,), spread=(2.0,), learning=True)
    dataset = task.dataset(windows, None, None)  # type: ignore[arg-type]
    drawn = dataset.draw(np.zeros(2, dtype=np.int64), np.array([3, 40]))
    assert drawn.batch is not None
    batch = drawn.batch(drawn)
    values = windows[40].series.values[:, 0]
    begin = windows[40].origin - 20
    assert batch.tokens.shape == (40, 1) and batch.targets["future"].shape == (40, 3)
    assert batch.tokens[20:, 0].numpy() == pytest.approx((values[begin : begin + 20] - 0.5) / 2)
    for step in (0, 7, 19):
        expected = (values[begin + step + 1 : begin + step + 4] - 0.5) / 2
        assert batch.targets["future"][20 + step].numpy() == pytest.approx(expected)
    assert bool((batch.targets["known"] == 1).all())


def test_the_loss_moves_from_all_steps_to_the_last() -> None:
    task, windows = table_task(sines(8, 30), horizon=3, size=20)
    task = ForecastTask(horizon=3, size=20, center=(0.0,), spread=(1.0,), learning=True)
    dataset, objective, pace = task.dataset(windows, None, None), task.objective(), task.pace(100)  # type: ignore[arg-type]
    assert pace is not None
    shares = [float(pace(step)["share_of_all"]) for step in (0, 35, 70, 99)]
    assert shares == pytest.approx([1.0, 0.5, 0.0, 0.0])
    drawn = dataset.draw(np.zeros(4, dtype=np.int64), np.arange(4))
    assert drawn.batch is not None
    batch = drawn.batch(drawn)
    network: Any = weft.new("forecaster", settings={"context": 20, "horizon": 3}, heads={"forecast": 3}).network.train()
    count = objective.counts(batch)["error"]
    outputs = network.logits("forecast", network(batch.tokens, batch.rows), batch.rows)
    errors = (outputs - batch.targets["future"]).square().view(4, 20, 3)
    for share in (1.0, 0.25, 0.0):
        faded = replace(batch, targets={**batch.targets, "share_of_all": torch.tensor(share)})
        loss = objective.sums(network, faded)["error"] / count
        expected = (share * errors.mean() + (1 - share) * errors[:, -1].mean()).item()
        assert loss.item() == pytest.approx(expected, rel=1e-5)
    again = network.logits("forecast", network(batch.tokens, batch.rows), batch.rows)
    network.logits = lambda *_: again
    slope = torch.autograd.grad(objective.sums(network, faded)["error"], again)[0].view(4, 20, 3)
    assert not slope[:, :-1].any() and slope[:, -1].all()  # what is ignored has no gradient at all


def test_what_is_not_known_counts_for_nothing() -> None:
    series = Series("", np.arange(12.0)[:, None])
    task = ForecastTask(horizon=4, size=6, center=(0.0,), spread=(1.0,), learning=True)
    dataset = task.dataset([SeriesWindow((), None, "", series=series, origin=11, size=6)], None, None)  # type: ignore[arg-type]
    drawn = dataset.draw(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    assert drawn.batch is not None
    known = drawn.batch(drawn).targets["known"]
    assert known[-1].tolist() == [1, 0, 0, 0] and known[0].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("strategy", ["seq2seq", "vector", "step"])
def test_strategies(strategy: str) -> None:
    model = weft.finetune(
        sines(), task={"name": "forecast", "horizon": 4, "window": 20, "strategy": strategy, "blend": False},
        model={"family": "rnn", "width": 12, "layers": 1},
        training={**STEPS, "steps": 30, "evaluate_every": 30}, **quiet(),
    )  # fmt: skip
    assert model.config.strategy == strategy and model.opened.heads == {"forecast": 1 if strategy == "step" else 4}
    history = np.array(sines(1, 30, 5)[0]["values"])[-20:]
    task: Any = model.task_object
    forecast = model.predict([history])[0].output[:, 0]
    if strategy == "step":  # a forecast is read as if it had been measured
        fed = list(history)
        for _ in range(4):
            fed.append(
                task.predict(model.opened, framing_for(model.opened), [np.array(fed[-20:])[:, None]])[0].output[0, 0]
            )
        assert forecast == pytest.approx(fed[-4:], rel=1e-4)
    objective = task.objective()
    assert objective.every is (strategy == "seq2seq")


@pytest.mark.parametrize("encoder", ["linear", "lstm", "wavenet", "transformer"])
def test_every_encoder_learns(encoder: str) -> None:
    model = weft.finetune(
        sines(), task={"name": "forecast", "horizon": 2, "window": 16},
        model={"family": encoder, "width": 16, "layers": 2}, training={**STEPS, "learning_rate": 5e-3}, **quiet(),
    )  # fmt: skip
    assert model.config.encoder == encoder
    assert {metric.name: metric.value for metric in model.card.metrics}["skill"] > 0.3


def test_a_series_far_from_those_of_the_training_is_noted() -> None:
    task = ForecastTask(horizon=2, size=4, center=(100.0,), spread=(2.0,), season=1)
    for level, far in ((105.0, False), (5.0, True)):
        skipped = Skipped()
        task.last_windows(Table([{"value": level + n % 2} for n in range(9)]), skipped)
        assert any("trained on a mean of 100" in line for line in skipped.lines()) == far


def test_steps_of_another_length_than_those_of_the_training_are_noted() -> None:
    daily = [{"date": f"2024-01-{day:02d}", "value": day % 7} for day in range(1, 31)]
    monthly = [{"date": f"{2020 + month // 12}-{1 + month % 12:02d}", "value": month} for month in range(30)]
    task = ForecastTask(horizon=2, size=4).with_table(Table(daily), Skipped())
    assert task.every == "day" and ForecastTask().every == ""
    for rows, noted in ((daily, False), (monthly, True)):
        skipped = Skipped()
        task.last_windows(Table(rows), skipped)
        assert (
            any("one step per month, and the model was trained on one per day" in line for line in skipped.lines())
            == noted
        )


def test_frames_of_pandas_keep_an_index_of_times() -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-01-01", periods=30, freq="D", name="when")
    for data in (pandas.Series(range(30), index), pandas.DataFrame({"sales": range(30)}, index)):
        series = read_series(Table(data), Skipped()).series[0]
        assert series.shown_time(30) == "2024-01-31" and len(series) == 30


def test_several_targets_and_features() -> None:
    columns = {"value": "sales,promo", "series": "store", "time": "day"}
    short: Any = {"model": {"family": "gru", "width": 8, "layers": 1}, "training": {"steps": 10}}
    both = weft.finetune(
        weekly(), task={"name": "forecast", "horizon": 3, "window": 14}, columns=columns, **short, **quiet()
    )
    assert (both.config.targets, both.config.features) == (2, 2)
    answer = both.forecast(weekly(), columns=columns)[0]
    assert answer.names == ("sales", "promo") and len(answer.values) == 2 and len(answer.values[1]) == 3
    columns = {"value": "sales", "features": "promo"}
    one = weft.finetune(
        weekly(), task={"name": "forecast", "horizon": 3, "window": 14}, columns=columns, **short, **quiet()
    )
    assert (one.config.targets, one.config.features) == (1, 2) and one.card.forecast.features == ("promo",)
    assert one.forecast(weekly())[0].names == ("sales",)  # the columns of training are known
    with pytest.raises(UserError, match="1 numbers? at each step, and the model reads 2"):
        one.forecast([{"day": n, "sales": 1.0 * n} for n in range(30)])


def test_a_network_that_knows_nothing_leaves_the_forecast_to_a_baseline() -> None:
    """On a random walk the shares of lowest held-out error are nearly all naive; on a clean sine, all network."""
    chance = np.random.default_rng(0)
    walks = [Series(str(n), chance.normal(size=(24, 1)).cumsum(0)) for n in range(300)]
    task = ForecastTask(horizon=4, size=20, center=(0.0,), spread=(1.0,), season=1, learning=True)
    windows = [task.window_at(each, 20) for each in walks]
    noisy = [Prediction(each.history[-1:] + chance.normal(size=(4, 1)), 0, 1, False) for each in windows]
    blend, predictions = task.blended(noisy, windows)
    assert blend.partner == "naive" and blend.share < 0.15 and "% naive" in blend.composition()
    errors = {name: np.mean([np.square(p.output - w.target).mean() for p, w in zip(some, windows, strict=True)])
              for name, some in (("network", noisy), ("blend", predictions))}  # fmt: skip
    naive = np.mean([np.square(w.history[-1] - w.target).mean() for w in windows])
    assert errors["blend"] < 1.01 * naive < errors["network"]
    right = [Prediction(np.asarray(each.target), 0, 1, False) for each in windows]
    assert task.blended(right, windows)[0].partner == "" and task.blended(right, windows)[0].composition() == ""
    assert replace(task, blend=False).blended(noisy, windows)[1] == noisy
    assert replace(task, learning=False).blended(noisy, windows)[0].share == 1  # a model that is evaluated stays


def test_the_score_of_a_blend_is_not_that_of_the_windows_that_chose_it() -> None:
    """The later half is forecast with the share that the earlier one asks for, and the other way round."""
    chance = np.random.default_rng(0)
    series = [Series(str(n), chance.normal(size=(24, 1)).cumsum(0)) for n in range(100)]
    task = ForecastTask(horizon=4, size=20, center=(0.0,), spread=(1.0,), season=1, learning=True)
    windows = [task.window_at(each, 20) for each in series]
    outputs = [each.target + (n < 50) * chance.normal(0, 9, (4, 1)) for n, each in enumerate(windows)]
    _, predictions = task.blended([Prediction(output, 0, 1, False) for output in outputs], windows)
    right = [np.allclose(p.output, each.target) for p, each in zip(predictions, windows, strict=True)]
    assert not any(right)  # in the half in which the network is perfect, the other half trusts it little
    naive = [each.history[-1:].repeat(4, 0) for each in windows]
    assert np.allclose(predictions[99].output, naive[99], atol=0.3 * np.abs(outputs[99] - naive[99]).max())


def test_few_windows_keep_a_share_for_a_baseline() -> None:
    series = Series("", np.random.default_rng(0).normal(size=(60, 1)).cumsum(0))
    task = ForecastTask(horizon=10, size=20, center=(0.0,), spread=(1.0,), season=1, learning=True)
    windows = [task.window_at(series, origin) for origin in range(30, 51)]
    right = [Prediction(np.asarray(each.target), 0, 1, False) for each in windows]
    assert 0.5 < task.blended(right, windows)[0].share < 0.9


def test_a_blend_is_stored_and_forecast_with(taught: Any, tmp_path: Path) -> None:
    model, out, _ = taught
    card = json.loads((out / "weft.json").read_text())
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((out / name).read_bytes())
    values = np.array([row["sales"] for row in weekly()[:160]])

    def forecast(**settings: Any) -> list[float]:
        (tmp_path / "weft.json").write_text(json.dumps({**card, "forecast": {**card["forecast"], **settings}}))
        return list(weft.load(tmp_path)(values).values[0])

    network = forecast(share=1.0, baseline="")
    assert forecast(share=0.0, baseline="naive") == pytest.approx([values[-1]] * 7)
    assert forecast(share=0.0, baseline="seasonal naive") == pytest.approx(values[-7:].tolist())
    half = forecast(share=0.5, baseline="seasonal naive")
    assert half == pytest.approx([(a + b) / 2 for a, b in zip(network, values[-7:], strict=True)])
    with pytest.raises(UserError, match="has no seasonal naive to blend with"):
        forecast(share=0.5, baseline="seasonal naive", season=50)


@pytest.mark.parametrize(
    "encoder, strategy",
    [*((name, "seq2seq") for name in ("linear", "rnn", "lstm", "gru", "wavenet", "transformer")), ("wavenet", "step")],
)
def test_an_export_to_onnx_forecasts_the_same(encoder: str, strategy: str, tmp_path: Path) -> None:
    several = strategy == "seq2seq" and encoder == "gru"
    columns = {"value": "sales", "features": "promo"} if several else {"value": "sales"}
    model = weft.finetune(
        weekly(), task={"name": "forecast", "horizon": 3, "window": 12, "strategy": strategy}, columns=columns,
        model={"family": encoder, "width": 8, "layers": 5 if encoder == "wavenet" else 2},
        training={"steps": 8}, **quiet(),
    )  # fmt: skip
    report = weft.export(model, "onnx", out=tmp_path / "onnx", data=weekly(seed=1))
    assert report.max_difference < 1e-5
    exported, rows = weft.load(tmp_path / "onnx"), weekly(seed=2)
    for one, two in zip(model.forecast(rows), exported.forecast(rows), strict=True):
        assert one.times == two.times and two.low is not None
        assert two.values[0] == pytest.approx(one.values[0], rel=1e-5)
        assert two.low[0] == pytest.approx(one.low[0], rel=1e-5)
    one, two = (each.evaluate(rows, origins=3, progress=False) for each in (model, exported))
    assert two.scores["mse"].value == pytest.approx(one.scores["mse"].value, rel=1e-4)
    assert [row["forecast"] for row in two.by_forecast] == [row["forecast"] for row in one.by_forecast]


def test_an_export_that_forecasts_otherwise_is_refused(
    taught: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.backends.onnx_forecaster import OnnxForecaster

    model, _, _ = taught
    right = OnnxForecaster.forecasts
    monkeypatch.setattr(OnnxForecaster, "forecasts", lambda self, *given: right(self, *given) + 0.01)
    with pytest.raises(UserError, match="differs from its source.*nothing was written"):
        weft.export(model, "onnx", out=tmp_path / "onnx", data=weekly(seed=1))
    with pytest.raises(UserError, match="CTranslate2 reads tokens, and a forecaster reads numbers"):
        weft.export(model, "ctranslate2", out=tmp_path / "ct2", data=weekly(seed=1))
    assert not (tmp_path / "onnx").exists()


def test_intervals_hold_what_they_promise() -> None:
    """Conformal: on exchangeable windows about the share asked for lies inside, whatever the model."""
    chance = np.random.default_rng(0)
    series = [Series(str(n), chance.normal(size=(24, 1))) for n in range(2000)]
    task = ForecastTask(horizon=4, size=20, interval=0.8, center=(0.0,), spread=(1.0,), season=1)
    windows = [task.window_at(each, 20) for each in series]
    predictions = [task.mean_prediction([Prediction(np.zeros((4, 1)), 0, 1, False)]) for _ in windows]
    tuned = task.tune(predictions[:1000], windows[:1000])
    metrics = tuned.metrics()
    tuned.add(metrics, predictions[1000:], windows[1000:])
    assert metrics.result()["coverage"].value == pytest.approx(0.8, abs=0.04)
    wide = ForecastTask(**{**vars(task), "interval": 0.95}).tune(predictions, windows).margins
    assert all(a > b for a, b in zip(np.array(wide).ravel(), np.array(tuned.margins).ravel(), strict=True))


def test_coverage_is_not_measured_on_the_windows_that_calibrate() -> None:
    """Errors that grow with time: the later half is wider of the mark than the earlier one promises."""
    chance = np.random.default_rng(0)
    series = Series("", chance.normal(size=(600, 1)) * np.where(np.arange(600) < 450, 1.0, 10.0)[:, None])
    task = ForecastTask(horizon=1, size=20, center=(0.0,), spread=(1.0,), season=1, learning=True)
    windows = [task.window_at(series, origin) for origin in range(300, 600)]
    predictions = [Prediction(np.zeros((1, 1)), 0, 1, False) for _ in windows]
    tuned = task.tune(predictions, windows)
    coverage = {}
    for learning in (True, False):
        metrics = tuned.metrics()
        replace(tuned, learning=learning).add(metrics, predictions, windows)
        coverage[learning] = metrics.result()["coverage"].value
    assert coverage[False] == pytest.approx(0.9, abs=0.02) and coverage[True] < 0.7


def test_baselines_by_hand() -> None:
    values = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    series = Series("", values[:, None])
    task = ForecastTask(horizon=4, size=6, season=3, center=(0.0,), spread=(1.0,))
    window = task.window_at(series, 6)
    examples = [task.window_at(Series("", (values * k + j)[:, None]), 6) for k in (1, -2, 3) for j in range(9)]
    task = ForecastTask(**{**vars(task), "coefficients": task.least_squares(examples)})
    forecasts = {name: each[:, 0].tolist() for name, each in task.baselines(window).items()}
    assert forecasts["naive"] == [6, 6, 6, 6] and forecasts["seasonal naive"] == [4, 5, 6, 4]
    assert forecasts["least squares"] == pytest.approx([7, 8, 9, 10], abs=1e-3)
    assert task.past_error(window).tolist() == [1.0] or task.past_error(window).tolist() == [3.0]


def test_a_student_learns_from_unlabeled_series(taught: Any, tmp_path: Path) -> None:
    _, out, _ = taught
    student = weft.distill(
        [str(out)],
        data=weekly(seed=3),
        student={"model": "1x8"},
        training={"steps": 20},
        out=tmp_path / "small",
        **quiet(),
    )
    assert student.task == "forecast" and student.config.width == 8 and student.config.horizon == 7
    assert (tmp_path / "small" / "run" / "report.html").is_file()
    comparison = weft.compare(
        [str(out), str(tmp_path / "small")], weekly(seed=1), memory=False, texts=4, seconds=1, progress=False
    )
    assert comparison.metric == "skill" and comparison.models[1].agreement["correlation"].value > 0
    assert comparison.models[1].costs is not None


@pytest.mark.parametrize("rate", [1e-3, 3.0])  # so fast that the best model is that of step 4, before the stop
def test_a_stopped_run_goes_on(tmp_path: Path, rate: float) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    recipe: Any = {"task": {"name": "forecast", "horizon": 2, "window": 12}, "model": {"family": "gru", "width": 8}}
    training = {"steps": 12, "batch": 8, "save_every": 4, "evaluate_every": 4, "learning_rate": rate}
    lines, resumed = list[str](), list[str]()
    one = weft.finetune(sines(20, 30), **recipe, training=training, out=whole, log=lines.append, progress=False)

    class Stop(Exception):
        pass

    def stop(text: str) -> None:
        if text.startswith("step 8: held-out"):
            raise Stop

    with pytest.raises(Stop):
        weft.finetune(sines(20, 30), **recipe, training=training, out=parts, log=stop, progress=False)
    two = weft.resume(parts, log=resumed.append, progress=False)
    assert [line for line in lines if line.startswith("result")] == [
        line for line in resumed if line.startswith("result")
    ]
    for name, weight in one.network.state_dict().items():
        assert torch.equal(weight, two.network.state_dict()[name]), name


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"task": {"name": "forecast", "horizon": 0}}, "horizon must be at least 1 step, not 0"),
        ({"task": {"name": "forecast", "window": 300}}, r"series 's0' has 160 steps, and a window of 300"),
        ({"task": {"name": "forecast", "interval": 1.5}}, "interval must be above 0 and below 1"),
        (
            {"task": {"name": "forecast"}, "model": {"family": "bert"}},
            r"needs a model that forecasts series \(forecaster\)",
        ),
        (
            {"task": {"name": "classify", "horizon": 3}, "model": {"family": "cnn"}},
            "horizon does not apply to classify",
        ),
        (
            {"task": {"name": "forecast", "strategy": "step"}, "columns": {"value": "sales", "features": "promo"}},
            "seq2seq",
        ),
        ({"task": {"name": "classify"}, "model": {"family": "forecaster"}}, "forecaster has no head for classify"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match) as error:
        weft.finetune(weekly(), **{"model": {"family": "gru"}, **settings}, **quiet())
    assert "\n" not in str(error.value)


def test_a_series_that_never_changes_is_refused() -> None:
    with pytest.raises(UserError, match="never changes"):
        weft.finetune([{"t": n, "value": 1.0} for n in range(200)], task="forecast", **quiet())

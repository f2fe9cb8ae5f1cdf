"""`weft bench` on models that generate: the gate, the stored choice, and the requests that go to plain torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.engines import need_engine
from tests.tasks.small import vocabulary
from weft.backends import choice, onednn
from weft.backends.choice import BACKENDS, WRITING, BackendChoice
from weft.bench import encode, writing_agreement
from weft.bench.encode import prepare_export
from weft.bench.writing import made_up_prompts, writing_of
from weft.bench.writing_agreement import beam_fault, logprobs_of, parting, writing_fault
from weft.cli.main import run
from weft.errors import UserError
from weft.generation.sampling import Sampling
from weft.generation.search import Beam, Completion
from weft.tasks.model import Model

TASKS = {"gpt2": "complete", "marian": "translate", "t5": "translate"}
PROMPTS = ["the cat is now", "oak", "the flint is there again and"]
SETTINGS = {"gpt2": {"weight_scale": 0.3}, "marian": {}, "t5": {}}
BFLOAT16 = pytest.mark.skipif(
    not (onednn.ONEDNN and onednn.supported(torch.bfloat16)), reason="this CPU has no bfloat16"
)
QUICK = ["--batch", "1,2", "--max-tokens", "6", "--seconds", "0.01", "--no-memory"]


@pytest.fixture(autouse=True)
def own_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encode, "TURN", 0.001)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    places = {}
    for family, task in TASKS.items():
        places[family] = tmp_path_factory.mktemp("writers") / family
        settings = {"context": 64, **SETTINGS[family]}
        Model(weft.new(family, vocabulary(), size="2x64", settings=settings, seed=3).opened, task).save(places[family])
    return places


def plain(folder: Path) -> Model:
    return weft.load(folder, backend="torch", device="cpu")


def fast_of(folder: Path, backend: str) -> Model:
    if BACKENDS[backend].precision:
        need_engine(BACKENDS[backend].engine)
        prepare_export(plain(folder), backend)
    return weft.load(folder, backend=backend, device="cpu")


def answers(model: Model, **options: Any) -> list[tuple[Any, ...]]:
    texts: list[Any] = model(PROMPTS, **options)
    return [(each.text, each.finish_reason) if hasattr(each, "finish_reason") else (each.text,) for each in texts]


# --------------------------------------------------------------------------------------------------------- the gate


@pytest.mark.parametrize("backend", ["ctranslate2", "ctranslate2-int8", pytest.param("onednn-bf16", marks=BFLOAT16)])
@pytest.mark.parametrize("family", TASKS)
def test_the_gate_lets_through_what_agrees(folders: dict[str, Path], family: str, backend: str) -> None:
    model, fast = plain(folders[family]), fast_of(folders[family], backend)
    decoder = fast.opened.answering(WRITING)
    assert decoder is not model.network
    prompts, writing = made_up_prompts(model, 3), writing_of(model.opened, 8)
    write = replace(writing, choice=Sampling()).write(decoder)
    room = 20 if backend.endswith("int8") else 2  # other processors round otherwise; old ones add int8 up in 16 bits
    limits = replace(BACKENDS[backend], nats=BACKENDS[backend].nats * room)

    def score(*inputs: Any) -> list[float]:
        return logprobs_of(decoder, *inputs)

    assert writing_fault(writing, model.network, write, score, prompts, limits) is None
    if isinstance(writing.choice, Beam):
        assert beam_fault(writing, model.network, decoder, prompts, limits.nats) is None


def test_the_gate_refuses_what_differs(folders: dict[str, Path]) -> None:
    model, other = plain(folders["gpt2"]), plain(folders["gpt2"])
    prompts, writing = made_up_prompts(model, 3), writing_of(model.opened, 8)

    def fault(backend: str) -> str | None:
        write = writing.write(other.network)
        return writing_fault(
            writing,
            model.network,
            write,
            lambda *inputs: logprobs_of(other.network, *inputs),
            prompts,
            BACKENDS[backend],
        )

    assert fault("ctranslate2") is None and fault("ctranslate2-int8") is None
    with torch.no_grad():
        for parameter in other.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    assert "writes another token" in (fault("ctranslate2") or "")
    assert "the log-probability of a token is off by" in (fault("ctranslate2-int8") or "")
    worse = beam_fault(replace(writing, choice=Beam(width=3)), model.network, other.network, prompts, -1.0)
    assert worse is None or "score worse" in worse


def test_steps_give_the_log_probabilities_of_the_search(folders: dict[str, Path]) -> None:
    for family in TASKS:
        model = plain(folders[family])
        prompts = made_up_prompts(model, 3)
        done = replace(writing_of(model.opened, 7), choice=Sampling()).run(model.network, prompts)
        tokens = [each.tokens[: 7 - number] for number, each in enumerate(done)]  # of several lengths
        whole = logprobs_of(model.network, prompts, [each.tokens for each in done])
        assert whole == pytest.approx([each.logprob for each in done], abs=1e-3)
        assert logprobs_of(model.network, prompts, tokens)[0] == pytest.approx(whole[0], abs=1e-3)


def test_a_near_tie_is_no_other_token() -> None:
    near = [[(5, -1.0), (6, -1.0 - writing_agreement.TIED / 2)], [(7, -0.5), (8, -3.0)]]
    done = Completion([5, 7], "length", 0.0, -1.5, logprobs=[-1.0, -0.5], alternatives=near)
    assert parting(done, [5, 7]) is None and parting(done, [6, 9]) is None  # what follows a tie is another text
    assert parting(done, [5, 8]) == 1 and parting(done, [9, 7]) == 0 and parting(done, [5]) == 1


# ------------------------------------------------------------------------------------------------------- the choice


def test_the_verb_measures_chooses_and_is_obeyed(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need_engine("ctranslate2")
    folder, out = str(folders["gpt2"]), tmp_path / "speed.json"
    call = ["bench", folder, *QUICK, "--device", "cpu", "--backends", "ctranslate2", "--json", str(out)]
    assert run([*call, "--against", "ctranslate2"]) == 0  # without --mode: the model writes
    printed = capsys.readouterr().out
    assert "generate 1 x 6" in printed and "weft generate, translate and weft.load use it" in printed
    values = json.loads(out.read_text())
    assert values["mode"] == "generate" and list(values["profiles"]) == ["generate 1 x 6", "generate 2 x 6"]
    assert set(values["profiles"]["generate 2 x 6"]["speeds"]) >= {"torch", "ctranslate2", "ctranslate2 fp32"}
    model = plain(folders["gpt2"])
    choice.store(choice.key_of(folders["gpt2"], WRITING), BackendChoice("ctranslate2", 2.0, ("x",), "2026-01-01"))
    loaded = weft.load(folders["gpt2"], device="cpu")
    assert loaded.opened.predictor.name == "ctranslate2" and answers(loaded, max_tokens=9) == answers(
        model, max_tokens=9
    )
    capsys.readouterr()
    texts = []
    for more in ([], ["--backend", "torch"]):
        assert run(["generate", folder, PROMPTS[0], "--max-tokens", "6", "--device", "cpu", *more]) == 0
        output, notes = capsys.readouterr()
        texts.append(output)
        assert ("backend ctranslate2: 2.00 x torch" in notes) == (not more)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("family", TASKS)
def test_an_engine_generates_by_itself_only_what_it_does_as_torch(
    folders: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, task = folders[family], TASKS[family]
    model, _ = weft.load(folder, task, backend="torch"), fast_of(folder, "ctranslate2")
    fast = weft.load(folder, task, backend="ctranslate2", device="cpu")
    engine = fast.opened.answering(WRITING)
    searched: list[Any] = []
    whole = type(engine).search

    def search(self: Any, request: Any) -> Any:
        searched.append(request)
        return whole(self, request)

    monkeypatch.setattr(type(engine), "search", search)
    usual: list[dict[str, Any]] = [{"max_tokens": 9}, {"max_tokens": 5, "beam_size": 3}]
    others: list[dict[str, Any]] = [{"max_tokens": 5, "beam_size": 3, "n": 2}]
    if family == "gpt2":
        usual += [{"max_tokens": 9, "stop": ("cat",)}]
        others += [{"max_tokens": 9, "temperature": 0.8, "seed": 4}, {"max_tokens": 4, "logprobs": 2}]
        others += [{"max_tokens": 9, "repetition_penalty": 1.3}, {"max_tokens": 9, "no_repeat": 2}]
    else:
        others += [{"max_tokens": 5, "alignments": True}, {"max_tokens": 5, "coverage": 0.2}]
    for options in usual:
        assert answers(fast, **options) == answers(model, **options), options
    assert len(searched) >= len(usual)
    searched.clear()
    for options in others:
        assert answers(fast, **options) == answers(model, **options), options
    assert not searched


def test_changed_weights_are_not_the_engines(folders: dict[str, Path]) -> None:
    fast = fast_of(folders["gpt2"], "ctranslate2")
    assert fast.opened.answering(WRITING) is not fast.network
    assert fast.opened.answering("words") is fast.network  # likelihoods of texts need steps and states
    with torch.no_grad():
        fast.network.tokens.weight.mul_(1.5)  # type: ignore[operator,union-attr]
    assert fast.opened.answering(WRITING) is fast.network


def test_what_does_not_write_or_is_not_prepared(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="has nothing for ctranslate2: it is a model for torch"):
        weft.load(folders["gpt2"], backend="ctranslate2")
    with pytest.raises(UserError, match="backend onnx runs models that read texts"):
        weft.load(folders["gpt2"], backend="onnx")
    folder = str(folders["gpt2"])
    for arguments, error in (
        (["--backends", "onnx"], "backend 'onnx' is not one of torch, onednn-bf16, ctranslate2"),
        (["--against", "onnxruntime"], "--against 'onnxruntime' is not one of transformers, ctranslate2"),
        (["--max-tokens", "1000"], "after a prompt there is room for"),
        (["--mode", "generate", "--data", "x.csv"], "--mode generate takes no data"),
    ):
        assert run(["bench", folder, *QUICK, "--device", "cpu", *arguments]) == 2
        assert error in capsys.readouterr().err.splitlines()[-1]

"""Mistakes on the command line: other libraries' words lead to ours, and nobody waits for torch to learn of a slip."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from weft.checkpoint.families import FAMILIES
from weft.checkpoint.locate import SIZE_NAMES
from weft.cli.main import app, run
from weft.config import settings_of
from weft.errors import did_you_mean, synonyms
from weft.runs.recipes import ObjectiveName, TaskRecipe, read_recipe
from weft.tasks.registry import SUPERVISED


def commands() -> dict[str, Any]:
    """Every verb that help shows, and those of its groups."""
    import typer

    found: dict[str, Any] = {}

    def walk(group: Any) -> None:
        for name, command in group.commands.items():
            if not command.hidden:
                found[name] = command
                if hasattr(command, "commands"):
                    walk(command)

    walk(typer.main.get_command(app))
    return found


def test_names_of_models_are_those_of_the_families() -> None:
    assert {family.name: tuple(family.sizes) for family in FAMILIES.values()} == SIZE_NAMES


def test_every_word_that_is_proposed_exists() -> None:
    verbs = commands()
    options = {name.lstrip("-") for verb in verbs.values() for each in verb.params for name in each.opts}
    keys = {"inner", "heads", "layers", "width"}  # of the config of a model
    known = {*verbs, *options, *keys, *SUPERVISED, *get_args(ObjectiveName), *SIZE_NAMES, "quantize"}
    ours_of, elsewhere = synonyms()
    for word, ours in ours_of.items():
        assert word == word.casefold() and "_" not in word
        assert set(ours) <= known, f"{word}: {set(ours) - known}"
    for word, sentence in elsewhere.items():
        assert word == word.casefold() and "_" not in word
        if verb := re.search(r"weft (\S+)", sentence):
            assert verb[1] in verbs
        elif setting := re.search(r"--set (\S+)", sentence):
            key = settings_of([setting[1]])
            assert read_recipe(None, {"task": {"name": "classify"}} | key, TaskRecipe) if "task" not in key else key
        else:
            assert "--base" in sentence


@pytest.mark.parametrize(
    "arguments, proposed",
    [
        (["finetune", "--batch-size", "3"], "'--batch'"),
        (["finetune", "--max_seq_length", "3"], "'--length'"),
        (["finetune", "--num-train-epochs", "3"], "'--epochs'"),
        (["finetune", "--output-dir", "x"], "'--out'"),
        (["finetune", "--model-name-or-path", "x"], "'--base'"),
        (["finetune", "--train-file", "x"], "'--data'"),
        (["pretrain", "--train-file", "x"], "'--text'"),
        (["finetune", "--quantize"], "weft quantize"),
        (["finetune", "--weight-decay", "0.1"], "--set training.weight_decay"),
        (["generate", "--max-new-tokens", "3"], "'--max-tokens'"),
        (["finetune", "--do_lower_case"], "--set tokenizer.lowercase=true"),
        (["train"], "'finetune'"),
        (["quantization"], "'quantize'"),
        (["finetune", "--task", "ner", "--out", "x"], "'tag'"),
        (["finetune", "--task", "qa", "--out", "x"], "'answer'"),
        (["finetune", "--task", "sentiment", "--out", "x"], "'classify'"),
        (["finetune", "--task", "seq2seq", "--out", "x"], "'translate'"),
        (["pretrain", "--objective", "clm", "--out", "x"], "'next'"),
        (["new", "--model", "bart", "--out", "x"], "'transformer'"),
        (["new", "--model", "electra", "--out", "x"], "'bert'"),
        (["new", "--model", "llama", "--out", "x"], "'gpt2'"),
        (["new", "--model", "fasttext", "--out", "x"], "'vectors'"),
        (["new", "--model", "sbert", "--out", "x"], "--base all-MiniLM-L6-v2"),
        (["finetune", "--epocs", "3"], "'--epochs'"),  # a slip in the spelling is still found
    ],
)
def test_hints_by_meaning(
    arguments: list[str], proposed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    message = capsys.readouterr().err
    assert proposed in message and message.count("\n") == 1, message


def test_a_synonym_is_proposed_only_where_it_is_a_choice() -> None:
    assert did_you_mean("ner", ["tag", "pair"]) == "; did you mean 'tag'?"
    assert did_you_mean("ner", ["never"]) == "; did you mean 'never'?" and not did_you_mean("ner", ["classify"])


def test_american_spelling_and_the_usual_names_of_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, british in (("quantize", "quantise"), ("summarize", "summarise")):
        assert run([verb, "--help"]) == 0 and run([british, "--help"]) == 2
        assert f"did you mean '{verb}'?" in capsys.readouterr().err
    for name in ("--lr", "--learning-rate"):
        assert run(["finetune", name, "fast"]) == 2
        assert "Invalid value for '--learning-rate'" in capsys.readouterr().err


# Each of them must be told without torch, which takes seconds to load. `model`, `full` and `rows.csv` are there.
EARLY = {
    "finetune --foo": "No such option",
    "fly": "No such command",
    "finetune": "which task",
    "finetune --task clasify --out r": "did you mean 'classify'",
    "finetune --task classify --data rows.csv --model bert": "no folder for the run",
    "finetune --task classify --data rows.csv --model bert --out full": "already there and not empty",
    "finetune --task classify --data none.csv --model bert --out r": "none.csv: no such file",
    "finetune --task classify --data rows.csv --model bret --out r": "did you mean 'bert'",
    "finetune --task classify --data rows.csv --base nowhere/x/y --out r": "is not a model folder",
    "finetune --task classify --data rows.csv --model bert --base model --out r": "give one of them",
    "finetune --task classify --data rows.csv --model bert --steps 3 --epochs 2 --out r": "cannot both be given",
    "finetune --task classify --data rows.csv --model bert --column lable=x --out r": "did you mean 'label'",
    "finetune --task classify --data rows.csv --model bert --format xls --out r": "is not one of",
    "finetune --task classify --data rows.csv --model bert --device warp --out r": "device 'warp'",
    "finetune --task pair --data rows.csv --out r": "give --base FOLDER",
    "pretrain --text rows.csv --out r": "which model",
    "finetune nothing.toml --out r": "neither a file nor a recipe",
    "pretrain --model gpt2 --text none.txt --out r": "none.txt: no such file",
    "pretrain --model gpt2 --text rows.csv": "no folder for the run",
    "pretrain --model gpt2 --out r": "no text: give --text FILE",
    "pretrain --model gpt2 --text rows.csv --objective clm --out r": "did you mean 'next'",
    "pretrain --model gpt2 --text rows.csv --out full": "already there and not empty",
    "pretrain --model gpt2 --text rows.csv --documents page --out r": "is not one of",
    "predict model rows.csv": "weft predict model --data rows.csv",
    "predict model text --data rows.csv": "not both",
    "predict model --data none.csv": "none.csv: no such file",
    "predict model --data rows.csv --out rows.csv": "already there; choose another name",
    "predict model --data rows.csv --out out.xls": "predictions are written as",
    "predict model text --out out.csv": "give --data FILE too",
    "predict nowhere/x/y text": "is not a model folder",
    "predict full text": "it has no config.json",
    "answer model --context rows.csv": "no question",
    "answer model When? --context rows.csv --top 99": "--top must be between",
    "evaluate model": "no data: give --data",
    "evaluate model rows.csv": "did you mean '--data rows.csv'?",
    "evaluate model --data none.csv": "none.csv: no such file",
    "evaluate model --data rows.csv --on-bad-row drop": "is not one of stop, skip",
    "distill": "needs a teacher",
    "distill model --text rows.csv --out r": "which student",
    "distill model --text none.txt --student 2x128 --out r": "none.txt: no such file",
    "distill full --text rows.csv --student 2x128 --out r": "it has no config.json",
    "distill model --text rows.csv --student 2x128 --out full": "already there and not empty",
    "quantize model --data rows.csv": "Missing option '--out'",
    "quantize model --data none.csv --out r": "none.csv: no such file",
    "quantize model --data rows.csv --out full": "already there and not empty",
    "prune model --out r": "nothing to prune",
    "prune model --layers 2": "no folder for the model",
    "prune model --heads 0.3 --out r": "give --data FILE",
    "prune model --layers 2 --by chance --out r": "is not one of even, importance",
    "export model --to coreml --out r": "is not one of onnx",
    "export model --out full": "already there and not empty",
    "compare model": "no data: give --data",
    "compare model full --data rows.csv": "it has no config.json",
    "generate model x --stream --jsonl": "give one of them",
    "generate model x --context y": "parts of a --template",
    "translate model x --reverse": "give --out FILE too",
    "translate model x --out rows.csv": "rows are written as .tsv or .jsonl",
    "describe model --data none.csv": "none.csv: no such file",
    "perplexity model --text none.txt": "none.txt: no such file",
    "choose model x": "no choices",
    "choose model x --choice y --normalize word": "is not one of none, token",
    "embed model x --pooling maen": "did you mean 'mean'",
    "rank model --query x": "and --texts",
    "suggest model": "at least one model folder",
    "ladder --text none.txt --out r": "none.txt: no such file",
    "resume nowhere": "is not a run folder",
    "vectors learn --text rows.csv --kind fasttext --out r": "is not one of word2vec",
    "vectors learn --text none.txt --out r": "none.txt: no such file",
    "vectors near nowhere/x/y king": "is not a model folder",
    "new --model bert --out full": "already there and not empty",
    "info nowhere/x/y": "is not a model folder",
}
LOOP = """
import contextlib, io, json, sys
from weft.cli.main import run
found = {}
for command in json.load(sys.stdin):
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        status = run(command.split())
    found[command] = [status, err.getvalue(), "torch" in sys.modules]
print(json.dumps(found))
"""


def test_mistakes_are_found_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    before = sorted(tmp_path.rglob("*"))
    command, given = [sys.executable, "-c", LOOP], json.dumps(list(EARLY))
    output = subprocess.run(command, input=given, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    wrong = []
    for mistake, (status, message, torch) in json.loads(output).items():
        if status != 2 or EARLY[mistake] not in message or message.count("\n") != 1 or torch:
            wrong.append((mistake, status, message, torch))
    assert not wrong, "\n".join(map(str, wrong))
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"

"""Configs from outside: every mistake is named with file, section and key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config import build, changed, read_toml, settings_of, write_toml
from weft.errors import UserError
from weft.models.encoders import BertConfig


@dataclass(frozen=True, kw_only=True)
class Part:
    layers: int = 2
    rate: float = 0.1
    kind: Literal["big", "small"] = "small"
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Whole:
    title: str
    model: Part = Part()
    sizes: tuple[int, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    on: bool = False


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"title": "a", "model": {"num_layers": 3}},
            "recipe.toml [model]: unknown key 'num_layers'; did you mean 'layers'?",
        ),
        ({"title": "a", "modle": {}}, "recipe.toml: unknown key 'modle'; did you mean 'model'?"),
        ({"title": 3}, "recipe.toml: title must be a text, not 3"),
        ({}, "recipe.toml: missing title"),
        ({"title": "a", "model": {"layers": "six"}}, 'recipe.toml [model]: layers must be a whole number, not "six"'),
        ({"title": "a", "model": {"layers": 2.0}}, "recipe.toml [model]: layers must be a whole number, not 2.0"),
        ({"title": "a", "model": {"layers": True}}, "recipe.toml [model]: layers must be a whole number, not true"),
        ({"title": "a", "model": {"rate": "1"}}, 'recipe.toml [model]: rate must be a number, not "1"'),
        (
            {"title": "a", "model": {"kind": "smal"}},
            "recipe.toml [model]: kind must be one of big, small, not \"smal\"; did you mean 'small'?",
        ),
        ({"title": "a", "model": 3}, "recipe.toml: model must be a section of keys and values, not 3"),
        ({"title": "a", "sizes": 3}, "recipe.toml: sizes must be a list, each a whole number, not 3"),
        ({"title": "a", "on": 1}, "recipe.toml: on must be true or false, not 1"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(Whole, values, "recipe.toml")
    assert str(caught.value) == message


def test_whole_numbers_are_numbers() -> None:
    rate = build(Whole, {"title": "a", "model": {"rate": 1}}, "x").model.rate
    assert rate == 1 and isinstance(rate, float)  # 1 == 1.0 says nothing of the type


def test_settings() -> None:
    config = build(Whole, {"title": "a", "model": {"name": "kept"}}, "x")
    found = changed(config, settings_of(["model.layers=6", "model.kind=big", "sizes=[1, 2]", "title = b c", "on=true"]))
    assert found == Whole(title="b c", model=Part(layers=6, kind="big", name="kept"), sizes=(1, 2), on=True)
    with pytest.raises(UserError, match=r"--set \[model\]: unknown key 'layer'; did you mean 'layers'"):
        changed(config, settings_of(["model.layer=6"]))
    with pytest.raises(UserError, match="write it as key=value"):
        settings_of(["model.layers"])
    with pytest.raises(UserError, match="already set to a value"):
        settings_of(["a=1", "a.b=2"])


def test_a_wrong_size_says_what_would_be_right() -> None:
    with pytest.raises(UserError, match="width 770 cannot be cut into 12 equal heads; try heads=11"):
        BertConfig(width=770)
    with pytest.raises(UserError, match="layers must be between 1 and 2048, not 0"):
        BertConfig(layers=0)
    with pytest.raises(UserError, match="dropout must be at least 0 and below 1, not 1.5"):
        BertConfig(dropout=1.5)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
wholes = st.builds(
    Whole,
    title=texts,
    model=st.builds(
        Part,
        layers=st.integers(-(2**60), 2**60),
        rate=st.floats(allow_nan=False),
        kind=st.sampled_from(["big", "small"]),
        name=st.none() | texts,
    ),
    sizes=st.lists(st.integers(-9, 9), max_size=3).map(tuple),
    scores=st.dictionaries(texts, st.floats(allow_nan=False), max_size=3),
    on=st.booleans(),
)


@given(wholes)
def test_toml_there_and_back(tmp_path_factory: pytest.TempPathFactory, config: Whole) -> None:
    path = tmp_path_factory.mktemp("toml") / "a.toml"
    write_toml(config, path)
    assert read_toml(Whole, path) == config


def test_bad_toml_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("title = \n")
    with pytest.raises(UserError, match=r"a\.toml: not TOML"):
        read_toml(Whole, tmp_path / "a.toml")
    with pytest.raises(UserError, match="cannot be read: no such file"):
        read_toml(Whole, tmp_path / "b.toml")

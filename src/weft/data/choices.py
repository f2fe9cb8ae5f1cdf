"""Rows of multiple choice: a context, a question, options and which of them are right, in the forms that people have.

Recognized by the names of columns: COPA, SWAG, HellaSwag, RACE, ARC, CommonsenseQA, PIQA, ReCoRD, MultiRC, and plain
tables. What is nested in a published file was made columns when it was read (`weft.text.json_rows.unnested`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.data.columns import file_of, list_in, text_in, wrong_cell
from weft.data.dataset import Unlabeled
from weft.errors import UserError, listed, shown
from weft.text.records import Record
from weft.text.tables import NAMES, folded

ROLES = ("prompt", "question", "options", "answer")  # what --column may name
QUESTIONS = ("question", "query", "question_stem", "sent2")
# `answers` are options where each of them is labeled (MultiRC), and else those of the options that are right (ReCoRD).
LISTS = (*NAMES["options"], "answers")
TARGETS = (
    *("answer", "label", "answers", "answer_key", "correct", "correct_answer", "correct_option", "answer_index"),
    *("answer_idx", "gold", "target", "cop"),
)
NUMBERED = re.compile(
    r"(choice|option|opt|op|ending|answer|candidate|alternative|sol|solution)[\s_.-]*(\d{1,3}|[a-z])", re.IGNORECASE
)
COPA = {"cause": "because", "effect": "so"}  # what its questions ask for, as a word that joins premise and choice
BLANK = "@placeholder"  # where a candidate stands in a query of ReCoRD
GAP = re.compile(r"@placeholder|(?<!\w)_+(?!\w)")  # and in questions of others: RACE, WinoGrande
MAX_OPTIONS = 1000


@dataclass(frozen=True)
class ChoiceColumns:
    """Which columns of a file hold what."""

    context: str
    question: str | None
    options: tuple[str, ...]  # one column of lists, or one of texts for each option
    target: str | None
    single: bool = False  # a row for each option, which is right or not (MultiRC as Hugging Face has it)


@dataclass(frozen=True)
class ChoiceRow:
    """One row: its texts, and the numbers (from 0) of the right options, None where they are not known."""

    context: str
    question: str
    options: tuple[str, ...]
    right: tuple[int, ...] | None
    labeled: bool = False  # each option has a label of its own, so that any number of them may be right


def from_gap(context: str, question: str) -> tuple[str, str]:
    """A context and a question; a text with a gap in it, and no question, is asked from its gap on (WinoGrande)."""
    gaps = [] if question else [match.start() for match in GAP.finditer(context)]
    return (context[: gaps[0]].rstrip() or context, context[gaps[0] :]) if len(gaps) == 1 else (context, question)


def joined(question: str, option: str) -> str:
    """The option as the answer to its question: in its gap where it has one, else after it."""
    if BLANK in question:
        return question.replace(BLANK, option)
    if GAP.search(question):
        return GAP.sub(lambda gap: option, question, count=1)
    return f"{question} {option}" if question else option


def choice_columns(record: Record, given: Mapping[str, str]) -> ChoiceColumns:
    """The columns of the first row of a file, as given or by the names that people use."""
    columns = _columns(tuple(record.values), tuple((role, given[role]) for role in (*ROLES, "label") if role in given))
    if isinstance(columns, str):
        has = listed([shown(name) for name in record.values], 12) or "none"
        hint = " a list, or call one column for each option1, option2, ..." * (columns == "options")
        hint = f"name it with --column {columns}=NAME{hint and f' (it holds{hint})'}"
        raise UserError(f"{file_of(record.where)}: no column with the {columns}; it has {has}; {hint}")
    return columns


@lru_cache(maxsize=4096)
def _columns(names: tuple[str, ...], given: tuple[tuple[str, str], ...]) -> ChoiceColumns | str:
    """The columns, or the role for which there is none."""
    asked, there = dict(given), {folded(name): name for name in reversed(names)}

    def usual(among: Sequence[str], *taken: str | None) -> str | None:
        return next((there[folded(name)] for name in among if there.get(folded(name)) not in (None, *taken)), None)

    options = asked.get("options")
    several = _numbered(names) if options is None else (options,)
    if not several:
        column = usual(LISTS)
        several = () if column is None else (column,)
    context = asked.get("prompt") or usual(NAMES["prompt"], *several)
    question = asked.get("question") or usual(QUESTIONS, *several, context)
    if context is None and question is not None:
        context, question = question, None
    context = context or usual(NAMES["text"], *several)
    answer, label = asked.get("answer") or usual(("answer",)), asked.get("label") or usual(("label",))
    if not several and None not in (context, question, answer, label):
        return ChoiceColumns(str(context), question, (str(answer),), label, single=True)
    target = asked.get("answer") or asked.get("label") or usual(TARGETS, *several, context, question)
    if not several or context is None:
        return "prompt" if several else "options"
    return ChoiceColumns(context, question, several, target)


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """Columns of one option each: choice1 and choice2, ending0 to ending3, option_a to option_d, A to D."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if match := NUMBERED.fullmatch(name.strip()):
            groups.setdefault(match[1].casefold(), []).append(name)
    letters = [name for name in names if len(name) == 1]
    groups["letters"] = [name for number, name in enumerate(letters) if ord(name) == ord("A") + number]
    largest = max(groups.values(), key=len)
    return tuple(largest) if len(largest) > 1 else ()


def counts_from_one(record: Record, given: Mapping[str, str]) -> bool:
    """Whether the answers of a file are numbers from 1, by its first row: none is 0, and one is too large from 0."""
    low, high = record.ranges.get(choice_columns(record, given).target or "", (0, 0))
    return low == 1 and high >= len(read_choices(record, given, targets=False).options)


def read_choices(record: Record, given: Mapping[str, str], targets: bool = True, first: int = 0) -> ChoiceRow:
    """A row; `targets`: it must say which options are right; `first`: the number of the first option there."""
    columns = choice_columns(record, given)
    context = text_in(record, columns.context)
    question = text_in(record, columns.question, empty=True).strip() if columns.question else ""
    question = COPA.get(question.casefold(), question)
    context, question = from_gap(context, question)
    context = context.replace("@highlight", " ") if BLANK in question else context
    options, keys, labels = _options(record, columns)
    if len(options) < 2 and labels is None and not columns.single:
        one = f"one option only, {shown(options[0])!r}" if options else "no options"
        raise UserError(f"{record.where}: {one}: there is nothing to choose from")
    if len(options) > MAX_OPTIONS:
        raise UserError(f"{record.where}: {len(options):,} options; at most {MAX_OPTIONS:,} are possible")
    right: tuple[int, ...] | None = None
    if labels is not None:
        right = tuple(number for number, label in enumerate(labels) if label)
    elif targets:
        if columns.target is None:
            raise UserError(f"{record.where}: no column with the answer; name it with --column answer=NAME")
        right = _right(record, columns, options, keys, first)
    return ChoiceRow(context, question, options, right, labels is not None or columns.single)


Options = tuple[tuple[str, ...], tuple[str, ...], list[bool] | None]  # texts, what answers call them, labels


def _options(record: Record, columns: ChoiceColumns) -> Options:
    names = columns.options
    if columns.single:
        return (text_in(record, names[0]).strip(),), (), None
    if len(names) > 1:  # a table has as many columns as its longest row of options
        cells = [text_in(record, name, empty=True).strip() for name in names]
        while cells and not cells[-1]:
            cells.pop()
        if "" in cells:
            raise wrong_cell(record, names[cells.index("")], "is empty: an option is missing")
        return tuple(cells), tuple(map(folded, names)), None
    column, value = names[0], list_in(record, names[0])
    if isinstance(value, str):
        value = value.split("|")
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # lists side by side, as in CommonsenseQA
        keys = value.get("label")
        keys = tuple(map(str, keys)) if isinstance(keys, list) and len(keys) == len(value["text"]) else ()
        return _texts(record, column, value["text"]), keys, None
    if not isinstance(value, list):
        raise wrong_cell(record, column, "holds no list of options")
    if not any(isinstance(entry, dict) for entry in value):
        return _texts(record, column, value), (), None
    entries = [entry if isinstance(entry, dict) else {"text": entry} for entry in value]
    texts = _texts(record, column, [entry.get("text") for entry in entries])
    marks = [entry.get("label", entry.get("isAnswer", entry.get("correct"))) for entry in entries]
    if all(mark in (0, 1) and mark is not None for mark in marks):
        return texts, (), [bool(mark) for mark in marks]
    return texts, tuple(map(str, marks)) if None not in marks else (), None


def _texts(record: Record, column: str, values: Sequence[Any]) -> tuple[str, ...]:
    for number, value in enumerate(values, 1):
        if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
            raise wrong_cell(record, column, f"holds no text as option {number}")
    return tuple(str(value).strip() for value in values)


NONE: tuple[Any, ...] = (None, "", "-1", -1, [])  # what stands for a label in files that have none
TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _right(
    record: Record, columns: ChoiceColumns, options: tuple[str, ...], keys: tuple[str, ...], first: int
) -> tuple[int, ...]:
    """The right options: by number, letter from A, text or name of the column, or a list of them."""
    value = list_in(record, str(columns.target))
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        value = value["text"]
    if value in NONE or value != value:
        raise Unlabeled(f"{record.where}: column {shown(str(columns.target))!r} holds no answer")
    if columns.single:
        truth = TRUTH.get(str(value).strip().casefold().removesuffix(".0"))
        if truth is None:
            raise wrong_cell(record, str(columns.target), f"holds {shown(str(value))!r}, not 0 (wrong) or 1 (right)")
        return (0,) if truth else ()
    right = set[str]()
    for answer in value if isinstance(value, list) else [value]:
        number = _number(answer.get("text") if isinstance(answer, dict) else answer, options, keys, first)
        if number is None:
            known = f"one of the {len(options)} options nor a number from {first} to {first + len(options) - 1}"
            raise UserError(f"{record.where}: answer {shown(str(answer))!r} is neither {known}")
        right.add(options[number])
    return tuple(number for number, option in enumerate(options) if option in right)  # the same text is as right


def _number(answer: Any, options: tuple[str, ...], keys: tuple[str, ...], first: int) -> int | None:
    """The number of an option, from 0: by its key or text, its name, its letter or its number; None: there is none."""
    if isinstance(answer, bool):
        return None
    text = str(int(answer) if isinstance(answer, float) and answer.is_integer() else answer).strip()
    for names in (keys, options) if isinstance(answer, str) else (keys,):
        if text in names:
            return names.index(text)
    if folded(text) in keys:
        return keys.index(folded(text))
    letter = re.fullmatch(r"\(?([A-Za-z])[).:]?", text)
    number = int(text) - first if text.isdecimal() and len(text) < 9 else -1
    number = ord(letter[1].upper()) - ord("A") if letter else number
    return number if 0 <= number < len(options) else None

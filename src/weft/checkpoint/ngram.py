"""n-gram models from tables, and the ARPA format that SRILM, KenLM and others read and write."""

from __future__ import annotations

import gzip
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import LoadedModel
from weft.data.counts import Floats, NgramTable
from weft.errors import UserError, shown
from weft.files import whole_file
from weft.models.ngram import HIGHEST, MOST, Ngram, NgramConfig
from weft.ngrams import FLOOR
from weft.text.sources import open_sources, read_lines
from weft.text.tokenizers.schema import check_tokens
from weft.text.tokenizers.tokenizer import Roles, Tokenizer, spaced
from weft.version import VERSION

TEN = math.log(10.0)
WIDEST = 1 << 26  # words
LONGEST = 1 << 20  # characters of a line
EVERY = 1 << 16  # lines between two reports of progress
Progress = Callable[[int], None]


def from_tables(stored: list[NgramTable], config: NgramConfig) -> tuple[NgramConfig, Ngram]:
    """A network with these tables, and its config."""
    config = replace(config, entries=tuple(len(each.keys) for each in stored))
    network = Ngram(config, {"words": config.vocabulary})
    buffers = dict(network.named_buffers())
    for order, each in enumerate(stored, 1):
        for name, values in (("keys", each.keys), ("chances", each.logprobs), ("backs", each.backoffs)):
            if f"{name}_{order}" in buffers:
                buffers[f"{name}_{order}"].copy_(torch.from_numpy(values))
    return config, network.eval()


# ---------------------------------------------------------------------------------------------- reading


@dataclass
class _Section:
    """The n-grams of one order as they stand in the file."""

    promised: int
    ids: array[int] = field(default_factory=lambda: array("q"))  # n of them for each
    chances: array[float] = field(default_factory=lambda: array("d"))
    backs: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))


class _ArpaReader:
    """An ARPA file, line by line."""

    def __init__(self) -> None:
        self.sections: list[_Section] = []
        self.words: dict[str, int] = {}
        self.order = -1  # -1: before \data\, 0: in it, then the order of the section; the last is followed by the end
        self.done = False

    def take(self, number: int, text: str) -> None:
        if len(text) > LONGEST:
            raise UserError(f"a line of {len(text):,} characters; at most {LONGEST:,} are read")
        text = text.strip(" \t\r")
        if not text or self.done or (self.order < 0 and text != "\\data\\"):
            return
        if text.startswith("\\") and (text.endswith(":") or text in ("\\data\\", "\\end\\")):
            self._turn(text)
        elif self.order == 0:
            self._promise(text)
        else:
            self._entry(number, text)

    def _turn(self, text: str) -> None:
        """A line that begins a part."""
        wanted = "\\data\\" if self.order < 0 else f"\\{self.order + 1}-grams:"
        if self.order > 0 or (self.order == 0 and not self.sections):
            if not self.sections:
                raise UserError("no counts stand after \\data\\")
            section = self.sections[self.order - 1]
            if len(section.chances) != section.promised:
                raise UserError(
                    f"{section.promised} {self.order}-grams were promised, {len(section.chances)} are there"
                )
        if self.order > 0 and self.order == len(self.sections):
            wanted = "\\end\\"
        if text != wanted:
            raise UserError(f"{shown(text)!r} stands where {wanted} should")
        self.order, self.done = self.order + 1, wanted == "\\end\\"

    def _promise(self, text: str) -> None:
        name, _, count = text.removeprefix("ngram").strip().partition("=")
        order, count = name.strip(), count.strip()
        if not text.startswith("ngram") or not (
            order.isascii() and order.isdigit() and count.isascii() and count.isdigit()
        ):
            raise UserError(f"{shown(text)!r} is not a count such as ngram 1=5000")
        if len(order) > 3 or int(order) != len(self.sections) + 1:
            raise UserError(f"the count of {len(self.sections) + 1}-grams should stand here")
        if int(order) > HIGHEST:
            raise UserError(f"n-grams of order {order}: {HIGHEST} is the highest")
        if len(count) > 12 or int(count) > (WIDEST if order == "1" else MOST):
            raise UserError(f"more {order}-grams than any model has")
        self.sections.append(_Section(int(count)))

    def _entry(self, number: int, text: str) -> None:
        order, section = self.order, self.sections[self.order - 1]
        parts = text.replace("\t", " ").split(" ")
        if "" in parts:
            parts = [part for part in parts if part]
        if len(parts) - order not in ((1, 2) if order < len(self.sections) else (1,)):
            raise UserError(
                f"{len(parts)} fields; a {order}-gram has a log chance, {order} words and a back-off weight"
            )
        if len(section.chances) >= section.promised:
            raise UserError(f"more than the {section.promised} {order}-grams that were promised")
        try:
            chance = float(parts[0])
            back = float(parts[order + 1]) if len(parts) == order + 2 else 0.0
        except ValueError:
            raise UserError(f"{shown(parts[0])!r} or {shown(parts[-1])!r} is not a number") from None
        if not chance <= 0.0 or not back < 1000.0:  # also what is not a number at all
            raise UserError(f"a log chance is no more than 0, and a back-off weight is small: {chance}, {back}")
        if order == 1:
            if parts[1] in self.words:
                raise UserError(f"the word {shown(parts[1])!r} stands there twice")
            self.words[parts[1]] = len(self.words)
        try:
            section.ids.extend([self.words[word] for word in parts[1 : order + 1]])
        except KeyError as error:
            raise UserError(f"the word {shown(str(error.args[0]))!r} is not among the 1-grams") from None
        section.chances.append(chance)
        section.backs.append(back)
        section.lines.append(number)


def read_arpa(
    path: Path, log: Callable[[str], None] = lambda text: None, progress: Progress = lambda more: None
) -> LoadedModel:
    """A model from an ARPA file, plain or compressed; its texts are cut at spaces, as theirs are."""
    reader, number, name = _ArpaReader(), 0, shown(str(path), 300)
    for source in open_sources(path):
        name = source.name
        for number, text, fault in read_lines(source):
            if fault is not None:
                raise fault
            try:
                reader.take(number, text)
            except UserError as error:
                raise UserError(f"{name} line {number}: {error}") from None
            if number % EVERY == 0:
                progress(EVERY)
        break
    if not reader.done:
        what = "cut short: there is no \\end\\" if reader.order >= 0 else "not an ARPA file: there is no \\data\\"
        raise UserError(f"{name} line {number}: {what}")
    words = reader.words
    check_tokens(words, name)
    unknown = next((word for word in ("<unk>", "<UNK>") if word in words), "<unk>")
    if unknown not in words:
        log(f"weft: note: {name} has no <unk>; words that it does not know have next to no chance")
        words[unknown] = len(words)
    roles = Roles(unknown=unknown, start="<s>" if "<s>" in words else None, end="</s>" if "</s>" in words else None)
    tokenizer = _tokenizer(words, roles)
    start = words.get("<s>")
    tables = _tables(reader.sections, len(words), start, list(words), name)
    config = NgramConfig(
        vocabulary=len(words),
        order=len(tables),
        smoothing="back-off",
        silent=() if start is None else (start,),
        end=words.get("</s>"),
    )
    config, network = from_tables(tables, config)
    card = Card(weft=VERSION, task="complete", base=path.name)
    return LoadedModel(FAMILIES["ngram"], config, network, {"words": config.vocabulary}, tokenizer, card)


def _tokenizer(words: dict[str, int], roles: Roles) -> Tokenizer:
    assert roles.unknown is not None
    library = Library(models.WordLevel(words, unk_token=roles.unknown))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.decoder = spaced()
    named = [name for name in (roles.unknown, roles.start, roles.end) if name is not None]
    library.add_tokens([AddedToken(name, special=True, normalized=False) for name in named])
    return Tokenizer(library, roles, {"clean_up_tokenization_spaces": False})


def _tables(
    sections: list[_Section], vocabulary: int, start: int | None, words: list[str], name: str
) -> list[NgramTable]:
    """The sections sorted as n-grams are stored: by context, then by word."""
    tables: list[NgramTable] = []
    for order, section in enumerate(sections, 1):
        chances, backs = (_natural(np.frombuffer(part, dtype=np.float64)) for part in (section.chances, section.backs))
        if order == 1:
            missing = vocabulary - len(chances)
            chances, backs = np.append(chances, [FLOOR] * missing), np.append(backs, [0.0] * missing)
            if start is not None:  # some write 0 for what never comes
                chances[start] = FLOOR
            tables.append(NgramTable(np.arange(vocabulary), chances, backs))
            continue
        ids = np.frombuffer(section.ids, dtype=np.int64).reshape(-1, order)
        lines = np.frombuffer(section.lines, dtype=np.int64)

        def refuse(row: int, why: str, ids: Any = ids, lines: Any = lines) -> None:
            ngram = " ".join(words[number] for number in ids[row])
            raise UserError(f"{name} line {lines[row]}: {shown(ngram)!r} {why}")

        places = ids[:, 0]
        for below in range(2, order):
            keys, wanted = tables[below - 1].keys, places * vocabulary + ids[:, below - 1]
            places = np.searchsorted(keys, wanted)
            lost = np.ones(len(wanted), dtype=bool)
            inside = places < len(keys)
            lost[inside] = keys[places[inside]] != wanted[inside]
            if lost.any():
                refuse(int(lost.argmax()), f"goes on from words that are not among the {below}-grams")
        keys = places * vocabulary + ids[:, -1]
        by = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(np.diff(keys[by]) == 0)
        if len(twice):
            refuse(int(by[twice[0] + 1]), "stands there twice")
        tables.append(NgramTable(keys[by], chances[by], backs[by]))
    return tables


def _natural(values: Floats) -> Floats:
    return np.maximum(values * TEN, FLOOR)


# ---------------------------------------------------------------------------------------------- writing


def write_arpa(opened: LoadedModel, path: Path, progress: Progress = lambda more: None) -> None:
    """An ARPA file, whole or not at all; compressed where its name ends in .gz."""
    config, tokenizer = opened.config, opened.tokenizer
    if opened.family.name != "ngram":
        raise UserError(f"an ARPA file holds n-grams, and this is a {opened.family.name} model")
    if config.direct:
        raise UserError(
            f"an ARPA file holds chances that back off, and {config.smoothing} does not; try kneser-ney or witten-bell"
        )
    if tokenizer is None:
        raise UserError("this model folder has no tokenizer, so its words have no names")
    with whole_file(path) as file:
        if path.suffix.lower() != ".gz":
            _write(file, opened.network, config, tokenizer, progress)
            return
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
            _write(cast("IO[bytes]", packed), opened.network, config, tokenizer, progress)


def _write(file: IO[bytes], network: Any, config: NgramConfig, tokenizer: Tokenizer, progress: Progress) -> None:
    first, names = _names(tokenizer, config.vocabulary)
    start, end = tokenizer.id_of("start"), tokenizer.id_of("end")
    start = end if start is None else start
    extra = ["<unk>"] if tokenizer.id_of("unknown") is None else []
    extra += ["<s>"] if start == end else []
    listed = [number for number in range(config.vocabulary) if number not in config.silent or number == start]
    counts = [len(listed) + len(extra), *config.entries[1:]]
    head = ["\\data\\", *(f"ngram {order}={count}" for order, count in enumerate(counts, 1)), "", ""]
    file.write("\n".join(head).encode())
    before: list[str] = first
    for order in range(1, config.order + 1):
        file.write(f"\\{order}-grams:\n".encode())
        chances = (network.get_buffer(f"chances_{order}").double().cpu().numpy() / TEN).tolist()
        backs: list[float] | None = None
        if order < config.order:
            backs = (network.get_buffer(f"backs_{order}").double().cpu().numpy() / TEN).tolist()
        if order == 1:
            texts = names
            for name in extra:
                back = backs[start] if backs is not None and name == "<s>" and start is not None else 0.0
                file.write(_line(-99.0, name, None if backs is None else back).encode())
        else:
            keys = network.get_buffer(f"keys_{order}").cpu().numpy()
            pairs = zip((keys // config.vocabulary).tolist(), (keys % config.vocabulary).tolist(), strict=True)
            texts = [f"{before[context]} {names[word]}" for context, word in pairs]
            before = texts
        for some in _cut(listed if order == 1 else range(len(texts))):
            lines = [_line(chances[row], texts[row], None if backs is None else backs[row]) for row in some]
            file.write("".join(lines).encode())
            progress(len(some))
        file.write(b"\n")
    file.write(b"\\end\\\n")


def _cut(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(rows), EVERY):
        yield rows[begin : begin + EVERY]


def _line(chance: float, text: str, back: float | None) -> str:
    return f"{chance:.8g}\t{text}\n" if back is None else f"{chance:.8g}\t{text}\t{back:.8g}\n"


def _names(tokenizer: Tokenizer, vocabulary: int) -> tuple[list[str], list[str]]:
    """What each token is called where it begins an n-gram, and elsewhere: special tokens by the names of the format."""
    names = [tokenizer.token(number) or f"<unused-{number}>" for number in range(vocabulary)]
    wrong = next((name for name in names if any(c in " \t\n\r\v\f\0" for c in name)), None)
    if wrong is not None:
        raise UserError(f"the token {wrong!r} has a space in it, which an ARPA file cannot hold; words can be written")
    start, end, unknown = (tokenizer.id_of(role) for role in ("start", "end", "unknown"))
    for number, name in ((start, "<s>"), (unknown, "<unk>"), (end, "</s>")):
        if number is not None:
            names[number] = name
    first = list(names)
    begin = end if start is None else start
    if begin is not None:
        first[begin] = "<s>"
    return first, names

"""Models in files of other programs: word vectors (GloVe, word2vec), and n-grams (ARPA, of SRILM, KenLM and others)."""

from __future__ import annotations

import gzip
import math
import re
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Library
from torch import Tensor

from weft.checkpoint.card import Card
from weft.checkpoint.families import FAMILIES, check_heads, outline
from weft.checkpoint.folder import LoadedModel, fill
from weft.config import changed
from weft.data.counts import NgramTable
from weft.errors import UserError, refuse, shown
from weft.files import whole_file
from weft.models.classifiers import VectorsConfig
from weft.models.ngram import HIGHEST, MOST, Ngram, NgramConfig
from weft.ngrams import FLOOR
from weft.text.rows import Skipped
from weft.text.sources import open_sources, read_lines
from weft.text.tokenizers.schema import check_tokens
from weft.text.tokenizers.tokenizer import Roles, Tokenizer, spaced
from weft.text.tokenizers.training import UNKNOWN, word_tokenizer
from weft.text.vector_files import read_file
from weft.version import VERSION

TEN = math.log(10.0)
WIDEST = 1 << 26  # words
LONGEST = 1 << 20  # characters of a line
EVERY = 1 << 16  # lines between two reports of progress
KEYS, LOGPROBS, BACKOFFS = "keys_{}", "chances_{}", "backs_{}"  # names of tensors, by order
Progress = Callable[[int], None]
Heads = Mapping[str, int]


def from_tables(stored: list[NgramTable], config: NgramConfig) -> tuple[NgramConfig, Ngram]:
    """A network with these tables, and its config."""
    config = replace(config, entries=tuple(len(each.keys) for each in stored))
    network = Ngram(config, {"words": config.vocabulary})
    buffers = dict(network.named_buffers())
    for order, each in enumerate(stored, 1):
        for name, values in ((KEYS, each.keys), (LOGPROBS, each.logprobs), (BACKOFFS, each.backoffs)):
            if name.format(order) in buffers:
                buffers[name.format(order)].copy_(torch.from_numpy(values))
    return config, network.eval()


# ---------------------------------------------------------------------------------------------- reading


@dataclass
class _Section:
    """The n-grams of one order as they stand in the file."""

    promised: int
    ids: array[int] = field(default_factory=lambda: array("q"))  # n of them for each
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    backoffs: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))


class _ArpaReader:
    """An ARPA file, line by line."""

    def __init__(self) -> None:
        self.sections: list[_Section] = []
        self.words: dict[str, int] = {}
        self.order = -1  # -1: before \\data\\, 0: in it, then the order of the section; the last is followed by the end
        self.done = False

    def take(self, number: int, text: str) -> None:
        if len(text) > LONGEST:
            raise UserError(f"a line of {len(text):,} characters; at most {LONGEST:,} are read")
        text = text.strip(" \t\r")
        if not text or self.done or (self.order < 0 and text != "\\data\\"):
            return
        if text.startswith("\\") and (text.endswith(":") or text in ("\\data\\", "\\end\\")):
            self._turn(text)
        elif self.order > 0:
            self._entry(number, text)
        else:
            match = re.fullmatch(r"ngram\s*([0-9]+)\s*=\s*([0-9]+)\s*", text)
            if match is None:
                raise UserError(f"{shown(text)!r} is not a count such as ngram 1=5000")
            order, count, expected = match[1][:4], match[2][:13], len(self.sections) + 1
            refuse(
                (len(order) > 3 or int(order) != expected, f"the count of {expected}-grams should stand here"),
                (int(order) > HIGHEST, f"n-grams of order {order}: {HIGHEST} is the highest"),
                (int(count) > (WIDEST if expected == 1 else MOST), f"more {order}-grams than any model has"),
            )
            self.sections.append(_Section(int(count)))

    def _turn(self, text: str) -> None:
        """A line that begins a part."""
        if self.order == 0 and not self.sections:
            raise UserError("no counts stand after \\data\\")
        if self.order > 0:
            section = self.sections[self.order - 1]
            if len(section.logprobs) != section.promised:
                raise UserError(
                    f"{section.promised} {self.order}-grams were promised, {len(section.logprobs)} are there"
                )
        wanted = "\\data\\" if self.order < 0 else f"\\{self.order + 1}-grams:"
        if self.order > 0 and self.order == len(self.sections):
            wanted = "\\end\\"
        if text != wanted:
            raise UserError(f"{shown(text)!r} stands where {wanted} should")
        self.order, self.done = self.order + 1, wanted == "\\end\\"

    def _entry(self, number: int, text: str) -> None:
        order, section = self.order, self.sections[self.order - 1]
        parts = [part for part in text.replace("\t", " ").split(" ") if part]
        if len(parts) - order not in ((1, 2) if order < len(self.sections) else (1,)):
            has = f"a log probability, {order} words and a back-off weight"
            raise UserError(f"{len(parts)} fields; a {order}-gram has {has}")
        if len(section.logprobs) >= section.promised:
            raise UserError(f"more than the {section.promised} {order}-grams that were promised")
        try:
            logprob = float(parts[0])
            backoff = float(parts[order + 1]) if len(parts) == order + 2 else 0.0
        except ValueError:
            raise UserError(f"{shown(parts[0])!r} or {shown(parts[-1])!r} is not a number") from None
        if not logprob <= 0.0 or not backoff < 1000.0:  # also what is not a number at all
            raise UserError(f"a log probability is at most 0, a back-off weight small: not {logprob} and {backoff}")
        if order == 1:
            if parts[1] in self.words:
                raise UserError(f"the word {shown(parts[1])!r} stands there twice")
            self.words[parts[1]] = len(self.words)
        try:
            section.ids.extend([self.words[word] for word in parts[1 : order + 1]])
        except KeyError as error:
            raise UserError(f"the word {shown(str(error.args[0]))!r} is not among the 1-grams") from None
        section.logprobs.append(logprob)
        section.backoffs.append(backoff)
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
        log(f"weft: note: {name} has no <unk>; unknown words have a probability of nearly 0")
        words[unknown] = len(words)
    roles = Roles(unknown=unknown, start="<s>" if "<s>" in words else None, end="</s>" if "</s>" in words else None)
    library = Library(models.WordLevel(words, unk_token=unknown))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.decoder = spaced()
    named = [role for role in (unknown, roles.start, roles.end) if role is not None]
    library.add_tokens([AddedToken(role, special=True, normalized=False) for role in named])
    tokenizer = Tokenizer(library, roles, {"clean_up_tokenization_spaces": False})
    start = words.get("<s>")
    tables = _tables(reader.sections, start, list(words), name)
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


def _tables(sections: list[_Section], start: int | None, words: list[str], name: str) -> list[NgramTable]:
    """The sections sorted as n-grams are stored: by context, then by word."""
    tables, vocabulary = list[NgramTable](), len(words)
    for order, section in enumerate(sections, 1):
        stored = (np.frombuffer(part, dtype=np.float64) for part in (section.logprobs, section.backoffs))
        logprobs, backoffs = (np.maximum(part * TEN, FLOOR) for part in stored)
        if order == 1:
            missing = vocabulary - len(logprobs)
            logprobs, backoffs = np.append(logprobs, [FLOOR] * missing), np.append(backoffs, [0.0] * missing)
            if start is not None:  # some write 0 for what never comes
                logprobs[start] = FLOOR
            tables.append(NgramTable(np.arange(vocabulary), logprobs, backoffs))
            continue
        ids = np.frombuffer(section.ids, dtype=np.int64).reshape(-1, order)
        lines = np.frombuffer(section.lines, dtype=np.int64)

        def fault(row: int, why: str, ids: Any = ids, lines: Any = lines) -> UserError:
            ngram = " ".join(words[number] for number in ids[row])
            return UserError(f"{name} line {lines[row]}: {shown(ngram)!r} {why}")

        places = ids[:, 0]
        for below in range(2, order):
            keys, wanted = tables[below - 1].keys, places * vocabulary + ids[:, below - 1]
            places = np.searchsorted(keys, wanted)
            lost = np.ones(len(wanted), dtype=bool)
            inside = places < len(keys)
            lost[inside] = keys[places[inside]] != wanted[inside]
            if lost.any():
                raise fault(int(lost.argmax()), f"goes on from words that are not among the {below}-grams")
        keys = places * vocabulary + ids[:, -1]
        by = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(np.diff(keys[by]) == 0)
        if len(twice):
            raise fault(int(by[twice[0] + 1]), "stands there twice")
        tables.append(NgramTable(keys[by], logprobs[by], backoffs[by]))
    return tables


# ---------------------------------------------------------------------------------------------- writing


def write_arpa(opened: LoadedModel, path: Path, progress: Progress = lambda more: None) -> None:
    """An ARPA file, whole or not at all; compressed where its name ends in .gz."""
    config, tokenizer = opened.config, opened.tokenizer
    if opened.family.name != "ngram":
        raise UserError(f"an ARPA file holds n-grams, and this is a {opened.family.name} model")
    if config.direct:
        raise UserError(f"{config.smoothing} has no back-off weights for an ARPA file; try kneser-ney or witten-bell")
    if tokenizer is None:
        raise UserError("this model folder has no tokenizer, so its words have no names")
    with whole_file(path) as file:
        if path.suffix.lower() != ".gz":
            _write(file, opened.network, config, tokenizer, progress)
            return
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
            _write(cast("IO[bytes]", packed), opened.network, config, tokenizer, progress)


def _write(file: IO[bytes], network: Any, config: NgramConfig, tokenizer: Tokenizer, progress: Progress) -> None:
    """The n-grams in the words of the format; a token may be called otherwise where it begins an n-gram."""
    names = [tokenizer.token(number) or f"<unused-{number}>" for number in range(config.vocabulary)]
    wrong = next((name for name in names if any(c in " \t\n\r\v\f\0" for c in name)), None)
    if wrong is not None:
        raise UserError(f"the token {wrong!r} has a space in it, which an ARPA file cannot hold; words can be written")
    start, end, unknown = (tokenizer.id_of(role) for role in ("start", "end", "unknown"))
    for number, name in ((start, "<s>"), (unknown, "<unk>"), (end, "</s>")):
        if number is not None:
            names[number] = name
    before, start = list(names), end if start is None else start
    if start is not None:
        before[start] = "<s>"
    extra = [*(["<unk>"] if unknown is None else []), *(["<s>"] if start == end else [])]
    listed = [number for number in range(config.vocabulary) if number not in config.silent or number == start]
    counts = [len(listed) + len(extra), *config.entries[1:]]
    head = ["\\data\\", *(f"ngram {order}={count}" for order, count in enumerate(counts, 1)), "", ""]
    file.write("\n".join(head).encode())
    for order in range(1, config.order + 1):
        file.write(f"\\{order}-grams:\n".encode())
        logprobs = (network.get_buffer(LOGPROBS.format(order)).double().cpu().numpy() / TEN).tolist()
        backoffs: list[float] | None = None
        if order < config.order:
            backoffs = (network.get_buffer(BACKOFFS.format(order)).double().cpu().numpy() / TEN).tolist()
        rows: Sequence[int] = listed
        if order == 1:
            texts = names
            for name in extra:
                weight = backoffs[start] if backoffs is not None and name == "<s>" and start is not None else 0.0
                file.write(_line(-99.0, name, None if backoffs is None else weight).encode())
        else:
            keys = network.get_buffer(KEYS.format(order)).cpu().numpy()
            pairs = zip((keys // config.vocabulary).tolist(), (keys % config.vocabulary).tolist(), strict=True)
            texts = [f"{before[context]} {names[word]}" for context, word in pairs]
            before, rows = texts, range(len(texts))
        for begin in range(0, len(rows), EVERY):
            some = rows[begin : begin + EVERY]
            lines = (_line(logprobs[row], texts[row], None if backoffs is None else backoffs[row]) for row in some)
            file.write("".join(lines).encode())
            progress(len(some))
        file.write(b"\n")
    file.write(b"\\end\\\n")


def _line(logprob: float, text: str, backoff: float | None) -> str:
    return f"{logprob:.8g}\t{text}\n" if backoff is None else f"{logprob:.8g}\t{text}\t{backoff:.8g}\n"


# ----------------------------------------------------------------------------------------- word vectors


def open_vectors(
    path: Path, heads: Heads, seed: int = 0, settings: Mapping[str, Any] | None = None, on_bad_row: str = "stop"
) -> LoadedModel:
    """A model whose table of words is read from a file, with fresh heads; `settings` are those of `VectorsConfig`.

    A word that the file does not have gets the file's own `<unk>`, else the mean of all vectors.
    """
    check_heads(FAMILIES["vectors"], heads)
    skipped = Skipped()
    vectors = read_file(path, on_bad_row, skipped)
    if skipped.count:
        warnings.warn(f"{path}: {skipped}", stacklevel=2)
    if vectors.repeated:
        warnings.warn(f"{path}: {vectors.repeated:,} lines repeat a word; the first of each stays", stacklevel=2)
    words, table = vectors.words, torch.from_numpy(vectors.matrix)
    if UNKNOWN not in words:
        words, table = [*words, UNKNOWN], torch.cat([table, table.double().mean(0, keepdim=True).float()])
    config = changed(VectorsConfig(vocabulary=len(words), width=table.shape[1]), settings or {}, "--set model")
    if (config.vocabulary, config.width) != table.shape:
        raise UserError(f"{path}: has {len(words)} words {table.shape[1]} wide; neither can be set to another number")
    return opened_table(config, table, heads, word_tokenizer(words), Card(base=path.name), seed)


def opened_table(
    config: VectorsConfig, table: Tensor, heads: Heads, tokenizer: Tokenizer, card: Card, seed: int = 0
) -> LoadedModel:
    """A model of this table of words, with fresh heads."""
    family = FAMILIES["vectors"]
    network = outline(family, config, heads)
    fill(network, {"tokens.weight": table}, ("heads.",), seed)
    return LoadedModel(family, config, network.eval(), dict(heads), tokenizer, card)

"""Vectors of texts, tokens or words into a file: .npy, .npz or .jsonl, written whole or not at all."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from weft.files import scratch_file, whole_file

Ticker = Callable[[int], None]
COLUMNS = {"text": (), "token": ("text", "start", "end", "token")}  # beside the vectors; a word has those of a token
COLUMNS["word"] = COLUMNS["token"]


@dataclass(frozen=True)
class VectorBlock:
    """Some vectors: as rows of JSON, as an array, and what stands beside the array."""

    rows: Iterable[dict[str, Any]]
    vectors: Any  # n width
    windows: int
    columns: dict[str, list[Any]] = field(default_factory=dict)  # of each vector


def text_blocks(chunks: Iterable[Any], tick: Ticker) -> Iterator[VectorBlock]:
    """The vectors of texts, as `Embedder.chunks` gives them."""
    for chunk in chunks:
        tick(len(chunk.vectors))
        yield VectorBlock((asdict(answer) for answer in chunk.answers()), chunk.vectors.numpy(), sum(chunk.n_windows))


def token_blocks(texts: Iterable[Any], tick: Ticker) -> Iterator[VectorBlock]:
    """The vectors of tokens or words, text by text, as `TokenEmbedder.texts` gives them."""
    for number, text in enumerate(texts):
        tick(1)
        starts, ends = ([span[side] for span in text.spans] for side in (0, 1))
        values = ([number] * len(starts), starts, ends, list(text.tokens))
        columns = dict(zip(COLUMNS["token"], values, strict=True))
        row = {"text": number, "tokens": text.rows(), "n_tokens": text.n_tokens, "n_windows": text.n_windows}
        yield VectorBlock([row], text.vectors, text.n_windows, columns)


def save_vectors(path: Path, blocks: Iterable[VectorBlock], width: int, names: Iterable[str]) -> tuple[int, int]:
    """Write vectors in the format of the suffix; how many, and from how many windows. Only .npz holds what stands
    beside the array, the columns of these names, in memory."""
    windows, columns = 0, {name: list[Any]() for name in names}

    def counted() -> Iterator[VectorBlock]:
        nonlocal windows
        for block in blocks:
            windows += block.windows
            for name, values in block.columns.items():
                columns[name].extend(values)
            yield block

    with whole_file(path) as file:
        if path.suffix == ".jsonl":
            count = 0
            for block in counted():
                count += len(block.vectors)
                file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in block.rows)
        elif path.suffix == ".npy":
            count = _write_array(file, (block.vectors for block in counted()), width)
        else:
            count = _write_npz(path, file, (block.vectors for block in counted()), columns, width)
    return count, windows


def _write_array(file: IO[bytes], blocks: Iterable[Any], width: int) -> int:
    """A float32 array from blocks of rows, never held whole; how many rows it has."""
    from numpy.lib import format

    count = 0

    def header() -> None:
        file.seek(0)  # numpy leaves room for the number of rows to grow
        format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, width)})

    header()
    begin = file.tell()
    for block in blocks:
        file.write(block.astype("<f4").tobytes())
        count += len(block)
    header()
    assert file.tell() == begin
    return count


def _write_npz(path: Path, file: IO[bytes], blocks: Iterable[Any], columns: dict[str, list[Any]], width: int) -> int:
    """The array and its columns as numpy.load reads them; the array goes through a file beside it."""
    import numpy as np

    with scratch_file(path) as (_, array), zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        count = _write_array(array, blocks, width)
        array.flush()
        with open(array.name, "rb") as written, archive.open("vectors.npy", "w", force_zip64=True) as inside:
            shutil.copyfileobj(written, inside)
        for name, values in columns.items():
            kind = np.str_ if name == "token" else np.int64
            with archive.open(f"{name}.npy", "w", force_zip64=True) as inside:
                np.lib.format.write_array(inside, np.array(values, dtype=kind), allow_pickle=False)
    return count

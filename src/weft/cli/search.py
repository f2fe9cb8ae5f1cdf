"""`weft rank`, `weft central`, `weft next`: search, the heart of a text, and what follows what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.budget import by_budget
from weft.cli.models import Online, Trust
from weft.cli.show import progress, table
from weft.cli.words import Device, Folder, Jsonl, from_input, opened
from weft.errors import UserError, escaped

if TYPE_CHECKING:
    from weft.tasks.answers import Ranked
    from weft.tasks.rank import Index, Rerank

Pooling = Annotated[str | None, typer.Option(help="mean, first or max; as the folder says unless given.")]
Layers = Annotated[str, typer.Option(help="Which layers make the vectors, as in weft embed.")]


def rank(
    folder: Folder,
    query: Annotated[list[str] | None, typer.Option(help="What to look for; may be repeated.")] = None,
    queries: Annotated[Path | None, typer.Option(help="A file of queries, one a line.")] = None,
    texts: Annotated[
        list[str] | None, typer.Option(help="Files of texts: txt (a line each), csv, tsv, jsonl, parquet, SQuAD.")
    ] = None,
    column: Annotated[str, typer.Option(help="The column of a table that holds the text.")] = "text",
    pairs: Annotated[
        list[str] | None, typer.Option(help="Instead: files of queries with their right texts, to be judged by.")
    ] = None,
    query_column: Annotated[str, typer.Option(help="Of --pairs: the column of the query.")] = "question",
    text_column: Annotated[str, typer.Option(help="Of --pairs: the column of the right text.")] = "context",
    top: Annotated[int, typer.Option(help="How many texts for each query.")] = 10,
    rerank: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A model for pairs that puts the best in order again.")
    ] = None,
    candidates: Annotated[int, typer.Option(help="How many of the best that model sees.")] = 50,
    positive: Annotated[str | None, typer.Option(help="Its label for a pair that fits; the last unless given.")] = None,
    pooling: Pooling = None,
    layers: Layers = "last",
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Search texts by meaning: the nearest vectors, then, if asked for, the opinion of a model for pairs.

    With --pairs the texts of all rows are searched for each row's query, and scores say how high the right one came.

    Example: weft rank runs/bert --query "an old loom" --texts corpus/weaver.txt --top 3
    """
    from weft.text.records import read_records, read_texts

    asked = [*(query or []), *([] if queries is None else [found.text for found in read_texts(queries, format="txt")])]
    if pairs and (asked or texts):
        raise UserError("--pairs brings its own queries and texts: leave out --query, --queries and --texts")
    if not pairs and not (asked and texts):
        raise UserError("give --query or --queries, and --texts; or --pairs to judge a model by")
    if candidates < 1 or top < 1:
        raise UserError(f"--top and --candidates must be 1 or more, not {min(top, candidates)}")
    rights: list[tuple[str, int]] = []
    if pairs:
        numbers: dict[str, int] = {}
        for record in read_records(pairs, columns=(query_column, text_column)):
            asks, holds = (_text(record.values, name, record.where) for name in (query_column, text_column))
            rights.append((asks, numbers.setdefault(holds, len(numbers))))
        pool = list(numbers)
    else:
        pool = [document.text for document in read_texts(texts or [], column=column)]
    model = opened(folder, "rank", device, online, trust)
    again = None if rerank is None else _reranker(rerank, positive, device, online, trust)
    from weft.tasks.rank import Index

    with progress("embedding", "texts") as heard:
        index = Index(model.opened, pool, pooling=pooling, layers=layers, on_progress=heard)
    if pairs:
        _judge(index, rights, again, candidates, jsonl)
        return
    for number, (wanted, answer) in enumerate(_asked(index, asked, top, again, candidates)):
        if jsonl:
            print(json.dumps({"query": wanted, **asdict(answer)}, ensure_ascii=False))
            continue
        if len(asked) > 1:
            print("\n" * (number > 0) + escaped(wanted))
        for place, hit in enumerate(answer.hits, 1):
            print(f"{place:>3}  {hit.score:.4f}  {escaped(' '.join(hit.text.split()))}")


def _asked(
    index: Index, queries: list[str], top: int, rerank: Rerank | None, candidates: int
) -> Iterator[tuple[str, Ranked]]:
    """The answer to each query, as soon as those that are asked with it are answered."""
    for some in by_budget(queries, lambda query: 1, 64):
        yield from zip(some, index.ask(some, top=top, rerank=rerank, candidates=candidates), strict=True)


def _text(values: dict[str, Any], column: str, where: str) -> str:
    found = values[column]
    if not isinstance(found, str) or not found.strip():
        raise UserError(f"{where}: column {column!r} holds no text")
    return found


def _reranker(folder: str, positive: str | None, device: str | None, online: bool, trust: bool) -> Rerank:
    from weft.tasks.rank import pair_scores

    return pair_scores(opened(folder, "pair", device, online, trust), positive)


def _judge(index: Index, rights: list[tuple[str, int]], rerank: Rerank | None, candidates: int, jsonl: bool) -> None:
    """How high the right texts come, before and after re-ranking."""
    from weft.metrics.vectors import RankingMetrics
    from weft.tasks.rank import places

    before, after = RankingMetrics(at=10), RankingMetrics(at=10)
    with progress("asking", "queries") as heard:
        for place in places(index, rights, rerank=rerank, candidates=candidates):
            before.add(place.embedding)
            after.add(place.pair)
            heard(1)
    stages = {"embedding": before.result(), **({} if rerank is None else {"pair": after.result()})}
    rows = [
        {"stage": stage, "score": name, "value": score.value, "low": score.low, "high": score.high}
        for stage, scores in stages.items()
        for name, score in scores.items()
    ]
    if jsonl:
        for row in rows:
            print(json.dumps(row))
        return
    print(f"{len(rights):,} queries, {len(index.texts):,} texts")
    cells = [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(table(["stage", "score", "value", "low", "high"], cells))


def central(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; without any, one per line of standard input.")
    ] = None,
    context: Annotated[Path | None, typer.Option(help="A file that is one text, line ends and all.")] = None,
    k: Annotated[int, typer.Option("--k", help="How many sentences.")] = 3,
    pooling: Pooling = None,
    layers: Layers = "last",
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """The most central sentences of a text: those most like all the others, in the order of the text.

    Example: weft central runs/bert --context corpus/weaver.txt --k 3
    """
    if texts and context is not None:
        raise UserError("give texts or --context, not both")
    found = from_input(texts) if context is None else [_whole(context)]
    model = opened(folder, "central", device, online, trust)
    for number, text in enumerate(found):
        answer: Any = model(text, k=k, pooling=pooling, layers=layers)
        if jsonl:
            print(json.dumps(asdict(answer), ensure_ascii=False))
            continue
        if number:
            print()
        for sentence in answer.sentences:
            place = f"{sentence.start}-{sentence.end}"
            print(f"{sentence.score:.4f}  {place:>13}  {escaped(' '.join(sentence.text.split()))}")


def _whole(path: Path) -> str:
    """The text of a file as it is, so that offsets are those of the file."""
    from weft.files import MEGABYTE, read_text

    return read_text(path, 1024 * MEGABYTE)


def follows(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(help='Two sentences: "A" "B"; without any, lines of two with a tab between.')
    ] = None,
    jsonl: Jsonl = False,
    device: Device = None,
    online: Online = False,
    trust: Trust = False,
) -> None:
    """Does the second sentence follow the first? For models with BERT's head for next sentences.

    Example: weft next runs/bert "The loom was old." "It sang all night."
    """
    model: Any = opened(folder, "next", device, online, trust)
    for some in by_budget(_pairs(texts), lambda pair: max(len(pair[0]) + len(pair[1]), 4096), 1 << 20):
        for (first, second), answer in zip(some, model(some), strict=True):
            if jsonl:
                print(json.dumps({"first": first, "second": second, **asdict(answer)}, ensure_ascii=False))
                continue
            print(f"{answer.probability:.4f}  {'follows' if answer.follows else 'does not follow'}", end="")
            print("  (cut to fit)" if answer.truncated else "")


def _pairs(texts: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    given = list(texts or [])
    if given and given != ["-"]:
        if len(given) != 2:
            raise UserError(f"two sentences are expected, not {len(given)}")
        yield given[0], given[1]
        return
    for number, line in enumerate(from_input(None), 1):
        first, tab, second = line.partition("\t")
        if not tab or "\t" in second:
            raise UserError(f"standard input line {number}: two sentences with one tab between them are expected")
        yield first, second

"""The texts and rows of a distillation, with targets or without: read, checked and split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.data.columns import file_of
from weft.data.shards import TextFiles
from weft.data.tables import FEW, Dataset, Table, read_table, split, split_whole
from weft.distillation.recipe import DistillDataSection, DistillRecipe
from weft.errors import UserError, listed, shown
from weft.progress import Log, Progress, log_notes
from weft.runs.dataset import checked, normalized, table_of
from weft.tasks.base import Example, Task
from weft.tasks.inputs import Reader
from weft.text.records import Record, read_texts
from weft.text.row_problems import Skipped
from weft.training.signals import Stop

ENOUGH = 40  # rows with targets; fewer say less about a student than its teacher does


def gather(task: Task, recipe: DistillRecipe, log: Log, progress: Progress, stop: Stop) -> Dataset[Example]:
    """All texts and rows of a distillation; some are held out where no others are given."""
    data = recipe.data
    examples, hashes, parts = list[Example](), dict[str, str](), list[int]()

    def add(name: str, more: list[Example], hash: str) -> None:
        examples.extend(more)
        hashes[name] = hash
        parts.append(len(more))

    if data.text:
        if task.pair:
            columns = listed(task.input_columns(Record({}, ""), {}))
            raise UserError(
                f"a teacher for {task.name} reads two texts at a time: give rows (--data FILE with the columns "
                f"{columns}), not --text"
            )
        files = TextFiles(data.text)
        add("text", read_lines(files.files, data, data.format, log, progress, stop), files.hash())
    if data.source or data.target:
        if not task.writes:
            raise UserError(f"a teacher for {task.name} reads no source: give --text or --data, not --source")
        add("source", *_read_sources(task, data, log, progress, stop))
    if data.files:
        table = Table(data.files, data.columns, data.format, data.delimiter, data.names, data.on_bad_row, data.encoding)
        add("data", read_known_rows(task, table, log, progress, stop), table.hash())
    if len(examples) < FEW:
        where = listed([*data.text, *data.source, *data.files], 2)
        raise UserError(f"{where}: {len(examples)} texts are too few to learn from; {FEW} are the least")
    if data.dev or data.dev_source or data.dev_target:
        count, table = len(examples), table_of(data, dev=True)
        rows = read_known_rows(task, table, log, progress, stop)
        labeled = [row for row in rows if task.has_target(row)]
        add("dev", labeled or rows, table.hash())
        numbers = range(count), range(count, len(examples))
        return Dataset(examples, *numbers, hashes, parts=tuple(parts), labeled_dev=bool(labeled))
    known = [number for number, example in enumerate(examples) if task.has_target(example)]
    by_labels = len(known) >= ENOUGH
    held = _held_out(task, examples, known if by_labels else range(len(examples)), data, by_labels)
    train = [number for number in range(len(examples)) if number not in held]
    places = [examples[number].where for number in sorted(held)]
    return Dataset(examples, train, sorted(held), hashes, places, parts=tuple(parts), labeled_dev=by_labels)


def _held_out(
    task: Task, examples: Sequence[Example], numbers: Sequence[int], data: DistillDataSection, by_labels: bool
) -> set[int]:
    """Some of these examples; none whose texts are also among the others."""
    rows = [examples[number] for number in numbers]
    if task.whole_groups:
        places = split_whole(task.groups(rows), data.holdout, data.split)[1]
    else:
        places = split(task.groups(rows) if by_labels else ["" for _ in rows], data.holdout, data.split)[1]
    held = {numbers[place] for place in places}
    learned = {example.texts for number, example in enumerate(examples) if number not in held}
    return {number for number in held if examples[number].texts not in learned} or held


def read_lines(
    names: Sequence[str], data: DistillDataSection, format: str | None, log: Log, progress: Progress, stop: Stop
) -> list[Example]:
    """Unlabeled texts, one on each line of a file or in its column."""
    skipped, examples = Skipped(), list[Example]()
    texts = read_texts(
        TextFiles(tuple(names)).paths(),
        column=data.columns.get("text", "text"),
        format=format,
        delimiter=data.delimiter,
        on_bad_row=data.on_bad_row,
        skipped=skipped,
        encoding=data.encoding,
    )
    with progress("reading the texts", "texts") as advance:
        for text in texts:
            stop.check("stopped while reading")
            examples.append(Example((text.text,), None, text.where))
            advance(1)
    log_notes(skipped.lines(), log)
    if not examples:
        raise UserError(f"{listed(names, 2)}: there is no text in it: nothing to learn from")
    return examples


def _read_sources(
    task: Task, data: DistillDataSection, log: Log, progress: Progress, stop: Stop
) -> tuple[list[Example], str]:
    """The lines of --source, each with that of --target beside it where there is one; and their hash."""
    if data.target:
        table = Table.parallel(data.source, data.target, data.on_bad_row, data.encoding)
        return read_rows(task, table, log, progress, stop), table.hash()
    files = TextFiles(data.source, on_bad_row=data.on_bad_row, encoding=data.encoding)
    return read_lines(data.source, data, None, log, progress, stop), files.hash()


def read_rows(task: Task, table: Table, log: Log, progress: Progress, stop: Stop) -> list[Example]:
    """All rows of a table, with or without targets."""
    skipped, names = Skipped(), set[str]()

    def begin(record: Record) -> tuple[Mapping[str, str], Callable[[Record], Example]]:
        reader = Reader.of(task, record, table.columns, skipped.note)
        names.update(reader.inputs, reader.columns)
        return reader.inputs, reader.read

    with progress(f"reading {table.name}", "rows") as advance:
        examples = list(read_table(table, begin, skipped, stop.watched(advance, "stopped while reading")))
    log_notes(skipped.lines(), log)
    if not examples:
        raise UserError(f"{table.name}: there are no rows")
    examples = normalized(examples, task.normalization(), table.name, log)
    lost = [name for name in table.columns if name not in names]
    if lost:
        raise UserError(f"{table.name}: no column {shown(table.columns[lost[0]])!r}, which --column says is {lost[0]}")
    return examples


def read_known_rows(task: Task, table: Table, log: Log, progress: Progress, stop: Stop) -> list[Example]:
    """The same, with the labels of the teacher alone."""
    examples = read_rows(task, table, log, progress, stop)
    labeled = [example for example in examples if task.has_target(example)]
    labels = {label for example in labeled for label in task.labels_of(example)}
    if labels and not labels & set(task.labels):
        raise UserError(
            f"{file_of(labeled[0].where)}: no common labels: its rows have "
            f"{listed([shown(label) for label in sorted(labels)], 6)}, the teacher has {listed(task.labels, 6)}"
        )
    return checked(task, examples, table.on_bad_row, log)

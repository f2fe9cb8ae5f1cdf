"""Sources of a teacher that writes: lines of text, with what is right there where that is known."""

from __future__ import annotations

from weft.data.shards import TextFiles
from weft.data.tables import Table
from weft.distillation.recipe import DistillRecipe
from weft.errors import UserError, listed
from weft.progress import Log, Progress, log_notes
from weft.tasks.base import Example, Task
from weft.tasks.seq2seq import SequenceTask
from weft.text.row_problems import Skipped
from weft.training.signals import Stop


def read_sources(
    task: Task, recipe: DistillRecipe, dev: bool, log: Log, progress: Progress, stop: Stop
) -> tuple[list[Example], str]:
    """The lines of --source, each with that of --target beside it where there is one; and what stands for them."""
    data = recipe.data
    source, target = (data.dev_source, data.dev_target) if dev else (data.source, data.target)
    if not isinstance(task, SequenceTask):
        raise UserError(f"a teacher for {task.name} writes nothing from a source: give --text or --data, not --source")
    skipped, found = Skipped(), list[Example]()
    where = listed([*source, *target], 2)
    with progress(f"reading {where}", "texts") as told:
        if target or dev:
            files = Table.parallel(source, target, data.on_bad_row, data.encoding)
            for record in files.records(skipped):
                stop.check("stopped while reading")
                found.append(Example((record.values["source"],), record.values["target"], record.where))
                told(1)
            digest = files.hash()
        else:
            text = TextFiles(source, on_bad_row=data.on_bad_row, encoding=data.encoding)
            for number, line in enumerate(text.read(skipped), 1):
                stop.check("stopped while reading")
                found.append(Example((line,), None, f"{where} text {number}"))
                told(1)
            digest = text.hash()
    log_notes(skipped.lines(), log)
    if not found:
        raise UserError(f"{where}: there is no text in it: nothing to {'judge by' if dev else 'learn from'}")
    return found, digest

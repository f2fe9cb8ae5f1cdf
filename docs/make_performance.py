"""Write docs/performance.md and the figures in the README from the JSON files in benchmarks/results.

python docs/make_performance.py

All figures of the page come from those files: where a file or a key is missing, a cell is empty, or a line names the
script that measures it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE, README = DOCS / "performance.md", DOCS.parent / "README.md"
BEGIN, END = "<!-- figures: python docs/make_performance.py -->", "<!-- end of figures -->"
HEADER = ("", "Weft", "peer", "ratio", "goal", "reached")
ABOUT = """# Performance

The speed of Weft compared with other libraries for the same work. Unless a section says otherwise, both sides have the
same sizes, weights and texts, and run in turns in one process; the figures are medians. "Ratio" is how many times as
fast as the peer Weft is; for memory and p99 it is Weft's value divided by the peer's. "Goal" is the target; missed
goals are shown too. [`weft bench`](bench.md) measures your model on your machine.

`python docs/make_performance.py` writes this page from the files in `benchmarks/results/`; the commands below write
those files. The CPUs were shared with other programs: compare ratios there, not absolute figures. Quality, and the
speed of other parts, is in [benchmarks](benchmarks.md)."""
Rows = list[Sequence[str]]


@dataclass(frozen=True)
class Goal:
    """A target for a figure."""

    limit: float
    below: bool = False  # the figure should be at most the limit, not at least
    unit: str = " x"

    def cells(self, value: float | None) -> tuple[str, str]:
        """The goal, and whether a figure reaches it."""
        text = f"{'<=' if self.below else '>='} {self.limit:g}{self.unit}"
        if value is None:
            return text, "not measured"
        return text, "yes" if (value <= self.limit if self.below else value >= self.limit) else "no"


# The goals of each work, by the beginning of its name in the results.
TRAINING = {"BERT-base MLM, 64": Goal(1.6), "BERT-base MLM, 256": Goal(6.0), "GPT-2 124M": Goal(1.45)}
PEAK, MEMORY = Goal(50, unit=" %"), Goal(0.7, below=True)
DECODING = {"GPT-2 124M, greedy, batch 1,": {"transformers static, compiled": Goal(4.0)}}
DECODING |= {"GPT-2 124M, greedy, batch 32,": {"transformers": Goal(12.0)}}
BEAMS = Goal(8.0)
ENCODING = {"BERT encode, 1 x 128": Goal(0.7, True, " ms"), "BERT encode, 32 x 128": Goal(1.0)}
TEXTS = Goal(4.0)
NEAR = Goal(0.95)  # ahead of the fastest peer, or within 5 % of it
TWICE = Goal(2.0)
HOUSEHOLD = {"chosen over transformers pipeline": Goal(3.0), "chosen over sentence-transformers": Goal(1.5)}


def at(values: Any, *keys: str | int) -> Any:
    """A value inside of nested JSON; None where something on the way is missing."""
    for key in keys:
        if isinstance(values, list):
            values = dict(enumerate(values))
        if not isinstance(values, Mapping) or key not in values:
            return None
        values = values[key]
    return values


def part(values: Any, *keys: str | int) -> Mapping[str, Any]:
    """The same, where an object is expected."""
    value = at(values, *keys)
    return value if isinstance(value, Mapping) else {}


def works(values: Any) -> list[Mapping[str, Any]]:
    return [work for work in at(values, "works") or [] if isinstance(work, Mapping)]


def words(values: Any, *keys: str | int) -> str:
    """A text inside of nested JSON; an empty one where it is missing."""
    value = at(values, *keys)
    return "" if value is None else str(value)


def text(value: Any, digits: int = 2, unit: str = "", scale: float = 1.0) -> str:
    """A number as the page shows it; nothing where there is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    return f"{value * scale:,.{digits}f}{unit}"


def share(ours: Any, theirs: Any) -> float | None:
    """How many times as much; None where one of them is missing."""
    numbers = isinstance(ours, int | float) and isinstance(theirs, int | float) and theirs
    return ours / theirs if numbers else None


def line(
    name: str, ours: str, theirs: str = "", ratio: float | None = None, goal: Goal | None = None, value: Any = None
) -> list[str]:
    """A row of a table; the goal is for the ratio, or for `value` where one is given."""
    judged = ratio if value is None else value
    return [name, ours, theirs, text(ratio), *(goal.cells(judged) if goal is not None else ("", ""))]


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = HEADER) -> str:
    """A table of Markdown; nothing without rows."""
    rows = list(rows)
    if not rows:
        return ""
    lines = [f"| {' | '.join(row)} |".replace("  ", " ") for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def goal_of(goals: Mapping[str, Any], name: str) -> Any:
    return next((goal for begin, goal in goals.items() if name.startswith(begin)), None)


def about(values: Any) -> str:
    """The machine, the versions and the day."""
    machine = at(values, "machine")
    given = at(machine, "about") or (machine if isinstance(machine, str) else at(values, "device"))
    parts = [str(given)] if given else []
    parts += [part(values, "machine")["cpu"]] if "cpu" in part(values, "machine") else []
    names = ("torch", "transformers", "sentence-transformers", "onnxruntime", "ctranslate2")
    versions = {**part(values, "machine"), **part(values)}
    parts += [f"{name} {versions[name]}" for name in names if isinstance(versions.get(name), str)]
    parts += [str(at(values, name)) for name in ("date", "remark") if at(values, name)]
    return ", ".join(parts)


def source(command: str, *files: Any, more: str = "") -> str:
    """The command that measured a table, with the machine and the versions."""
    machines = list(dict.fromkeys(filter(None, map(about, files))))
    return " ".join(filter(None, [f"`{command}`:", "; ".join(machines) + "." if machines else "not measured.", more]))


class Page:
    """The sections of the page, from the results in one folder."""

    def __init__(self, results: Path = RESULTS) -> None:
        self.results = results

    def read(self, name: str) -> Any:
        path = self.results / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write(self) -> str:
        sections: list[tuple[str, Callable[[], list[str]]]] = [
            ("Training on a GPU", self.training),
            ("Whole runs on a GPU", self.whole_runs),
            ("Decoding on a GPU", self.decoding_gpu),
            ("Encoding on a GPU", self.encoding_gpu),
            ("Encoding on two CPU cores", self.encoding_cpu),
            ("Decoding on two CPU cores", self.decoding_cpu),
            ("Growth of time and memory", self.growth),
            ("Complexity of layers", self.complexity),
            ("Start-up", self.startup),
            ("Serving", self.serving),
            ("Counting and vectors", self.counting),
            ("The word loss in chunks", self.word_loss),
        ]
        parts = [ABOUT]
        for title, section in sections:
            parts += [f"## {title}", *section()]
        return "\n\n".join(filter(None, parts)) + "\n"

    def training(self) -> list[str]:
        step, ragged = self.read("train_gpu"), self.read("ragged_gpu")
        rows: Rows = []
        for work in works(step):
            rows += training_rows(work)
        if not any(words(work, "work").startswith("gpt2-medium") for work in works(step)):
            rows.append(line("gpt2-medium, 32 x 1024: share of peak", "", goal=PEAK))
        speeds = part(ragged, "real tokens per second")
        ours, theirs = speeds.get("ours compiled"), speeds.get("transformers compiled")
        peer = f"{text(theirs, 0)}, transformers compiled"
        if speeds:
            rows.append(line(words(ragged, "work"), text(ours, 0), peer, share(ours, theirs), Goal(6.0)))
        return [
            source("python benchmarks/train_gpu.py", step),
            source("python benchmarks/ragged.py --gpu", ragged, more="The last row, which repeats one batch."),
            "Tokens per second of training steps in bf16 with fused AdamW; with dropout, where nothing else is said.",
            table(rows),
        ]

    def whole_runs(self) -> list[str]:
        book, alone, pairs = (self.read(name) for name in ("pretrain_book", "finetune_alone", "translate/transformer"))
        rows: Rows = []
        if part(book):
            ours, bare = at(book, "weft pretrain", "tokens per second"), at(book, "bare step, tokens per second")
            name = f"`weft pretrain` on a book, {words(book, 'work')}: tokens/s"
            rows.append(line(name, text(ours, 0), text(bare, 0, ", the step alone"), at(book, "ratio"), Goal(0.95)))
        for run in at(alone, "runs") or []:
            quality = f"{text(at(run, 'score'), 4)} {words(run, 'measure')}".strip()
            ours = f"{text(at(run, 'seconds'), 1)} s, {quality}"
            name, goal = (
                f"`weft finetune`, {words(run, 'work')}, seed {words(run, 'seed')}: whole call",
                Goal(25, True, " s"),
            )
            rows.append(line(name, ours, words(alone, "peer"), None, goal, at(run, "seconds")))
        if part(pairs):
            seconds, bleu = at(pairs, "seconds in all"), at(pairs, "test_2016_flickr", "scores", "bleu", 0)
            name = f"Multi30k, English to German, {words(pairs, 'epochs')} epochs: whole call"
            beside = f" (at the same time as {at(pairs, 'ran beside')})" if at(pairs, "ran beside") else ""
            goal = Goal(60, True, " s")
            rows.append(line(name, f"{text(seconds, 0)} s, {text(bleu)} BLEU{beside}", "", None, goal, seconds))
        commands = ["python benchmarks/pretrain_book.py --text BOOK.txt", "python benchmarks/finetune.py sst2 SEED"]
        commands.append("python benchmarks/translate.py --train transformer")
        made = [source(command, values) for command, values in zip(commands, (book, alone, pairs), strict=True)]
        return [*made, table(rows)]

    def decoding_gpu(self) -> list[str]:
        values, rows = self.read("generate_gpu"), []
        for work in works(values):
            rows += decoding_rows(work)
        note = (
            "Both sides in bf16 with the same weights and prompts. The bandwidth limit of a step is the time it takes "
            "to read all weights and the cache once, at 4.2 TB/s."
        )
        speed = self.read("translate_speed_gpu")
        made = [source("python benchmarks/generate_gpu.py", values)]
        made.append(source("python benchmarks/translate.py --speed FOLDER", speed, more="The last row."))
        return [*made, note, table([*rows, *translation_rows(speed)])]

    def encoding_gpu(self) -> list[str]:
        values, rows = self.read("encode_gpu"), []
        for work in works(values):
            rows += encoding_rows(work)
        note = (
            "Weft as `weft.load` runs it: an fp16 copy of the weights, and small passes captured as CUDA graphs. "
            "transformers runs in bf16."
        )
        return [source("python benchmarks/encode_gpu.py --weights FOLDER", values), note, table(rows)]

    def encoding_cpu(self) -> list[str]:
        values = self.read("encode_cpu")
        rows: Rows = []
        every: list[tuple[str, Mapping[str, Any]]] = []
        for model, parts in part(values).items():
            for name, measured in parts.items() if isinstance(parts, Mapping) else []:
                for work in works(measured):
                    title = f"{TITLES.get(model, model)}, {words(work, 'work')}"
                    title += f", {text(at(work, 'tokens'), 0)} tokens" if work.get("work") == "mixed" else ""
                    title += ", with a head for labels" if name == "labels" else ""
                    rows += encoder_rows(title, work)
                    every.append((title, part(work, "milliseconds")))
        names = list(dict.fromkeys(name for _, times in every for name in times))
        times = table(
            ([name, *(text(one.get(name), 3 if one.get(name, 0) < 10 else 1) for _, one in every)] for name in names),
            ["ms"] + [title for title, _ in every],
        )
        note = (
            "Weft runs the backend that `weft bench` chooses for these texts, and the peer is the fastest that passes "
            "[the same agreement gate](bench.md#which-backends-may-be-chosen). Tokenizing is included."
        )
        made = source("python benchmarks/encode_cpu.py", values)
        return [made, note, table(rows), *(["All backends and peers, in milliseconds:", times] if every else [])]

    def decoding_cpu(self) -> list[str]:
        values = self.read("decode_cpu")
        rows: Rows = []
        for name, work in part(values).items():
            for pair, ratio in part(work, "times as fast").items():
                ours, _, theirs = pair.partition(" / ")
                speeds = [text(at(work, side, "tokens/s"), 1) for side in (ours, theirs)]
                is_chosen = at(work, "chosen") in (None, ours)
                mark = ", chosen" if at(work, "chosen") == ours else ""
                goal = NEAR if theirs != "transformers" else TWICE if is_chosen else None
                title = f"{name}: tokens/s"
                rows.append(line(title, f"{speeds[0]}, {ours}{mark}", f"{speeds[1]}, {theirs}", ratio, goal))
        speed = self.read("translate_speed_cpu")
        rows += translation_rows(speed, {"batch 1": TWICE})
        made = [source("python benchmarks/decode_cpu.py", values)]
        made.append(source("python benchmarks/translate.py --speed FOLDER", speed, more="The last two rows."))
        note = '"Chosen" marks the backend that `weft bench` chooses for this work; goals over transformers are for it.'
        return [*made, note if rows else "", table(rows)]

    def growth(self) -> list[str]:
        values = self.read("growth_cpu")
        rows: Rows = []
        for by in ("length", "batch", "parameters"):
            points = at(values, by, "points") or []
            sizes = [text(at(point, by), 0) for point in points]
            reach = f"{by}, {sizes[0]} to {sizes[-1]}" if sizes else by
            for what, fit in part(values, by, "exponents").items():
                goal = Goal(at(fit, "bar"), True, "") if at(fit, "bar") else None
                largest = max((v for v in (at(fit, "all"), at(fit, "upper half")) if v is not None), default=None)
                figures = text(at(fit, "all")), text(at(fit, "upper half"))
                rows.append([reach, what, *figures, *(goal.cells(largest) if goal else ("", ""))])
        note = (
            "The forward pass and the training step of an encoder, while one size grows. The exponent is the slope of "
            "a line through the logarithms: 1 is linear growth, 2 quadratic. It is fitted to all points and to the "
            "upper half of them; both must reach the goal."
        )
        header = ["what grows", "measured", "exponent", "upper half", "goal", "reached"]
        return [source("python benchmarks/growth.py", values), note, table(rows, header)]

    def complexity(self) -> list[str]:
        values = self.read("complexity")
        rows: Rows = []
        for kind, layer in part(values, "layers").items():
            counted = [" ".join(map(str, at(layer, name) or [])) for name in ("steps", "path")]
            slopes = [text(at(layer, "exponents", name)) for name in ("length", "width")]
            paper = [words(layer, "paper", name) for name in ("time", "steps", "path")]
            rows.append([kind, paper[0], *slopes, paper[1], counted[0], paper[2], counted[1]])
        lengths = next((at(one, "lengths") for one in part(values, "layers").values() if at(one, "lengths")), [])
        header = ["layer", "time in the paper", "exponent by length", "by width", "sequential steps", "counted"]
        header += ["longest path", "counted"]
        begins = [text(at(values, f"by {by}", "from"), 0) for by in ("length", "width")]
        note = (
            "Table 1 of Attention Is All You Need (Vaswani et al., 2017), measured on the layers of Weft: n is the "
            f"length, d the width, k the width of the kernel. The exponents are fitted to lengths from {begins[0]} and "
            f"widths from {begins[1]}. Steps and paths are counted at lengths of {', '.join(map(str, lengths))}."
        )
        plot = "![Time of a layer by length and by width](complexity.svg)"
        made = source("python benchmarks/complexity.py --plot docs/complexity.svg", values)
        return [made, note, table(rows, header), *([plot] if (DOCS / "complexity.svg").is_file() else [])]

    def startup(self) -> list[str]:
        values = self.read("startup")
        rows: Rows = []
        bare = at(values, "seconds", "import torch", "answer")
        for name, times in part(values, "seconds").items():
            answer = at(times, "answer")
            if name == "import torch" or answer is None:
                continue
            extra = None if bare is None else answer - bare
            goal = Goal(0.0 if name.endswith("(onnx)") else 0.5, True, " s more")
            name = f"first answer of a new process, `{name.replace(' (', '` (')}"
            rows.append(line(name, text(answer, 2, " s"), text(bare, 2, " s, `import torch`"), None, goal, extra))
        for name, times in part(values, "tokenizer, milliseconds").items():
            ours, theirs = at(times, "weft"), at(times, "library alone")
            title = f"load a tokenizer of {text(at(times, 'tokens'), 0)} tokens ({name}) again"
            peer, first = text(theirs, 1, " ms, the library alone"), text(at(times, "weft, first time"), 1, " ms")
            ours_cell = f"{text(ours, 1, ' ms')} ({first} the first time)" if first else text(ours, 1, " ms")
            rows.append(line(title, ours_cell, peer, share(theirs, ours), Goal(50, True, " ms"), ours))
        rates = part(values, "throughput")
        api = rates.get("api, texts a second")
        for name, title in (("pipe", "`weft predict` in a pipe"), ("table", "`weft predict --data`")):
            ours, ratio = rates.get(f"{name}, texts a second"), rates.get(f"{name} against api")
            peer = text(api, 0, ", the Python API")
            if ours is not None:
                rows.append(line(f"{title}: texts/s", text(ours, 0), peer, ratio, Goal(0.9)))
        note = (
            "The peer of a first answer is `import torch` in a new process. A tokenizer file is checked the first time "
            "that it is loaded; for a large one the cache then records that it is sound."
        )
        return [source("python benchmarks/startup.py", values), note if rows else "", table(rows)]

    def serving(self) -> list[str]:
        values = self.read("serve")
        entries = {name: part(values, name) for name in ("classify", "generate", "overload", "soak", "parity")}
        rows: Rows = [*classified(entries["classify"])]
        for name, work in entries["generate"].items():
            speeds = part(work, "tokens a second")
            if speeds:
                ours, alone = speeds.get("together"), speeds.get("one at a time")
                title = f"generate, {name}, 16 clients: tokens/s"
                rows.append(line(title, text(ours, 0), text(alone, 0, ", one at a time"), at(work, "ratio"), Goal(4.0)))
        storm, soak = entries["overload"], entries["soak"]
        if storm:
            under, calm = at(storm, "accepted", "p99"), at(storm, "p99 at 80 %")
            title = "ten times the capacity: p99 of accepted requests"
            calm_cell = text(calm, 0, " ms, at 80 % of the capacity")
            rows.append(line(title, text(under, 0, " ms"), calm_cell, share(under, calm), Goal(2.0, True)))
            refused, rate = at(storm, "refused", "p99"), at(storm, "accepted a second")
            rows.append(line("ten times the capacity: p99 of a refusal", text(refused, 0, " ms")))
            capacity = at(storm, "capacity, requests a second")
            title = "ten times the capacity: requests/s answered"
            rows.append(line(title, text(rate, 0), text(capacity, 0, ", the capacity"), share(rate, capacity)))
            again = at(storm, "share of capacity from 2 seconds after it on")
            title = "from two seconds after the overload: share of the capacity"
            rows.append(line(title, text(again), goal=Goal(0.9, unit=""), value=again))
        if soak:
            grown, count = at(soak, "growth, %"), text(at(soak, "requests"), 0)
            first, last = (text(at(soak, f"memory {when}, MiB"), 0) for when in ("after a tenth", "at the end"))
            title, ours = f"{count} mixed requests: growth of memory", f"{text(grown)} % ({first} to {last} MiB)"
            rows.append(line(title, ours, goal=Goal(2.0, True, " %"), value=grown))
            broken = at(soak, "broken")
            rows.append(
                line(f"{count} mixed requests: without a reply", text(broken, 0), goal=Goal(0, True, ""), value=broken)
            )
        for backend, work in entries["parity"].items():
            if isinstance(work, dict):
                ours = f"{text(at(work, 'other labels'), 0)} of {text(at(work, 'texts'), 0)}, probabilities within "
                worst = at(work, "largest difference of a probability")
                ours += "" if worst is None else f"{worst:.1g}"
                title = f"other labels than `weft predict`, {backend}"
                rows.append(line(title, ours, goal=Goal(0, True, ""), value=at(work, "other labels")))
        note = (
            "Requests of one text with 4 to 160 words to a 6 x 384 encoder; server and clients share two cores. The "
            "peer is FastAPI with a pipeline of transformers on the same weights, in a thread pool; the better of two "
            "settings of its threads is shown. p99 is in parentheses. The ratio at equal p99 divides the highest rate "
            "of Weft whose p99 is not above that of the peer by the rate of the peer; the lowest ratio is shown."
        )
        made = source("python benchmarks/serve.py", *entries.values())
        return [made, *([note] if rows else []), table(rows)]

    def counting(self) -> list[str]:
        ngram, vectors = self.read("ngram"), self.read("vectors_cbow")
        rows: Rows = []
        for row in at(ngram, "nltk", "rows") or []:
            theirs = at(row, "nltk_queries_per_second")
            for key, way in (("weft_one_by_one_per_second", "one by one"), ("weft_queries_per_second", "in sentences")):
                ours, goal = at(row, key), Goal(1.0) if "one" in way else None
                name = f"n-gram queries/s, {words(row, 'smoothing')}, {way}"
                rows.append(line(name, text(ours, 0), text(theirs, 0, ", NLTK"), share(ours, theirs), goal))
        rounds = at(vectors, "cpu", "words", "rounds") or []
        ratios = part(vectors, "cpu", "words", "times_gensim_cbow")
        if ratios:
            middle = {
                side: text(
                    sorted(at(one, "cbow", side, "words_per_second") or 0 for one in rounds)[len(rounds) // 2], 0
                )
                for side in ("weft", "gensim")
                if rounds
            }
            spread = f"{text(ratios.get('least'))} to {text(ratios.get('most'))}"
            name = f"CBOW, words/s, medians of {len(rounds)} rounds (ratios {spread})"
            ours, peer = middle.get("weft", ""), f"{middle.get('gensim', '')}, gensim"
            rows.append(line(name, ours, peer, ratios.get("median"), Goal(1.0)))
        commands = (("python benchmarks/ngram.py --lmplz PATH", part(ngram, "nltk")), (CBOW, part(vectors, "cpu")))
        made = [source(command, values) for command, values in commands]
        return [*made, table(rows)]

    def word_loss(self) -> list[str]:
        values, rows = self.read("word_loss_cpu"), []
        for size in at(values, "sizes") or []:
            whole, chunked = at(size, "seconds", "whole"), at(size, "seconds", "chunked")
            counts = [text(at(size, name), 0) for name in ("predictions", "width", "words")]
            name = f"{counts[0]} predictions, width {counts[1]}, {counts[2]} words"
            held = [text(at(size, key), 0, " MB", 1e-6) for key in ("chunk_bytes", "logits_bytes")]
            ours, theirs = f"{text(chunked)} s, {held[0]}", f"{text(whole)} s, {held[1]}"
            rows.append([name, ours, theirs, text(share(whole, chunked))])
        note = (
            "Forward and backward pass of the cross-entropy over a vocabulary: in chunks, as in training, and with all "
            "logits at once. The megabytes are those of the logits that exist at the same time."
        )
        header = ["", "in chunks", "whole", "ratio"]
        return [source("python benchmarks/word_loss.py", values), note, table(rows, header)]

    def summary(self) -> list[str]:
        """The figures of the README."""
        parts = []
        for file, begin, unit, peer, what in SUMMARY:
            values = self.read(file)
            for work in works(values):
                if words(work, "work").startswith(begin) and peer in part(work, unit):
                    ours, ratio = at(work, unit, "ours"), at(work, "ratio", peer) or at(work, "ratio")
                    figures = f"{text(ours, 0)} {unit}, {text(ratio)} x {peer}"
                    model = words(work, "model")
                    name = what.format(words(work, "work") + (f", {model} encoder" if model else ""))
                    parts.append(f"- {name}: {figures} ({words(values, 'date')})")
        return parts


def classified(values: Mapping[str, Any]) -> Iterator[list[str]]:
    """Rows of requests a second by clients, each side beside the better peer, and at equal p99."""
    measured, compared = part(values, "clients"), part(values, "against the peer")
    peers = {name: points for name, points in measured.items() if not name.startswith("weft ")}
    for name, points in measured.items():
        if name in peers or not isinstance(points, Mapping):
            continue
        for clients, point in points.items():
            best = max((part(peer, clients) for peer in peers.values()), key=rate_of, default={})
            cells = [
                f"{text(at(side, 'requests a second'), 0)} ({text(at(side, 'p99'), 0, ' ms')})"
                for side in (point, best)
            ]
            title = f"classify, {name.removeprefix('weft ')}, {clients} client{'s' * (clients != '1')}: requests/s"
            ratio = share(at(point, "requests a second"), at(best, "requests a second"))
            yield line(title, *cells, ratio, Goal(1.0) if clients == "1" else None)
        least = at(compared, name, "least at equal p99")
        if least is not None:
            yield line(f"classify, {name.removeprefix('weft ')}, lowest ratio at equal p99", "", "", least, Goal(3.0))


def rate_of(point: Mapping[str, Any]) -> float:
    rate = point.get("requests a second")
    return rate if isinstance(rate, int | float) else 0.0


# The figures of the README: file, beginning of the work's name, unit, peer, and title.
SUMMARY = (
    (
        "generate_gpu",
        "GPT-2 124M, greedy, batch 1,",
        "tokens per second",
        "transformers static, compiled",
        "decoding, {}",
    ),
    ("encode_gpu", "4096 texts", "texts per second", "sentence-transformers", "encoding, {}"),
    ("train_gpu", "GPT-2 124M, 32 x 1024", "tokens per second", "transformers compiled", "training, {}"),
)
TITLES = {"minilm": "6 x 384", "bert-base": "BERT-base"}
CBOW = "python benchmarks/vectors.py --only words --ways cbow --reviews 8000 --rounds 5 --peer-rates 0.05"


def remarked(name: str, work: Mapping[str, Any]) -> str:
    """The name of a work with what has to be said of its figures."""
    return f"{name} ({words(work, 'remark')})" if work.get("remark") else name


def training_rows(work: Mapping[str, Any]) -> Rows:
    """Speed, share of peak and memory of one kind of step."""
    name, goal = words(work, "work"), goal_of(TRAINING, words(work, "work"))
    title = remarked(name, work)

    def both(key: str) -> tuple[Any, Any]:
        values = part(work, key)
        return values.get("ours"), next((value for side, value in values.items() if side != "ours"), None)

    peer = next((side for side in part(work, "tokens per second") if side != "ours"), "")
    speed, peak, memory = both("tokens per second"), both("share of peak"), both("peak memory GiB")
    full = PEAK if name.startswith(("GPT-2", "gpt2-medium")) else None
    held = MEMORY if peer and name.startswith("GPT-2") else None
    percent = None if peak[0] is None else 100 * peak[0]
    theirs = f"{text(speed[1], 0)}, {peer}" if peer else ""
    return [
        line(title, text(speed[0], 0), theirs, share(*speed) if peer else None, goal if peer else None),
        line("share of peak", text(peak[0], 1, " %", 100), text(peak[1], 1, " %", 100), None, full, percent),
        line("peak memory", text(memory[0], 1, " GiB"), text(memory[1], 1, " GiB"), share(*memory), held),
    ]


def decoding_rows(work: Mapping[str, Any]) -> Rows:
    """One line for each peer, and one for the limit of the bandwidth."""
    name = words(work, "work")
    unit = "tokens per second" if "tokens per second" in work else "sentences per second"
    goals = goal_of(DECODING, name) or ({} if "greedy" in name else dict.fromkeys(part(work, "ratio"), BEAMS))
    ours = text(at(work, unit, "ours"), 0)
    rows: Rows = [
        line(
            f"{remarked(name, work)}: {unit}", ours, f"{text(at(work, unit, peer), 0)}, {peer}", ratio, goals.get(peer)
        )
        for peer, ratio in part(work, "ratio").items()
    ]
    limit = work.get("times the bandwidth limit")
    if isinstance(limit, int | float):
        step = text(at(work, "milliseconds a step", "ours"), 3, " ms")
        least = text(share(at(work, "milliseconds a step", "ours"), limit), 3, " ms, the limit")
        rows.append(["time of a step, as a multiple of the bandwidth limit", step, least, text(limit), "", ""])
    return rows


def translation_rows(speed: Any, goals: Mapping[str, Goal] | None = None) -> Rows:
    """Translation of a test set beside transformers, by batch."""
    rows: Rows = []
    for batch, rates in part(speed).items():
        if isinstance(rates, Mapping) and batch.startswith("batch"):
            speeds = [text(rates.get(f"{side} sentences/s"), 1) for side in ("weft", "transformers")]
            name, peer = f"Multi30k's test 2016, fp32, beam 5, {batch}: sentences/s", f"{speeds[1]}, transformers"
            rows.append(line(name, speeds[0], peer, rates.get("times as fast"), (goals or {}).get(batch)))
    return rows


def encoding_rows(work: Mapping[str, Any]) -> Rows:
    """One line for each peer of a pass, or of a call with texts."""
    name = words(work, "work")
    if "texts per second" in work:
        ours = at(work, "texts per second", "ours")
        return [
            line(f"{name}, {words(work, 'model')}: texts/s", text(ours, 0), f"{text(value, 0)}, {peer}", ratio, goal)
            for peer, value in part(work, "texts per second").items()
            if peer != "ours"
            for ratio, goal in [(share(ours, value), TEXTS if peer == "sentence-transformers" else None)]
        ]
    times, goal = part(work, "milliseconds"), goal_of(ENCODING, name)
    rows: Rows = []
    for peer, value in times.items():
        if peer == "ours":
            continue
        peer = peer.replace("ours", "Weft")
        ratio, best = share(value, times.get("ours")), goal if peer == "transformers, compiled" else None
        judged = times.get("ours") if best is not None and best.below else None
        rows.append(
            line(name, text(times.get("ours"), 3, " ms"), f"{text(value, 3, ' ms')}, {peer}", ratio, best, judged)
        )
    return rows


def encoder_rows(title: str, work: Mapping[str, Any]) -> Rows:
    """The chosen backend beside the fastest peer, and beside those that have a goal of their own."""
    times, chosen = part(work, "milliseconds"), words(work, "chosen")
    ours = f"{text(times.get(chosen), 2, ' ms')}, {chosen}"
    fastest = work.get("fastest peer")
    rows: Rows = []
    if isinstance(fastest, str):
        peer = f"{text(times.get(fastest), 2, ' ms')}, {fastest}"
        rows.append(line(title, ours, peer, work.get("chosen over it"), NEAR))
    for key, goal in HOUSEHOLD.items():
        name = key.removeprefix("chosen over ")
        if key in work and "mixed" in title:
            rows.append(line(title, ours, f"{text(times.get(name), 2, ' ms')}, {name}", work.get(key), goal))
    before = line(
        f"{title}: beside plain torch", ours, text(times.get("torch"), 2, " ms"), work.get("chosen over before")
    )
    return [*rows, before]


def readme_of(page: Page, text_before: str) -> str:
    """The README with new figures between its two marks."""
    figures = "\n".join([BEGIN, *page.summary(), END])
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: figures, text_before, flags=re.DOTALL)


def main() -> None:
    page = Page()
    PAGE.write_text(page.write(), encoding="utf-8")
    README.write_text(readme_of(page, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

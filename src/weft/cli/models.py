"""`weft models`, `info`, `new`, `curves`, `recipes`, and the groups `cache`, `tokenizer`, `vectors`, `arpa`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import weft
from weft.cli import inputs, late
from weft.cli.inputs import amount, table
from weft.cli.options import Flags, Given, Json, Jsonl, MoreFiles, Opening, OutFolder, argument, flag
from weft.config import settings_of, values_of
from weft.errors import UserError, did_you_mean, escaped, listed, shown
from weft.files import cache_folder, check_new_folder, whole_folder
from weft.progress import decimals, log_notes, to_stderr
from weft.progress import live as progress

if TYPE_CHECKING:
    from weft.vectors.space import Near, WordSpace

KINDS = ("fp32", "bf16", "int8")


def models(as_json: Json = False) -> None:
    """List every family with its sizes, weight and cost.

    The published sizes with their size as fp32, bf16 and int8, and what they can do. Operations are counted per token
    of a forward pass over a text that fills the context.

    Example: weft models
    """
    from weft import plugins

    rows = list[dict[str, Any]]()
    for family in late.families.FAMILIES.values():
        written = ("describe" if family.numbers else "translate", "generate") if family.reads else ("embed",)
        about = {
            "can": list(dict.fromkeys(["generate" if family.task == "complete" else family.task, *written])),
            "finetune": list(late.preparation.tasks_for(family)),
            "heads_published": list(family.names.heads),
            "paper": family.paper,
        }
        for name, config in family.sizes.items():
            sizes = {"layers": config.layers or None, "width": config.width or None, "heads": config.heads or None}
            costs = _costs(family, config, late.families.usual_heads(family, config))
            rows.append({"family": family.name, "size": name, **sizes, "context": config.context, **costs, **about})
    installed = plugins.sources(plugins.FAMILIES)
    if as_json:
        rows += [{"family": name, "plug_in": source} for name, source in installed.items()]
        print(json.dumps(rows, indent=2))
        return
    header = [*("family", "size", "layers", "width", "heads", "context"), "parameters", *KINDS, "FLOPs/token", "can"]
    lines = []
    for row in rows:
        cells = ["" if row[name] is None else str(row[name]) for name in header[:6]]
        weights = [amount(row[kind], "B") for kind in KINDS]
        can = ", ".join(row["can"])
        lines.append([*cells, amount(row["parameters"]), *weights, amount(row["flops_per_token"]), can])
    print(table(header, lines))
    for family in late.families.FAMILIES.values():
        print(f"{family.name}: {family.paper}; heads {', '.join(family.names.heads)}; {family.tokenizer} vocabulary")
    for name, source in installed.items():
        print(f"{escaped(name)}: plug-in of {escaped(source)}")
    print("\nweft finetune")
    for family in late.families.FAMILIES.values():
        if late.preparation.tasks_for(family):
            print(f"{family.name}: {', '.join(late.preparation.tasks_for(family))}")


def _costs(family: Any, config: Any, heads: dict[str, int]) -> dict[str, Any]:
    cost = late.families.measure(family, config, heads)
    sizes = {kind: cost.bytes(kind) for kind in KINDS}
    return {"parameters": cost.parameters, **sizes, "flops_per_token": cost.flops}


def info(
    model: Annotated[str, argument("MODEL", "A model folder, a name in the local cache, or a published size.")],
    runtime: Opening,
    as_json: Json = False,
) -> None:
    """Show what a model folder holds.

    Family, sizes, weight, cost, tokenizer, heads and card; also of a published size, such as bert-base.

    Example: weft info runs/gpt
    """
    if not any(model in sizes for sizes in late.locate.SIZE_NAMES.values()):
        inputs.check_models(model, **runtime)
    values = _about(model, runtime)
    if as_json:
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return
    card = values["card"]
    values |= {kind: amount(values[kind], "B") for kind in KINDS}
    values |= {"parameters": f"{values['parameters']:,}", "flops_per_token": amount(values["flops_per_token"])}
    values["card"] = {name: value for name, value in card.items() if name not in _SHOWN}
    for name, value in (values | _learned(card)).items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {text}" for key, inner in value.items() if (text := _plain(inner)))
        if value not in (None, ""):
            text = shown(str(value), 1 << 20)  # text of a folder may hold what confuses a terminal
            lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False) or [""]
            print(f"{name.replace('_', ' '):<15} {lines[0]}", *(f"{'':<15} {line}" for line in lines[1:]), sep="\n")


def _about(model: str, runtime: Given) -> dict[str, Any]:
    """What is in a folder, or in one of a published size."""
    kind, card, tokenizers, more = None, dict[str, Any](), dict[str, Any](), dict[str, Any]()
    if model in late.families.SIZES and not Path(model).exists():
        family, config = late.families.SIZES[model]
        heads, task = late.families.usual_heads(family, config), family.task
    else:
        loaded = weft.load(model, **runtime)
        family, config, heads = loaded.opened.family, loaded.config, dict(loaded.opened.heads)
        floats = (tensor for tensor in loaded.network.state_dict().values() if tensor.is_floating_point())
        kind = loaded.card.precision if loaded.opened.exported else str(next(floats).dtype).removeprefix("torch.")
        tokenizers = {"tokenizer": loaded.tokenizer, "target tokenizer": loaded.target_tokenizer}
        card, task = late.card.card_values(loaded.card), loaded.task
        if not loaded.opened.exported and config.mix and set(heads) - {"words"}:
            more = {
                "layer weights": {name: round(value, 4) for name, value in loaded.opened.network.mix.weights().items()}
            }
        if family.counts:
            more = {"bytes of tables": sum(buffer.nbytes for buffer in loaded.network.buffers())}
    vocabularies = {
        name: {"kind": each.kind, "vocabulary": each.vocabulary, "roles": values_of(each.roles)}
        for name, each in tokenizers.items()
        if each is not None
    }
    form = "published" if family.architecture(config, heads) else f"weft-{family.name}"
    about: Given = {
        "model": model,
        "family": family.name,
        "paper": family.paper,
        "task": task,
        "format": form,
        "heads": heads,
    }
    about |= {"stored as": kind, **_costs(family, config, heads), **more, "sizes": values_of(config)}
    return {**about, "tokenizer": None, **vocabularies, "card": card}


# Shown in lines of their own, or of no use to people.
_SHOWN = (
    "task",
    "labels",
    "window",
    "thresholds",
    "temperature",
    "metrics",
    "columns",
    "profiles",
    "files",
    "forecast",
)


def _learned(card: dict[str, Any]) -> dict[str, str]:
    """What fine-tuning has put into a card, for people."""
    lines = {}
    if card.get("labels"):
        lines["labels"] = f"{len(card['labels'])}: {', '.join(card['labels'])}"
    if card.get("columns"):
        lines["columns"] = ", ".join(f"{ours} = {theirs}" for ours, theirs in card["columns"].items())
    if forecast := card.get("forecast"):
        scale = "the mean and deviation of training" if forecast["center"] else "its own mean and deviation"
        lines["forecasts"] = ", ".join(forecast["values"]) + "".join(f", from {name}" for name in forecast["features"])
        if forecast["baseline"]:
            share = 100 * forecast["share"]
            lines["blend"] = f"{share:.0f} % network, {100 - share:.0f} % {forecast['baseline']}"
        lines["scale"] = f"each window by {scale}; season {forecast['season']}"
        lines["intervals"] = f"{100 * forecast['interval']:g} %" if forecast["margins"] else "not calibrated"
    elif window := card.get("window"):
        windows = f"read in windows, each {window['stride']} after the one before"
        lines["window"] = (
            f"{window['length']} tokens; a longer text is {'truncated' if window['long'] == 'truncate' else windows}"
        )
    if card.get("thresholds"):
        lines["thresholds"] = ", ".join(f"{name} {value:.4f}" for name, value in card["thresholds"].items())
    if card.get("temperature") is not None:
        lines["temperature"] = f"{card['temperature']:.4g}"
    scores = []
    for metric in card.get("metrics") or ():
        low, high = metric.get("low"), metric.get("high")
        between = "" if low is None or high is None else f" ({decimals(low)} to {decimals(high)})"
        scores.append(f"{metric['name']} {decimals(metric['value'])}{between}")
    return {**lines, "scores": ", ".join(scores)}


def _plain(value: Any) -> str:
    """A value inside a section: a section of its own in brackets."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) + ")"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def new(
    model: Annotated[str, flag("A family (bert, gpt2, t5 ...) or a published size (bert-tiny ...).", "NAME")],
    out: OutFolder,
    tokenizer: Annotated[Path | None, flag("Tokenizer folder; its size becomes the vocabulary.", "FOLDER")] = None,
    target_tokenizer: Annotated[Path | None, flag("Tokenizer folder of the target, if another.", "FOLDER")] = None,
    size: Annotated[str | None, flag("LAYERSxWIDTH, such as 3x256.", "SIZE")] = None,
    settings: Annotated[list[str] | None, flag("model.KEY=VALUE; repeatable.", "KEY=VALUE", "--set")] = None,
    seed: Annotated[int, flag("Seed of the weights.")] = 0,
) -> None:
    """Write a model folder with random weights.

    The start of a training run; --set chooses its blocks.

    Example: weft new --model gpt2 --size 2x128 --set model.positions=rotary --tokenizer tok/ --out runs/fresh
    """
    late.locate.check_name(model, size)
    sections = settings_of(settings or [])
    for name in sections:
        if name != "model" or not isinstance(sections[name], dict):
            hint = "" if name == "model" else did_you_mean(name, ["model"])
            raise UserError(f"--set {shown(name)}: only keys of the section model can be set, as model.KEY{hint}")
    check_new_folder(out)
    options: Given = {"target_tokenizer": target_tokenizer, "size": size, "seed": seed}
    made = weft.new(model, tokenizer, settings=sections.get("model", {}), **options)
    made.save(out)
    family = made.opened.family
    published = family.architecture(made.config, made.opened.heads)
    own = f"weft-{family.name}: {'a block was swapped' if family.architectures else 'no other library has it'}"
    kind = "published format" if published else own
    count = sum(parameter.numel() for parameter in made.network.parameters())
    print(f"{out}: {family.name}, {count:,} parameters, fresh weights from seed {seed} ({kind})")


def curves(
    runs: Annotated[list[Path], argument("FOLDER...", "Run folders.")],
    out: Annotated[Path, flag("HTML page to write.")] = Path("curves.html"),
) -> None:
    """Draw the loss curves of several runs on one page.

    Example: weft curves runs/* --out curves.html
    """
    kept = [run for run in runs if (run / "run" / "metrics.jsonl").is_file()]
    for other in runs:  # runs/* may hold models that were never trained
        if kept and other not in kept:
            to_stderr(f"weft: note: {other} is left out: it has no run/metrics.jsonl")
    late.pages.write_curves(kept or runs, out)
    print(f"{out}: {len(kept)} run{'s' * (len(kept) != 1)}")


def recipes(name: Annotated[str | None, argument("[RECIPE]", "Print this recipe.")] = None) -> None:
    """List the recipes of the package, or print one.

    Example: weft recipes shakespeare-gpt > mine.toml
    """
    if name is not None:
        print(late.recipes.find_recipe(name)[0], end="")
        return
    rows = [[key, text.splitlines()[0].lstrip("# ")] for key, text in late.recipes.shipped().items()]
    print(table(["recipe", "what it does"], rows))


def list_cache() -> None:
    """List cached tokenized texts and teacher outputs, with their size and time of last use.

    Example: weft cache list
    """
    rows = [
        [name[:12], amount(size, "B"), datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M"), files]
        for name, size, when, files in late.shards.cached()
    ]
    teachers = sum(row[-1].startswith("teacher ") for row in rows)
    outputs = f" and the outputs of {teachers} teacher{'s' * (teachers > 1)}" if teachers else ""
    print(f"{cache_folder()}: {len(rows) - teachers} tokenized texts{outputs}")
    if rows:
        print(table(["name", "size", "last used", "from"], rows))


def clear_cache() -> None:
    """Delete all cached files. They are made again when they are needed.

    Example: weft cache clear
    """
    print(f"freed {amount(late.shards.clear_cache(), 'B')}")


def learn_tokenizer(
    out: OutFolder,
    source: Annotated[Given, Flags("weft.runs.recipes:TextSection", without=("dev",))],
    more: MoreFiles = None,
    kind: Annotated[str | None, flag("wordpiece (default), bpe, unigram, word, whitespace, character.", "KIND")] = None,
    model: Annotated[str | None, flag("Use the kind and special tokens of this family.", "NAME")] = None,
    size: Annotated[int, flag("Tokens, special ones included.")] = 8000,
    lowercase: Annotated[bool | None, flag("Lowercase the text. Default: as published for the kind.")] = None,
    min_count: Annotated[int | None, flag("Lowest count of a piece. Default: 2, for characters 1.")] = None,
) -> None:
    """Learn a vocabulary. The same text gives the same vocabulary, byte for byte.

    Example: weft tokenizer learn --kind wordpiece --size 8000 --text corpus/*.txt --out tok/
    """
    files, special = source.pop("files", None), dict[str, Any]()
    if files is None:
        raise UserError("no text: give --text FILE")
    if model is not None:
        family = late.families.find_size(model)[0]
        kind, special = kind or family.tokenizer, {"specials": family.specials, "around": family.around}
    skipped = late.rows.Skipped()
    seen = 0

    def texts() -> Iterator[str]:
        nonlocal seen
        for document in late.records.read_texts([*files, *(more or [])], skipped=skipped, **source):
            seen += 1
            tick(1)
            yield document.text

    # The folder is tried first, so that a name that cannot be written does not cost the learning.
    with whole_folder(out) as inside, progress("reading", "documents") as tick:
        options = {"lowercase": lowercase, "min_count": min_count, **special}
        tokenizer = late.training.learn(texts(), kind or "wordpiece", size, **options)
        tokenizer.save(inside)
    log_notes(skipped.lines(), to_stderr)
    less = "" if tokenizer.vocabulary == size else f" (of {size} requested; the text has no more)"
    print(f"{out}: {tokenizer.kind}, {tokenizer.vocabulary} tokens{less}, from {seen} documents")


def show_tokens(
    folder: Annotated[Path, argument("FOLDER", "A tokenizer or model folder, or one of its files.")],
    text: Annotated[str, argument("TEXT", "Any text.")],
    pair: Annotated[str | None, flag("A second text, as for a pair task.")] = None,
    as_json: Json = False,
) -> None:
    """Show the tokens of a text: their ids, their characters, and the decoded text.

    Example: weft tokenizer show tok/ "The weaver sang."
    """
    if not folder.exists():
        raise UserError(f"{str(folder)!r} is neither a tokenizer folder nor a file of one")
    tokenizer = weft.load_tokenizer(folder)
    encoded = tokenizer.encode(text, pair)
    back = tokenizer.decode(encoded.ids)
    if as_json:
        inputs.print_json({"ids": encoded.ids, "tokens": encoded.tokens, "offsets": encoded.offsets, "decoded": back})
        return
    unknown = tokenizer.id_of("unknown")
    sources = (text, pair or "")
    rows = []
    tokens = zip(encoded.ids, encoded.tokens, encoded.offsets, encoded.sequences, strict=True)  # each is built anew
    for place, (number, token, (start, end), side) in enumerate(tokens):
        piece = ["special", ""] if side is None else [repr(sources[side][start:end]), f"{start}-{end}"]
        rows.append([str(place), str(number), shown(token), *piece])
    print(table(["place", "id", "token", "text", "characters"], rows))
    missed = sum(number == unknown for number in encoded.ids)
    print(f"{len(rows)} tokens, {missed} unknown, of {tokenizer.vocabulary} ({tokenizer.kind}); back: {back!r}")


Vectors = Annotated[str, argument("VECTORS", "A folder of word vectors, or a file of them.")]
Top = Annotated[int, flag("Words to show.")]


def learn_vectors(
    settings: Annotated[Given, Flags("weft.runs.recipes:VectorsRecipe", example="vectors.ceiling=10")],
    files: MoreFiles = None,
) -> None:
    """Learn word vectors from text: word2vec (skip-gram, CBOW) or GloVe.

    The folder is a model folder: weft embed, weft finetune --base and --vectors take it. Ctrl-C saves; weft resume
    continues.

    Example: weft vectors learn --kind word2vec --text corpus.txt --out runs/w2v
    """
    text = settings.get("text", {})
    if files and "files" not in text:
        raise UserError(f"{files[0]}: text files are given by --text")
    if files:
        text["files"] = [*text["files"], *files]
    recipe = late.recipes.read_recipe(None, settings, late.recipes.VectorsRecipe)
    inputs.check_run(recipe.out, {})
    if not recipe.text.files:
        raise UserError("no text: give --text FILE")
    inputs.check_data(recipe.text.files)
    inputs.check_device(recipe.device)
    from weft.runs.pretrain import learn_vectors as learn

    learn(recipe, progress=progress)


def _opened(vectors: str) -> WordSpace:
    if not Path(vectors).is_file() and Path(vectors).suffix not in (".txt", ".bin", ".vec", ".gz", ".xz", ".zip"):
        inputs.check_models(vectors)
    return late.word_vectors.open_words(vectors)


def _print(words: list[Near], jsonl: bool) -> None:
    for word in words:
        if jsonl:
            inputs.print_json({"word": word.word, "score": word.score})
        else:
            print(f"{word.score:7.4f}  {escaped(word.word)}")


def near(
    vectors: Vectors,
    words: Annotated[list[str], argument("WORD...", "One or several words.")],
    top: Top = 10,
    through: Annotated[Path | None, flag("A map to another language, of weft vectors map.", "FOLDER")] = None,
    retrieval: Annotated[str, flag("How words are searched through a map.", "[csls|cosine]")] = "csls",
    jsonl: Jsonl = False,
) -> None:
    """Show the words nearest to a word; through a map, the nearest words of another language.

    Example: weft vectors near runs/w2v king --top 5
    Example: weft vectors near runs/english king --through runs/map
    """
    space = _opened(vectors)
    mapped = None if through is None else late.word_vectors.open_map(through, space)
    for number, word in enumerate(words):
        nearest = space.near(word, top) if mapped is None else mapped.near(word, top, retrieval)
        if len(words) > 1 and not jsonl:
            print("\n" * (number > 0) + escaped(word))
        _print(nearest, jsonl)


def analogy(
    vectors: Vectors,
    words: Annotated[list[str], argument("KING MAN WOMAN", "king - man + woman.")],
    top: Top = 10,
    multiply: Annotated[bool, flag("Multiply cosines instead of adding them (3CosMul).", None, "--multiply")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Solve an analogy: king - man + woman.

    Example: weft vectors analogy runs/w2v king man woman
    """
    if len(words) != 3:
        raise UserError(f"three words are expected, as in king man woman, not {len(words)}")
    first, second, third = words
    _print(_opened(vectors).analogy(first, second, third, top, multiply), jsonl)


def odd(
    vectors: Vectors,
    words: Annotated[list[str], argument("WORD...", "Three words or more.")],
    jsonl: Jsonl = False,
) -> None:
    """Show which word does not belong: the least similar to the others comes first.

    Example: weft vectors odd runs/w2v breakfast cereal dinner car
    """
    _print(_opened(vectors).odd(words), jsonl)


def cosine(vectors: Vectors, words: Annotated[list[str], argument("WORD WORD", "Two words.")]) -> None:
    """Show the cosine of two words, from -1 to 1.

    Example: weft vectors cosine runs/w2v king queen
    """
    if len(words) != 2:
        raise UserError(f"two words are expected, not {len(words)}")
    print(f"{_opened(vectors).cosine(words[0], words[1]):.4f}")


def evaluate(
    vectors: Vectors,
    data: Annotated[list[str], flag("Word pairs with scores, or analogies; repeatable.", "FILE")],
    more: Annotated[list[str] | None, argument("[FILE]...", "Further files.")] = None,
    multiply: Annotated[bool, flag("Solve analogies by 3CosMul.", None, "--multiply")] = False,
    jsonl: Jsonl = False,
) -> None:
    """Evaluate vectors on pairs of words (WordSim-353, SimLex-999, MEN) and on analogies (Google's).

    Example: weft vectors evaluate runs/w2v --data words/EN-WS-353-ALL.txt --data words/questions-words.txt.xz
    """
    space = _opened(vectors)
    scores = late.word_vectors.evaluate_words(space, [*data, *(more or [])], multiply)
    cells = []
    for one in scores:
        values = {"value": one.score.value, "low": one.score.low, "high": one.score.high}
        numbers = [f"{value:.4f}" for value in values.values()]
        cells.append([one.name, one.measure, *numbers, f"{one.used:,}", f"{one.asked:,}"])
        if jsonl:
            about = {"name": one.name, one.measure: values.pop("value"), **values}
            inputs.print_json({**about, "used": one.used, "asked": one.asked, "missing": list(one.missing)})
    if jsonl:
        return
    print(table(["data", "score", "value", "low", "high", "used", "of"], cells))
    for one in scores:
        if one.words() and not one.part:  # of analogies the whole says it for all sections
            print(escaped(one.words(), keep="\n"))


def convert(
    source: Annotated[str, argument("FROM", "A folder of word vectors, or a file of them.")],
    target: Annotated[Path, argument("TO", "File to write.")],
    format: Annotated[str | None, flag("Default: binary for a .bin file, else text.", "[text|binary|glove]")] = None,
) -> None:
    """Write word vectors in word2vec's text or binary format, or in GloVe's.

    Example: weft vectors convert runs/w2v vectors.bin --format binary
    """
    words, width = late.word_vectors.convert(source, target, format)
    print(f"{target}: {words:,} words of {width} numbers")


def map_vectors(
    source: Annotated[str, argument("SOURCE", "Vectors of one language.")],
    target: Annotated[str, argument("TARGET", "Vectors of the other.")],
    pairs: Annotated[list[str], flag("A word and its translation per line, a tab between.", "FILE")],
    out: Annotated[Path | None, flag("Folder of the map, new or empty.", "FOLDER")] = None,
    normalize: Annotated[bool, flag("Scale every vector to length 1 first.")] = True,
    center: Annotated[bool, flag("Subtract the mean first.")] = True,
    holdout: Annotated[float, flag("Share of the words held out for evaluation.", "SHARE")] = 0.1,
    seed: Annotated[int, flag("Seed of the held-out words.")] = 0,
    jsonl: Jsonl = False,
) -> None:
    """Learn the rotation of one language's vectors into another's from pairs of words, and evaluate it.

    Example: weft vectors map runs/english runs/german --pairs dictionary.tsv --out runs/map
    """
    options: Given = {"normalize": normalize, "center": center, "holdout": holdout, "seed": seed}
    _, report = late.word_vectors.learn_map(source, target, late.word_vectors.read_pairs(pairs), out, **options)
    rows = [
        {"search": way, "precision": f"@{at}", "value": score.value, "low": score.low, "high": score.high}
        for way, one in report.scores.items()
        for at, score in ((1, one.at_1), (5, one.at_5))
    ]
    if not jsonl:
        print(f"learned from {report.learned:,} pairs, evaluated on {report.held_out:,}")
        if report.left_out:
            print(f"{report.left_out:,} pairs left out, since words are missing: {escaped(listed(report.missing))}")
    inputs.print_rows(rows, jsonl)


def write(
    model: Annotated[str, argument("MODEL", "The folder of an n-gram model.")],
    out: Annotated[Path, argument("FILE", "File to write; compressed if its name ends in .gz.")],
) -> None:
    """Write an n-gram model as an ARPA file.

    Example: weft arpa write runs/5gram 5gram.arpa.gz
    """
    loaded = weft.load(model)
    with progress("writing", "n-grams") as tick:
        late.external.write_arpa(loaded.opened, out, tick)
    print(
        f"{out}: {sum(loaded.config.entries):,} n-grams up to order {loaded.config.order}, {out.stat().st_size:,} bytes"
    )


def read(file: Annotated[Path, argument("FILE", "An ARPA file, plain or compressed.")], out: OutFolder) -> None:
    """Make a model folder from an ARPA file; texts are split at spaces, as the tools that write such files do.

    Example: weft arpa read 5gram.arpa.gz --out runs/from-kenlm
    """
    with progress("reading", "lines") as tick:
        model = late.external.read_arpa(file, to_stderr, tick)
    late.folder.save_folder(out, model)
    entries = ", ".join(f"{count:,} of order {order}" for order, count in enumerate(model.config.entries, 1))
    print(f"{out}: ngram, {entries}")

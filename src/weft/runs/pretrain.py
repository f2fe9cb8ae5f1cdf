"""`weft.pretrain` and `weft vectors learn`: from text to a language model, trained or counted, or to word vectors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.checkpoint.card import Card, Metric, TextLayout
from weft.checkpoint.external import from_tables, opened_table
from weft.checkpoint.families import FAMILIES, Family, find_size, measure, usual_heads
from weft.checkpoint.folder import LoadedModel
from weft.checkpoint.locate import find_folder
from weft.config import changed
from weft.data.counts import count, tables
from weft.data.rows import Ahead, Feed, Frame, Framed, Streams, in_two_phases
from weft.data.shards import Corpus
from weft.errors import UserError, listed, refuse
from weft.files import write_text
from weft.models.classifiers import VectorsConfig
from weft.models.ngram import Ngram, NgramConfig
from weft.nn.rows import Ragged
from weft.objectives.losses import (
    BothWays,
    CarriedToken,
    MaskedWords,
    NextToken,
    Objective,
    PermutedWords,
    StreamStates,
    Writing,
)
from weft.objectives.replaced import ReplacedTokens
from weft.picture import ChartLine, line_chart, page, paragraph, table
from weft.progress import Log, ProgressChoice, log_notes, to_logger
from weft.runs import driver, languages, preparation
from weft.runs.driver import Job, begun, card_of, device_for, drive, new_run, settled
from weft.runs.preparation import TextDataset, absolute_paths, counted, gather_text, text_of, tokens_of
from weft.runs.recipes import ObjectiveSection, Recipe, VectorsRecipe, named_language, overlaid, read_recipe
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import Model, load
from weft.text.rows import Skipped
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learned_words
from weft.training.log import RunLog, time_left
from weft.training.plan import Training
from weft.training.run import Run, State
from weft.training.signals import Control, Stop
from weft.vectors.glove import Glove, count_together, parts_of
from weft.vectors.word2vec import Cbow, SkipGram, Word2Vec
from weft.version import VERSION


def pretrain(
    recipe: Recipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> Model:
    """Train a language model on text: a recipe, settings in its place, or both.

    `weft.pretrain(model={"family": "gpt2", "size": "4x128"}, text={"files": ["corpus.txt"]}, out="runs/gpt")`
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, overlaid(settings or {}, more), Recipe)
    recipe, run = _causal(recipe), new_run(recipe)
    _family(recipe)  # all that can be wrong without reading the text is checked before anything is made
    if "vectors" in recipe.model:
        preparation.find_vectors(recipe.model["vectors"])
    text = {key: languages.whole_paths(vars(recipe.text)[key]) for key in ("files", "pairs", "dev", "dev_pairs")}
    refuse((not text["files"] and not text["pairs"], "no text: give --text FILE"))
    both = {*text["files"], *text["pairs"]} & {*text["dev"], *text["dev_pairs"]}
    if both:
        raise UserError(f"{named_language(min(both))[1]}: is both text and held out")
    # With absolute paths the run can be resumed from any folder.
    recipe = changed(recipe, {"text": text, **absolute_paths(recipe)})
    recipe = changed(recipe, {"text": {"documents": preparation.documents_of(recipe, log)}})
    with begun(run, recipe, log, progress) as control:
        return go(run, recipe, control)


def _causal(recipe: Recipe) -> Recipe:
    """A model of a family that has causal ones too becomes one of them where each token is to predict the next."""
    family = FAMILIES.get(str(recipe.model.get("family")))
    switch = recipe.objective.name == "next" and family is not None and family.causal
    return changed(recipe, {"model": {"family": switch}}) if switch else recipe


def _family(recipe: Recipe) -> Family:
    """The family to train, with every choice of the model and the objective checked."""
    family, aim = preparation.chosen_family(recipe.model, recipe.tokenizer), recipe.objective
    name, carries = languages.objective_of(recipe, family), family.network.CARRIES
    carried = (aim.rows or family.rows) == "carried"
    pairs = name in ("mlm+nsp", "mlm+sop") and aim.rows not in (None, "stream", "documents")
    unfit = name not in family.objectives
    refuse(
        ("words" not in family.names.heads, f"{family.name} has no head for words, so it cannot be pre-trained"),
        (not family.objectives, f"{family.name} learns from pairs: weft finetune --task translate"),
        (pairs, f"objective {name} makes pairs of texts: rows may be stream or documents, not {aim.rows}"),
    )
    if family.counts:
        fixed = [key for key in OURS if key in recipe.model]
        trained = [f"training.{key}" for key, value in vars(Training()).items() if vars(recipe.training)[key] != value]
        whole = aim in (ObjectiveSection(), ObjectiveSection(name="next"))
        backs_off = recipe.model.get("smoothing") == "back-off"
        refuse(
            ("base" in recipe.model, "an n-gram model is counted from its text: it cannot start from --base"),
            (backs_off, "smoothing back-off is of tables that were read from a file (weft arpa read); try kneser-ney"),
            (bool(fixed), f"[model]: {listed(fixed)} cannot be set: the text decides"),
            (bool(trained), f"{listed(trained)} does not apply to an n-gram model, which is counted in one pass"),
            (not whole, "objective.length and rows do not apply to an n-gram model, which reads every document whole"),
        )
    driver.check_tensorboard(recipe)
    stateless, unrolls = f"{family.name} has no state", family.network.UNROLLS
    learned, partial = name or family.objectives[0], bool(aim.t_min or aim.t_max is not None)
    refuse(
        (recipe.training.watch_gradients and not unrolls, f"{stateless}: watch_gradients is for rnn, lstm and gru"),
        (carried and not carries, f"{stateless}: rows carried is for rnn, lstm, gru, transformer-xl and xlnet"),
        (partial and learned != "next", f"objective.t_min and t_max are for next tokens, not for {learned}"),
        (carried and aim.short is not None, "rows carried have one length: leave out objective.short"),
        (unfit, f"objective {name} does not fit {family.name}, which learns by {listed(family.objectives)}"),
    )
    languages.check_languages(recipe, family, name)
    return family


def go(run: Run, recipe: Recipe, control: Control) -> Model:
    """From the recipe in a run folder to the best model; from its last checkpoint on where there is one."""
    family = _family(recipe)
    base, name, several = (
        recipe.model.get("base"),
        languages.objective_of(recipe, family),
        languages.languages_in(recipe),
    )

    def vocabularies(like: Tokenizer | None) -> tuple[Tokenizer]:
        skipped = Skipped()
        files = tuple(named_language(name)[1] for name in (*recipe.text.files, *recipe.text.pairs))
        with preparation.named_files(files):
            texts = text_of(recipe).read(skipped) if several is None else several.sampled(recipe.text.alpha, skipped)
            tokenizer = preparation.vocabulary_for(run.folder, recipe.tokenizer, family, texts, like, control)
        log_notes(skipped.lines(), control.log)
        return (tokenizer,)

    if family.counts:
        return count_text(run, recipe, family, vocabularies(None)[0], control)
    device_for(recipe.device, recipe.training.threads)  # that there is none shows before anything is learned
    aim = recipe.objective
    plain: dict[str, Objective] = {
        "next": NextToken(t_min=aim.t_min, t_max=aim.t_max),
        "spans": Writing(),
        "permutation": PermutedWords(),
        "two-way": BothWays(),
    }
    objective: Objective = plain.get(name) or MaskedWords(pairs=name in ("mlm+nsp", "mlm+sop"))
    heads = ReplacedTokens.heads if name == "rtd" else objective.heads
    if base is not None:  # heads that the base lacks start fresh
        model = preparation.from_folder(find_folder(base), heads, next(iter(heads)), None, recipe.seed).opened
        refuse((model.tokenizer is None, f"{base}: has no tokenizer"))
    else:
        length, read = recipe.objective.length, "segment" if family.config.has("segment") else "context"
        given = read in recipe.model or family.row is not None
        settings: dict[str, Any] = {} if length is None or given else {read: length}
        if "words" in heads and family.config.has("mask_decoder") and "mask_decoder" not in recipe.model:
            settings["mask_decoder"] = True
        if several is not None and family.config.has("languages"):
            settings["languages"] = list(several.names)
        if name == "permutation" and length is not None and "memory" not in recipe.model:
            settings["memory"] = 3 * length // 4  # as 384 of 512 in the paper
        options = (settings, vocabularies, control, recipe.text.on_bad_row)
        recipe, model = preparation.from_scratch(run, recipe, heads, *options)
    if name == "rtd":
        objective = ReplacedTokens.of(model.network, recipe.objective.sharing, recipe.objective.weight, recipe.seed)
    rows = recipe.objective.rows or family.rows
    recipe = changed(recipe, {"objective": {"name": name, "rows": rows}}, run.recipe.name)
    name_of_base = None if base is None else Path(base).name  # its path is private
    drive(run, text_job(run, recipe, model, objective, control, name_of_base, False), control)
    return load(run.folder)


def text_job(
    run: Run, recipe: Recipe, model: LoadedModel, objective: Objective, control: Control, base: str | None, taught: bool
) -> Job:
    """Train a model, which began from `base`, on the text of a recipe; `taught`: beside a teacher, which runs along."""
    aim = recipe.objective
    device = device_for(recipe.device, recipe.training.threads)
    context = model.config.context
    length = aim.length or model.row
    unfit = bool(recipe.training.compile) and not model.network.COMPILES
    beyond = f"objective.t_min {aim.t_min} is beyond the places of rows of {length} tokens, 0 to {length - 1}"
    refuse(
        (length > context, f"rows of {length} tokens are longer than the model's context of {context}"),
        (unfit, f"{model.family.name} cannot be compiled: leave out --compile"),
        (aim.t_min >= length, beyond),
    )
    recipe = changed(recipe, {"objective": {"length": length}}, run.recipe.name)
    # On a GPU all batches have one shape, so that they can be played back from a graph.
    filled = bool(recipe.training.compile) or device.type == "cuda"
    dataset = gather_text(recipe, tokenizer_of(model), control, model, filled)
    # A fifth of the usual learning rate, so that a base does not forget.
    plan = _resolved(recipe, dataset, model, device, 1.0 if base is None or taught else 0.2)
    if isinstance(dataset.source, Streams):
        dataset = replace(dataset, source=replace(dataset.source, streams=plan.batch or 1))
        states = StreamStates(plan.batch or 1)
        carried = CarriedToken(states, t_min=aim.t_min, t_max=aim.t_max)
        objective = PermutedWords(states) if aim.name == "permutation" else carried
    feed = Feed(dataset.source, dataset.prepare, recipe.seed, plan.batch or 1)
    if dataset.short is not None:
        feed = in_two_phases(feed, dataset.short, round(aim.short_share * (plan.steps or 1)))
    recipe = replace(recipe, training=plan, device=str(device))
    layout = TextLayout(documents=recipe.text.documents, rows=aim.rows or "stream")
    task = {"spans": "fill", "rtd": "embed"}.get(aim.name or "", model.family.task)
    card = replace(model.card, task=task, base=base, text=layout)
    # Compiled for rows of any length, a network reads all of them as the longest, unless most are nearly that long.
    regular = dataset.source.even or 2 * dataset.source.mean >= length
    job = Job(
        recipe=recipe,
        model=replace(model, card=card),
        objective=objective,
        feed=feed,
        held_out=dataset.held_out,
        options={
            "capture": dataset.source.even,
            "may_compile": regular and not taught,
            "evaluate_first": taught or base is not None,
        },
        data=dataset.dev.hash if dataset.dev else dataset.corpus.hash,
        same=dataset.texts,
        announce=lambda state: control.log(_announced(run, job, dataset, state)),
    )
    return job


def _resolved(recipe: Recipe, dataset: TextDataset, model: LoadedModel, device: torch.device, share: float) -> Training:
    """The plan with every open choice made, so that the recipe in the run folder has them all."""
    plan, source = recipe.training, dataset.source
    if dataset.held_out is not None:
        _ = dataset.held_out.count  # refuses held-out text that is too short now, not after an hour
    rows = source.count  # refuses a text that is too short for one
    stream = "" if recipe.objective.rows == "stream" else "give --rows stream, or "
    uneven = bool(plan.compile) and device.type == "cpu" and not source.even
    timed = dataset.short is not None and plan.minutes is not None
    refuse(
        (plan.patience is not None and dataset.held_out is None, "patience needs held-out text"),
        (uneven, f"on the CPU only full rows can be compiled, and these are not: {stream}leave out --compile"),
        (timed, "objective.short needs --steps or --epochs, not --minutes"),
    )
    batch = plan.batch or max(1, round(8192 / source.mean))
    in_epoch = rows / batch
    steps = plan.steps or (math.ceil(plan.epochs * in_epoch) if plan.epochs is not None else None)
    if steps is None and plan.minutes is None:
        steps = max(1000, math.ceil(3 * in_epoch))
    every = plan.evaluate_every or (None if plan.minutes is not None else max(1, (steps or 1) // 10))
    usual = model.family.learning_rate * (768 / model.config.width) ** 0.5  # smaller models take larger steps
    if recipe.objective.name == "rtd" and device.type == "cpu":
        # Two networks, both with written-out scores: in whole steps, deberta-v3-base takes more than 20 GB.
        plan = replace(plan, pass_tokens=plan.pass_tokens or 1 << 11)
    return settled(plan, device, batch, steps, every, share * usual)


def _announced(run: Run, job: Job, dataset: TextDataset, state: State) -> str:
    recipe, model, setup = job.recipe, job.model, job.setup
    feed, corpus, minutes = setup.feed, dataset.corpus, setup.plan.minutes if state.steps is None else None
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    mean, length, documents = dataset.source.mean, recipe.objective.length or 0, len(corpus.documents) - 1
    first, short = "", ""
    if feed.first is not None:
        shorter = feed.first
        first = f"; the first {feed.border:,} of them {shorter.rows} rows of about {shorter.source.mean:.0f} tokens"
    if 2 * mean < length:
        short = f"\nrows are under half of --length {length}: the text has only {corpus.size:,} tokens"
        if recipe.objective.rows == "documents" and corpus.size >= length:
            each = f"each is one document, of {corpus.size / documents:.0f} tokens on average"
            short = f"\nrows are under half of --length {length}: {each}; --rows stream fills rows with several"
    held_out = f", held out {dataset.dev.size:,}" if dataset.dev is not None else ""
    if held_out and recipe.objective.name == "next":
        held_out += " (its perplexity includes the ends of documents)"
    steps = state.steps or setup.steps
    amount = f"{steps:,} steps" if minutes is None else f"{minutes:g} minute{'s' * (minutes != 1)} of steps"
    epochs = f", {steps * feed.rows / dataset.source.count:.1f} epochs" if minutes is None else ""
    return (
        f"{run.folder}: {model.family.name}, {preparation.size_of(model.config)}, "
        f"{parameters:,} parameters, on {setup.device.type} in {setup.precision}\n"
        f"text: {corpus.size:,} tokens in {documents:,} documents{held_out}\n"
        f"plan: {amount} of {feed.rows} rows of about {mean:.0f} tokens{epochs}{first}"
        f"{f'; from step {state.step:,}' if state.step else ''}{short}"
    )


JUDGED = 1 << 16  # tokens that are looked up at a time
OURS = ("entries", "silent", "end")  # keys of the config that the text decides


def count_text(run: Run, recipe: Recipe, family: Family, tokenizer: Tokenizer, control: Control) -> Model:
    """Count a text, evaluate the model on what is held out, and leave it in the run folder."""
    sizes = {"vocabulary": tokenizer.vocabulary, **preparation.sizes_of(recipe.model)}
    config: NgramConfig = changed(find_size(family.name)[1], sizes, "[model]")
    if tokenizer.vocabulary > config.vocabulary:
        raise UserError(f"the tokenizer has {tokenizer.vocabulary} tokens, the model only {config.vocabulary}")
    frame = preparation.next_frame(tokenizer, stream=False)  # one token before and after each document, as lmplz has it
    refuse((not frame.before, "an n-gram model needs a token that begins or ends a text; this vocabulary has none"))
    aim = replace(recipe.objective, name="next", rows="documents", length=64)
    dataset = gather_text(replace(recipe, objective=aim), tokenizer, control)
    corpus, dev = dataset.corpus, dataset.dev
    new = driver.record(run, recipe, torch.device("cpu"), {"parameters": 0}, dataset.texts)
    if not new and run.metrics.exists() and run.lines():  # the last to be written
        control.log(f"{run.folder}: this run has finished already")
        return load(run.folder)
    held_out = f", held out {dev.size:,}" if dev is not None else ""
    control.log(
        f"{run.folder}: ngram of order {config.order}, {config.smoothing}\n"
        f"text: {corpus.size:,} tokens in {len(corpus.documents) - 1:,} documents{held_out}"
    )
    began = time.monotonic()
    framed = Framed(corpus, frame)
    if (longest := int(np.diff(framed.starts).max())) < config.order:
        short = f"its longest document has {longest} tokens, special tokens included"
        raise UserError(f"the text is shorter than the order {config.order}: {short}; try model.order={longest}")
    with control.count(f"counting up to order {config.order}", "tokens", "stopped while counting") as step:
        ngrams = count(framed, config.order, config.vocabulary, frame.before[0], step)
    # What begins a text is never predicted, but for vocabularies where it also ends one; what fills rows up is no word.
    never_predicted = {frame.before[0], tokenizer.id_of("padding")} - {None, *frame.after}
    silent = tuple(sorted(token for token in never_predicted if token is not None))
    control.stop.check("stopped while counting")
    stored = tables(ngrams, config.smoothing, config.k, config.prune, silent, control.log)
    end = frame.after[0] if frame.after else None
    config, network = from_tables(stored, replace(config, silent=silent, end=end))
    seconds = time.monotonic() - began
    layout = TextLayout(documents=recipe.text.documents, rows="documents")
    card = card_of(run, Card(weft=VERSION, task=family.task, text=layout), recipe.seed)
    opened = LoadedModel(family, config, network.eval(), {"words": config.vocabulary}, tokenizer, card)
    _report(run, config, control.log)
    line: dict[str, Any] = {"step": 1, "tokens": corpus.size, "seconds": round(seconds, 3), "entries": config.entries}
    metrics: tuple[Metric, ...] = ()
    if dev is not None:
        loss, never, of = held_out_loss(network, dev, frame, control)
        line["never"] = never
        if never:
            zero = f"{never:,} of {of:,} tokens have probability 0 under {config.smoothing}"
            control.log(f"held out: perplexity infinite: {zero}")
        else:
            control.log(f"held out: perplexity {math.exp(loss):.2f} of {of:,} tokens, including ends of documents")
            line |= {"validation_loss": loss, "validation_words": loss}
            metrics = (Metric(data=dev.hash, name="loss", value=loss),)
    run.save_model(opened, metrics)
    with closing(RunLog(run.metrics, 0)) as run_log:
        run_log.record(line)
    control.log(f"{run.folder}: counted in {seconds:.1f} s")
    return load(run.folder)


@torch.inference_mode()
def held_out_loss(network: Ngram, corpus: Corpus, frame: Frame, control: Control) -> tuple[float, int, int]:
    """Nats per token of a text, ends of documents counted; how many tokens have probability 0; and of how many."""
    framed, nats, never, tokens = Framed(corpus, frame), list[float](), 0, 0
    with control.progress("judging by the held-out text", "tokens") as read:
        for first in range(0, framed.size, JUDGED):
            control.stop.check("stopped while judging")
            # A chunk begins with what its first tokens follow on.
            places = np.arange(max(0, first - network.config.reach), min(framed.size, first + JUDGED))
            ids, documents, _ = framed.read(places)
            texts = Ragged.of([part.tolist() for part in np.split(ids, np.flatnonzero(np.diff(documents)) + 1)])
            hidden = network(texts.tokens, texts.rows)[:-1]
            asked = torch.from_numpy((np.diff(documents) == 0) & (places[1:] >= first))
            logprobs = network.target_logprobs(hidden[asked], texts.tokens[1:][asked])
            lost = int(logprobs.isinf().sum())
            never, tokens = never + lost, tokens + len(logprobs)
            nats.append(-float(logprobs[~logprobs.isinf()].sum()))
            read(len(places))
    return (math.inf if never else math.fsum(nats) / max(1, tokens)), never, tokens


def _report(run: Run, config: NgramConfig, log: Log) -> None:
    """Log and draw how the tables grow with the order, beside an MLP that looks back as far."""
    (family, usual), total, sizes, words_known = find_size("mlp"), list[int](), 0, config.vocabulary
    cells, weights = [["order", "n-grams stored", "of possible", "bytes", "an MLP, parameters"]], list[int]()
    for order, entries in enumerate(config.entries, 1):
        # A probability, a key but for single words, and a back-off weight but for the longest: 8 bytes each.
        size = entries * 8 * (1 + (order > 1) + (order < config.order))
        mlp = replace(usual, vocabulary=words_known, window=max(1, order - 1))
        weights.append(measure(family, mlp, usual_heads(family, mlp)).parameters)
        total, sizes = [*total, sum(total[-1:]) + entries], sizes + size
        share = f"{entries / words_known**order:.2g}"
        cells.append([str(order), f"{entries:,}", share, f"{size:,}", f"{weights[-1]:,}"])
    lines = [*cells, ["all", f"{total[-1]:,}", "", f"{sizes:,}", f"{weights[-1]:,}"]]
    log("\n".join("{:>5} {:>15} {:>12} {:>15} {:>19}".format(*line) for line in lines))
    growth = [
        ChartLine("n-grams up to this order", list(enumerate(total, 1))),
        ChartLine("an MLP's parameters", list(enumerate(weights, 1)), dashed=True),
        ChartLine("possible n-grams", [(n, float(words_known) ** n) for n in range(1, len(cells))], dashed=True),
    ]
    words = "Possible n-grams multiply by the vocabulary with each order; an MLP grows by one matrix per word."
    chart = line_chart("What is stored, by order", growth, "order", "numbers", log_y=True)
    write_text(run.report, page(f"Run {run.folder.name}", [table(cells[0], cells[1:]), chart, paragraph(words)]))


COUNTED = 1 << 20  # words whose neighbors are counted together
SECONDS_SAVED = 60.0  # seconds between two checkpoints
SECONDS_SHOWN = 0.5  # seconds between two passing lines
WORDS_ON_GPU = 1 << 27  # words of the text that stay on a GPU
LAST_RATE = 1e-3  # share of the first rate that is left at the end of word2vec, as its own program has it

Integers = NDArray[np.int64]


def learn_vectors(
    recipe: VectorsRecipe | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    log: Log = to_logger,
    progress: ProgressChoice = None,
    **more: Any,
) -> Model:
    """Learn word vectors from text: a recipe, settings in its place, or both.

    `learn_vectors(vectors={"kind": "glove"}, text={"files": ["corpus.txt"]}, out="runs/glove")`
    """
    if not isinstance(recipe, VectorsRecipe):
        recipe = read_recipe(recipe, overlaid(settings or {}, more), VectorsRecipe)
    run = new_run(recipe)
    paths = text_of(recipe).paths()
    refuse((not paths, "no text: give --text FILE"))
    recipe = changed(recipe, {"text": {"files": [str(path.absolute()) for path in paths]}})
    with begun(run, recipe, log, progress) as control:
        return go_vectors(run, recipe, control)


def go_vectors(run: Run, recipe: VectorsRecipe, control: Control) -> Model:
    """From the recipe in a run folder to its word vectors; from the last checkpoint on where there is one."""
    device = device_for(recipe.device, recipe.vectors.threads)
    tokenizer = _words(run, recipe, control)
    corpus = tokens_of(text_of(recipe), tokenizer, "the text", False, control)
    plan = recipe.vectors.resolved(device.type == "cuda", torch.get_num_threads(), corpus.size)
    recipe = replace(recipe, vectors=plan, device=str(device))
    counts = np.zeros(tokenizer.vocabulary, np.int64)
    for words, _ in _blocks(corpus):
        counts += np.bincount(words, minlength=len(counts))
    unknown = tokenizer.id_of("unknown")
    assert unknown is not None
    counts[unknown] = 0
    known = int(counts.sum())
    refuse((known < 2, f"{listed(recipe.text.files, 2)}: too short: {known} words are left to learn from"))
    same = {"text": {"hash": corpus.hash, "tokens": corpus.size}}
    driver.record(run, recipe, device, {"words": len(counts) - 1}, same)
    start = driver.begin(run, 1, 0, control.log)
    control.log(
        f"{run.folder}: {plan.way}, {len(counts) - 1:,} words x {plan.width}, on {device.type}\n"
        f"text: {corpus.size:,} words in {len(corpus.documents) - 1:,} documents, {known / corpus.size:.1%} of them in "
        f"the vocabulary (minimum count {plan.min_count})"
    )
    if start.state.finished:
        control.log(f"{run.folder}: this run has finished already")
        return load(run.folder)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if plan.kind == "word2vec":
            learner, step, steps = _word2vec(recipe, corpus, counts, start.state.step, stack)
        else:
            learner, step, steps = _glove(recipe, corpus, counts, control)
        if start.stored is not None:
            for name, tensor in learner.tensors().items():
                tensor.copy_(start.stored["vectors"][name])
        run_log = stack.enter_context(driver.recording(run, start.state, False, control))

        def save() -> None:
            start.state.metrics = run_log.kept()
            start.checkpoints.save(start.state, {"vectors": learner.tensors()})

        epochs = plan.epochs or 1
        words_in_step = math.ceil(corpus.size / (steps // epochs))
        loss = _train_vectors(step, steps, words_in_step, epochs, start.state, run_log, control.stop, save)
        table = learner.matrix().float().cpu().clone()
        others = torch.arange(len(table)) != unknown
        table[unknown] = table[others].double().mean(0).float()  # the unknown word is the mean of all others
        card = card_of(run, Card(task="embed", pooling="mean"), recipe.seed)
        config = VectorsConfig(vocabulary=len(table), width=table.shape[1])
        metrics = (Metric(data=corpus.hash, name="loss", value=loss),)
        run.save_model(opened_table(config, table, {}, tokenizer, card), metrics)
        start.state.finished = True
        save()
    seconds = start.state.seconds
    speed = steps * words_in_step / max(seconds, 1e-9)
    control.log(f"{run.folder}: done after {seconds:.0f} s of training, {speed:,.0f} words/s")
    return load(run.folder)


def _words(run: Run, recipe: VectorsRecipe, control: Control) -> Tokenizer:
    """The run's own words, or those counted in the text."""
    if (run.folder / "tokenizer_config.json").exists():  # the last of its files to be written
        return load_tokenizer(run.folder)
    plan, message = recipe.vectors, "stopped while counting words"
    with control.count("counting words", "documents", message) as step, preparation.named_files(recipe.text.files):
        limits = (plan.min_count, plan.vocabulary, plan.lowercase)
        tokenizer = learned_words(lambda: counted(text_of(recipe).read(Skipped()), step), *limits)
    tokenizer.save(run.folder)
    return tokenizer


def _block(corpus: Corpus, begin: int, end: int) -> tuple[Integers, Integers]:
    """The words from one place up to another, and the number of the document of each."""
    places = np.arange(begin, min(end, corpus.size)) + corpus.begin
    return corpus.take(places), np.searchsorted(corpus.documents, places, side="right")


def _blocks(corpus: Corpus) -> Iterator[tuple[Integers, Integers]]:
    return (_block(corpus, first, first + COUNTED) for first in range(0, corpus.size, COUNTED))


Step = Callable[[int], float]  # learns from one part of the text; the mean loss
Learner = tuple[Glove | Word2Vec[Any], Step, int]  # and the number of steps


def _glove(recipe: VectorsRecipe, corpus: Corpus, counts: Integers, control: Control) -> Learner:
    plan, device = recipe.vectors, torch.device(recipe.device or "cpu")
    assert plan.epochs is not None and plan.window is not None

    def known() -> Iterator[tuple[Integers, Integers]]:
        for words, documents in _blocks(corpus):
            there = counts[words] > 0
            step(len(words))
            yield words[there], documents[there]

    with control.count("counting neighbors", "words", "stopped while counting neighbors") as step:
        pairs = count_together(known(), len(counts), plan.window)
    if not len(pairs.keys):
        raise UserError(f"{listed(recipe.text.files, 2)}: no two known words stand within {plan.window} of each other")
    parts = parts_of(pairs, len(counts), plan, recipe.seed, device)
    control.log(f"counts: {2 * len(pairs.keys):,} pairs of words, in {len(parts)} parts")
    glove = Glove(plan, len(counts), parts, recipe.seed, device)
    return glove, glove.learn, plan.epochs * len(parts)


def _word2vec(recipe: VectorsRecipe, corpus: Corpus, counts: Integers, begin: int, stack: ExitStack) -> Learner:
    plan, device = recipe.vectors, torch.device(recipe.device or "cpu")
    assert plan.epochs is not None and plan.learning_rate is not None
    kind: type[Word2Vec[Any]] = SkipGram if plan.way == "skip-gram" else Cbow
    learner = kind(plan, counts, recipe.seed, device)
    stack.callback(learner.close)
    size = plan.block or 1
    blocks = math.ceil(corpus.size / size)
    steps, first = plan.epochs * blocks, plan.learning_rate
    on_device = dict[int, tuple[Tensor, Tensor]]()  # blocks of the text, which are read again in every epoch

    def prepared(number: int) -> Any:
        place = number % blocks
        if place in on_device:
            return learner.prepare(*on_device[place], number)
        arrays = _block(corpus, place * size, (place + 1) * size)
        words, documents = (torch.from_numpy(array).to(device) for array in arrays)
        if device.type != "cpu" and len(on_device) * size <= WORDS_ON_GPU:
            on_device[place] = words, documents
        return learner.prepare(words, documents, number)

    batches: Iterator[Any] = map(prepared, range(begin, steps))
    if device.type == "cpu" and (plan.threads or 1) > 1:
        # What needs no table is made in a thread of its own while the block before is learned from; beside threads
        # that work on halves, those of torch itself would only wait for work, and waiting takes a core.
        torch.set_num_threads(1)
        ahead = Ahead(prepared, begin, steps, depth=1)
        stack.callback(ahead.close)
        batches = iter(ahead)

    def step(number: int) -> float:
        rates = (first * max(LAST_RATE, 1 - number / steps), first * max(LAST_RATE, 1 - (number + 1) / steps))
        return learner.learn(next(batches), rates)

    return learner, step, steps


def _train_vectors(
    step: Step, steps: int, words: int, epochs: int, state: State, run_log: RunLog, stop: Stop, save: Callable[[], None]
) -> float:
    """Train to the end, or until a signal stops it, with checkpoints by the clock; the last mean loss."""
    losses, last, shown, saved = list[float](), 0.0, time.monotonic(), time.monotonic()
    every = max(1, steps // 200)
    while state.step < steps:
        begin = time.monotonic()
        losses.append(step(state.step))
        if not math.isfinite(losses[-1]):
            raise UserError(f"the vectors have exploded at step {state.step}; try a lower --learning-rate")
        state.step += 1
        state.seconds += time.monotonic() - begin
        if state.step % every == 0 or state.step == steps:
            last = sum(losses) / len(losses)
            losses = []
            tokens, epoch = state.step * words, state.step / steps * epochs
            speed = tokens / max(state.seconds, 1e-9)
            values = {"step": state.step, "epoch": round(epoch, 4), "loss": last, "tokens": tokens}
            run_log.record({**values, "tokens_per_second": speed, "seconds": state.seconds})
            if time.monotonic() - shown > SECONDS_SHOWN:
                shown = time.monotonic()
                left = time_left(state.seconds / state.step * (steps - state.step))
                line = f"epoch {epoch:.2f}/{epochs}  loss {last:.4f}  {speed:,.0f} words/s  {left} left"
                run_log.line(line, passing=True)
        if stop or time.monotonic() - saved > SECONDS_SAVED:
            save()
            saved = time.monotonic()
        stop.check(f"stopped after step {state.step:,} of {steps:,}, all saved")
    return last


# What `weft.resume` reads and calls, by the section that only such recipes have.
RUNS = {"vectors": (VectorsRecipe, go_vectors), "": (Recipe, go)}

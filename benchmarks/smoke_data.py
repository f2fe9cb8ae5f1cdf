"""Generated files for `--smoke`: every data set that a script reads, a few rows of each, and a tiny encoder."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import zipfile
from pathlib import Path

VOCABULARY = """
    the a of and to in is was it this that with for on as at by an be not film story actor scene plot music good bad
    great awful dull bright tiger cat car automobile sun sunlight river water old new smart intelligent hard difficult
    house king queen man woman city country street child day night year hand eye
"""
WORDS = VOCABULARY.split()
GENRES = "abcdefghjklmnpr"  # the letters of Brown's 15 genres
GERMAN = {word: word[::-1] + "en" for word in WORDS}  # a language in which every word has one translation


class Text:
    """Draws sentences."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def words(self, count: int) -> list[str]:
        return self.dice.choices(WORDS, k=count)

    def sentence(self) -> str:
        return " ".join(self.words(self.dice.randint(6, 14))).capitalize() + "."

    def paragraph(self) -> str:
        return " ".join(self.sentence() for _ in range(3))


def write_data(folder: Path) -> Path:
    """A folder laid out like the one that WEFT_DATA names."""
    files: dict[str, str | dict[str, str]] = {}  # of an archive: its members
    for maker in (tables, tags, questions, prose, pairs, vectors):
        files |= maker(Text(0))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            with zipfile.ZipFile(path, "w") as archive:
                for member, text in content.items():
                    archive.writestr(member, text)
        elif path.suffix == ".xz":
            path.write_bytes(lzma.compress(content.encode(), preset=0))
        elif path.suffix == ".gz":
            path.write_bytes(gzip.compress(content.encode()))
        else:
            path.write_text(content, encoding="utf-8")
    return folder


def write_weights(folder: Path) -> Path:
    """A fresh encoder of 1 x 64, in place of all-MiniLM-L6-v2."""
    import weft
    from weft.text.tokenizers.training import learn

    text = Text(1)
    tokenizer = learn([text.paragraph() for _ in range(50)], "wordpiece", 300)
    weft.new("bert", tokenizer, size="1x64", settings={"context": 512}, heads={}).save(folder)
    return folder


def tables(text: Text) -> dict[str, str | dict[str, str]]:
    """Rows with a label or a value: IMDb, GLUE, SMS, TREC, subjectivity."""
    files: dict[str, str | dict[str, str]] = {}
    for split in ("train", "test"):
        rows = [f"{n}\t{1 + 9 * (n % 2)}\t{('neg', 'pos')[n % 2]}\t{text.paragraph()}" for n in range(32)]
        files[f"imdb/{split}.tsv.xz"] = "\n".join(["id\trating\tlabel\ttext", *rows, ""])
    files["imdb/unsup.txt.xz"] = "\n".join([*(text.paragraph() for _ in range(80)), ""])
    makers = {
        "sst2": ("sentence\tlabel", lambda n: f"{text.sentence()}\t{n % 2}"),
        "cola": (None, lambda n: f"gj04\t{n % 2}\t\t{text.sentence()}"),
        "mrpc": (
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            lambda n: f"{n % 2}\t{n}\t{n}\t{text.sentence()}\t{text.sentence()}",
        ),
        "rte": (
            "index\tsentence1\tsentence2\tlabel",
            lambda n: f"{n}\t{text.sentence()}\t{text.sentence()}\t{('not_entailment', 'entailment')[n % 2]}",
        ),
        "stsb": (
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            lambda n: f"{n}\tx\tx\tx\t{n}\tnone\tnone\t{text.sentence()}\t{text.sentence()}\t{n % 6}.000",
        ),
    }
    for name, (header, row) in makers.items():
        for split in ("train", "dev"):
            lines = [*([header] if header else []), *(row(n) for n in range(32)), ""]
            files[f"glue/{name}/{split}.tsv.xz"] = "\n".join(lines)
    files["sms_spam/sms.tsv.xz"] = "".join(f"{('ham', 'spam')[n % 2]}\t{text.sentence()}\n" for n in range(60))
    kinds = ("DESC:def", "ENTY:animal", "HUM:ind", "NUM:count", "LOC:city", "ABBR:exp")
    rows = [f"{kinds[n % 6]} {text.sentence()[:-1]} ?" for n in range(84)]
    files["nltk/qc.zip"] = {"qc/train.txt": "\n".join(rows[:60]), "qc/test.txt": "\n".join(rows[60:])}
    files["nltk/subjectivity.zip"] = {
        f"subjectivity/{name}.tok.gt9.5000": "\n".join(text.sentence().lower() for _ in range(600))
        for name in ("plot", "quote")
    }
    return files


def tags(text: Text) -> dict[str, str | dict[str, str]]:
    """Words with a tag each: WikiANN, WNUT-17, CoNLL-2000, Brown."""

    def sentences(prefix: str, between: str, middle: tuple[str, ...], kind: str) -> str:
        blocks = []
        for _ in range(24):
            labels = [f"B-{kind}", f"I-{kind}", "O", "O", f"B-{kind}", "O", "O"]
            rows = [
                between.join((prefix + word, *middle, tag)) for word, tag in zip(text.words(7), labels, strict=True)
            ]
            blocks.append("\n".join(rows) + "\n")
        return "\n".join(blocks) + "\n"

    files: dict[str, str | dict[str, str]] = {
        f"wikiann_en/{split}.xz": sentences("en:", "\t", (), "PER") for split in ("train", "dev", "test")
    }
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        files[f"wnut17/{name}.xz"] = sentences("", "\t", (), "person")
    files["nltk/conll2000.zip"] = {
        f"conll2000/{split}.txt": sentences("", " ", ("NN",), "NP") for split in ("train", "test")
    }
    brown = {}
    for letter in GENRES:
        for number in range(1, 5):
            lines = []
            for _ in range(7 if number == 1 else 3):
                words = zip(text.words(24), 3 * ("at", "nn", "vbd", "nn-tl", "in", "np", "jj", "nn"), strict=True)
                lines.append("\n\n\t" + " ".join(f"{word}/{tag}" for word, tag in words) + " ./.\n")
            brown[f"brown/c{letter}0{number}"] = "".join(lines)
    brown["brown/cats.txt"] = "".join(f"c{letter}0{n} genre_{letter}\n" for letter in GENRES for n in range(1, 5))
    files["nltk/brown.zip"] = brown
    return files


def questions(text: Text) -> dict[str, str | dict[str, str]]:
    """Questions in the form of SQuAD 1.1, each answered by a word of its paragraph."""
    files: dict[str, str | dict[str, str]] = {}
    sets = [f"squadshifts/{name}_v1.0.json.xz" for name in ("new_wiki", "reddit", "amazon_reviews")]
    for name in [*sets, "xquad/xquad.en.json.xz"]:
        paragraphs = []
        for number in range(24):
            context = text.paragraph() + f" Number{number} ends it."
            answer = f"Number{number}"
            answers = [{"text": answer, "answer_start": context.index(answer)}]
            asked = {"question": f"Which {' '.join(text.words(3))}?", "id": f"{name}-{number}", "answers": answers}
            paragraphs.append({"context": context, "qas": [asked]})
        files[name] = json.dumps({"data": [{"title": "x", "paragraphs": paragraphs}]})
    return files


def prose(text: Text) -> dict[str, str | dict[str, str]]:
    """Running text: a book with wrapped paragraphs, a play, articles."""
    book = "\n\n".join(text.paragraph().replace(". ", ".\n") for _ in range(200))
    play = "\n\n".join(f"King:\n{text.sentence()}" for _ in range(150))
    article = "".join(f" \n = Title = \n \n {text.paragraph()} \n" for _ in range(20))
    return {
        "books/warandpeace.txt.xz": book + "\n",
        "tinyshakespeare/input.txt.xz": play + "\n",
        "wikitext2/valid.txt.xz": article,
        "wikitext2/test.txt.xz": article,
    }


def pairs(text: Text) -> dict[str, str | dict[str, str]]:
    """Sentences in two languages: Multi30k and Tatoeba."""
    files: dict[str, str | dict[str, str]] = {}
    for split, count in (("train", 48), ("val", 4), ("test_2016_flickr", 6), ("test_2017_flickr", 4)):
        english = [text.words(text.dice.randint(3, 12)) for _ in range(count)]
        files[f"multi30k/{split}.en.gz"] = "".join(" ".join(words) + "\n" for words in english)
        files[f"multi30k/{split}.de.gz"] = "".join(" ".join(GERMAN[word] for word in words) + "\n" for words in english)
    english = [text.words(5) for _ in range(400)]
    lines = [f"{' '.join(words)}\t{' '.join(GERMAN[word] for word in words)}\n" for words in english]
    files["tatoeba/deu-eng.zip"] = {"deu.txt": "".join(lines), "_about.txt": "generated\n"}
    return files


def vectors(text: Text) -> dict[str, str | dict[str, str]]:
    """Word vectors, pairs of words with a similarity, analogies, and a vocabulary."""
    glove = "".join(
        " ".join([word, *(f"{text.dice.gauss(0, 1):.4f}" for _ in range(50))]) + "\n" for word in [*WORDS, "."]
    )
    similar = "".join(f"{text.dice.choice(WORDS)}\t{text.dice.choice(WORDS)}\t{n % 10}.0\n" for n in range(40))
    letters = "abcdefghijklmnopqrstuvwxyz.?"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *WORDS]
    return {
        "words/glove.6B.50d.top30k.txt.xz": glove,
        **{f"words/{name}.txt": similar for name in ("EN-WS-353-ALL", "EN-MEN-TR-3k", "EN-SIMLEX-999")},
        "words/questions-words.txt.xz": ": family\nman woman king queen\nking queen man woman\n" * 4,
        "vocabularies/bert-base-uncased-vocab.txt": "\n".join(dict.fromkeys(pieces)) + "\n",
    }

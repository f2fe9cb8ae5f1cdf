"""Tokenized corpora read as people write, lose nothing but marks and space, and stay as they are when read again."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.text.sentences import ptb, wikitext

MARKS = (
    "a I's cats N 7 2000 = == @-@ @,@ @.@ @ , . ... ; : ! ? ( ) [ ] ' '' `` \" 's 't n't do can not gon na got ta $ %"
)
WORDS = st.sampled_from(f"{MARKS} £ – ° <unk> -lrb- -rrb- \\/ \\* s' ' \n \t".split(" "))
LINES = st.lists(st.tuples(WORDS, st.sampled_from(["", " ", " ", " ", "  "])), max_size=25).map(
    lambda parts: "".join(word + space for word, space in parts)
)


@pytest.mark.parametrize(
    "line, expected",
    [
        (" = Robert <unk> = ", "= Robert <unk> ="),
        (" = = = 2006 – present = = = ", "=== 2006 – present ==="),
        (" He had a guest @-@ starring role in 2000 .", "He had a guest-starring role in 2000."),
        ('as " Craig " in the episode " Teddy \'s Story " .', 'as "Craig" in the episode "Teddy\'s Story".'),
        ("( Wade – Giles : Tu Fu ; 712 – 770 ) was", "(Wade – Giles: Tu Fu; 712–770) was"),
        ("1 @,@ 462 t ( 79 % ) at 0 @.@ 7 kg", "1,462 t (79%) at 0.7 kg"),
        ("since Linnaeus ' concept didn 't", "since Linnaeus' concept didn't"),
        ("a .45 for $ 2 @.@ 5 million ... and so on", "a .45 for $2.5 million ... and so on"),
        ('a " lone quote', 'a " lone quote'),
        ("= = x plus y =", "= = x plus y ="),
        ("two\n \n = = Life = = \n", "two\n\n== Life ==\n"),
    ],
)
def test_wikitext(line: str, expected: str) -> None:
    assert wikitext(line) == expected


@pytest.mark.parametrize(
    "line, expected",
    [
        (
            " but the company 's shares did n't rise N % to $ N a share ",
            "but the company's shares didn't rise N% to $N a share",
        ),
        ("they 're workers ' rights <unk> we 've got", "they're workers' rights <unk> we've got"),
        ("`` We can not , '' he said -LRB- twice -RRB- .", '"We cannot," he said (twice).'),
        ("I 'm gon na go and you got ta stay 1\\/2", "I'm gonna go and you gotta stay 1/2"),
        ("a can of non na things", "a can of non na things"),
    ],
)
def test_ptb(line: str, expected: str) -> None:
    assert ptb(line) == expected


@settings(max_examples=150, deadline=None)
@given(LINES)
def test_what_is_clean_stays_as_it_is(text: str) -> None:
    for clean in (wikitext, ptb):
        once = clean(text)
        assert clean(once) == once and once.count("\n") == text.count("\n")


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_wikitext_takes_out_space_and_marks_alone(text: str) -> None:
    def rest(line: str) -> str:
        return re.sub(r"[ @]", "", line)

    assert rest(wikitext(text)) == rest(text)


@pytest.mark.parametrize("part", [" ", "= ", '" ', " @-@", "( ", " ,", "can ", "' ", "7 "])
def test_a_line_of_one_thing_is_no_trap(part: str) -> None:
    line = part * 30_000
    assert len(wikitext(line)) <= len(line) and len(ptb(line)) <= len(line)


def test_real_lines(data: Path) -> None:
    with lzma.open(data / "wikitext2" / "valid.txt.xz", "rt", encoding="utf-8") as file:
        text = "".join(line for line, _ in zip(file, range(800), strict=False))
    clean = wikitext(text)
    assert wikitext(clean) == clean and clean.count("\n") == text.count("\n")
    assert not re.search(r" @[-,.]@ | ,|\( | \)|^ |= =", clean, re.M)
    assert clean.count("<unk>") == text.count("<unk>") > 100
    assert len(clean.split()) < 0.9 * len(text.split())

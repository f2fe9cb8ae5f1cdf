"""Questions to word vectors: near, analogy, odd one out, cosine, judged by pairs and analogies, and maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.errors import UserError
from weft.vectors.space import Map, WordSpace, evaluate, procrustes, read_questions, split, wilson

# Royalty, sex and fruit, one number each: what is near what can be told by hand.
WORDS = ["king", "queen", "man", "woman", "apple", "pear", "<unk>"]
ROWS = [[3, 1, 0], [3, -1, 0], [0, 1, 0], [0, -1, 0], [0, 0.1, 2], [0, -0.1, 2], [9, 9, 9]]
SPACE = WordSpace(WORDS, np.array(ROWS, np.float32), "toy")


def test_near_words_leave_out_the_word_itself_and_the_unknown_one() -> None:
    found = SPACE.near("king", 3)
    assert [near.word for near in found] == ["queen", "man", "apple"]
    assert found[0].score == pytest.approx(0.8, abs=1e-6) == SPACE.cosine("king", "queen")
    assert len(SPACE.near("king", 99)) == 5 and len(SPACE) == 6
    assert SPACE.near("KING", 1) == SPACE.near("king", 1)  # found in small letters where it is there only so


@pytest.mark.parametrize("multiply", [False, True])
def test_king_is_to_man_as_queen_is_to_woman(multiply: bool) -> None:
    assert SPACE.analogy("king", "man", "woman", multiply=multiply)[0].word == "queen"
    assert {near.word for near in SPACE.analogy("king", "man", "woman", 9, multiply)} == {"queen", "apple", "pear"}


def test_multiplied_cosines_are_those_of_the_formula() -> None:
    def like(a: str, b: str) -> float:
        return (SPACE.cosine(a, b) + 1) / 2

    for near in SPACE.analogy("king", "man", "woman", 9, True):
        formula = like(near.word, "king") * like(near.word, "woman") / (like(near.word, "man") + 1e-3)
        assert near.score == pytest.approx(formula, rel=1e-5)


def test_the_odd_one_comes_first() -> None:
    found = SPACE.odd(["apple", "king", "pear"])
    # The mean of the fruit points away from kings altogether; that of all three would not.
    assert found[0].word == "king" and found[0].score == pytest.approx(0, abs=1e-6)
    with pytest.raises(UserError, match="at least three words, not 2"):
        SPACE.odd(["king", "queen"])


def test_an_unknown_word_is_one_line_with_near_spellings() -> None:
    with pytest.raises(UserError) as caught:
        SPACE.near("quen")
    assert str(caught.value) == "'quen' is not among the 6 words of toy; spelled like it: queen"
    with pytest.raises(UserError, match="not among the 6 words of toy$"):
        SPACE.cosine("king", "\x1b[31m日本")


def test_pairs_are_judged_by_spearman_and_missing_words_are_named(tmp_path: Path) -> None:
    scipy = pytest.importorskip("scipy.stats")
    path = tmp_path / "pairs.csv"
    rows = [("king", "queen", 9), ("man", "woman", 8), ("apple", "pear", 7), ("king", "pear", 1), ("man", "tiger", 3)]
    path.write_text("Word 1,Word 2,Human\n" + "".join(f"{a},{b},{score}\n" for a, b, score in rows))
    [found] = evaluate(SPACE, read_questions(path))
    expected = scipy.spearmanr([SPACE.cosine(a, b) for a, b, _ in rows[:4]], [score for _, _, score in rows[:4]])
    assert found.score.value == pytest.approx(expected[0]) and found.score.low <= found.score.value
    assert (found.used, found.asked, found.missing, found.name) == (4, 5, ("tiger",), "pairs")
    assert found.words() == "pairs: 1 of 5 left out, since 1 word is missing: tiger"
    path.write_text("king queen 9\nking\n")
    with pytest.raises(UserError, match="pairs.csv line 2: neither two words and a score nor four words: 'king'"):
        read_questions(path)


def test_analogies_are_judged_by_section(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(
        ": sex\nman woman king queen\nwoman man queen king\nman woman duke duchess\n: fruit\nking man pear queen\n"
    )
    sex, fruit, whole = evaluate(SPACE, read_questions(path))
    assert (sex.score.value, sex.used, sex.asked) == (1.0, 2, 3) and fruit.score.value == 0.0
    assert (whole.score.value, whole.used, whole.asked, whole.name) == (pytest.approx(2 / 3), 3, 4, "questions")
    assert whole.missing == ("duke", "duchess")
    assert wilson(0, 10).high == pytest.approx(0.2775, abs=1e-3)  # as Wilson (1927) has it


def bilingual(noise: float) -> tuple[WordSpace, WordSpace, np.ndarray]:  # type: ignore[type-arg]
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(300, 20))
    rotation = np.linalg.qr(draw.normal(size=(20, 20)))[0]
    image = rows @ rotation + noise * draw.normal(size=rows.shape)
    source = WordSpace([f"s{n}" for n in range(300)], rows.astype(np.float32))
    return source, WordSpace([f"t{n}" for n in range(300)], image.astype(np.float32)), rotation


def test_a_planted_rotation_is_found() -> None:
    source, target, rotation = bilingual(0.0)
    assert np.allclose(procrustes(source.matrix, target.matrix), rotation, atol=1e-5)
    pairs = [(f"s{n}", f"t{n}") for n in range(300)]
    some, held_out = split(pairs, 0.5, 0)
    assert 100 < len(some) < 200 and not set(some) & set(held_out)
    plain = Map.learn(source, target, some, normalize=False, center=False)
    assert np.allclose(plain.matrix, rotation, atol=1e-5)
    for retrieval in ("csls", "cosine"):
        assert Map.learn(source, target, some).evaluate(held_out, retrieval).at_1.value == 1.0
    assert Map.learn(source, target, some).near("s7", 2)[0].word == "t7"
    shuffled = [(a, f"t{(n * 7) % 300}") for n, (a, _) in enumerate(some)]
    assert Map.learn(source, target, shuffled).evaluate(held_out).at_1.value < 0.2


def test_the_matrix_stays_orthogonal_and_any_right_translation_counts() -> None:
    source, target, _ = bilingual(0.5)
    found = Map.learn(source, target, [(f"s{n}", f"t{n}") for n in range(100)])
    assert np.allclose(found.matrix @ found.matrix.T, np.eye(20), atol=1e-5)
    best = [near.word for near in found.near("s200", 6)]
    once = found.evaluate([("s200", best[4])])
    assert (once.at_1.value, once.at_5.value, once.asked) == (0.0, 1.0, 1)
    assert found.evaluate([("s200", best[5])]).at_5.value == 0.0
    assert found.evaluate([("s200", best[3]), ("s200", best[0])]).at_1.value == 1.0


def test_csls_takes_off_how_near_both_words_are_to_their_ten_nearest() -> None:
    source, target, _ = bilingual(0.5)
    found = Map.learn(source, target, [(f"s{n}", f"t{n}") for n in range(100)])
    cosines = found.images(source.matrix) @ found.rows.T
    own, others = (np.sort(some, 1)[:, -10:].mean(1) for some in (cosines, cosines.T))
    formula = 2 * cosines - own[:, None] - others[None]
    assert np.allclose(found.scores(source.matrix[5:9], "csls"), formula[5:9], atol=1e-5)
    assert np.allclose(found.scores(source.matrix[5:9], "cosine"), cosines[5:9], atol=1e-5)


def test_what_all_words_of_a_language_have_in_common_is_taken_off() -> None:
    source, target, rotation = bilingual(0.0)
    away = WordSpace(target.words, target.matrix + np.float32(3))
    pairs = [(f"s{n}", f"t{n}") for n in range(300)]
    found, plain = (Map.learn(source, away, pairs[:100], False, center) for center in (True, False))
    assert np.allclose(found.matrix, rotation, atol=1e-4) and found.evaluate(pairs[100:]).at_1.value == 1.0
    assert not np.allclose(plain.matrix, rotation, atol=0.1)


def test_translations_of_one_word_stay_together() -> None:
    pairs = [(f"w{n % 50}", f"t{n}") for n in range(200)]
    some, held_out = split(pairs, 0.3, 1)
    assert {a for a, _ in some} & {a for a, _ in held_out} == set() and len(some) + len(held_out) == 200

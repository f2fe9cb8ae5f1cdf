"""Pages and charts: whole documents that show what they were given, and nothing that runs or is fetched."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from weft.picture import (
    DARK,
    LIGHT,
    Bar,
    ChartLine,
    bar_chart,
    heading,
    heat_map,
    line_chart,
    log_ticks,
    page,
    paragraph,
    short,
    table,
    thinned,
    ticks,
    verbatim,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title></text><script>alert('1')</script>\" onload=\"x & y\x00\x1b\ud800"


def figure(*lines: ChartLine, log_y: bool = False) -> ElementTree.Element:
    """A chart with its title and legend, read back as XML."""
    return ElementTree.fromstring(line_chart("Loss", lines, "step", "nats", log_y=log_y))


def drawing(chart: ElementTree.Element, name: str = "wide") -> ElementTree.Element:
    """One of the two drawings of a chart."""
    (found,) = [node for node in chart.iter(f"{SVG}svg") if node.get("class") == name]
    return found


def drawn(*lines: ChartLine, log_y: bool = False) -> ElementTree.Element:
    return drawing(figure(*lines, log_y=log_y))


def legend(chart: ElementTree.Element) -> list[str]:
    return ["".join(node.itertext()).strip() for node in chart.iter("li")]


def texts(chart: ElementTree.Element, kind: str | None = None) -> list[str]:
    found = [node for node in chart.iter(f"{SVG}text") if kind is None or node.get("class") == kind]
    return ["".join(node.itertext()) for node in found]


def strokes(chart: ElementTree.Element) -> list[ElementTree.Element]:
    return [node for node in chart.iter(f"{SVG}path") if node.get("class") == "line"]


def corners(path: ElementTree.Element) -> list[tuple[float, float]]:
    numbers = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.get("d", ""))
    return [(float(x), float(y)) for x, y in numbers]


def grid(chart: ElementTree.Element) -> tuple[list[float], list[float]]:
    """Where the upright and the level rules of the grid are."""
    (path,) = [node for node in chart.iter(f"{SVG}path") if node.get("class") == "grid"]
    d = path.get("d", "")
    return (
        [float(x) for x in re.findall(r"M([\d.]+) [\d.]+V", d)],
        [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)H", d)],
    )


def color(node: ElementTree.Element) -> str:
    return node.get("style", "")


def test_a_chart_says_what_it_shows() -> None:
    whole = figure(
        ChartLine("train", [(0, 4.0), (10_000, 1.0), (20_000, 0.5)]), ChartLine("base", [(0, 2.0), (1, 2.0)])
    )
    assert whole.findtext("figcaption") == "Loss" and legend(whole) == ["train", "base"]
    chart = drawing(whole)
    assert {"step", "nats"} <= set(texts(chart))
    assert texts(chart, "x") == ["0", "5k", "10k", "15k", "20k"]
    assert texts(chart, "y") == ["0", "1", "2", "3", "4"]
    tips = [node.text for node in chart.iter(f"{SVG}title")]
    assert "train\nstep 10,000\nnats 1" in tips and len(tips) == 5


def test_points_lie_where_the_grid_says() -> None:
    chart = drawn(ChartLine("a", [(0, 0), (5_000, 2), (20_000, 4)]))
    upright, level = grid(chart)
    at_x = dict(zip(texts(chart, "x"), upright, strict=True))
    at_y = dict(zip(texts(chart, "y"), level, strict=True))
    assert corners(strokes(chart)[0]) == [(at_x["0"], at_y["0"]), (at_x["5k"], at_y["2"]), (at_x["20k"], at_y["4"])]
    assert at_y["4"] < at_y["2"] < at_y["0"], "more is higher up"

    chart = drawn(ChartLine("a", [(0, 0.01), (1, 1), (2, 100)]), log_y=True)
    at_y = dict(zip(texts(chart, "y"), grid(chart)[1], strict=True))
    assert [y for _, y in corners(strokes(chart)[0])] == [at_y["0.01"], at_y["1"], at_y["100"]]
    assert at_y["0.01"] - at_y["1"] == pytest.approx(at_y["1"] - at_y["100"], abs=0.2), "even steps for equal factors"


@pytest.mark.parametrize(
    "points",
    [
        [(7, 3.2)],
        [(0, 0)],
        [(-5, -3)],
        [(1, 2.5), (2, 2.5), (3, 2.5)],
        [(0, 1e9), (1, 1e9 + 1e-6)],
        [(0, 1e-300), (1, 2e-300)],
        [(0, -1e99), (1, 1e99)],
        [(0, 9e5), (1, 3.1), (2, 3.0)],
        [(0.001, -0.0004), (0.002, 0.0003)],
        [(3, 0.1), (1, 0.3)],
    ],
)
@pytest.mark.parametrize("log_y", [False, True])
def test_every_point_is_inside_the_frame(points: list[tuple[float, float]], log_y: bool) -> None:
    chart = drawn(ChartLine("a", points), log_y=log_y)
    found = [corner for path in strokes(chart) for corner in corners(path)]
    assert len(found) == sum(not log_y or y > 1e-100 for _, y in points)
    if found:
        upright, level = grid(chart)
        assert len(upright) >= 2 and len(level) >= 2
        for x, y in found:
            assert min(upright) - 0.1 <= x <= max(upright) + 0.1 and min(level) - 0.1 <= y <= max(level) + 0.1
        names = texts(chart, "y")
        assert len(set(names)) == len(names), "two ticks of one name"


def spans() -> list[tuple[float, float]]:
    ends = [-1e6, -37.2, -1.0, -3e-4, 0.0, 2e-7, 0.3, 0.30001, 1.0, 2.9, 99.0, 12_345.0, 7e8]
    return list(itertools.combinations_with_replacement(ends, 2))


@pytest.mark.parametrize("about", [2, 5, 8])
def test_ticks_cover_the_data(about: int) -> None:
    for low, high in spans():
        found = ticks(low, high, about)
        slack = 1e-8 * (found[1] - found[0])
        assert found[0] <= low + slack and found[-1] >= high - slack, (low, high, found)
        assert 2 <= len(found) <= about + 3, (low, high, found)
        if high > low:  # no empty room of a whole step at either end
            assert found[1] > low and found[-2] < high, (low, high, found)
        steps = {f"{later - earlier:.2e}"[:4] for earlier, later in itertools.pairwise(found)}
        assert len(steps) == 1 and steps <= {"1.00", "2.00", "5.00"}, (low, high, found)
        if low > 0:
            found = log_ticks(low, high, about)
            assert 0 < found[0] <= low * (1 + 1e-9) and found[-1] >= high * (1 - 1e-9), (low, high, found)
            assert 2 <= len(found) <= 2 * about + 5 and found == sorted(set(found)), (low, high, found)


def test_counts_get_whole_ticks() -> None:
    assert ticks(1, 2, 8, whole=True) == [1, 2] and ticks(1, 2, 5) == [1, 1.2, 1.4, 1.6, 1.8, 2]
    assert texts(drawn(ChartLine("a", [(1, 0), (3, 1)])), "x") == ["1", "2", "3"]


def test_numbers_look_as_a_person_writes_them() -> None:
    values = [0.0, 0.1 + 0.2, 0.5, 1.0, 1.5, 500, 1000, 1500, 20_000, 2.5e6, -3000, 1e9, 1e15, 1e-5, 2.5e-7]
    wanted = "0 0.3 0.5 1 1.5 500 1k 1.5k 20k 2.5M -3k 1G 1e15 1e-5 2.5e-7"
    assert [short(value) for value in values] == wanted.split()


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf, 1e200])
def test_what_is_not_finite_leaves_a_gap(gap: float) -> None:
    (path,) = strokes(drawn(ChartLine("a", [(0, 1), (1, 2), (2, gap), (3, 4), (4, 5)])))
    d = path.get("d", "")
    assert [part.count("L") for part in d.split("M")] == [0, 1, 1] and len(corners(path)) == 4
    assert "nan" not in d and "inf" not in d


def test_zero_and_less_is_dropped_from_a_logarithmic_chart() -> None:
    (path,) = strokes(drawn(ChartLine("a", [(0, 1), (1, 0), (2, 10), (3, -5), (4, 100)]), log_y=True))
    assert len(corners(path)) == 3 and path.get("d", "").count("M") == 3
    assert path.get("d", "").count("h0") == 3, "a point between two gaps would not be seen"


def test_thinning_keeps_extremes_ends_and_gaps() -> None:
    points: list[tuple[float, float] | None] = [(step, math.sin(step / 3000)) for step in range(100_000)]
    points[41_234], points[77_777], points[50_001] = (41_234, 9.0), (77_777, -9.0), None
    points[0], points[-1] = (0, 0.05), (99_999, math.sin(99_850 / 3000))  # neither lowest nor highest near by
    found = thinned(points, 1000)
    assert len(found) <= 1002
    assert {points[0], points[-1], (41_234, 9.0), (77_777, -9.0), None} <= set(found)
    steps = [point[0] for point in found if point]
    assert steps == sorted(set(steps)), "in the order they came, none twice"
    gap = found.index(None)
    before, after = found[gap - 1], found[gap + 1]
    assert before and after and before[0] < 50_001 < after[0]
    assert thinned(points[:1000], 1000) == points[:1000]


def test_a_long_line_makes_a_small_chart_with_its_extremes() -> None:
    points = [(float(step), 2.0) for step in range(200_000)]
    points[123_456], points[3] = (123_456.0, 11.0), (3.0, 1.0)
    text = line_chart("t", [ChartLine("a", points)], "x", "y")
    assert len(text) < 50_000
    _, level = grid(chart := drawing(ElementTree.fromstring(text)))
    at_y = dict(zip(texts(chart, "y"), level, strict=True))
    heights = [y for _, y in corners(strokes(chart)[0])]
    assert min(heights) <= at_y["10"] and max(heights) > at_y["2"]
    tips = [node.text or "" for node in chart.iter(f"{SVG}title")]
    assert any("123,456" in tip for tip in tips) and len(tips) < 70
    noise = [(step, math.nan if step % 2 else 1.0) for step in range(50_000)]
    assert len(line_chart("t", [ChartLine("a", noise)], "x", "y")) < 50_000, "every second one a gap"


@pytest.mark.parametrize("lines", [[], [ChartLine("run", [])], [ChartLine("run", [(0, math.nan)])]])
def test_nothing_to_show(lines: list[ChartLine]) -> None:
    whole = figure(*lines)
    assert "nothing yet" in texts(drawing(whole)) and not strokes(drawing(whole))
    assert legend(whole) == [line.name for line in lines]
    assert "nothing yet" not in texts(drawn(*lines, ChartLine("b", [(0, 1)])))
    assert "nothing yet" in texts(drawn(ChartLine("a", [(0, -1), (1, 0)]), log_y=True))
    assert "nothing yet" in table(["a", "b"], [])


def test_groups_share_a_color_and_faint_lies_beneath() -> None:
    points = [(0.0, 1.0), (1.0, 2.0)]
    whole = figure(
        ChartLine("train", points, group="one", faint=True),
        ChartLine("valid", points, group="one"),
        ChartLine("other", points, group="two", dashed=True),
        ChartLine("late", points, group="two", faint=True),
        ChartLine("alone", points),
    )
    chart = drawing(whole)
    first, second, valid, other, alone = strokes(chart)
    assert color(first) == color(valid) and color(second) == color(other)
    assert len({color(valid), color(other), color(alone)}) == 3
    assert [float(path.get("stroke-opacity", 1)) < 1 for path in strokes(chart)] == [True, True, False, False, False]
    assert [path.get("stroke-dasharray") != "none" for path in (valid, other)] == [False, True]
    assert legend(whole) == ["train", "valid", "other", "late", "alone"]


@pytest.mark.parametrize("name", ["wide", "narrow"])
def test_many_lines_stay_apart_and_inside(name: str) -> None:
    lines = [ChartLine(f"run {number} with rather a long name " * 2, [(0, number), (1, 1)]) for number in range(12)]
    whole = figure(*lines, ChartLine("長" * 500, [(0, 1)]))
    chart = drawing(whole, name)
    looks = {(color(path), path.get("stroke-dasharray")) for path in strokes(chart)[:12]}
    assert len(looks) == 12
    _, _, width, height = map(float, chart.get("viewBox", "").split())
    assert width < 360 or name == "wide", "a telephone shows it without scaling"
    places = set()
    for node in chart.iter(f"{SVG}text"):
        seen = (node.text or "") + "".join(child.tail or "" for child in node)
        size = len(seen) * 6.5
        begin = float(node.get("x", 0)) - {"end": 1, "middle": 0.5}.get(node.get("text-anchor", ""), 0) * size
        assert begin >= 0 and begin + size <= width and 0 < float(node.get("y", 0)) < height, seen
        places.add((node.get("x"), node.get("y")))
    assert len(places) == len(list(chart.iter(f"{SVG}text"))), "two texts in one place"
    assert legend(whole) == [line.name.strip() for line in lines] + ["長" * 500], "no name is cut"


def test_a_scatter_has_points_and_no_line() -> None:
    chart = drawn(
        ChartLine("rows", [(0, 1), (2, 3), (1, math.nan)], joined=False), ChartLine("equal", [(0, 0), (3, 3)])
    )
    (group,) = [node for node in chart.iter(f"{SVG}g") if node.get("class") == "scatter"]
    assert len(list(group)) == 2 and len(strokes(chart)) == 1


def test_a_heat_map_shows_each_value_in_its_square() -> None:
    values = [[0.0, 1.0, 0.5], [math.nan, 0.25, 7.0]]
    chart = ElementTree.fromstring(heat_map("Seen", ["down", HOSTILE], ["one", "two", "three"], values))
    squares = list(chart.iter(f"{SVG}rect"))
    assert [square.get("fill-opacity") for square in squares] == ["0.040", "1.000", "0.520", "0.040", "0.280", "1.000"]
    columns, rows = sorted({float(s.get("x", 0)) for s in squares}), sorted({float(s.get("y", 0)) for s in squares})
    for place, square in enumerate(squares):
        assert (float(square.get("y", 0)), float(square.get("x", 0))) == (rows[place // 3], columns[place % 3])
    assert texts(chart, "across") == ["one", "two", "three"]
    assert texts(chart, "down")[0] == "down"
    assert "down / two: 1.000" in "".join(squares[1].itertext())
    assert not list(chart.iter(f"{SVG}script"))


def test_a_heat_map_wraps_its_names_and_writes_into_its_squares() -> None:
    name = "what customers ask about deliveries"
    text = heat_map(
        "True label by row, predicted label by column", [name, "b"], [name, "b"], [[1, 0]] * 2, ["90", "12"]
    )
    chart = ElementTree.fromstring(text)
    assert " ".join(texts(chart, "down")) == f"{name} b" and texts(chart, "cell") == ["9", "0", "1", "2"]
    assert "…" not in text


def test_bars_are_as_long_as_their_values() -> None:
    bars = [Bar("one", 2.0, 1.5, 2.5), Bar(HOSTILE, 4.0, note="best"), Bar("none", math.nan, note="failed")]
    chart = ElementTree.fromstring(bar_chart("Bits", bars, "bits per byte"))

    def style(kind: str, key: str) -> list[float]:
        styles = [node.get("style", "") for node in chart.iter("span") if node.get("class") == kind]
        return [float(found[1]) for text in styles if (found := re.search(rf"{key}: ([\d.]+)%", text))]

    first, second = style("fill", "width")
    assert second == 100 and first == pytest.approx(50, abs=0.1)
    (near,), (far,) = style("interval", "left"), style("interval", "width")
    assert (near, near + far) == pytest.approx((37.5, 62.5), abs=0.1)
    assert [["".join(span.itertext()) for span in row][0::2] for row in chart.iter("li")][0] == ["one", "2.000"]
    words = "|".join(chart.itertext())
    assert all(word in words for word in ("Bits", "bits per byte", "4.000 best", "failed"))
    assert not list(chart.iter("script"))
    assert not list(ElementTree.fromstring(bar_chart("Bits", [], "bits")).iter("li"))


def test_even_steps_for_equal_factors_across() -> None:
    lines = [ChartLine("a", [(0, 9), (1, 1), (10, 1), (100, 1)])]
    chart = drawing(ElementTree.fromstring(line_chart("t", lines, "x", "y", log_x=True)))
    places = [x for x, _ in corners(strokes(chart)[0])]
    assert len(places) == 3 and places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    assert places == [dict(zip(texts(chart, "x"), grid(chart)[0], strict=True))[name] for name in ("1", "10", "100")]


def test_text_as_it_stands() -> None:
    assert ElementTree.fromstring(verbatim(f"a\n  b <c>{HOSTILE}")).text == f"a\n  b <c>{HOSTILE[:-3]}\\x00\\x1b\\ud800"


def test_hostile_names_stay_words() -> None:
    lines = [ChartLine(HOSTILE, [(0, 1), (1, 2)], group=HOSTILE)]
    parts = [
        line_chart(HOSTILE, lines, HOSTILE, HOSTILE),
        line_chart(HOSTILE, [], HOSTILE, HOSTILE),
        table([HOSTILE, "b"], [[HOSTILE, "1"]]),
        paragraph(HOSTILE),
        heading(HOSTILE),
    ]
    text = page(HOSTILE, parts, HOSTILE)
    text.encode("utf-8")  # half of a surrogate pair would not go into a file
    root = ElementTree.fromstring(text)
    assert len(list(root.iter("script"))) == 1 == text.count("<script")  # that of the page
    assert not [name for node in root.iter() for name in node.attrib if name.startswith("on")]
    assert "</title></text><script>alert('1')</script>\" onload=\"x & y\\x00\\x1b\\ud800" in "".join(root.itertext())


def test_a_page_stands_alone() -> None:
    charts = [line_chart("a", [ChartLine("a", [(0, 1), (1, 2)])], "x", "y"), table(["a"], [["1"]])]
    text = page("Runs", [heading("Part"), *charts], "What was trained.")
    assert text.startswith("<!DOCTYPE html>\n")
    root = ElementTree.fromstring(text)
    assert root.get("lang") == "en" and root.findtext("head/title") == "Runs" == root.findtext("body/main/h1")
    assert root.findtext("body/main/p") == "What was trained."
    metas = {node.get("http-equiv") or node.get("name") or "charset": node for node in root.iter("meta")}
    script = text.partition('<script type="module">')[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()  # the one script that may run
    rules = f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src 'sha256-{digest}'"
    assert metas["Content-Security-Policy"].get("content") == rules
    assert "width=device-width" in metas["viewport"].get("content", "") and metas["charset"].get("charset") == "utf-8"
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"url\(|@import|\b(src|href)\s*=|<(link|img|iframe|object)\b", text)
    assert text.count("<script") == 1
    assert root.find("body/main/p") is not None and ElementTree.fromstring(page("Runs", [])).find("body/main/p") is None


def test_the_colors_of_a_page_are_the_colors_of_its_charts() -> None:
    text = page("Runs", [line_chart("a", [ChartLine("a", [(0, 1)])], "x", "y")])
    assert f"var(--line-0, {LIGHT[0]})" in text
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    for name, colors, style in (("light", LIGHT, light), ("dark", DARK, dark)):
        for place, wanted in enumerate(colors):
            assert f"--line-{place}: {wanted};" in style, name
    assert "LIGHT LINES" not in text and "DARK LINES" not in text


def test_numbers_in_tables_stand_to_the_right() -> None:
    header = ["run", "loss", "time", "size", "delta", "none"]
    rows = [["a", "1.25", "12.5 s", "1,234", "-0.5 ± 0.1", ""], ["2x128", "nan", "3 s", "12k", "+1e-05", "-"]]
    rows.append(["c", "", "–", "?", "-INF", ""])
    root = ElementTree.fromstring(table(header, rows))
    sides = [[cell.get("class") for cell in row] for row in root.iter("tr")]
    assert sides == [[None, "number", "number", "number", "number", None]] * 4
    assert [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")] == [header, *rows]
    assert root.get("class") == "scroll" and ".scroll { overflow-x: auto; }" in page("t", [])
    with pytest.raises(AssertionError, match="as many cells"):
        table(["a", "b"], [["1"]])


# How colors look to those who lack one of the three kinds of cones (Machado et al., 2009, at full strength).
SIGHT = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(name: str) -> list[float]:
    parts = [int(name[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def turned(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [min(1.0, max(0.0, sum(a * b for a, b in zip(row, vector, strict=True)))) for row in matrix]


def lab(vector: list[float]) -> tuple[float, float, float]:
    """CIE L*a*b*, in which a distance of 2 is just seen."""
    x, y, z = turned(((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728)), vector)
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("colors, ground", [(LIGHT, "#ffffff"), (DARK, "#15181c")])
def test_colors_can_be_told_apart(colors: tuple[str, ...], ground: str) -> None:
    assert ground.replace("#ffffff", "#fff") in page("t", [])
    assert len(LIGHT) == len(DARK)

    def light(name: str) -> float:
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear(name), strict=True)) + 0.05

    for name in colors:
        assert max(light(name), light(ground)) / min(light(name), light(ground)) >= 3, name
    for sight, matrix in SIGHT.items():
        for one, other in itertools.combinations(colors, 2):
            apart = math.dist(lab(turned(matrix, linear(one))), lab(turned(matrix, linear(other))))
            assert apart >= 20, (sight, one, other, apart)

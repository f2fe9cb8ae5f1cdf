"""Pages and charts from numbers and words: HTML and SVG that stand alone, run nothing and fetch nothing."""

from weft.picture.axes import Point, log_ticks, short, thinned, ticks
from weft.picture.charts import DARK, LIGHT, Bar, ChartLine, bar_chart, heat_map, line_chart
from weft.picture.page import entries, heading, page, paragraph, table, verbatim
from weft.picture.words import safe, wrapped

__all__ = [
    "DARK",
    "LIGHT",
    "Bar",
    "ChartLine",
    "Point",
    "bar_chart",
    "entries",
    "heading",
    "heat_map",
    "line_chart",
    "log_ticks",
    "page",
    "paragraph",
    "safe",
    "short",
    "table",
    "thinned",
    "ticks",
    "verbatim",
    "wrapped",
]

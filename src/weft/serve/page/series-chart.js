// A chart of a series and its forecast with intervals, drawn as the charts of reports are, so that their component makes
// it answer to the mouse and the arrow keys.

import { el, format, svgEl } from "/static/picture/base.js";
import { lineChart } from "/static/picture/line-chart.js";

const WIDTHS = { wide: 860, narrow: 360 };
const HEIGHT = 300;
const EDGE = { left: 52, right: 14, top: 28, bottom: 44 }; // what the component of line charts expects

/** Round numbers, evenly apart, from below the least value to above the largest. */
export function ticks(low, high, about) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / about));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= (span / about) * (1 - 1e-9));
  const places = [];
  for (let n = Math.floor(low / step + 1e-9); n <= Math.ceil(high / step - 1e-9); n++) places.push(n * step);
  return places.length > 1 ? places : [low - step, low, low + step];
}

function numberText(value, step) {
  return step >= 1 ? Math.round(value).toLocaleString("en-US") : value.toFixed(Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
}

function path(points) {
  return `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
}

function drawing(name, { title, times, lines, begin }) {
  const width = WIDTHS[name];
  const values = lines.flatMap((line) => [...line.points, ...(line.low ?? []), ...(line.high ?? [])].map(([, value]) => value));
  const marks = ticks(Math.min(...values), Math.max(...values), 5);
  const [low, high] = [marks[0], marks[marks.length - 1]];
  const x = (place) => EDGE.left + ((width - EDGE.left - EDGE.right) * place) / Math.max(1, times.length - 1);
  const y = (value) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * (value - low)) / (high - low);
  const at = ([place, value]) => [x(place), y(value)];
  const grid = marks.flatMap((mark) => [
    svgEl("path", { d: `M${EDGE.left} ${y(mark).toFixed(1)}H${width - EDGE.right}`, stroke: "currentColor", "stroke-opacity": mark === low ? 0.5 : 0.12 }),
    svgEl("text", { x: EDGE.left - 8, y: y(mark) + 4, "text-anchor": "end", text: numberText(mark, marks[1] - marks[0]) }),
  ]);
  const count = name === "wide" ? 6 : 3;
  const named = [...new Set(Array.from({ length: count }, (_, n) => Math.round(((times.length - 1) * n) / (count - 1))))];
  const below = named.map((place, n) => svgEl("text", { x: x(place), y: HEIGHT - EDGE.bottom + 20, "text-anchor": n === 0 ? "start" : n === named.length - 1 ? "end" : "middle", text: times[place] }));
  const border = svgEl("path", { d: `M${x(begin).toFixed(1)} ${EDGE.top}V${HEIGHT - EDGE.bottom}`, stroke: "currentColor", "stroke-opacity": 0.5, "stroke-dasharray": "3 4" });
  const drawn = lines.flatMap((line, n) => {
    const color = `var(--line-${line.color})`;
    const from = line.from ? [at(line.from)] : [];
    const area = line.low && svgEl("path", { "data-line": n, d: `${path([...from, ...line.low.map(at), ...line.high.map(at).reverse()])}Z`, "fill-opacity": 0.18, style: { fill: color } });
    const stroke = svgEl("path", { class: "line", "data-line": n, d: path([...from, ...line.points.map(at)]), fill: "none", "stroke-width": 2, "stroke-linejoin": "round", "stroke-linecap": "round", style: { stroke: color } });
    const dots = svgEl("g", { "data-line": n, "fill-opacity": 0, stroke: "transparent", "stroke-width": 6 }, line.points.map((point, place) => {
      const interval = line.low ? ` (${format(line.low[place][1], 1)} to ${format(line.high[place][1], 1)})` : "";
      return svgEl("circle", { cx: x(point[0]), cy: y(point[1]), r: 3 }, svgEl("title", { text: `${line.name}\n${times[point[0]]}\n${format(point[1], 2)}${interval}` }));
    }));
    return [area, stroke, dots].filter(Boolean);
  });
  return svgEl("svg", {
    class: name, role: "img", "aria-label": `${title}. Arrow keys go from value to value.`, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, fill: "currentColor",
    "font-family": "system-ui, sans-serif", "font-size": 13,
  }, grid, below, border, drawn);
}

function sample(line) {
  const color = `var(--line-${line.color})`;
  return svgEl("svg", { width: 24, height: 10, "aria-hidden": "true" },
    line.low && svgEl("path", { d: "M1 0h22v10h-22Z", "fill-opacity": 0.18, style: { fill: color } }),
    svgEl("path", { d: "M1 5h22", fill: "none", "stroke-width": 2, style: { stroke: color } }));
}

/**
 * @param {{title: string, times: string[], begin: number, lines: {name: string, color: number, points: number[][], from?: number[], low?: number[][], high?: number[][]}[]}} chart
 *   points are [place in times, value]; `from`: the point that a line and its band are joined to; `begin`: where the forecast begins
 */
export function seriesChart(chart) {
  const figure = el("figure", { class: "series-chart" }, el("figcaption", { text: chart.title }), drawing("wide", chart), drawing("narrow", chart),
    el("ul", { class: "legend" }, chart.lines.map((line, n) => el("li", { "data-line": n }, sample(line), ` ${line.name}`))));
  lineChart(figure);
  return figure;
}

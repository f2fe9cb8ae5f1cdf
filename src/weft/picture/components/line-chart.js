import { el, hideTooltip, keys, svgEl, tooltip } from "./base.js";

// A line chart that Python drew: all values at one place under the mouse or by arrow keys, and lines that can be hidden.
export function lineChart(figure) {
  const hidden = new Set();
  const marks = (n) => figure.querySelectorAll(`svg [data-line="${n}"]`);
  for (const item of figure.querySelectorAll(".legend li")) {
    const n = item.dataset.line;
    const button = el("button", { type: "button", "aria-pressed": "true", title: "Hide or show this line" }, [...item.childNodes]);
    button.addEventListener("click", () => {
      if (!hidden.delete(n)) hidden.add(n);
      button.setAttribute("aria-pressed", String(!hidden.has(n)));
      for (const mark of marks(n)) mark.classList.toggle("hidden", hidden.has(n));
    });
    item.append(button);
  }
  for (const drawing of figure.querySelectorAll("svg.wide, svg.narrow")) readValues(drawing, hidden);
}

function readValues(drawing, hidden) {
  const points = [...drawing.querySelectorAll("[data-line] title")].map((title) => {
    const circle = title.parentNode;
    const [name, across, ...up] = title.textContent.split("\n");
    const text = up.length ? `${name}: ${up.join(" ")}` : across ?? name;
    const place = { x: Number(circle.getAttribute("cx")), y: Number(circle.getAttribute("cy")) };
    return { ...place, line: circle.closest("[data-line]").dataset.line, across: up.length ? across : name, text };
  });
  if (!points.length) return;
  for (const title of drawing.querySelectorAll("[data-line] title")) title.remove(); // the tooltip says more
  const rule = svgEl("path", { stroke: "currentColor", "stroke-opacity": 0.5, "pointer-events": "none" });
  const rings = svgEl("g", { fill: "none", stroke: "currentColor", "stroke-width": 1.5, "pointer-events": "none" });
  drawing.append(rule, rings);
  drawing.setAttribute("tabindex", "0");
  const shown = () => points.filter((point) => !hidden.has(point.line));
  let at = null;

  // The nearest point of each line to x, where that is near enough to stand for the same place.
  function show(x, event) {
    const lines = new Map();
    for (const point of shown()) {
      const best = lines.get(point.line);
      if (!best || Math.abs(point.x - x) < Math.abs(best.x - x)) lines.set(point.line, point);
    }
    if (!lines.size) return leave();
    const nearest = [...lines.values()].reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a));
    const chosen = [...lines.values()].filter((point) => Math.abs(point.x - nearest.x) < 8);
    at = nearest.x;
    rule.setAttribute("d", `M${at} 28V${drawing.viewBox.baseVal.height - 44}`);
    rings.replaceChildren(...chosen.map((point) => svgEl("circle", { cx: point.x, cy: point.y, r: 4.5 })));
    tooltip(event, [nearest.across, ...chosen.map((point) => point.text)].join("\n"));
  }

  function leave() {
    at = null;
    rule.removeAttribute("d");
    rings.replaceChildren();
    hideTooltip();
  }

  function step(event, way) {
    const places = [...new Set(shown().map((point) => point.x))].sort((a, b) => a - b);
    const from = at === null ? (way > 0 ? -1 : places.length) : places.indexOf(at);
    show(places[Math.min(places.length - 1, Math.max(0, from + way))], { target: drawing });
  }

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    show(((event.clientX - box.left) * drawing.viewBox.baseVal.width) / box.width, event);
  });
  drawing.addEventListener("pointerleave", leave);
  drawing.addEventListener("blur", leave);
  keys(drawing, { ArrowLeft: (event) => step(event, -1), ArrowRight: (event) => step(event, 1), Escape: leave });
}

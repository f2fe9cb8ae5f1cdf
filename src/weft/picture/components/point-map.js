import { cssColor, el, hidpiCanvas, hideTooltip, keys, lineColor, onTheme, segmented, slider, tooltip } from "./base.js";

// Points in the plane, such as words: data has `points` ({label, group, note}), `groups` (names), `maps` ({name, x, y, note}:
// the same points by several projections or layers), `choice` (what the maps differ by) and `lines` ([from, to, name]),
// `chosen` (the map shown first) and `labeled` (false: a point has its name only while it is chosen or found).
export function pointMap(root, data) {
  new PointMapPage(root, data);
}

const POINT_MAP_EDGE = 24;

class PointMapPage {
  constructor(root, data) {
    this.data = { groups: [], lines: [], choice: "Projection", chosen: 0, labeled: true, ...data };
    this.map = this.data.chosen;
    this.chosen = null; // the number of the point that has the keyboard or was clicked
    this.query = "";
    this.view = { x: 0.5, y: 0.5, zoom: 1 }; // the middle in the unit square, and how much larger than all of it
    root.classList.add("point-map");
    this.search = el("input", { type: "search", placeholder: "Search", "aria-label": "Search for a point", on: { input: () => this.find(this.search.value) } });
    this.caption = el("p", { class: "point-map-caption", "aria-live": "polite" });
    this.stage = el("div", { class: "point-map-stage", tabindex: 0, role: "application", "aria-label": "Map of points. Arrow keys go to the next point, plus and minus zoom, 0 shows all." });
    const zoom = (text, label, run) => el("button", { type: "button", text, "aria-label": label, on: { click: run } });
    this.bar = el("div", { class: "controls" }, this.chooser(), this.search,
      el("span", { class: "segments" }, zoom("−", "Zoom out", () => this.scale(1 / 1.4)), zoom("+", "Zoom in", () => this.scale(1.4)), zoom("All", "Show all", () => this.all())));
    const hint = el("p", { class: "note", text: "Arrow keys go from point to point, + and − zoom, 0 shows all; drag to move." });
    root.replaceChildren(...[this.bar, this.stage, this.caption, this.legend(), hint].filter(Boolean));
    this.listen();
    this.say();
    onTheme(() => this.paint());
    new ResizeObserver(() => this.paint()).observe(this.stage);
  }

  chooser() {
    const maps = this.data.maps.map((each, n) => [n, each.name]);
    if (maps.length < 2) return null;
    if (maps.length <= 4) return segmented(this.data.choice, maps, this.map, (n) => this.show(n));
    const node = slider(this.data.choice, { min: 0, max: maps.length - 1, step: 1, value: this.map }, (n) => this.show(n));
    const [input, shown] = [node.querySelector("input"), node.querySelector("output")];
    const name = () => { shown.textContent = maps[this.map][1]; input.setAttribute("aria-valuetext", maps[this.map][1]); };
    input.addEventListener("input", name);
    name();
    return node;
  }

  // Another map: the points walk to their new places, where motion is welcome.
  show(n) {
    const from = this.unit;
    this.map = n;
    this.say();
    cancelAnimationFrame(this.frame);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.paint();
    const begin = performance.now();
    const step = (now) => {
      const part = Math.min(1, (now - begin) / 300);
      this.mix = part < 1 ? { from, part: part * (2 - part) } : null;
      this.paint();
      if (part < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
    return undefined;
  }

  legend() {
    const items = this.data.groups.map((name, n) => el("li", {}, el("span", { class: `point-map-mark shape-${n % 4}`, style: { background: `var(--line-${n % 6})` } }), ` ${name}`));
    return items.length > 1 ? el("ul", { class: "legend" }, items) : null;
  }

  listen() {
    const go = (x, y) => () => this.next(x, y);
    keys(this.stage, {
      ArrowLeft: go(-1, 0), ArrowRight: go(1, 0), ArrowUp: go(0, -1), ArrowDown: go(0, 1),
      "+": () => this.scale(1.4), "=": () => this.scale(1.4), "-": () => this.scale(1 / 1.4), 0: () => this.all(), Escape: () => this.choose(null),
    });
    this.stage.addEventListener("pointerdown", (event) => { this.drag = { x: event.clientX, y: event.clientY, far: 0 }; });
    this.stage.addEventListener("pointermove", (event) => this.move(event));
    this.stage.addEventListener("pointerup", (event) => {
      if (this.drag && this.drag.far < 4) this.choose(this.at(event));
      this.drag = null;
    });
    this.stage.addEventListener("pointerleave", () => { this.drag = null; hideTooltip(); });
    this.stage.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.scale(event.deltaY < 0 ? 1.1 : 1 / 1.1);
    }, { passive: false });
  }

  move(event) {
    if (this.drag && event.buttons) {
      const [x, y] = [event.clientX - this.drag.x, event.clientY - this.drag.y];
      this.drag = { x: event.clientX, y: event.clientY, far: this.drag.far + Math.abs(x) + Math.abs(y) };
      this.view.x -= x / (this.view.zoom * this.width);
      this.view.y -= y / (this.view.zoom * this.height);
      this.paint();
      return;
    }
    const point = this.at(event);
    if (point === null) hideTooltip();
    else tooltip(event, this.describe(point));
  }

  describe(n) {
    const { label, group, note } = this.data.points[n];
    const name = this.data.groups[group];
    return [label, name === undefined || name === label ? "" : name, note ?? ""].filter(Boolean).join("\n");
  }

  at(event) {
    const box = this.stage.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [best, near] = [null, 14 * 14];
    this.places.forEach(([a, b], n) => {
      const far = (a - x) ** 2 + (b - y) ** 2;
      if (far < near) [best, near] = [n, far];
    });
    return best;
  }

  scale(by) {
    this.view.zoom = Math.min(64, Math.max(1, this.view.zoom * by));
    if (this.view.zoom === 1) Object.assign(this.view, { x: 0.5, y: 0.5 });
    else if (this.chosen !== null) [this.view.x, this.view.y] = this.unit[this.chosen];
    this.paint();
  }

  all() {
    this.view = { x: 0.5, y: 0.5, zoom: 1 };
    this.paint();
  }

  // The nearest point in a direction: what lies aside counts double.
  next(x, y) {
    if (this.chosen === null) return this.choose(0);
    const [a, b] = this.places[this.chosen];
    let [best, near] = [this.chosen, Infinity];
    this.places.forEach(([c, d], n) => {
      const [ahead, aside] = x ? [(c - a) * x, Math.abs(d - b)] : [(d - b) * y, Math.abs(c - a)];
      const far = ahead + 2 * aside;
      if (n !== this.chosen && ahead > 0 && far < near) [best, near] = [n, far];
    });
    return this.choose(best);
  }

  choose(n) {
    this.chosen = n;
    if (n !== null) {
      const [x, y] = this.places[n];
      if (x < 0 || y < 0 || x > this.width || y > this.height) [this.view.x, this.view.y] = this.unit[n];
    }
    this.say();
    this.paint();
  }

  find(text) {
    this.query = text.trim().toLowerCase();
    this.say();
    this.paint();
  }

  matches(n) {
    return this.query !== "" && this.data.points[n].label.toLowerCase().includes(this.query);
  }

  say() {
    const { points, maps } = this.data;
    const hits = points.filter((_, n) => this.matches(n)).length;
    const note = maps[this.map].note ? ` ${maps[this.map].note}` : "";
    if (this.chosen !== null) {
      const near = this.neighbors(this.chosen).map((n) => points[n].label).join(", ");
      this.caption.textContent = `${this.describe(this.chosen).replaceAll("\n", " · ")}${near ? ` — nearest here: ${near}` : ""}`;
    } else if (this.query) this.caption.textContent = `${hits} of ${points.length} points have “${this.query}”`;
    else this.caption.textContent = `${points.length} points${maps.length > 1 ? `, ${maps[this.map].name}` : ""}.${note}`;
  }

  neighbors(n) {
    const { x, y } = this.data.maps[this.map];
    const far = (m) => (x[m] - x[n]) ** 2 + (y[m] - y[n]) ** 2;
    return x.map((_, m) => m).filter((m) => m !== n).sort((a, b) => far(a) - far(b)).slice(0, 5);
  }

  // Where every point lies, in the unit square and in pixels; one scale for both axes, since distances are read.
  place() {
    const { x, y } = this.data.maps[this.map];
    const [left, right, low, high] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
    const inner = [this.width - 2 * POINT_MAP_EDGE, this.height - 2 * POINT_MAP_EDGE];
    const scale = Math.min(inner[0] / (right - left || 1), inner[1] / (high - low || 1));
    const [middleX, middleY] = [(left + right) / 2, (low + high) / 2];
    this.unit = x.map((_, n) => [0.5 + ((x[n] - middleX) * scale) / this.width, 0.5 - ((y[n] - middleY) * scale) / this.height]);
    if (this.mix) this.unit = this.unit.map(([a, b], i) => [a, b].map((value, axis) => value * this.mix.part + this.mix.from[i][axis] * (1 - this.mix.part)));
    const { zoom } = this.view;
    this.places = this.unit.map(([a, b]) => [((a - this.view.x) * zoom + 0.5) * this.width, ((b - this.view.y) * zoom + 0.5) * this.height]);
  }

  paint() {
    this.width = Math.max(240, this.stage.clientWidth);
    this.height = Math.round(Math.min(560, Math.max(320, this.width * 0.66)));
    this.place();
    const { canvas, context } = hidpiCanvas(this.width, this.height);
    this.stage.replaceChildren(canvas);
    this.paintLines(context);
    this.places.forEach((_, n) => this.dot(context, n));
    this.paintLabels(context);
  }

  dot(context, n) {
    const [x, y] = this.places[n];
    const group = this.data.points[n].group ?? 0;
    const dimmed = this.query !== "" && !this.matches(n);
    context.globalAlpha = dimmed ? 0.2 : 0.85;
    context.fillStyle = lineColor(group);
    context.beginPath();
    const size = n === this.chosen || this.matches(n) ? 6 : 4;
    if (group % 4 === 1) context.rect(x - size + 0.5, y - size + 0.5, 2 * size - 1, 2 * size - 1);
    else if (group % 4 === 2) { context.moveTo(x, y - size - 1); context.lineTo(x + size + 1, y + size); context.lineTo(x - size - 1, y + size); }
    else if (group % 4 === 3) { context.moveTo(x, y - size - 1); context.lineTo(x + size + 1, y); context.lineTo(x, y + size + 1); context.lineTo(x - size - 1, y); }
    else context.arc(x, y, size, 0, 7);
    context.fill();
    context.globalAlpha = 1;
    if (n !== this.chosen) return;
    context.strokeStyle = cssColor("--ink");
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, 9, 0, 7);
    context.stroke();
  }

  paintLines(context) {
    context.strokeStyle = cssColor("--muted");
    context.lineWidth = 1.5;
    for (const [from, to] of this.data.lines) {
      const [[a, b], [c, d]] = [this.places[from], this.places[to]];
      const [x, y] = [c - a, d - b];
      const long = Math.hypot(x, y) || 1;
      context.beginPath();
      context.moveTo(a, b);
      context.lineTo(c, d);
      const [u, v] = [x / long, y / long]; // the head of an arrow, before the point
      const [tipX, tipY] = [c - 6 * u, d - 6 * v];
      context.moveTo(tipX - 7 * u + 4 * v, tipY - 7 * v - 4 * u);
      context.lineTo(tipX, tipY);
      context.lineTo(tipX - 7 * u - 4 * v, tipY - 7 * v + 4 * u);
      context.stroke();
    }
  }

  // Labels where there is room, the important ones first: the chosen point, what was searched, the ends of lines.
  paintLabels(context) {
    const { points, lines } = this.data;
    const ends = new Set(lines.flatMap(([from, to]) => [from, to]));
    const rank = (n) => (n === this.chosen ? 0 : this.matches(n) ? 1 : ends.has(n) ? 2 : 3);
    const order = points.map((_, n) => n).sort((a, b) => rank(a) - rank(b) || a - b);
    context.font = "13px system-ui, sans-serif";
    context.textBaseline = "middle";
    const taken = this.places.length <= 400 ? this.places.map(([x, y]) => [x - 4, y - 4, x + 4, y + 4]) : [];
    let shown = 0;
    for (const n of order) {
      if ((this.query || !this.data.labeled) && rank(n) > (this.data.labeled ? 1 : 0)) continue;
      const text = points[n].label.length > 28 ? `${points[n].label.slice(0, 27)}…` : points[n].label;
      const wide = context.measureText(text).width;
      const [x, y] = this.places[n];
      const sides = [[x + 8, y], [x - 8 - wide, y], [x - wide / 2, y - 13], [x - wide / 2, y + 14]];
      const spot = sides.find(([a, b]) => this.free([a, b - 8, a + wide, b + 8], taken, n));
      if (!spot) continue;
      taken.push([spot[0], spot[1] - 8, spot[0] + wide, spot[1] + 8]);
      context.fillStyle = cssColor("--ink");
      context.fillText(text, spot[0], spot[1]);
      shown += 1;
    }
    this.stage.dataset.labels = shown;
  }

  free([left, top, right, bottom], taken, own) {
    if (left < 2 || top < 2 || right > this.width - 2 || bottom > this.height - 2) return false;
    return taken.every(([a, b, c, d], n) => n === own || right < a || left > c || bottom < b || top > d);
  }
}

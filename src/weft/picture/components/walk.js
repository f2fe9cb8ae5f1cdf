import { diverging, el, format, inkOn, keys, onTheme, segmented, sequential } from "./base.js";
import { walkMade, walkOpened } from "./walk-made.js";

// A walk: steps with matrices, and for each number of a matrix the row and column that made it.
//
//   walk(element, data)
//
// fills an element from the data and listens to the keyboard there. Called again on the same element, it shows the new
// data at the step where the reader is, so a page with live numbers calls it after each change. The data:
//
//   {title, intro,                        // texts; the component shows neither, the page does
//    matrices: {ID: {name,                // may have W^Q, d_k, W^{in}: raised and lowered letters
//                    rows: [labels], columns: [labels],   // as many as are stored
//                    shape: [rows, columns],              // the true size; the stored part may be smaller
//                    values: packed,      // of explain's `packed`, or {shape: [rows, columns], data: typed array}
//                    digits,              // after the decimal point; default 2
//                    scale,               // "diverging" (default) or "sequential"
//                    made_from}},         // null for given numbers, or {kind, left, ...}, below
//    steps: [{title, text, formula,       // formula as names; "" for none
//             part,                       // optional: the section of the walk that the step belongs to
//             matrices: [IDs, and signs between them such as "×", "+", "=", "→"],
//             tables: [{name, header: [texts], rows: [[texts]], marked: [[row, column]]}],    // optional
//             chain: {inputs, states, outputs, used},     // optional: a drawing of an unrolled network, one entry per
//                                         // place: texts, texts, texts, and whether the output counts
//             details: [steps without details]}]}         // optional: shown when the reader opens them
//
// `left`, `right`, `bias`, `gain` and `more` of made_from are IDs. The kinds, for the cell in row i and column j:
//
//   product   sum over k of left[i, k] right[k, j] (with transpose: right[j, k]), plus bias[0, j] where there is one
//   add       left[i, j] + right[i, j]; a right side of one row is added to every row
//   multiply  left[i, j] right[i, j], likewise
//   scale     left[i, j] factor; `divisor` is shown instead where one divides
//   softmax   exp(left[i, j]) / sum over k of exp(left[i, k])
//   norm      (left[i, j] - mean) / sqrt(variance + epsilon) gain[0, j] + bias[0, j] with row i's mean and variance;
//             with rms: no mean, and bias may be missing
//   row       left[indices[i], j]
//   columns   left[i, j + offset]
//   concat    right[i, j - offset] where right has that column; other columns are not explained
//   map       function(left[i, j]): relu, gelu, gelu-tanh, silu, tanh, sigmoid, exp, log
//   gate      left[i, j] right[i, j] + (1 - left[i, j]) more[i, j]

const WALK_ROWS = 10; // rows that are always shown
const WALK_ENDS = 2; // last rows or columns that stay when the middle is left out
const walkPlaces = new WeakMap(); // by element: the step, and how to draw it again

// Text with W^Q, d_k, W^{in} as raised and lowered letters.
export function walkFormula(text) {
  return text.split(/([\^_](?:\{[^}]*\}|[A-Za-z0-9⊤]+))/).map((part) => {
    const mark = /^([\^_])\{?([^}]*)\}?$/.exec(part);
    return mark ? el(mark[1] === "^" ? "sup" : "sub", { text: mark[2] }) : part;
  });
}

function walkCell(matrix, i, j) {
  const value = matrix.data[i * matrix.width + j];
  const finite = Number.isFinite(value);
  const near = Math.abs(value) < 0.5 * 10 ** -matrix.digits;
  const cell = el("td", { text: near ? (0).toFixed(matrix.digits) : format(value, matrix.digits), tabindex: -1, "data-row": i, "data-column": j,
    "data-value": finite ? value : null, class: finite ? null : "walk-none" });
  if (finite) {
    const color = matrix.scale === "sequential" ? sequential(value / matrix.most) : diverging(value / matrix.most);
    Object.assign(cell.style, { background: color, color: inkOn(color) });
  }
  return cell;
}

// Which of `stored` rows or columns are shown, null standing for those left out: the first ones, and the last ones
// where the stored part goes to the end.
function walkShown(stored, whole, limit) {
  const first = (count) => Array.from({ length: count }, (_, n) => n);
  if (stored === whole && stored <= limit + 1) return first(stored);
  if (stored < whole) return [...first(Math.min(stored, limit)), null];
  return [...first(limit - WALK_ENDS), null, ...first(WALK_ENDS).map((n) => stored - WALK_ENDS + n)];
}

function walkGrid(matrix, limit) {
  const down = walkShown(matrix.height, matrix.shape[0], Math.max(limit, WALK_ROWS));
  const across = walkShown(matrix.width, matrix.shape[1], limit);
  const label = (text, attributes) => el("th", { ...attributes, text, title: text });
  const head = across.map((j) => (j === null ? el("th", { text: "…" }) : label(matrix.columns[j], { scope: "col", "data-column": j })));
  const body = down.map((i) => el("tr", {},
    i === null ? el("th", { text: "⋮" }) : label(matrix.rows[i], { scope: "row", "data-row": i }),
    across.map((j) => (i === null || j === null ? el("td", { class: "walk-rest", text: j === null ? "…" : "⋮" }) : walkCell(matrix, i, j)))));
  const first = body[0]?.querySelector("td[data-row]");
  if (first) first.tabIndex = 0;
  const table = el("table", { class: "walk-grid", "data-id": matrix.id }, el("thead", {}, el("tr", {}, el("td"), head)), el("tbody", {}, body));
  const size = `${matrix.shape[0].toLocaleString("en")} × ${matrix.shape[1].toLocaleString("en")}`;
  return el("figure", { class: "walk-matrix", "aria-label": `${matrix.name}, ${size}` },
    el("figcaption", {}, walkFormula(matrix.name), el("span", { class: "walk-shape", text: ` ${size}` })), el("div", { class: "walk-scroll" }, table));
}

function walkTable(table) {
  const marked = new Set((table.marked ?? []).map(([i, j]) => `${i},${j}`));
  const rows = table.rows.map((row, i) => el("tr", {}, row.map((text, j) => el("td", { text, class: marked.has(`${i},${j}`) ? "walk-marked" : null }))));
  const head = el("thead", {}, el("tr", {}, table.header.map((text) => el("th", { scope: "col", text }))));
  return el("figure", { class: "walk-table" }, table.name ? el("figcaption", { text: table.name }) : null,
    el("div", { class: "walk-scroll", tabindex: 0 }, el("table", {}, head, el("tbody", {}, rows))));
}

// An unrolled network: a column for each place, from its input up to its output; states are joined by arrows.
function walkChain({ inputs, states, outputs, used }) {
  const places = states.map((state, n) => el("li", { class: used[n] ? null : "walk-unused" },
    el("span", { class: "walk-output" }, walkFormula(outputs[n])), el("span", { class: "walk-up", text: used[n] ? "↑" : "×", "aria-hidden": "true" }),
    el("span", { class: "walk-state" }, walkFormula(state)), el("span", { class: "walk-up", text: "↑", "aria-hidden": "true" }),
    el("span", { class: "walk-input" }, walkFormula(inputs[n]))));
  return el("div", { class: "walk-scroll", tabindex: 0 }, el("ol", { class: "walk-chain" }, places));
}

// Matrices and the signs between them; a bias of one row stands below the matrix that it is added to.
function walkRow(names, matrices, limit, below) {
  const items = [];
  names.forEach((name, n) => {
    const bias = names[n - 1] === "+" && names[n - 3] === "×" && matrices[name]?.height === 1 && matrices[names[n - 2]]?.height > 1;
    if (bias) {
      const sign = items.pop();
      items.push(el("div", { class: "walk-stack" }, items.pop(), sign, walkGrid(matrices[name], limit)));
    } else items.push(matrices[name] ? walkGrid(matrices[name], limit) : el("span", { class: "walk-sign", text: name, "aria-hidden": "true" }));
  });
  return el("div", { class: below ? "walk-row walk-below" : "walk-row" }, items);
}

// How the matrices of a step are laid out: one `below` the other where the page is narrow or all have one row, with as
// many columns as fit.
function walkLayout(names, matrices, room) {
  const shown = names.filter((name, n) => matrices[name] && !(names[n - 1] === "+" && names[n - 3] === "×"));
  const below = room < 600 || (shown.every((name) => matrices[name].height === 1) && shown.some((name) => matrices[name].width > 5));
  const share = below ? room - 24 : room / Math.min(shown.length || 1, 3) - 24;
  const digits = Math.max(2, ...shown.map((name) => matrices[name].digits));
  return { below, limit: Math.max(5, Math.min(16, Math.floor((share - 70) / (42 + 6 * (digits - 2))))) };
}

// What a step shows below its title.
function walkPart(step, matrices, chosen, room) {
  const names = step.matrices ?? [];
  const { below, limit } = walkLayout(names, matrices, room);
  const parts = [el("p", { class: "walk-text" }, walkFormula(step.text)), step.formula ? el("p", { class: "walk-formula" }, walkFormula(step.formula)) : null,
    step.chain ? walkChain(step.chain) : null, names.length ? walkRow(names, matrices, chosen || limit, below) : null, ...(step.tables ?? []).map(walkTable),
    ...(step.details ?? []).map((detail) => el("details", {}, el("summary", {}, walkFormula(detail.title)), walkPart(detail, matrices, chosen, room)))];
  return parts.filter(Boolean);
}

function walkMark(stage, matrix, row, column) {
  const fits = (cell) => (row === null || Number(cell.dataset.row) === row) && (column === null || Number(cell.dataset.column) === column);
  for (const table of stage.querySelectorAll(`table[data-id="${CSS.escape(matrix.id)}"]`)) {
    for (const cell of table.querySelectorAll("td[data-row]")) if (fits(cell)) cell.classList.add("walk-used");
    for (const label of table.querySelectorAll("th[data-row], th[data-column]")) {
      const wanted = label.dataset.row === undefined ? column : row;
      if (wanted !== null && Number(label.dataset.row ?? label.dataset.column) === wanted) label.classList.add("walk-used");
    }
  }
}

// The line that tells how a cell was made; the cells that it was made of are marked.
function walkExplain(stage, why, matrices, cell) {
  for (const old of stage.querySelectorAll(".walk-used, .walk-chosen")) old.classList.remove("walk-used", "walk-chosen");
  if (!cell) {
    why.replaceChildren(el("span", { class: "walk-hint", text: "Point at a number, tap it, or reach it with the tab and arrow keys to see how it was made." }));
    return;
  }
  const matrix = matrices[cell.closest("table").dataset.id];
  const [i, j] = [Number(cell.dataset.row), Number(cell.dataset.column)];
  const value = matrix.data[i * matrix.width + j];
  const made = walkMade(matrices, matrix, i, j);
  cell.classList.add("walk-chosen");
  const name = el("strong", {}, walkFormula(matrix.name), ` [${matrix.rows[i]}, ${matrix.columns[j]}]`);
  if (!made) {
    const reason = matrix.made_from ? " (what it is made of is not on this page)" : " (given)";
    why.replaceChildren(name, ` = ${format(value, 4)}`, el("span", { class: "walk-hint", text: reason }));
    return;
  }
  for (const [side, row, column] of made.cells) walkMark(stage, side, row, column);
  why.replaceChildren(name, " = ", el("span", { class: "walk-terms" }, walkFormula(made.terms)), " = ", el("output", { text: format(made.value, 4), "data-value": String(made.value) }),
    el("div", { class: "walk-hint" }, walkFormula(made.rule)));
}

// The sections of the walk, as buttons that lead to their first steps; nothing where there are none.
function walkSections(steps, go) {
  const starts = steps.map((step, n) => [step.part, n]).filter(([part, n]) => part && part !== steps[n - 1]?.part);
  if (starts.length < 2) return { node: null, show() {} };
  const buttons = starts.map(([part, n]) => el("button", { type: "button", on: { click: () => go(n) } }, walkFormula(part)));
  const show = (place) => buttons.forEach((button, n) => {
    const inside = place >= starts[n][1] && place < (starts[n + 1]?.[1] ?? steps.length);
    button.setAttribute("aria-current", inside ? "step" : "false");
  });
  return { node: el("nav", { class: "walk-sections", "aria-label": "Sections" }, buttons), show };
}

export function walk(root, data) {
  const matrices = walkOpened(data.matrices);
  const before = walkPlaces.get(root);
  const last = data.steps.length - 1;
  let place = Math.min(before?.place ?? 0, last), chosen = before?.chosen ?? 0;
  const count = el("span", { class: "walk-count", "aria-live": "polite" });
  const bar = el("progress", { max: last + 1, "aria-label": "Steps done" });
  const previous = el("button", { type: "button", class: "walk-previous", text: "← Previous", on: { click: () => go(place - 1) } });
  const next = el("button", { type: "button", class: "walk-next", text: "Next →", on: { click: () => go(place + 1) } });
  const list = el("select", { "aria-label": "Step", on: { change: () => go(list.selectedIndex) } }, data.steps.map((step, n) => el("option", { text: `${n + 1}. ${step.title.replace(/[\^_{}]/g, "")}` })));
  const size = segmented("Columns", [[0, "auto"], 8, 16, 32], chosen, (value) => { chosen = value; draw(); });
  const stage = el("div", { class: "walk-stage" });
  const why = el("div", { class: "walk-why", role: "status", "aria-live": "polite" });
  const sections = walkSections(data.steps, go);
  const explain = (cell) => walkExplain(stage, why, matrices, cell);

  // The arrow keys belong to the cells once one of them has the focus, and else to the steps.
  function move(event, down, across) {
    const cell = event.target.closest?.("td[data-row]");
    if (!cell) return false;
    const line = [...cell.closest("table").querySelectorAll(across ? `td[data-row="${cell.dataset.row}"]` : `td[data-column="${cell.dataset.column}"]`)].filter((other) => other.dataset.row !== undefined);
    line[line.indexOf(cell) + (across || down)]?.focus();
    return true;
  }

  function draw() {
    const step = data.steps[place];
    walkPlaces.set(root, { place, chosen, draw });
    stage.replaceChildren(el("h3", {}, walkFormula(step.title)), ...walkPart(step, matrices, chosen, root.clientWidth || innerWidth));
    count.textContent = `Step ${place + 1} of ${last + 1}`;
    bar.value = place + 1;
    list.selectedIndex = place;
    previous.disabled = place === 0;
    next.disabled = place === last;
    sections.show(place);
    why.hidden = !stage.querySelector("td[data-row]");
    explain(null);
  }

  function go(to) {
    if (to < 0 || to > last) return;
    place = to;
    draw();
  }

  const controls = el("div", { class: "controls" }, previous, next, list, size);
  const frame = el("div", { class: "walk", tabindex: 0, role: "group", "aria-label": data.title }, sections.node, controls, el("div", { class: "walk-progress" }, bar, count), stage, why);
  for (const event of ["pointerover", "focusin"]) stage.addEventListener(event, ({ target }) => { const cell = target.closest("td[data-row]"); if (cell) explain(cell); });
  stage.addEventListener("click", ({ target }) => target.closest("td[data-row]")?.focus());
  keys(frame, {
    ArrowRight: (event) => move(event, 0, 1) || go(place + 1),
    ArrowLeft: (event) => move(event, 0, -1) || go(place - 1),
    Home: () => go(0),
    End: () => go(last),
    Escape: () => { frame.focus(); explain(null); },
  });
  frame.addEventListener("keydown", (event) => {
    const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (down && move(event, down, 0)) event.preventDefault();
  });
  draw();
  root.replaceChildren(frame);
  if (!before) onTheme(() => walkPlaces.get(root)?.draw());
}

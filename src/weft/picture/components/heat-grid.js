import { cssColor, diverging, el, format, hidpiCanvas, hideTooltip, keys, onTheme, sequential, tooltip, unpack } from "./base.js";

// A large matrix as colors: data has `values` (packed), `low` and `high` (the ends of the scale), `diverging`, what `row`,
// `column` and `value` are called, and `rowNames` or `columnNames` where they are more than their numbers (plus `rowFrom`).
export function heatGrid(root, data) {
  new HeatGridPage(root, data);
}

class HeatGridPage {
  constructor(root, data) {
    this.data = { rowNames: null, columnNames: null, rowFrom: 0, columnFrom: 0, diverging: false, ...data };
    const { shape, data: values } = unpack(data.values);
    [this.rows, this.columns, this.values] = [shape[0], shape[1], values];
    this.cell = null; // [row, column] that has the keyboard
    root.classList.add("heat-grid");
    this.caption = el("p", { class: "heat-grid-caption", "aria-live": "polite" });
    const label = `${data.value} by ${data.row} and ${data.column}. Arrow keys move from cell to cell.`;
    this.stage = el("div", { class: "heat-grid-stage", tabindex: 0, role: "application", "aria-label": label });
    this.scale = el("div", { class: "heat-grid-scale" });
    root.replaceChildren(this.stage, this.caption, this.scale);
    this.listen();
    this.say();
    onTheme(() => this.paint());
    new ResizeObserver(() => this.paint()).observe(this.stage);
  }

  listen() {
    const go = (down, right) => () => this.move(down, right);
    keys(this.stage, { ArrowUp: go(-1, 0), ArrowDown: go(1, 0), ArrowLeft: go(0, -1), ArrowRight: go(0, 1), Escape: () => this.choose(null) });
    this.stage.addEventListener("pointermove", (event) => {
      const cell = this.at(event);
      if (cell) tooltip(event, this.describe(...cell));
      else hideTooltip();
    });
    this.stage.addEventListener("pointerdown", (event) => this.choose(this.at(event)));
    this.stage.addEventListener("pointerleave", hideTooltip);
  }

  move(down, right) {
    const [row, column] = this.cell ?? [0, -right];
    const keep = (value, count) => Math.min(count - 1, Math.max(0, value));
    this.choose([keep(row + (this.cell ? down : 0), this.rows), keep(column + right, this.columns)]);
  }

  choose(cell) {
    this.cell = cell;
    this.say();
    this.paint();
  }

  at(event) {
    const box = this.stage.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - this.top) / this.high);
    const column = Math.floor((event.clientX - box.left - this.left) / this.wide);
    return row >= 0 && column >= 0 && row < this.rows && column < this.columns ? [row, column] : null;
  }

  nameOf(which, number) {
    const names = this.data[`${which}Names`];
    return names ? names[number] : String(number + this.data[`${which}From`]);
  }

  describe(row, column) {
    const { data } = this;
    const value = format(this.values[row * this.columns + column], 4);
    return `${data.row} ${this.nameOf("row", row)}, ${data.column} ${this.nameOf("column", column)}\n${data.value} ${value}`;
  }

  say() {
    const whole = `${this.rows} × ${this.columns}. Point at a cell, or use the arrow keys.`;
    this.caption.textContent = this.cell ? this.describe(...this.cell).replace("\n", ": ") : whole;
  }

  color(value) {
    const { low, high } = this.data;
    if (!Number.isFinite(value)) return cssColor("--raised");
    if (this.data.diverging) return diverging(value / (Math.max(Math.abs(low), Math.abs(high)) || 1));
    return sequential((value - low) / (high - low || 1));
  }

  paint() {
    const width = Math.max(240, this.stage.clientWidth);
    const names = Array.from({ length: this.rows }, (_, n) => this.nameOf("row", n));
    const longest = names.reduce((long, name) => (name.length > long.length ? name : long), "");
    this.left = Math.min(140, 18 + 7.5 * longest.length) + 16;
    this.top = 10;
    const room = width - this.left - 8;
    this.wide = Math.min(36, room / this.columns);
    this.high = Math.max(Math.min(24, this.wide * 1.4, 420 / this.rows), Math.min(24, 160 / this.rows));
    const height = Math.ceil(this.top + this.high * this.rows + 44);
    const { canvas, context } = hidpiCanvas(width, height);
    this.stage.replaceChildren(canvas);
    this.paintCells(context);
    this.paintTicks(context, names);
    if (this.cell) {
      const [row, column] = this.cell;
      context.strokeStyle = cssColor("--ink");
      context.lineWidth = 2;
      const [wide, high] = [Math.max(6, this.wide), Math.max(6, this.high)];
      context.strokeRect(this.left + (column + 0.5) * this.wide - wide / 2, this.top + (row + 0.5) * this.high - high / 2, wide, high);
    }
    this.paintScale();
  }

  // One pixel for each cell, drawn larger without smoothing: as fast for a million cells as for ten.
  paintCells(context) {
    const small = el("canvas", {});
    [small.width, small.height] = [this.columns, this.rows];
    const inner = small.getContext("2d");
    const image = inner.createImageData(this.columns, this.rows);
    const table = new Map();
    for (let i = 0; i < this.values.length; i++) {
      const key = Math.round(this.values[i] * 1e3 / (this.data.high - this.data.low || 1));
      if (!table.has(key)) table.set(key, this.color(this.values[i]).match(/\d+/g)?.map(Number) ?? [128, 128, 128]);
      const [red, green, blue] = table.get(key);
      image.data.set([red, green, blue, 255], 4 * i);
    }
    inner.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, this.left, this.top, this.wide * this.columns, this.high * this.rows);
  }

  paintTicks(context, names) {
    const bottom = this.top + this.high * this.rows;
    context.font = "13px system-ui, sans-serif";
    context.fillStyle = cssColor("--ink");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const step = (size, count, room) => [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000].find((n) => n * size >= room) ?? count;
    const down = step(this.high, this.rows, 17);
    for (let row = 0; row < this.rows; row += down) {
      const name = names[row].length > 17 ? `${names[row].slice(0, 16)}…` : names[row];
      context.fillText(name, this.left - 6, this.top + (row + 0.5) * this.high);
    }
    context.textAlign = "center";
    const last = this.nameOf("column", this.columns - 1);
    const right = step(this.wide, this.columns, 12 + 8 * Math.max(2, last.length));
    for (let column = 0; column < this.columns; column += right) {
      context.fillText(this.nameOf("column", column), this.left + (column + 0.5) * this.wide, bottom + 12);
    }
    context.fillStyle = cssColor("--muted");
    context.textAlign = "left";
    context.fillText(this.data.column, this.left, bottom + 32);
    context.save();
    context.translate(9, this.top + (this.high * this.rows) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(this.data.row, 0, 0);
    context.restore();
  }

  paintScale() {
    const { canvas, context } = hidpiCanvas(120, 10);
    const { low, high } = this.data;
    const far = Math.max(Math.abs(low), Math.abs(high));
    const [from, to] = this.data.diverging ? [-far, far] : [low, high];
    for (let x = 0; x < 120; x++) {
      context.fillStyle = this.color(from + ((x + 0.5) / 120) * (to - from));
      context.fillRect(x, 0, 1, 10);
    }
    const digits = Math.max(Math.abs(from), Math.abs(to)) < 10 ? 2 : 0;
    this.scale.replaceChildren(`${this.data.value}: ${format(from, digits)}`, canvas, format(to, digits));
  }
}

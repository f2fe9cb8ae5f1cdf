import { cssColor, el, format, hideTooltip, sequential, slider, tooltip } from "./base.js";
import { ATTENTION_SCALES, attentionCanvas, attentionCut } from "./attention-data.js";

// One head as a matrix: a row for each token that attends, a column for each that is attended to.

const ATTENTION_CELL = 28; // pixels of a cell
const ATTENTION_NAMED = 11; // pixels from which a row and a column have room for their names
const ATTENTION_FEW = 80; // tokens up to which names are shown first, even where the matrix must then scroll
const ATTENTION_HEIGHT = 760; // pixels in sight at most

function attentionColors() {
  const colors = new Uint32Array(256);
  for (let n = 0; n < 256; n++) {
    const [red, green, blue] = sequential(n / 255).match(/\d+/g).map(Number);
    colors[n] = (255 << 24) | (blue << 16) | (green << 8) | red;
  }
  return colors;
}

export class AttentionMatrix {
  // actions: {choose(side, number)}
  constructor(actions) {
    this.actions = actions;
    this.canvas = el("canvas", { role: "img", "aria-label": "Attention as a matrix" });
    this.sticky = el("div", { class: "attention-sticky" }, this.canvas);
    this.stage = el("div", { class: "attention-stage" }, this.sticky);
    this.scroller = el("div", { class: "attention-scroller", tabindex: "0", "aria-label": "Attention matrix", on: { scroll: () => this.later() } }, this.stage);
    this.tools = el("div", { class: "controls" });
    this.node = el("div", { class: "attention-matrix" }, this.tools, this.scroller);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { hideTooltip(); this.mark = null; this.later(); });
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) actions.choose("from", this.part.from[cell.row].number);
    });
    this.zoom = null;
    this.mark = null;
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  show(part, chosen, scale) {
    Object.assign(this, { part, chosen, scale });
    if (!this.node.isConnected) return;
    this.measure();
    this.draw();
  }

  // The size of a cell: as large as fits, or as the slider says.
  measure() {
    const { part } = this;
    const width = this.scroller.clientWidth || this.node.clientWidth;
    const context = this.canvas.getContext("2d");
    context.font = `12px ${cssColor("--font")}`;
    const widest = (tokens) => tokens.slice(0, 3000).reduce((most, token) => Math.max(most, token.text.length), 1);
    const room = Math.min(width < 500 ? 76 : 120, Math.max(28, 16 + 8 * Math.min(16, Math.max(widest(part.from), widest(part.to)))));
    const most = Math.max(part.to.length, 1);
    this.zoom ??= most <= ATTENTION_FEW ? 100 : 0;
    this.fit = Math.max(0.1, Math.min(ATTENTION_CELL, (width - room - 2) / most));
    const steps = Math.min(ATTENTION_CELL, Math.max(this.fit, ATTENTION_NAMED + 3));
    if (this.fit < ATTENTION_NAMED && !this.tools.childElementCount) {
      this.tools.append(slider("Zoom", { min: 0, max: 100, step: 1, value: this.zoom }, (value) => { this.zoom = value; this.measure(); this.draw(); }));
    }
    this.tools.hidden = this.fit >= ATTENTION_NAMED;
    this.cell = this.tools.hidden ? this.fit : this.fit * (steps / this.fit) ** (this.zoom / 100);
    if (this.cell > 4) this.cell = Math.floor(this.cell);
    this.named = this.cell >= ATTENTION_NAMED;
    this.margin = this.named ? room : 8;
    const [across, down] = [this.margin + this.cell * part.to.length + 2, this.margin + this.cell * part.from.length + 2];
    this.stage.style.width = `${Math.ceil(across)}px`;
    this.stage.style.height = `${Math.ceil(down)}px`;
    this.scroller.style.height = `${Math.min(ATTENTION_HEIGHT, Math.ceil(down) + 2)}px`;
    this.sticky.style.width = "0";
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - this.margin + this.scroller.scrollLeft;
    const y = event.clientY - box.top - this.margin + this.scroller.scrollTop;
    if (event.clientX - box.left < this.margin || event.clientY - box.top < this.margin) return null;
    const [column, row] = [Math.floor(x / this.cell), Math.floor(y / this.cell)];
    return row >= 0 && column >= 0 && row < this.part.from.length && column < this.part.to.length ? { row, column } : null;
  }

  hover(event) {
    this.mark = this.cellAt(event);
    this.later();
    if (!this.mark) return hideTooltip();
    const { row, column } = this.mark;
    const weight = this.part.values[row * this.part.to.length + column];
    tooltip(event, `${this.part.from[row].text} → ${this.part.to[column].text}: ${format(weight, 4)}`);
  }

  draw() {
    if (!this.part || !this.node.isConnected) return;
    const { margin, part } = this;
    const [width, height] = [Math.min(this.scroller.clientWidth, this.stage.offsetWidth), Math.min(this.scroller.clientHeight, this.stage.offsetHeight)];
    const context = attentionCanvas(this.canvas, width, height);
    if (this.cell >= 1) this.drawCells(context, width, height);
    else this.drawPixels(context, width, height);
    context.fillStyle = cssColor("--ground");
    context.fillRect(0, 0, width, margin);
    context.fillRect(0, 0, margin, height);
    if (this.named) this.drawNames(context, width, height);
    this.drawMark(context, this.chosen.row, "row", "--line-1", width, height);
    this.drawMark(context, this.chosen.column, "column", "--line-1", width, height);
    if (this.mark) {
      this.drawMark(context, this.mark.row, "row", "--muted", width, height);
      this.drawMark(context, this.mark.column, "column", "--muted", width, height);
    }
    context.strokeStyle = cssColor("--rule");
    context.lineWidth = 1;
    const [right, bottom] = [part.to.length * this.cell - this.scroller.scrollLeft, part.from.length * this.cell - this.scroller.scrollTop];
    context.strokeRect(margin - 0.5, margin - 0.5, Math.min(width - margin, right + 1), Math.min(height - margin, bottom + 1));
  }

  range(start, shown, count) {
    const first = Math.max(0, Math.floor(start / this.cell));
    return [first, Math.min(count, Math.ceil((start + shown) / this.cell))];
  }

  // Cells of a pixel and more: those in sight, into an image.
  drawCells(context, width, height) {
    const { cell, margin, part, scroller } = this;
    const [firstRow, lastRow] = this.range(scroller.scrollTop, height - margin, part.from.length);
    const [firstColumn, lastColumn] = this.range(scroller.scrollLeft, width - margin, part.to.length);
    if (lastRow <= firstRow || lastColumn <= firstColumn) return;
    const image = this.image(firstRow, lastRow, firstColumn, lastColumn, lastColumn - firstColumn, lastRow - firstRow);
    context.imageSmoothingEnabled = false;
    const [x, y] = [margin + firstColumn * cell - scroller.scrollLeft, margin + firstRow * cell - scroller.scrollTop];
    context.drawImage(image, x, y, (lastColumn - firstColumn) * cell, (lastRow - firstRow) * cell);
  }

  // Cells below a pixel: each pixel shows the largest weight in it.
  drawPixels(context, width, height) {
    const { cell, margin, part, scroller } = this;
    const [firstRow, lastRow] = this.range(scroller.scrollTop, height - margin, part.from.length);
    const [firstColumn, lastColumn] = this.range(scroller.scrollLeft, width - margin, part.to.length);
    const scale = globalThis.devicePixelRatio || 1;
    const across = Math.max(1, Math.min(lastColumn - firstColumn, Math.ceil((lastColumn - firstColumn) * cell * scale)));
    const down = Math.max(1, Math.min(lastRow - firstRow, Math.ceil((lastRow - firstRow) * cell * scale)));
    const image = this.image(firstRow, lastRow, firstColumn, lastColumn, across, down);
    context.imageSmoothingEnabled = false;
    const [x, y] = [margin + firstColumn * cell - scroller.scrollLeft, margin + firstRow * cell - scroller.scrollTop];
    context.drawImage(image, x, y, (lastColumn - firstColumn) * cell, (lastRow - firstRow) * cell);
  }

  image(firstRow, lastRow, firstColumn, lastColumn, across, down) {
    const { part } = this;
    const levels = new Float32Array(across * down);
    const [perRow, perColumn] = [down / (lastRow - firstRow), across / (lastColumn - firstColumn)];
    for (let row = firstRow; row < lastRow; row++) {
      const [start, line] = [row * part.to.length, Math.floor((row - firstRow) * perRow) * across];
      for (let column = firstColumn; column < lastColumn; column++) {
        const at = line + Math.floor((column - firstColumn) * perColumn);
        if (part.values[start + column] > levels[at]) levels[at] = part.values[start + column];
      }
    }
    const canvas = el("canvas", { width: across, height: down });
    const context = canvas.getContext("2d");
    const image = context.createImageData(across, down);
    const pixels = new Uint32Array(image.data.buffer);
    const [colors, strength] = [attentionColors(), ATTENTION_SCALES[this.scale]];
    for (let i = 0; i < levels.length; i++) pixels[i] = colors[Math.min(255, Math.round(255 * strength(levels[i], part.largest)))];
    context.putImageData(image, 0, 0);
    return canvas;
  }

  drawNames(context, width, height) {
    const { cell, margin, part, scroller } = this;
    context.font = `${Math.min(13, Math.max(10, cell - 2))}px ${cssColor("--font")}`;
    context.fillStyle = cssColor("--ink");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const [firstRow, lastRow] = this.range(scroller.scrollTop, height - margin, part.from.length);
    for (let row = firstRow; row < lastRow; row++) {
      const y = margin + (row + 0.5) * cell - scroller.scrollTop;
      if (y > margin + 3) context.fillText(attentionCut(context, part.from[row].text, margin - 8), margin - 6, y);
    }
    context.textAlign = "left";
    const [firstColumn, lastColumn] = this.range(scroller.scrollLeft, width - margin, part.to.length);
    for (let column = firstColumn; column < lastColumn; column++) {
      const x = margin + (column + 0.5) * cell - scroller.scrollLeft;
      if (x <= margin + 3) continue;
      context.save();
      context.translate(x, margin - 6);
      context.rotate(-Math.PI / 2);
      context.fillText(attentionCut(context, part.to[column].text, margin - 10), 0, 0);
      context.restore();
    }
  }

  drawMark(context, place, kind, color, width, height) {
    if (place < 0 || place === undefined) return;
    const { cell, margin, scroller } = this;
    context.strokeStyle = cssColor(color);
    context.lineWidth = 1.5;
    const start = margin + place * cell - (kind === "row" ? scroller.scrollTop : scroller.scrollLeft);
    if (start + cell < margin) return;
    const size = Math.max(2, cell);
    if (kind === "row") context.strokeRect(1, start, width - 2, size);
    else context.strokeRect(start, 1, size, height - 2);
  }

  reveal() {}
}

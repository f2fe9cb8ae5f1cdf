// The one text box. Behind its letters lies a copy of the text that can carry marks (an answer) and, at its end, a
// continuation in gray; both are seen through the box, so what is typed stays a plain text field.

import { el } from "/static/picture/base.js";

export class Composer {
  /** @param {{input: () => void, accept: () => void, word: () => void, turn: (step: number) => void, dismiss: () => void}} on */
  constructor(on) {
    this.marks = []; // [start, end, class] in UTF-16 units, in order
    this.ghost = "";
    this.label = el("label", { class: "box-label", for: "text" });
    this.copy = el("div", { class: "copy-of-text", "aria-hidden": "true" });
    this.field = el("textarea", { id: "text", spellcheck: "true", autocapitalize: "sentences", "aria-describedby": "text-hint" });
    this.hint = el("p", { id: "text-hint", class: "hint" });
    this.frame = el("div", { class: "composer" }, this.copy, this.field);
    this.node = el("div", { class: "box" }, this.label, this.frame, this.hint);
    this.field.addEventListener("input", () => { this.ghost = ""; this.marks = []; this.draw(); on.input(); });
    this.field.addEventListener("scroll", () => { this.copy.scrollTop = this.field.scrollTop; });
    document.addEventListener("selectionchange", () => { if (document.activeElement === this.field && this.ghost) this.draw(); });
    this.field.addEventListener("keydown", (event) => this.key(event, on));
  }

  key(event, on) {
    if (!this.shown || event.isComposing) return; // without a continuation, Tab moves the focus as everywhere
    const plain = !event.ctrlKey && !event.metaKey && !event.shiftKey;
    const run = plain && event.altKey
      ? { ArrowDown: () => on.turn(1), ArrowUp: () => on.turn(-1) }[event.key]
      : plain && { Tab: on.accept, ArrowRight: on.word, Escape: on.dismiss }[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  }

  get text() {
    return this.field.value;
  }

  set text(value) {
    this.field.value = value;
    [this.ghost, this.marks] = ["", []];
    this.draw();
  }

  /** Whether the continuation is seen: it stands at the end, so the caret must be there. */
  get shown() {
    return this.ghost !== "" && this.field.selectionStart === this.text.length && document.activeElement === this.field;
  }

  describe({ label, placeholder, rows = 5, hint = "", code = false }) {
    this.label.textContent = label;
    this.field.placeholder = placeholder;
    this.frame.style.setProperty("--rows", String(rows));
    this.frame.classList.toggle("plain-text", code);
    this.field.spellcheck = !code;
    this.hint.textContent = hint;
  }

  setGhost(text) {
    if (text === this.ghost) return;
    this.ghost = text;
    const atEnd = this.field.scrollTop + this.field.clientHeight >= this.field.scrollHeight - 60;
    this.draw();
    if (this.shown && atEnd) this.field.scrollTop = this.field.scrollHeight;
  }

  /** Put text in at the end, as if it had been typed: the browser's undo takes it back. */
  append(text) {
    this.field.focus();
    this.field.setSelectionRange(this.text.length, this.text.length);
    if (!document.execCommand("insertText", false, text)) {
      this.field.setRangeText(text, this.text.length, this.text.length, "end");
      this.field.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  /** Replace a part, as if it had been typed. */
  replace(start, end, text) {
    this.field.focus();
    this.field.setSelectionRange(start, end);
    if (!document.execCommand("insertText", false, text)) {
      this.field.setRangeText(text, start, end, "end");
      this.field.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  /** Mark parts of the text; the first is scrolled to. */
  mark(marks, scroll = true) {
    this.marks = [...marks].sort((a, b) => a[0] - b[0]);
    this.draw();
    if (!scroll || !marks.length) return;
    const first = this.copy.querySelector("mark.chosen") ?? this.copy.querySelector("mark");
    const top = first.getBoundingClientRect().top - this.copy.getBoundingClientRect().top + this.copy.scrollTop - this.copy.clientHeight / 3;
    this.field.scrollTop = Math.max(0, top);
    this.copy.scrollTop = this.field.scrollTop;
  }

  /** The field scrolls as far as the copy does, which has the lines of the continuation too. */
  makeRoom() {
    const { field } = this;
    const top = field.scrollTop;
    field.style.removeProperty("padding-bottom");
    const more = this.ghost ? this.copy.scrollHeight - field.scrollHeight : 0;
    if (more > 0) field.style.paddingBottom = `${parseFloat(getComputedStyle(field).paddingBottom) + more}px`;
    field.scrollTop = top;
  }

  draw() {
    const text = this.text;
    const parts = [];
    let end = 0;
    for (const [start, stop, name] of this.marks) {
      if (start < end || stop <= start) continue; // of marks that overlap, the first
      parts.push(text.slice(end, start), el("mark", { class: name, text: text.slice(start, stop) }));
      end = stop;
    }
    parts.push(text.slice(end));
    if (this.ghost && (this.shown || document.activeElement !== this.field)) parts.push(el("span", { class: "ghost", text: this.ghost }));
    parts.push("\u200b"); // so that an empty last line has its height
    this.copy.replaceChildren(...parts);
    this.makeRoom();
    this.copy.scrollTop = this.field.scrollTop;
  }
}

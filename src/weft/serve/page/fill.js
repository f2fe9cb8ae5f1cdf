// Fill: the likeliest words for gaps.

import { el } from "/static/picture/base.js";
import { bars, button, count, percent } from "./parts.js";

const USUAL = "[MASK]";

/** The mark of a gap; those of a T5 are numbered in the order of the text. */
function markOf(model, number = 0) {
  return (model.mask ?? USUAL).replace(/_0>$/, `_${number}>`);
}

/** Finds the marks of all gaps. */
function marksOf(model) {
  return new RegExp(markOf(model).replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/_0>$/, "_\\d+>"), "g");
}

/** The text with the best words in its gaps, each marked. */
function filled(text, marks, gaps) {
  const parts = text.split(marks);
  return el("p", { class: "filled" }, parts.flatMap((part, n) => (n < gaps.length && n < parts.length - 1 ? [part, el("mark", { text: gaps[n][0].word })] : [part])));
}

/** Put a word or a gap into the text; the gaps after it are numbered anew where the model numbers them. */
function put(view, start, end, piece) {
  const { composer, model } = view;
  const { text } = composer;
  let number = [...`${text.slice(0, start)}${piece}`.matchAll(marksOf(model))].length;
  composer.replace(start, text.length, piece + text.slice(end).replace(marksOf(model), () => markOf(model, number++)));
  composer.field.setSelectionRange(start + piece.length, start + piece.length);
}

/** @type {import("./view.js").Tab} */
export const fill = {
  id: "fill",
  name: "Fill",
  about: "Leave gaps in a text; the model says which words fit.",
  serves: (model) => model.tasks.includes("fill"),
  made: ["fill"],
  box: { key: "fill", label: "Text with gaps", placeholder: "Type a sentence with a gap in it", rows: 3 },
  examples: (model) => [
    { name: "One gap", text: `The old ${markOf(model)} looked at him and smiled.` },
    { name: "Two gaps", text: `He ${markOf(model)} to the window and looked at the ${markOf(model, 1)}.` },
    { name: "A reason", text: `She could not sleep ${markOf(model)} of the noise.` },
  ],
  controls: (view) => [
    button("Insert a gap", () => {
      const { text, field } = view.composer;
      const before = text.slice(0, field.selectionStart);
      put(view, field.selectionStart, field.selectionEnd, markOf(view.model, [...before.matchAll(marksOf(view.model))].length));
    }, { title: `Puts ${markOf(view.model)} where the caret is` }),
    view.slider("top", "Words", { min: 3, max: 20, step: 1, value: 6 }),
  ],
  missing: (view) => (!view.text.trim() ? "Type a text with a gap, or try an example."
    : !marksOf(view.model).test(view.text) ? `Mark each gap with ${markOf(view.model)}, or press “Insert a gap”.` : ""),
  async run(view) {
    const { text } = view;
    const { answers: [answer] } = await view.post("/v1/fill", { model: view.model.id, input: text, top: view.setting("top", 6) });
    const places = [...text.matchAll(marksOf(view.model))].map((match) => [match.index, match.index + match[0].length]);
    const choose = (gap, word) => places[gap] && (() => put(view, ...places[gap], word));
    view.show(() => [
      filled(text, marksOf(view.model), answer.gaps),
      el("div", { class: "gaps" }, answer.gaps.map((gap, n) => el("section", {},
        answer.gaps.length > 1 && el("h2", { text: `Gap ${n + 1}` }),
        bars(`Words for gap ${n + 1}`, gap.map((candidate, place) => ({
          name: candidate.word || "(nothing)", value: candidate.probability, best: place === 0, choose: choose(n, candidate.word), title: "Put this word into the text",
        })))))),
    ]);
    view.say(`${count(answer.gaps.length, "gap")}: ${answer.gaps.map((gap) => `${gap[0].word}, ${percent(gap[0].probability)}`).join("; ")}`);
  },
};

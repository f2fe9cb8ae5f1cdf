// Fill: the likeliest words for gaps.

import { el } from "/static/picture/base.js";
import { bars, button, count, percent } from "./parts.js";

const USUAL = "[MASK]";

function maskOf(model) {
  return model.mask ?? USUAL;
}

/** The text with the best words in its gaps, each marked. */
function filled(text, mask, gaps) {
  const parts = text.split(mask);
  return el("p", { class: "filled" }, parts.flatMap((part, n) => (n < gaps.length && n < parts.length - 1 ? [part, el("mark", { text: gaps[n][0].word })] : [part])));
}

/** @type {import("./view.js").Tab} */
export const fill = {
  id: "fill",
  name: "Fill",
  about: "Leave gaps in a text; the model says which words fit.",
  serves: (model) => model.tasks.includes("fill"),
  made: ["fill"],
  box: { key: "fill", label: "Text with gaps", placeholder: "The [MASK] crossed the river.", rows: 3 },
  examples: (model) => [
    { name: "One gap", text: `The old ${maskOf(model)} looked at him and smiled.` },
    { name: "Two gaps", text: `He ${maskOf(model)} to the window and looked at the ${maskOf(model)}.` },
    { name: "A reason", text: `She could not sleep ${maskOf(model)} of the noise.` },
  ],
  controls: (view) => [
    button("Insert a gap", () => {
      const { field } = view.composer;
      view.composer.replace(field.selectionStart, field.selectionEnd, maskOf(view.model));
    }, { title: `Puts ${maskOf(view.model)} where the caret is` }),
    view.slider("top", "Words", { min: 3, max: 20, step: 1, value: 6 }),
  ],
  missing: (view) => (!view.text.trim() ? "Type a text with a gap, or try an example."
    : !view.model.sentinels && !view.text.includes(maskOf(view.model)) ? `Mark each gap with ${maskOf(view.model)}.` : ""),
  async run(view) {
    const mask = maskOf(view.model);
    const { text } = view;
    const { answers: [answer] } = await view.post("/v1/fill", { model: view.model.id, input: text, top: view.setting("top", 6) });
    const gapPlaces = [...text.matchAll(new RegExp(mask.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "g"))].map((match) => match.index);
    const choose = (gap, word) => () => {
      const start = gapPlaces[gap];
      if (start !== undefined) view.composer.replace(start, start + mask.length, word);
    };
    view.show(() => [
      text.includes(mask) ? filled(text, mask, answer.gaps) : el("p", { class: "filled", text: answer.text }),
      el("div", { class: "gaps" }, answer.gaps.map((gap, n) => el("section", {},
        answer.gaps.length > 1 && el("h2", { text: `Gap ${n + 1}` }),
        bars(`Words for gap ${n + 1}`, gap.map((candidate, place) => ({
          name: candidate.word || "(nothing)", value: candidate.probability, best: place === 0, choose: choose(n, candidate.word), title: "Put this word into the text",
        })))))),
    ]);
    view.say(`${count(answer.gaps.length, "gap")}: ${answer.gaps.map((gap) => `${gap[0].word}, ${percent(gap[0].probability)}`).join("; ")}`);
  },
};

// Choose: which of several options fits best.

import { el, selector } from "/static/picture/base.js";
import { bars, percent } from "./parts.js";

function optionsOf(view) {
  return view.field("options").split("\n").map((line) => line.trimEnd()).filter((line) => line.trim());
}

const NORMALIZED = [["none", "sum of log-probabilities"], ["token", "mean per token"], ["byte", "mean per byte"], ["prior", "against no context"]];

/** @type {import("./view.js").Tab} */
export const choose = {
  id: "choose",
  name: "Choose",
  about: "Give a beginning and several ways to go on; the model says which fits best.",
  serves: (model) => model.tasks.includes("choose"),
  made: ["choose", "complete"],
  box: { key: "choose", label: "Beginning or question", placeholder: "The prince took her hand and", rows: 3 },
  fields: [{ key: "options", label: "Options, one on each line", placeholder: "kissed it.\nate it.", rows: 4, below: true }],
  examples: () => [
    { name: "A scene", text: "The prince took her hand and", fields: { options: "kissed it.\nwent to the moon.\nof of the the." } },
    { name: "Grammar", text: "The soldiers who stood at the gate", fields: { options: "were tired.\nwas tired.\nbe tired." } },
  ],
  controls: (view) => (view.model.task === "choose" ? [] : [
    selector("Score", NORMALIZED, view.setting("normalize", "token"), (value) => view.set("normalize", value)),
  ]),
  missing: (view) => (!view.text.trim() ? "Type a beginning, or try an example." : optionsOf(view).length < 2 ? "Give two or more options, one on each line." : ""),
  async run(view) {
    const body = { model: view.model.id, input: { context: view.text, options: optionsOf(view) } };
    if (view.model.task !== "choose") body.normalize = view.setting("normalize", "token");
    const { answers: [reply] } = await view.post("/v1/choose", body);
    const chosen = new Set(reply.object === "selected" ? reply.chosen : [reply.number]);
    const name = reply.object === "selected" ? reply.texts.join(", ") || "none of them" : reply.text;
    view.show(() => [
      el("p", { class: "verdict" }, name, " ", reply.object === "chosen" && el("span", { text: percent(reply.options[0].probability) })),
      bars("Options", reply.options.map((option) => ({ name: option.text, value: option.probability, best: chosen.has(option.number) }))),
    ]);
    view.say(`${name}, ${percent(reply.options[0].probability)}`);
  },
};

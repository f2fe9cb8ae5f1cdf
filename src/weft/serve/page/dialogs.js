// The two dialogs: the API key, and the list of keys of the keyboard.

import { el } from "/static/picture/base.js";
import { button } from "./parts.js";
import { keep, kept } from "./state.js";

let asking = null;

/** Ask for the key, once at a time however many requests want it. */
export function askKey(wrong) {
  asking ??= new Promise((resolve) => {
    const field = el("input", { id: "key", type: "password", autocomplete: "off", required: true, "aria-describedby": "key-note" });
    const note = el("p", { id: "key-note", text: wrong ? "That key was not accepted. Try another one." : "The server was started with a key. It is kept until this tab is closed, and sent to this server only." });
    const form = el("form", { method: "dialog" }, el("h2", { id: "key-title", text: "API key" }), note, el("label", { for: "key", text: "Key" }), field,
      el("p", { class: "buttons" }, el("button", { type: "submit", class: "main", text: "Continue" })));
    const dialog = el("dialog", { class: wrong ? "key wrong" : "key", "aria-labelledby": "key-title" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault()); // nothing here works without it
    dialog.addEventListener("close", () => {
      dialog.remove();
      asking = null;
      resolve(field.value);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

const KEYS = [
  ["1 … 9", "open a tab"], ["← →", "go from tab to tab, once one has the focus"], ["/", "go to the text box"], ["Esc", "leave the text box"],
  ["Tab", "in Write: take the continuation"], ["→", "in Write, at the end of the text: take one word of it"], ["Alt ↑ ↓", "in Write: show another continuation"],
  ["Ctrl Enter", "ask again"], ["m", "choose the model"], ["c", "the request as curl"], ["p", "the request as Python"], ["t", "light or dark"], ["?", "this list"],
];

export function shortcutsDialog() {
  const single = el("input", { type: "checkbox", checked: kept("keys", true), on: { change: () => keep("keys", single.checked) } });
  const dialog = el("dialog", { class: "shortcuts", "aria-labelledby": "shortcuts-title" },
    el("h2", { id: "shortcuts-title", text: "Keyboard shortcuts" }),
    el("dl", {}, KEYS.flatMap(([keys, text]) => [el("dt", {}, keys.split(" ").map((key) => (key === "…" ? " … " : el("kbd", { text: key })))), el("dd", { text })])),
    el("label", { class: "control" }, single, "Single keys work outside of text fields"),
    el("p", { class: "buttons" }, button("Close", () => dialog.close(), { class: "main" })));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return dialog;
}

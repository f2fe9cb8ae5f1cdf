// The start of the page: which tabs there are, which is open, the footer, and the keys.

import { el } from "/static/picture/base.js";
import { themeButton } from "/static/picture/shell.js";
import { ServerError, ask, onKeyNeeded } from "./api.js";
import { describeAnswer, ground } from "./footer.js";
import { askKey, shortcutsDialog } from "./dialogs.js";
import { button, count, message } from "./parts.js";
import { keep, kept, place, setPlace } from "./state.js";
import { View } from "./view.js";
import { write } from "./write.js";
import { fill } from "./fill.js";
import { classify } from "./classify.js";
import { tag } from "./tag.js";
import { answer } from "./answer.js";
import { choose } from "./choose.js";
import { rewrite, summarize, translate } from "./translate.js";
import { search } from "./search.js";
import { forecast } from "./forecast.js";
import { look } from "./look.js";

const TABS = [write, fill, classify, tag, answer, choose, translate, summarize, rewrite, search, forecast, look];

class App {
  constructor() {
    this.main = document.getElementById("main");
    this.footer = document.getElementById("footer");
    this.view = new View({
      onFacts: (facts) => this.answered.replaceChildren(...describeAnswer(facts)),
      onPlace: (tab, model) => setPlace(tab, model),
    });
    this.tablist = el("div", { class: "tabs", role: "tablist", "aria-label": "Tasks" });
    this.answered = el("p", { class: "answered" });
    this.header();
    this.footer.replaceChildren(this.answered, el("p", { class: "ground" }, `${ground()} `, el("a", { href: "/docs", text: "API" })));
    onKeyNeeded(askKey);
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", (event) => this.key(event));
    this.load();
  }

  header() {
    const theme = themeButton();
    const stored = kept("theme", "");
    if (stored) document.documentElement.dataset.theme = stored;
    const shown = stored ? themeButton() : theme; // made again: it shows the theme that it finds
    shown.addEventListener("click", () => keep("theme", document.documentElement.dataset.theme ?? ""));
    this.theme = shown;
    this.help = button("?", () => this.shortcuts.showModal(), { id: "help", title: "Keyboard shortcuts (?)", "aria-label": "Keyboard shortcuts" });
    this.shortcuts = shortcutsDialog();
    document.querySelector(".tools").replaceChildren(this.help, shown);
    document.getElementById("place").textContent = location.host;
    document.body.append(this.shortcuts);
  }

  async load() {
    this.main.setAttribute("aria-busy", "true");
    if (!this.main.querySelector(".waiting")) this.main.replaceChildren(el("div", { class: "skeleton", role: "status", "aria-label": "Loading the models" }, el("span"), el("span"), el("span")));
    try {
      const { reply } = await ask("/v1/models");
      this.models = (reply.data ?? []).filter((model) => model.ready !== false);
      const opening = (reply.data ?? []).length - this.models.length;
      if (!opening) return this.begin();
      this.main.replaceChildren(message("waiting", `${count(opening, "model")} still loading …`));
      setTimeout(() => this.load(), 1000);
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      const [title, detail] = error.status === 0
        ? ["The server does not answer.", "Is it still running? weft serve FOLDER starts it."]
        : ["The models could not be read.", error.message];
      this.main.replaceChildren(message("error", title, detail, button("Try again", () => this.load())));
    } finally {
      this.main.setAttribute("aria-busy", "false");
    }
  }

  begin() {
    this.tabs = TABS.map((tab) => ({ tab, models: this.models.filter((model) => tab.serves(model)) })).filter(({ models }) => models.length);
    if (!this.tabs.length) {
      this.main.replaceChildren(message("empty", "There is no model here that this page can ask.", "Start the server with a model folder: weft serve FOLDER."));
      return;
    }
    this.buttons = this.tabs.map(({ tab }, n) => el("button", {
      type: "button", role: "tab", id: `tab-${tab.id}`, text: tab.name, "aria-controls": "panel", title: n < 9 ? `${tab.name} (${n + 1})` : tab.name,
      on: { click: () => this.open(n) },
    }));
    this.tablist.replaceChildren(...this.buttons);
    this.tablist.addEventListener("keydown", (event) => this.turn(event));
    this.main.replaceChildren(this.tablist, this.view.node);
    this.follow();
  }

  /** Open what the address says; else the tab that was open before, else the first. */
  follow() {
    if (!this.tabs) return;
    const wanted = place();
    const at = [wanted.tab, kept("tab", "")].map((id) => this.tabs.findIndex(({ tab }) => tab.id === id)).find((n) => n >= 0) ?? 0;
    this.open(at, wanted.tab === this.tabs[at].tab.id ? wanted.model : "");
  }

  open(number, model = "", focus = false) {
    const { tab, models } = this.tabs[number];
    this.buttons.forEach((node, n) => {
      node.setAttribute("aria-selected", String(n === number));
      node.tabIndex = n === number ? 0 : -1;
    });
    this.current = number;
    keep("tab", tab.id);
    document.title = `${tab.name} · Weft`;
    this.view.open(tab, models, model);
    if (focus) this.buttons[number].focus();
  }

  turn(event) {
    const last = this.tabs.length - 1;
    const next = {
      ArrowRight: this.current === last ? 0 : this.current + 1, ArrowLeft: this.current === 0 ? last : this.current - 1,
      ArrowDown: this.current === last ? 0 : this.current + 1, ArrowUp: this.current === 0 ? last : this.current - 1, Home: 0, End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.open(next, "", true);
  }

  /** Single keys work wherever nothing is typed; those of a part of the page come first. */
  key(event) {
    const { view } = this;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.tabs) {
      event.preventDefault();
      view.start(0);
      return;
    }
    const typing = event.target.closest?.("input, textarea, select, dialog[open]");
    if (event.key === "Escape" && typing === view.composer.field && !event.defaultPrevented) return this.buttons?.[this.current].focus();
    if (typing || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || kept("keys", true) === false) return;
    const digit = Number(event.key);
    const run = digit >= 1 && digit <= (this.tabs?.length ?? 0) ? () => this.open(digit - 1, "", true) : {
      "?": () => this.shortcuts.showModal(), "/": () => view.composer.field.focus(), t: () => this.theme.click(),
      m: () => view.bar.querySelector(".picker select")?.focus(), c: () => view.code.choose("curl"), p: () => view.code.choose("weft"),
    }[event.key];
    if (!run || (!this.tabs && event.key !== "?" && event.key !== "t")) return;
    event.preventDefault();
    run();
  }
}

new App();

import { el, isDark, themeChanged } from "./base.js";

// The start of a page: the theme button, and every component with its data.
export function startPage(components) {
  const button = el("button", { id: "theme", type: "button", "aria-label": "Light or dark", title: "Light or dark" });
  const show = () => { button.textContent = isDark() ? "☀" : "☾"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    show();
    themeChanged();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { show(); themeChanged(); });
  show();
  document.body.append(button);
  for (const root of document.querySelectorAll("[data-component]")) {
    const script = root.querySelector(":scope > script"); // without data: what Python wrote stays, and gets its controls
    if (script) root.replaceChildren();
    components[root.dataset.component](root, script && JSON.parse(script.textContent));
  }
}

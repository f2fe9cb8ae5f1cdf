import { el, isDark, themeChanged } from "./base.js";

const THEMES = { auto: ["◐", "Theme: as the system"], light: ["☀", "Theme: light"], dark: ["☾", "Theme: dark"] };

// The button goes from the system's theme to the other one, then to the same one, then back to the system's.
export function themeButton() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const page = document.documentElement;
  const button = el("button", { id: "theme", type: "button" });
  const show = () => {
    const [sign, name] = THEMES[page.dataset.theme ?? "auto"];
    button.textContent = sign;
    button.title = `${name}. Click to change it.`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    const order = [undefined, system.matches ? "light" : "dark", system.matches ? "dark" : "light"];
    const next = order[(order.indexOf(page.dataset.theme) + 1) % 3];
    const before = isDark();
    if (next) page.dataset.theme = next;
    else delete page.dataset.theme;
    show();
    if (isDark() !== before) themeChanged();
  });
  system.addEventListener("change", themeChanged);
  show();
  return button;
}

// The start of a page: the theme button, and every component with its data.
export function startPage(components) {
  document.body.append(themeButton());
  for (const root of document.querySelectorAll("[data-component]")) {
    const script = root.querySelector(":scope > script"); // without data: what Python wrote stays, and gets its controls
    if (script) root.replaceChildren();
    components[root.dataset.component](root, script && JSON.parse(script.textContent));
  }
}

// What a person has typed and chosen: kept for as long as the browser's tab is open, and sent nowhere. The address holds
// the tab and the model only, so that a link says nothing of the texts.

const NAME = "weft-page";

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(NAME)) ?? {};
  } catch {
    return {};
  }
}

const values = read();

/** A value that was kept under this name, such as "text.shared". */
export function kept(name, usual) {
  return values[name] ?? usual;
}

export function keep(name, value) {
  values[name] = value;
  try {
    sessionStorage.setItem(NAME, JSON.stringify(values));
  } catch {
    // A text may be larger than the storage of a tab: it then lives as long as the page.
  }
}

/** The tab and the model of the address: #classify or #classify/reviews. */
export function place() {
  const [tab, model] = location.hash.slice(1).split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return "";
    }
  });
  return { tab: tab ?? "", model: model ?? "" };
}

export function setPlace(tab, model) {
  const hash = `#${encodeURIComponent(tab)}${model ? `/${encodeURIComponent(model)}` : ""}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

// Elements. Text is always text: nothing here, or anywhere on the page, takes markup from data.

/** An element with properties and children; `data` and `aria` hold attributes of those kinds. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(made.dataset, value);
    else if (name === "aria") for (const [key, text] of Object.entries(value)) made.setAttribute(`aria-${key}`, text);
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (["role", "scope", "for", "colspan"].includes(name)) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...present(children));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Put children in place of those that an element has. */
export function fill(parent, ...children) {
  parent.replaceChildren(...present(children));
}

/** Children without lists in lists, and without those that are not there. */
function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined);
}

/** Text whose `code` in backticks is shown as code. */
export function prose(text) {
  return text.split("`").map((part, place) => (place % 2 ? el("code", {}, part) : part));
}

/** A table: `columns` are [heading, cell of a row, is it a number], the first heads its row. */
export function table(caption, columns, rows) {
  const head = columns.map(([title, , numeric]) => el("th", { scope: "col", className: numeric ? "number" : "" }, title));
  const body = rows.map((row) =>
    el("tr", row.chosen ? { className: "chosen" } : {},
      columns.map(([, cell, numeric], place) =>
        el(place === 0 ? "th" : "td", { ...(place === 0 ? { scope: "row" } : {}), className: numeric ? "number" : "" }, cell(row)))));
  const made = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  return el("div", { className: "scroll", tabIndex: 0, role: "region", aria: { label: caption } }, made);
}

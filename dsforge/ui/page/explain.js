// The explanation of a figure: value, formula, inputs that lead on, and the source.
import { byId, el, fill } from "./dom.js";

let ask = null; // the question to the engine
let trail = []; // figures on the way here

/** Connect the dialog with the engine: `question` asks it about a figure of a plan. */
export function connect(question) {
  ask = question;
  byId("explanation-close").addEventListener("click", () => byId("explanation").close());
  byId("explanation").addEventListener("click", (event) => {
    if (event.target === byId("explanation")) byId("explanation").close(); // beside the dialog
  });
}

/** A figure as a button that opens its explanation; plain text where it has none. */
export function figure(text, name, label, of = {}) {
  if (!name || !text) return text;
  const open = () => explain(name, of);
  return el("button", { type: "button", className: "figure", title: "How is this computed?", data: { figure: name }, aria: { label: `${label}: ${text}. Explain` }, on: { click: open } }, text);
}

/** Open the explanation of a figure; `of` names the plan by its rank or its place on the front. */
export async function explain(name, of = {}) {
  trail = [];
  const dialog = byId("explanation");
  byId("explanation-title").textContent = "…";
  fill(byId("explanation-body"));
  if (!dialog.open) dialog.showModal();
  const { document: found, shown, error } = await ask(name, of);
  if (error) {
    byId("explanation-title").textContent = "No explanation";
    fill(byId("explanation-body"), el("pre", {}, error.text));
    return;
  }
  show(found, shown, shown.figure);
}

function show(found, shown, name) {
  const by = Object.fromEntries(found.figures.map((each) => [each.name, each]));
  const here = by[name];
  byId("explanation-title").textContent = here.name.replaceAll("_", " ");
  const back = trail.length === 0 ? null : el("button", { type: "button", className: "link", on: { click: () => show(found, shown, trail.pop()) } }, `← ${trail.at(-1).replaceAll("_", " ")}`);
  fill(byId("explanation-body"),
    back,
    el("p", { className: "value" }, shown.texts[here.name]),
    here.formula ? [el("h3", {}, "Formula"), el("pre", { className: "formula", tabIndex: 0 }, `${here.name} = ${here.formula}`)] : null,
    here.inputs.length ? [el("h3", {}, "Inputs"), inputs(found, shown, here, by)] : null,
    el("h3", {}, "Source"),
    el("p", {}, here.source),
    el("p", { className: "hint" }, `Of ${found.label}. Rests on ${found.figures.length - 1} other figures.`));
}

function inputs(found, shown, here, by) {
  const follow = (given) => () => {
    trail.push(here.name);
    show(found, shown, given.name);
  };
  const rows = here.inputs.map((given) => el("li", {},
    given.name in by && given.name !== here.name
      ? el("button", { type: "button", className: "link", on: { click: follow(given) } }, given.name)
      : el("code", {}, given.name),
    ` = ${shown.texts[given.name]}`,
    el("span", { className: "hint" }, ` ${given.source}`)));
  return el("ul", { className: "inputs" }, rows);
}

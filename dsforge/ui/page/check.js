// Lint and diagnose: texts that are pasted, dropped or opened, judged in this tab.
import { byId, el, fill, prose } from "./dom.js";

const LARGEST = 64 * 1024 * 1024; // bytes of a file: what the planner takes
let names = {}; // of files that were opened, by view

/** Connect both views; `ask` takes a question and whether the job goes with it. */
export function connect(ask) {
  wire("lint", async () => {
    const question = { do: "lint", text: byId("lint-text").value, name: names.lint ?? "", kind: byId("lint-kind").value };
    return findings(await ask(question, byId("lint-job").checked));
  });
  wire("diagnose", async () => {
    const question = { do: "diagnose", text: byId("diagnose-text").value };
    return causes(await ask(question, byId("diagnose-job").checked));
  });
}

/** Put a file into a view. */
export async function take(view, file) {
  if (file.size > LARGEST) {
    fill(byId(`${view}-answer`), problem(`${file.name} has ${Math.round(file.size / 2 ** 20)} MiB; at most 64 MiB are read`));
    return;
  }
  byId(`${view}-text`).value = await file.text();
  names[view] = file.name;
}

function wire(view, answer) {
  const button = byId(`${view}-run`), area = byId(`${view}-text`);
  button.addEventListener("click", async () => {
    const frame = byId(`${view}-answer`);
    button.disabled = true;
    fill(frame, el("p", { className: "pending" }, "Checking …"));
    fill(frame, await answer());
    button.disabled = false;
  });
  area.addEventListener("input", () => delete names[view]);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) button.click();
  });
  byId(`${view}-file`).addEventListener("change", async (event) => {
    if (event.target.files[0]) await take(view, event.target.files[0]);
    event.target.value = "";
  });
}

const problem = (text) => el("pre", { className: "failure" }, text);

function findings({ document: found, shown, error }) {
  if (error) return problem(error.text);
  const list = found.findings.map((each) => el("article", { className: "finding", data: { severity: each.severity } },
    el("h3", {}, el("span", { className: "badge" }, each.severity), " ", prose(each.message)),
    el("p", { className: "hint" }, `${each.line ? `line ${each.line}` : ""}${each.path ? `, ${each.path}` : ""} `, el("code", {}, each.rule)),
    each.fix ? el("p", {}, el("b", {}, "Fix: "), prose(each.fix)) : null,
    each.why ? el("details", {}, el("summary", {}, "Why"), el("p", {}, prose(each.why)), el("p", { className: "hint" }, prose(each.evidence))) : null));
  return [el("p", { className: "summary" }, found.findings.length ? shown.summary : "No findings."), list];
}

function causes({ document: found, error }) {
  if (error) return problem(error.text);
  if (found.causes.length === 0) return el("p", { className: "summary" }, "No sign of a failure was found; a run that hangs needs the logs of all ranks.");
  return found.causes.map((each) => el("article", { className: "finding", data: { severity: each.confidence < 0.5 ? "info" : "error" } },
    el("h3", {}, el("span", { className: "badge" }, `${Math.round(100 * each.confidence)} %`), " ", prose(each.message)),
    el("p", {}, prose(each.why), " ", el("code", {}, each.rule)),
    each.fix ? [el("h4", {}, "Fix"), el("pre", { tabIndex: 0 }, each.fix)] : null,
    each.evidence.length ? [el("h4", {}, "Evidence"), el("pre", { tabIndex: 0 }, each.evidence.map((line) => `${line.line}: ${line.text}`).join("\n"))] : null));
}

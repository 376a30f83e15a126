// The answer to a job: the verdict first, then memory, time, ranking and reasons.
import { byId, el, fill, prose, table } from "./dom.js";
import { figure } from "./explain.js";
import { termBar } from "./charts.js";

const KINDS_SHOWN = 6; // alternatives that are seen at once
const VERDICTS = { fits: "Fits", tight: "Probably fits", "does not fit": "Does not fit" };

/** Show the answer to a job: a ranking, or the plan nearest to fitting. */
export function show({ shown, error }) {
  byId("answer").hidden = false;
  hero(shown, error);
  fill(byId("sections"),
    shown.remedies ? remedies(shown.remedies, error) : null,
    memory(shown),
    time(shown),
    why(shown),
    shown.ranking ? ranking(shown) : null,
    shown.ranking ? el("div", { id: "argument" }) : null,
    el("div", { id: "questions" }),
    shown.losers?.length ? losers(shown) : null);
  byId("peek").hidden = false;
  byId("peek").textContent = `${VERDICTS[shown.verdict]} · ${shown.device.text} · ${shown.step.text}`;
  byId("live").textContent = `${VERDICTS[shown.verdict]}. ${shown.device.text} of ${shown.capacity} per GPU, ${shown.step.text} per step.`;
}

/** A part of the answer with a heading. */
export function section(id, title, note, ...children) {
  const head = el("h3", { id: `${id}-title` }, title);
  return el("section", { className: "card", id, aria: { labelledby: `${id}-title` } }, head, note ? el("p", { className: "note" }, note) : null, ...children);
}

function hero(shown, error) {
  byId("headline").textContent = shown.headline;
  const verdict = byId("verdict");
  verdict.textContent = VERDICTS[shown.verdict];
  verdict.dataset.verdict = shown.verdict;
  byId("strategy").textContent = shown.strategy;
  byId("strategy-words").textContent = shown.words;
  byId("verdict-words").textContent = error ? error.message : "";
  byId("verdict-words").hidden = !error;
  byId("download").disabled = Boolean(error);
  const rate = shown.speed.find((row) => row.figure === "tokens_per_s" && row.label !== "tokens/s");
  const host = shown.host.reduce((most, row) => (row.figure.startsWith("host_") && row.value > most.value ? row : most), shown.host[0]);
  fill(byId("stats"),
    stat("Memory per GPU", shown.device, `of ${shown.capacity}, ${shown.room}`, gauge(shown.bounds_gib, shown.capacity_gib)),
    stat("Step time", shown.step, shown.time.length ? `mostly ${most(shown.time).label}` : "", gauge(shown.bounds_s, shown.bounds_s[2] * 1.15)),
    stat("Tokens/s per GPU", rate, `MFU ${shown.mfu}`),
    stat("Host RAM per node", host, `of ${shown.host_capacity} usable${shown.host_fits ? "" : ": too much"}`),
    shown.run.length ? run(shown.run) : null);
}

/** The whole run: its days, and what it costs where that is known. */
function run(rows) {
  const [days, cost] = ["days", "money"].map((name) => rows.find((row) => row.figure === name));
  return stat("Days of the run", days, cost ? `${cost.label}: ${cost.text}` : `${rows[0].text} tokens`);
}

const most = (rows) => rows.reduce((one, other) => (other.value > one.value ? other : one));

function stat(label, row, note, drawn = null) {
  return el("div", { className: "stat" },
    el("div", { className: "stat-label" }, label),
    el("div", { className: "stat-value" }, figure(row.text, row.figure, label)),
    drawn,
    row.low ? el("div", { className: "stat-range" }, `80 %: ${row.low} to ${row.high}`) : null,
    el("div", { className: "stat-note" }, note));
}

/** The interval on a bar that ends with all there is. */
function gauge([low, likely, high], whole) {
  const most = Math.max(whole, high);
  const span = el("div", { className: "gauge-span" }), dot = el("div", { className: "gauge-dot" }), end = el("div", { className: "gauge-end" });
  span.style.setProperty("left", `${(100 * low) / most}%`);
  span.style.setProperty("width", `${(100 * (high - low)) / most}%`);
  dot.style.setProperty("left", `${(100 * likely) / most}%`);
  end.style.setProperty("left", `${(100 * whole) / most}%`);
  return el("div", { className: "gauge", aria: { hidden: "true" } }, span, dot, high > whole ? end : null);
}

const range = (row) => (row.low ? `${row.low} to ${row.high}` : row.note);
const value = (row) => figure(row.text, row.figure, row.label);

function terms(caption, rows) {
  const columns = [["term", (row) => row.label], ["likely", value, true]];
  return table(caption, rows.some(range) ? [...columns, ["low to high", range, true]] : columns, rows);
}

function memory(shown) {
  const chart = termBar("memory", `Memory by term on the fullest rank, of ${shown.capacity}`, shown.memory, { unit: "GiB", capacity: shown.capacity_gib, capacityLabel: shown.capacity });
  return section("memory", "Memory on the fullest rank", null, chart,
    el("div", { className: "columns" }, terms("Memory by term", shown.memory), terms("Memory in all", [...shown.counters, ...shown.host])));
}

function time(shown) {
  const chart = termBar("time", `Step time by term, ${shown.step.text} in all`, shown.time, { unit: "s" });
  const step = { label: "step", text: shown.step.text, figure: "step_likely", low: shown.step.low, high: shown.step.high };
  return section("time", "Time of one optimizer step", null, chart,
    el("div", { className: "columns" },
      terms("Time by term", [...shown.time, step]),
      terms(shown.run.length ? "Speed and the whole run" : "Speed", [...shown.speed, ...shown.run])));
}

function ranking(shown) {
  const rows = shown.ranking.map((row, rank) => ({ ...row, rank, chosen: rank === 0 }));
  const columns = [
    ["strategy", (row) => row.strategy],
    ["step", (row) => figure(row.step, "step_likely", `step time of ${row.strategy}`, { rank: row.rank }), true],
    ["against the choice", (row) => figure(row.against, "step_likely", `step time of ${row.strategy} against the choice`, { rank: row.rank }), true],
    ["memory", (row) => figure(row.memory, "device_likely", `memory of ${row.strategy}`, { rank: row.rank }), true],
    ["fit", (row) => row.fit],
    ["host RAM", (row) => figure(row.host, "host_bytes", `host RAM of ${row.strategy}`, { rank: row.rank }), true],
    ["MFU", (row) => figure(row.mfu, "mfu", `MFU of ${row.strategy}`, { rank: row.rank }), true],
    ["largest term", (row) => figure(row.largest, row.largest_figure, `largest term of ${row.strategy}`, { rank: row.rank })],
  ];
  const others = (caption, listed) => table(caption, [
    ["strategy", (row) => row.strategy],
    ["kind", (row) => row.kind],
    ["step", (row) => figure(row.step, "step_likely", `step time of ${row.strategy}`, { rank: row.rank }), true],
    ["against the choice", (row) => figure(row.against, "step_likely", `step time of ${row.strategy} against the choice`, { rank: row.rank }), true],
    ["differs most in", (row) => figure(row.differs, row.differs_figure, `largest difference of ${row.strategy}`, { rank: row.rank })],
    ["device memory", (row) => figure(row.memory, "device_likely", `memory of ${row.strategy} against the choice`, { rank: row.rank }), true],
  ], listed);
  const kinds = shown.alternatives.map((row, place) => ({ ...row, rank: rows.length + place })); // as the planner counts them
  const first = kinds.slice(0, KINDS_SHOWN), rest = kinds.slice(KINDS_SHOWN);
  return section("ranking", "Ranked plans", `The choice, then the fastest of ${shown.searched}. A simpler plan is preferred to one that is a little faster.`,
    table("Plans that fit, best first", columns, rows),
    first.length ? others("The fastest plan of each other kind", first) : null,
    rest.length ? el("details", {}, el("summary", {}, `${rest.length} more kinds`), others("More kinds", rest)) : null);
}

function losers(shown) {
  return section("losers", "Why the others lost", null,
    el("details", {}, el("summary", {}, `${shown.losers.length} plans that are impossible or not certain to fit`),
      table("Rejected plans", [["strategy", (row) => row.strategy], ["why", (row) => prose(row.why)], ["rule", (row) => el("code", {}, row.rule)]], shown.losers)));
}

function remedies(ways, error) {
  const list = ways.length ? el("ol", {}, ways.map((way) => el("li", {}, prose(way)))) : el("p", {}, error?.hint ?? "");
  return section("remedies", "What would make it fit", ways.length ? "The cheapest change first." : null, list);
}

const KINDS = { warning: "Warning", choice: "Because", note: "Note", default: "Assumed" };

function why(shown) {
  const listed = (wanted) => Object.keys(KINDS).filter((kind) => wanted.includes(kind)).flatMap((kind) =>
    shown.reasons.filter((reason) => reason.kind === kind).map((reason) =>
      el("li", { data: { kind } }, el("b", {}, KINDS[kind]), " ", prose(reason.message))));
  const defaults = listed(["default"]);
  return section("why", "Why this plan", null,
    el("ul", { className: "reasons" }, shown.assumed.map((text) => el("li", { data: { kind: "assumed" } }, el("b", {}, "Assumed"), " ", prose(text))), listed(["warning", "choice", "note"])),
    defaults.length ? el("details", {}, el("summary", {}, `${defaults.length} defaults`), el("ul", { className: "reasons" }, defaults)) : null,
    shown.command ? [el("p", { className: "note" }, "The same on the command line:"), el("pre", { className: "command", tabIndex: 0 }, shown.command)] : null);
}

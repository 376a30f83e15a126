// The page: a job from the form or the link, asked as it is typed, and what to do with the answer.
import { byId, el, fill, prose } from "./dom.js";
import { Engine, Superseded } from "./engine.js";
import { fragmentOf, jobOf } from "./link.js";
import * as answer from "./answer.js";
import * as argue from "./argue.js";
import * as charts from "./charts.js";
import * as check from "./check.js";
import * as explain from "./explain.js";
import * as find from "./find.js";
import * as form from "./form.js";
import * as views from "./views.js";

const PAUSE_MS = 250; // after a key, before the job is asked
const HUB_ID = /^[A-Za-z0-9][\w.-]{0,95}\/[A-Za-z0-9][\w.-]{0,95}$/;
const STAGES = { python: "Python is up; loading the planner …", planner: "Planning …" };

const engine = new Engine((stage) => (byId("starting-text").textContent = STAGES[stage]), broke);
const arguing = new Engine(); // of its own: an argument takes seconds, an answer must not wait
const hub = {}; // texts of config.json that were read from the hub, by id
let timer = 0;
let isGreeted = false; // the answer that came with the page is shown
engine.start();
const first = await json("first.json"); // the job that greets a visitor, and its answer

function job() {
  return { ...form.job(), hub };
}

/** Ask the job of the form, show its answer, then its argument. */
async function ask() {
  const asked = job();
  history.replaceState(null, "", fragmentOf(asked));
  document.body.dataset.state = "busy";
  try {
    const found = await engine.ask({ do: "plan", document: false, job: asked }, "plan");
    if (await readFromHub(found, asked)) return;
    byId("starting").hidden = true;
    const stands = isGreeted && isGreeting(asked) && JSON.stringify(found.shown) === JSON.stringify(first.shown);
    isGreeted = false;
    if (stands) argueAbout(found, asked);
    else if (found.shown) present(found, asked);
    else refuse(found.error);
    document.body.dataset.state = "done";
  } catch (error) {
    if (!(error instanceof Superseded)) throw error;
  }
}

const isGreeting = (asked) => fragmentOf(asked) === fragmentOf(first.job);

/** Show the answer that came with the page; the same question is asked as soon as Python is up. */
function greet() {
  byId("starting").classList.add("beside");
  byId("starting-text").textContent = "This plan came with the page. Python is starting, to answer what you type.";
  answer.show(first);
  isGreeted = true;
}

function present(found, asked) {
  refuse(null);
  form.mark([]);
  byId("action-note").textContent = "";
  answer.show(found);
  byId("answer").dataset.stale = "false";
  argueAbout(found, asked);
}

/** What follows an answer: the questions that lead on from it. */
function argueAbout(found, asked) {
  find.offer((question, field) => engine.ask({ do: "find", question, job: without(asked, field) }, `find-${question}`));
  if (!found.shown.ranking) return;
  argue.wait();
  arguing.ask({ do: "argue", document: false, job: asked }, "argue").then(argue.show).catch(() => {});
}

/** The job without a field: what an inverse question looks for must be open. */
function without(asked, field) {
  const fields = { ...asked.fields };
  delete fields[field];
  return { ...asked, fields, config: field === "model" ? null : asked.config };
}

/** Where the model is a hub id that nobody here knows: read its config where this site can. */
async function readFromHub(found, asked) {
  const id = asked.fields.model ?? "";
  const isUnknown = found.error?.problems.some((problem) => problem.rule === "model-hub");
  if (!isUnknown || !HUB_ID.test(id) || id in hub) return false;
  try {
    const response = await fetch(`hub/${id}/config.json`);
    const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
    if (!response.ok || !isJson) return false;
    hub[id] = await response.text();
  } catch {
    return false; // offline, or a site that reads no hub
  }
  ask();
  return true;
}

/** Show why there is no answer; nothing where there is one. */
function refuse(error) {
  const frame = byId("failure");
  frame.hidden = error === null;
  if (error === null) return;
  byId("answer").dataset.stale = "true";
  byId("peek").textContent = error.message;
  byId("peek").hidden = false;
  const left = form.mark(error.problems);
  const isMarked = left.length < error.problems.length;
  const texts = left.map((each) => el("li", {}, prose(each.message), each.hint ? el("span", { className: "hint" }, " ", prose(each.hint)) : null));
  fill(frame,
    el("p", {}, el("b", {}, prose(error.message)), isMarked ? ": see the marked fields" : ""),
    texts.length ? el("ul", {}, texts) : null,
    error.hint ? el("p", {}, prose(error.hint)) : null,
    error.kind === "bug" ? el("pre", { tabIndex: 0 }, error.text) : null,
    error.problems.some((each) => each.rule === "model-hub") ? el("p", {}, "In the browser: save config.json from the model's page on the hub and drop it here.") : null,
    byId("answer").hidden ? null : el("p", {}, "Below is the answer to the last job without mistakes."));
}

function broke(message) {
  byId("starting").hidden = true;
  refuse({ message: "Python did not start in this tab", hint: message, problems: [], kind: "start" });
}

async function download() {
  const note = byId("action-note");
  note.textContent = "Writing the run folder …";
  const found = await engine.ask({ do: "gen", job: job() });
  if (found.error) {
    note.textContent = found.error.text;
    return;
  }
  const bytes = Uint8Array.from(atob(found.zip), (letter) => letter.charCodeAt(0));
  const url = URL.createObjectURL(new Blob([bytes], { type: "application/zip" }));
  el("a", { href: url, download: "run.zip" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  note.textContent = "run.zip has the files of `dsforge gen`; PLAN.md explains them.";
}

async function share() {
  const note = byId("action-note");
  try {
    await navigator.clipboard.writeText(location.href);
    note.textContent = "Link copied. The job is in the link itself; nothing was uploaded.";
  } catch {
    note.textContent = "Copy the address of this page: the job is in it.";
  }
}

async function useFile(file) {
  if (views.opened() !== "plan") {
    await check.take(views.opened(), file);
    return;
  }
  await useText(await file.text());
}

/** A config.json is the model, any other text the cluster: cluster.yaml or a hostfile. */
async function useText(text) {
  if (text.trimStart().startsWith("{")) form.useConfig(text);
  else form.useCluster(text);
  await ask();
}

/** A file that is pasted beside the fields. */
function pasted(event) {
  const text = event.clipboardData.getData("text");
  const isTyped = event.target.closest?.("input, textarea, select");
  const isFile = text.includes("\n") || text.trimStart().startsWith("{");
  if (isTyped || views.opened() !== "plan" || !isFile) return;
  event.preventDefault();
  useText(text);
}

function connect() {
  form.onChange(() => {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE_MS);
  });
  byId("config-file").addEventListener("change", (event) => event.target.files[0] && useFile(event.target.files[0]));
  byId("cluster-file").addEventListener("change", (event) => event.target.files[0] && useFile(event.target.files[0]));
  byId("cluster-clear").addEventListener("click", () => { form.useCluster(null); ask(); });
  addEventListener("paste", pasted);
  byId("config-clear").addEventListener("click", () => { form.useConfig(null); ask(); });
  byId("clear").addEventListener("click", () => { form.show({ fields: {}, config: null, cluster: null }); ask(); });
  byId("download").addEventListener("click", download);
  byId("share").addEventListener("click", share);
  byId("print").addEventListener("click", () => print());
  byId("peek").addEventListener("click", () => { byId("answer-region").scrollIntoView(); byId("answer-region").focus({ preventScroll: true }); });
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("answer-region").focus(); });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) useFile(event.dataTransfer.files[0]);
  });
  addEventListener("hashchange", () => { form.show(jobOf(location.hash) ?? first.job); ask(); });
  addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("#sections details")) each.open = true; charts.resize(); });
  addEventListener("afterprint", charts.resize);
  addEventListener("themechange", charts.redraw);
  explain.connect((figure, of) => ("front" in of ? arguing : engine).ask({ do: "explain", job: job(), figure, ...of }));
  check.connect((question, withJob) => engine.ask(withJob ? { ...question, job: job() } : question));
  views.tabs();
  views.peek();
}

async function json(name) {
  return (await fetch(name)).json();
}

async function start() {
  form.show(jobOf(location.hash) ?? first.job);
  if (isGreeting(job())) greet();
  connect();
  const choices = await json("choices.json");
  form.offer(choices);
  byId("version").textContent = choices.version;
  await ask();
  await views.offline();
}

self.dsforge = { engine, job }; // for the tests of the page: the same questions as its own
await start();

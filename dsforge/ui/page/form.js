// The form: a job from its fields and back, and problems beside the fields that they are about.
import { byId, el, fill, prose } from "./dom.js";
import { FIELDS } from "./link.js";

const controls = Object.fromEntries(FIELDS.map((name) => [name, byId(`field-${name}`)]));
const LISTS = { gpu: "gpus", intra_node: "links", inter_node: "links" };
const HOSTS = ["nodes", "gpus_per_node"]; // what a hostfile says
const MACHINES = ["gpu", "intra_node", "inter_node", "nics_per_node", "host_memory", "nvme_path", "gpu_hour_price"];
let config = null; // text of a config.json, in place of a name
let cluster = null; // text of a cluster.yaml or hostfile, under the fields of the cluster
let unknown = {}; // fields of a link that this version does not have: the planner refuses them

/** Offer the names of the catalog. */
export function offer(choices) {
  const models = choices.models.map(({ name, note }) => el("option", { value: name, label: `${name} · ${note}` }));
  fill(byId("models"), models);
  for (const [field, list] of Object.entries(LISTS)) {
    const control = controls[field];
    const wanted = control.dataset.wanted ?? control.value;
    const first = control.options[0];
    fill(control, first, choices[list].map(({ name, note }) => el("option", { value: name }, `${name} · ${note}`)));
    select(control, wanted);
  }
}

/** The job as it stands in the form. */
export function job() {
  const fields = { ...unknown };
  for (const [name, control] of Object.entries(controls)) {
    const value = control.type === "checkbox" ? (control.checked ? "1" : "") : control.value.trim();
    if (value) fields[name] = value;
  }
  if (config !== null) delete fields.model;
  return { fields, config, cluster };
}

/** Put a job into the form. */
export function show(given) {
  unknown = Object.fromEntries(Object.entries(given.fields).filter(([name]) => !(name in controls)));
  for (const [name, control] of Object.entries(controls)) {
    const value = given.fields[name] ?? "";
    if (control.type === "checkbox") control.checked = value === "1";
    else if (control.tagName === "SELECT") select(control, value);
    else control.value = value;
    control.closest("details")?.toggleAttribute("open", Boolean(value) || control.closest("details").open);
  }
  useConfig(given.config);
  cluster = given.cluster ?? null;
  byId("cluster-note").hidden = cluster === null;
}

/** Use the text of a config.json as the model; none: the name counts again. */
export function useConfig(text) {
  config = text ?? null;
  byId("config-note").hidden = config === null;
  controls.model.disabled = config !== null;
  if (config !== null) controls.model.value = "";
}

/** Use the text of a cluster.yaml or hostfile; fields that are filled in afterwards win over it. */
export function useCluster(text) {
  cluster = text ?? null;
  byId("cluster-note").hidden = cluster === null;
  if (cluster === null) return;
  const isHostfile = /^[^\s#:]+[ \t]+slots=/m.test(cluster);
  for (const name of isHostfile ? HOSTS : [...HOSTS, ...MACHINES]) controls[name].value = "";
}

/** Mark the fields that problems are about; returns the problems of no field. */
export function mark(problems) {
  for (const control of Object.values(controls)) {
    control.removeAttribute("aria-invalid");
    const note = byId(`${control.id}-problem`);
    if (note) note.textContent = "";
  }
  return problems.filter((problem) => {
    const control = Object.values(controls).find((each) => each.dataset.flag === problem.place || fieldOf(problem) === each.name);
    const note = control && byId(`${control.id}-problem`);
    if (!note) return true;
    control.setAttribute("aria-invalid", "true");
    control.closest("details")?.setAttribute("open", "");
    fill(note, prose(problem.hint ? `${problem.message} (${problem.hint})` : problem.message));
    return false;
  });
}

function fieldOf(problem) {
  return problem.rule.startsWith("model") ? "model" : null;
}

/** Select a value; one that is not offered is added, for the planner to judge. */
function select(control, value) {
  control.dataset.wanted = value;
  if (value && ![...control.options].some((option) => option.value === value)) control.append(el("option", { value }, value));
  control.value = value;
}

/** Call back with each change of the form. */
export function onChange(act) {
  byId("job").addEventListener("input", (event) => {
    if (event.target.tagName === "SELECT") event.target.dataset.wanted = event.target.value;
    act();
  });
  byId("job").addEventListener("submit", (event) => event.preventDefault());
}

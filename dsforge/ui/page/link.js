// The job in the fragment of the address. A fragment is never sent to a server; one that somebody
// else wrote is checked by the planner like every other input.

export const FIELDS = [
  "model", "gpu", "nodes", "gpus_per_node", "intra_node", "inter_node", "nics_per_node", "host_memory",
  "nvme_path", "gpu_hour_price", "seq_len", "global_batch", "tokens", "precision", "optimizer", "method",
  "back_end", "zero_stage", "micro_batch", "tp", "pp", "cp", "ep", "offload_optimizer", "offload_params",
  "recompute", "objective", "deadline_days", "budget", "prefer", "risk",
];
const CONFIG = "config", CLUSTER = "cluster"; // the texts of a config.json and of a cluster file
const LONGEST_FRAGMENT = 100_000;

/** The job that a fragment holds; none where it holds nothing. */
export function jobOf(fragment) {
  const text = fragment.replace(/^#/, "");
  if (!text || text.length > LONGEST_FRAGMENT) return null;
  const fields = {};
  let config = null, cluster = null;
  for (const [name, value] of new URLSearchParams(text)) {
    if (name === CONFIG) config = value;
    else if (name === CLUSTER) cluster = value;
    else if (value) fields[name] = value; // a field that is not known is refused by the planner
  }
  return { fields, config, cluster };
}

/** The fragment of a job. */
export function fragmentOf(job) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(job.fields)) if (value) found.set(name, value);
  if (job.config) found.set(CONFIG, job.config);
  if (job.cluster) found.set(CLUSTER, job.cluster);
  return `#${found}`;
}

// The argument: what would change the choice, and the plans that no other beats.
import { byId, el, fill, table } from "./dom.js";
import { section } from "./answer.js";
import { figure } from "./explain.js";
import { frontChart } from "./charts.js";

/** Say that the argument is being worked out. */
export function wait() {
  const frame = byId("argument");
  if (frame) fill(frame, section("flips", "What would change the choice", null, el("p", { className: "pending" }, "Planning other networks, cards, batches and fewer machines …")));
}

/** Show the argument of the present job. */
export function show({ shown, error }) {
  const frame = byId("argument");
  if (!frame) return;
  if (error) {
    fill(frame);
    return;
  }
  fill(frame, flips(shown.flips), shown.front.length ? front(shown.front) : null);
}

function flips(found) {
  const list = found.length
    ? el("ul", { className: "reasons" }, found.map((flip) => el("li", {}, flip.text, el("span", { className: "hint" }, ` ${flip.strategy}`))))
    : el("p", {}, "No other link, memory size, batch or sequence length within 8x.");
  return section("flips", "What would change the choice", null, list);
}

function front(points) {
  const timed = points.some((point) => point.days);
  const priced = points.some((point) => point.cost);
  const column = (title, key, name) => [title, (point) => figure(String(point[key]), name, `${title} of ${point.strategy} on ${point.gpus} GPUs`, { front: point.place }), true];
  const columns = [
    ["strategy", (point) => point.strategy],
    column("GPUs", "gpus", "world_size"),
    column("step", "step", "step_likely"),
    column("GPU-seconds", "gpu_seconds", "gpu_s"),
    column("memory left", "free", "free_memory"),
    ...(timed ? [column("days", "days", "days")] : []),
    ...(priced ? [column("cost", "cost", "money")] : []),
  ];
  return section("front", "Pareto front", "No plan beats these in step time, GPUs, GPU time and free memory at once; marked is the choice on so many GPUs.",
    frontChart(points), el("details", {}, el("summary", {}, `Table of ${points.length} plans`), table("Plans of the Pareto front", columns, points.map((point, place) => ({ ...point, place })))));
}

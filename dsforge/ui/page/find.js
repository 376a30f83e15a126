// Inverse questions: how much of one thing fits.
import { byId, el, fill } from "./dom.js";
import { section } from "./answer.js";

const QUESTIONS = [
  ["micro-batch", "Largest micro batch", "samples", "micro_batch"],
  ["seq-len", "Longest sequence", "tokens", "seq_len"],
  ["gpus", "Fewest GPUs", "", "nodes"],
  ["model", "Largest model", "", "model"],
];

/** Offer the questions; `ask` gives the answer to one about the job without a field. */
export function offer(ask) {
  const cards = QUESTIONS.map(([name, title, unit, field]) => {
    const answer = el("div", { className: "found", role: "status" });
    const button = el("button", { type: "button", data: { question: name } }, title);
    button.addEventListener("click", async () => {
      button.disabled = true;
      fill(answer, el("p", { className: "pending" }, "Searching …"));
      try {
        fill(answer, shown(await ask(name, field), unit));
      } catch {
        fill(answer); // a newer job has taken its place
      }
      button.disabled = false;
    });
    return el("div", { className: "question" }, button, answer);
  });
  fill(byId("questions"), section("find", "How much would fit?", "Everything else as above; the value asked for is left open.", el("div", { className: "cards" }, cards)));
}

function shown({ shown: found, error }, unit) {
  if (error) return el("p", { className: "problem" }, error.problems.map((each) => each.message).join("; ") || error.message);
  return [
    el("p", { className: "found-value" }, `${found.value} ${unit}`.trim()),
    el("p", { className: "hint" }, `certain ${found.certain}, possible ${found.possible}`),
    found.limit ? el("p", { className: "hint" }, `Limit: ${found.limit}`) : null,
    el("p", { className: "hint" }, `${found.plan.strategy}, ${found.plan.device.text}, ${found.plan.step.text} per step`),
  ];
}

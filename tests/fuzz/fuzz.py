"""Coverage-guided fuzzing with atheris: `fuzz.py all --seconds 120`, or one target as libFuzzer.

    python tests/fuzz/fuzz.py all --seconds 120          every target in turn, a table of counts
    python tests/fuzz/fuzz.py hostfile -runs=100000      one target; further words are libFuzzer's

Seeds are the files of this repository that each parser is for. An input that breaks a target, takes
longer than ten seconds or more than 2 GiB ends it with exit code 1 and lies in `build/fuzz/`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import seeds

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = ROOT / "build" / "fuzz"
# What the first inputs of a target are; those without a pattern have theirs in seeds.py.
SEEDS = {
    "hostfile": "**/hostfile*",
    "lint_hostfile": "**/hostfile*",
    "cluster": "tests/golden/**/spec.yaml",
    "answers": "tests/diagnose/logs/*.log",
    "diagnose": "tests/diagnose/logs/*.log",
    "ds_config": "tests/golden/**/ds_config.json",
    "ds_config_yaml": "tests/golden/**/ds_config.json",
    "priced_ds_config": "tests/golden/**/ds_config.json",
    "deepspeed_env": "tests/golden/**/.deepspeed_env",
    "megatron": "tests/golden/**/args.txt",
    "accelerate": "tests/golden/**/train.yaml",
    "train": "tests/golden/**/train.yaml",
    "torch_file": "tests/checkpoints/samples/**/*.pt",
    "pickle": "tests/checkpoints/samples/**/*.pt",
    "safetensors": "tests/checkpoints/samples/**/*.safetensors",
    "workload": "tests/golden/**/spec.yaml",
    "spec": "tests/golden/**/spec.yaml",
    "train_yaml": "tests/golden/**/train.yaml",
    "model_config": "",
    "plan_json": "",
    "note": "",
    "rows": "",
    "manifest": "",
    "masked": "tests/diagnose/logs/*.log",
    "template": "templates/**/*.j2",
}
OWN_SEEDS = (
    b"-oProxyCommand=id slots=1\n10.0.0.1 slots=8\n",
    b"$(id) `id` ; | & > < ' \" \\ \x00 \x1b[31m",
    b"a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    b"[" * 300 + b'{"a":' * 300,
    b'dsforge-probe {"kind":"ended","seconds":1.0}\nx NCCL INFO Using network Socket\n',
    b"gpu: a100-80gb\nnodes: 2\nmeasured:\n  gpu: {name: a100-80gb, tflops: {bf16: 200}}\n",
    b'{"prompt": "a", "completion": "b"}\n{"messages": [{"role": "user", "content": "c"}]}\n',
    b'{"schema_version": 1, "files": {"plan.json": "0"}}\xff\xfe{"files": {}}\xff\xfe["plan.json"]',
    b"{% for h in hosts %}{{ h|upper }}{{ cycler }}{{ ''.__class__ }}{% endfor %}",
    b'8\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  \0\0\0\0',
)
LARGEST_SEED = 32_768
LIMITS = (
    *("-timeout=10", "-rss_limit_mb=2048", f"-max_len={LARGEST_SEED}"),
    f"-artifact_prefix={FINDINGS}/",
)
SEED_FILES = 200
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")
_FEATURES = re.compile(r"cov: (\d+) ft: (\d+)")


def write_seeds(target: str, folder: Path) -> None:
    """The first inputs of a target: files of this repository, and ours."""
    folder.mkdir(parents=True)
    found = sorted(ROOT.glob(SEEDS[target]))[:SEED_FILES] if SEEDS[target] else []
    texts = [_content(target, path)[:LARGEST_SEED] for path in found if path.is_file()]
    for number, data in enumerate((*OWN_SEEDS, *seeds.written(target), *texts)):
        (folder / str(number)).write_bytes(data)


def _content(target: str, path: Path) -> bytes:
    """What a file gives a target: its bytes, or the pickle in it."""
    if target != "pickle":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("/data.pkl")))


def fuzz_one(target: str, words: list[str]) -> None:
    """Fuzz in this process until libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["dsforge", "yaml"]):
        import targets

    run = targets.TARGETS[target]
    run(OWN_SEEDS[0])  # what is built at first use may open files

    def once(data: bytes) -> None:
        with targets.watched():
            run(data)

    with tempfile.TemporaryDirectory(prefix="dsforge-fuzz-") as folder:
        write_seeds(target, Path(folder) / "seeds")
        atheris.Setup([sys.argv[0], *LIMITS, *words, f"{folder}/seeds"], once)
        atheris.Fuzz()


def fuzz_all(seconds: int) -> int:
    """Every target in a process of its own; a line for each, and how many failed."""
    failed = 0
    for target in SEEDS:
        begin = time.monotonic()
        command = [sys.executable, __file__, target, f"-max_total_time={seconds}"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, errors="replace"
        )
        runs, covered = _DONE.search(done.stderr), _FEATURES.findall(done.stderr)
        count = int(runs[1]) if runs else 0
        edges = covered[-1][0] if covered else "?"
        verdict = "clean" if done.returncode == 0 else f"FAILED ({done.returncode})"
        took = time.monotonic() - begin
        print(
            f"{target:16} {count:>10,} runs {took:>6.0f} s {edges:>6} edges  {verdict}", flush=True
        )
        if done.returncode:
            failed += 1
            print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), flush=True)
    return failed


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    FINDINGS.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:2] == ["all"]:
        sys.exit(1 if fuzz_all(int(sys.argv[3]) if len(sys.argv) > 3 else 120) else 0)
    fuzz_one(sys.argv[1], sys.argv[2:])

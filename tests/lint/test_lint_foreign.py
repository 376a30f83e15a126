"""Files of other programs: told for what they are, and never judged or repaired as a ds_config.

The texts are made up, in the shape that each program's own examples have.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lint_texts import BASE

from dsforge import lint
from dsforge.importing.programs import PROGRAMS
from dsforge.job import TrainJob
from dsforge.lint.reading.kind import document_of
from dsforge.lint.schemas.releases import frozen

TRAINER = """model_name_or_path: acme/small-7b
bf16: true
gradient_accumulation_steps: 4
per_device_train_batch_size: 2
learning_rate: 2.0e-05
output_dir: out
deepspeed: conf/ds_z3.json
"""
NEOX = """{
  # 19M parameters
  "pipe_parallel_size": 1,
  "model_parallel_size": 1,
  "num_layers": 6,
  "hidden_size": 512,
  "seq_length": 2048,
  "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 1},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true},
  "train_iters": 1000,
}
"""
DIFFUSION = """{
  "caption_dropout_probability": 0.1,
  "checkpoints_total_limit": 5,
  "gradient_checkpointing": true,
  "lora_rank": 16,
  "max_train_steps": 200,
  "mixed_precision": "bf16",
  "model_family": "acme",
  "num_processes": 1,
  "num_machines": 1,
  "optimizer": "adamw_bf16",
  "resolution": 720,
  "train_batch_size": 1,
  "validation_prompt": "a robot"
}
"""
AXOLOTL = """base_model: acme/small-7b
load_in_8bit: true
datasets:
  - path: acme/chat
    type: alpaca
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch
lr_scheduler: cosine
bf16: auto
fp16:
deepspeed: deepspeed_configs/zero2.json
"""
FACTORY = """### model
model_name_or_path: acme/small-7b
### method
stage: sft
do_train: true
finetuning_type: lora
deepspeed: examples/ds_z3_config.json
### train
gradient_accumulation_steps: 8
lr_scheduler_type: cosine
fp16: true
"""
SWIFT = """{"model": "acme/small-7b", "train_type": "lora", "torch_dtype": "bfloat16", "bf16": true,
 "gradient_accumulation_steps": 16, "learning_rate": 0.0001, "deepspeed": "zero2"}"""
RLHF = "script/train.sh", "#!/bin/bash\ndeepspeed train.py \\\n  --zero_stage 3 \\\n  --bf16\n"
FILES = {
    "trainer.yaml": TRAINER,
    "trainer.json": '{"model_name_or_path": "x", "bf16": true, "gradient_accumulation_steps": 2}',
    "19M.yml": NEOX,
    "axolotl.yaml": AXOLOTL,
    "diffusion.json": DIFFUSION,
    "llama_factory.yaml": FACTORY,
    "args.json": SWIFT,
    "merged.yaml": "base: &base\n  bf16: true\nrun:\n  <<: *base\nbf16: true\noutput_dir: x\n",
    "config.json": '{"architectures": ["A"], "hidden_size": 8, "vocab_size": 9, "fp16": false}',
    "wandb.yaml": "optimizer: adamw\ngradient_clipping: 1.0\nbf16: true\n",
    "hydra.yaml": "optimizer:\n  _target_: torch.optim.AdamW\nfp16: false\n",
    "deepspeed_data.json": '[{"instruction": "a"}]',
    "hostfile_utils.py": "import os\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_folder_is_silent_on_files_of_others(name: str, tmp_path: Path) -> None:
    """Not a single finding, and no file is changed by --fix."""
    path = tmp_path / name
    path.write_text(FILES[name])
    result = lint(tmp_path, fix=True)

    assert (result.files, result.findings, result.notes) == (0, (), ())
    assert path.read_text() == FILES[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trainer.yaml", "arguments of the Hugging Face Trainer"),
        ("trainer.yaml", "the ds_config that it names is conf/ds_z3.json"),
        ("19M.yml", "GPT-NeoX"),
        ("axolotl.yaml", "Axolotl"),
        ("llama_factory.yaml", "LLaMA-Factory"),
        ("args.json", "ms-swift"),
    ],
)
def test_a_named_file_is_told_for_what_it_is(name: str, said: str, tmp_path: Path) -> None:
    """One line, with the way to have it checked all the same."""
    path = tmp_path / name
    path.write_text(FILES[name])
    (finding,) = lint(path, fix=True).findings

    assert (finding.rule, finding.severity) == ("kind-unknown", "info")
    assert said in finding.message
    assert "--kind ds_config" in finding.fix


def test_a_script_is_declined_in_one_line(tmp_path: Path) -> None:
    """Its lines are no flags, and saying so of each would help nobody."""
    path = tmp_path / "train.sh"
    path.write_text(RLHF[1])
    (finding,) = lint(path).findings

    assert "script" in finding.message


def test_a_forced_kind_is_judged() -> None:
    """Who names a kind means it."""
    assert document_of("x.yaml", TRAINER, "ds_config").kind == "ds_config"


@given(st.sets(st.sampled_from(sorted(TrainJob.model_fields))))
def test_a_train_yaml_stays_one(keys: set[str]) -> None:
    """Whatever keys it has that trainers have, too."""
    config = {**dict.fromkeys(keys, 1), "deepspeed_config": "a.json", "data": {"train": "x"}}

    assert document_of("run.yaml", yaml.safe_dump(config)).kind == "train"


OWN = sorted(set(BASE) & set(frozen().blocks[""].keys))


@given(st.sampled_from(PROGRAMS), st.data())
def test_keys_of_a_program_decide_against_shared_ones(program: object, data: st.DataObject) -> None:
    """Any of its keys, with any of the keys that trainers share with DeepSpeed."""
    signs = data.draw(st.sets(st.sampled_from(sorted(program.signs)), min_size=1))  # type: ignore[attr-defined]
    shared = data.draw(
        st.dictionaries(
            st.sampled_from(["bf16", "fp16", "optimizer", "gradient_accumulation_steps"]),
            st.one_of(st.booleans(), st.integers(1, 8), st.just("adamw")),
        )
    )
    text = yaml.safe_dump({**shared, **dict.fromkeys(signs, 1)})

    assert document_of("run.yaml", text).kind == "unknown"


@given(
    st.sets(st.sampled_from(OWN), min_size=1),
    st.sampled_from(["_comment", "my_note", "learning_rate", "output_dir", "lr"]),
)
def test_what_deepspeed_alone_has_is_judged(keys: set[str], other: str) -> None:
    """One foreign key beside DeepSpeed's own ones does not hide a ds_config from lint."""
    config = {key: BASE[key] for key in keys} | {"zero_optimization": {"stage": 2}, other: 1}

    assert document_of("x.json", json.dumps(config)).kind == "ds_config"

"""What published files have that is right, or worse than lint said: each once, in our own words."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest
from lint_texts import adam, ds, offloaded, scheduled

from dsforge.findings import Severity
from dsforge.lint.files import Against, checked, release_named
from dsforge.lint.reading.kind import document_of
from dsforge.lint.schemas.signatures import OPTIMIZERS, SCHEDULES

MULTI = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 2\n"
    "num_processes: 8\ndeepspeed_config: {zero_stage: 2}\n"
)
SAGEMAKER = (
    "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\nec2_instance_type: x\n"
    "iam_role_name: y\nmixed_precision: bf16\n"
)
NO_WARMUP = scheduled("WarmupLR", warmup_num_steps=0)
FRACTION = scheduled("WarmupLR", warmup_num_steps=9.0)
APPENDED = "".join(f"A{n}=1\n" for n in range(40)) * 2
FP16_32 = {"bf16": {"enabled": True}, "fp16": {"enabled": False, "initial_scale_power": 32}}


def severities(name: str, text: str, rule: str, release: str | None = None) -> list[Severity]:
    """The severities of one rule's findings in a text."""
    found = checked(document_of(name, text), Against(*release_named(release)))
    return [f.severity for f in found if f.rule == rule]


STAGE3_ALONE = {"zero.stage": 3, "train_micro_batch_size_per_gpu": 1}
NOT_CONTIGUOUS = {**offloaded(stage=2), "zero.contiguous_gradients": False}
IGNORED = {"zero.offload_param": {"device": "cpu", "pin_memory": False}}
TWICE = {"zero.cpu_offload": True}
SAVES_WHOLE = "stage3_gather_16bit_weights_on_model_save"  # as stage 2 does anyway
QUIET = [
    (".deepspeed_env", "TOKENIZERS_PARALLELISM=false\n", "env-secret"),
    (".deepspeed_env", "LOCAL_WORLD_SIZE=8\n", "env-rank"),
    ("ds_config.json", ds({"zero.stage": "3"}), "value-choice"),
    (".deepspeed_env", "A=(1; 2) # x\n", "env-value"),
    (".deepspeed_env", 'NCCL_DEBUG=""\nB="x=1"\n', "env-value"),
    ("ds_config.json", ds({"checkpointing": {"enabled": True}}), "key-misspelt"),
    ("ds_config.json", ds({"flops_profiler": {"end_profile_step": 3}}), "key-misspelt"),
    (".deepspeed_env", "SEC_TOKEN_PATH=/run/identity.token\n", "env-secret"),
    ("hostfile", "10.0.0.1 slots=8  # first\n", "hostfile-line"),
    ("ds_config.json", ds({**STAGE3_ALONE, "zero.overlap_comm": False}), "unsaved-weights"),
    ("ds_config_profile.json", ds({"flops_profiler": {"enabled": True}}), "profiler-on"),
    ("ds_config_tune.json", ds({"autotuning": {"enabled": True}}), "autotuning-on"),
    ("ds_config.json", ds(NOT_CONTIGUOUS), "contiguous-off"),
    ("ds_config.json", ds(IGNORED), "offload-unpinned"),
    ("ds_config.json", ds(FP16_32), "fp16-initial-scale"),
    ("ds_config.json", ds({"train_batch_size": "auto"}), "batch-half-auto"),
    ("ds_config.json", ds({"steps_per_print": "auto"}), "value-auto"),
    (".deepspeed_env", "LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/x\nP=${P}:/y\n", "env-value"),
    (".deepspeed_env", "NCCL_DEBUG=WARN\n", "env-travels"),
    ("ds_config.json", ds({"zero.stage": 2, f"zero.{SAVES_WHOLE}": True}), "stage3-keys-below"),
    (
        "accelerate.yaml",
        MULTI.replace("num_machines: 2", "dynamo_backend: 'NO'"),
        "accelerate-key-unknown",
    ),
    ("accelerate.yaml", SAGEMAKER, "accelerate-key-unknown"),
    ("accelerate.yaml", MULTI.replace("DEEPSPEED", "FSDP"), "accelerate-choice"),
    ("args.txt", "--tensor-model-parallel-size 2\n--num-experts 1\n", "megatron-sequence-parallel"),
]


@pytest.mark.parametrize(("name", "text", "rule"), QUIET, ids=[case[2] for case in QUIET])
def test_what_is_right_has_no_finding(name: str, text: str, rule: str) -> None:
    """The engine or the launcher takes it as it is meant."""
    assert severities(name, text, rule) == []


SAID: list[tuple[str, str, str, list[Severity]]] = [
    ("accelerate.yaml", MULTI, "accelerate-address", ["warning"]),
    ("accelerate.yaml", MULTI + "mixed_precision: bfloat16\n", "accelerate-choice", ["error"]),
    ("accelerate.yaml", MULTI.replace("DEEPSPEED", "DEPSPEED"), "accelerate-word", ["error"]),
    ("accelerate.yaml", MULTI.replace("DEEPSPEED", "TP"), "accelerate-word", ["error"]),
    (".deepspeed_env", "MASTER_PORT=29500\n", "env-rank", ["info"]),
    (".deepspeed_env", "RANK=0\n", "env-rank", ["warning"]),
    (".deepspeed_env", "http_proxy=http://me:abc@10.0.0.9:1\n" * 2, "env-secret", ["error"]),
    (".deepspeed_env", "CUDA_VISIBLE_DEVICES=0\n" * 3, "env-cards", ["warning"]),
    ("accelerate.yaml", MULTI + "debug: false\ndebug: false\n", "duplicate-key", ["warning"]),
    ("accelerate.yaml", MULTI + "debug: false\ndebug: true\n", "duplicate-key", ["error"]),
    (".deepspeed_env", "MASTER_PORT=1\nMASTER_ADDR=a\n" * 8, "env-rank", ["info"]),
    (".deepspeed_env", "PYTHONPATH=$PWD\n", "env-value", ["info"]),
    (".deepspeed_env", "A=~/x\n", "env-value", ["warning"]),
    (".deepspeed_env", APPENDED, "env-twice", ["warning"]),
    ("hostfile", "10.0.0.1\n10.0.0.2\n", "hostfile-line", ["error"]),
    ("hostfile", "0.0.0.4 slots=8\n", "host-address", ["error"]),
    ("ds_config.json", '{"tensorboard": {"output_path": /home/me}}', "json-syntax", ["warning"]),
    ("hostfile", "10.0.0.1 slots=8  work\n", "hostfile-line", ["warning"]),
    ("hostfile", "".join(f"node{n} slots=8\n" for n in range(9)), "host-by-name", ["info"]),
    ("ds_config.json", ds({f"mine{n}": n for n in range(2)}), "key-unread", ["warning"]),
    ("ds_config.json", ds({"zero.stage": "3"}), "value-quoted", ["warning"]),
    ("ds_config.json", ds({"zero_optimization": None}), "block-type", ["error"]),
    ("ds_config.json", ds({"steps_per_print": 0}), "steps-per-print-zero", ["error"]),
    ("ds_config.json", ds({"gradient_clipping": "1.0"}), "number-as-text", ["error"]),
    ("ds_config.json", ds(scheduled("WarmupDecayLR")), "scheduler-total", ["warning"]),
    ("ds_config.json", ds(scheduled("WarmupLR", x=1)), "scheduler-param-name", ["error"]),
    (
        "ds_config.json",
        ds(scheduled("WarmupLR", warmup_num_steps=0)),
        "scheduler-warmup",
        ["error"],
    ),
    (
        "ds_config.json",
        ds(scheduled("WarmupLR", warmup_num_steps=9.0)),
        "scheduler-warmup",
        ["error"],
    ),
    ("ds_config.json", ds({"optimizer": {"type": "OneBitAdam"}}), "optimizer-unknown", ["error"]),
    ("ds_config.json", ds(adam(lr=1e-4, warmup=3)), "optimizer-param-name", ["error"]),
    ("ds_config.json", ds(adam(lr="1e-4", momentum="0.9")), "number-as-text", ["error"] * 2),
    ("ds_config.json", ds({"steps_per_print": "10"}), "number-as-text", ["error"]),
    ("ds_config.json", ds(scheduled("WarmupLR", warmup_max_lr="1")), "number-as-text", ["error"]),
    ("ds_config.json", ds(scheduled("WarmupLR", warmup_type="log")), "number-as-text", []),
    ("ds_config.json", ds(adam(lr=1e-4, adam_w_mode=True)), "optimizer-param-name", []),
    ("ds_config.json", ds({"zero.cpu_offload": True}), "key-deprecated", ["warning"]),
    ("ds_config.json", ds({**offloaded(stage=2), **TWICE}), "key-deprecated", ["error"]),
    ("ds_config.json", '{"zero_optimization": {"stage": ${STAGE}}}', "json-syntax", ["error"]),
    ("ds_config_TEMPLATE.json", '{"train_batch_size": GB_SIZE}', "json-syntax", ["info"]),
    ("ds_config.json", ds({"seed": 42}), "key-misplaced", []),
    ("ds_config.json", ds({"seed": 42}), "key-unread", ["warning"]),
]


@pytest.mark.parametrize(("name", "text", "rule", "said"), SAID)
def test_what_is_wrong_is_said_once_and_as_bad_as_it_is(
    name: str, text: str, rule: str, said: list[Severity]
) -> None:
    """One finding where one is meant, at the severity of what happens."""
    assert severities(name, text, rule) == said


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (ds({"bf16": {"enabled": True, "loss_scale": 0}}), "loss-scale-in-bf16"),
        (ds({"fp16": {"enabled": False, "hysteresis": 1.5}}), "value-fraction"),
        (ds({"optimizer": {"type": "OneBitAdam"}}), "optimizer-unknown"),
        (ds(scheduled("WarmupLR", warmup_num_steps=0)), "scheduler-warmup"),
    ],
)
def test_a_release_that_did_not_check_is_not_said_to(text: str, rule: str) -> None:
    """Blocks were closed, and optimizers removed, by later releases."""
    assert severities("ds_config.json", text, rule, "0.16") == []
    assert severities("ds_config.json", text, rule) == ["error"]


def test_a_text_is_shown_in_quotes() -> None:
    """`8` must be a number, says nothing to who wrote "8"."""
    text = ds({"gradient_accumulation_steps": "8"})
    found = checked(document_of("ds_config.json", text), Against(*release_named(None)))

    assert ['"8"' in f.message for f in found if f.rule == "batch-positive"] == [True]


def test_the_parameters_of_schedules_are_those_of_deepspeed() -> None:
    """Read from the constructors in the source of the installed release."""
    spec = find_spec("deepspeed")
    if spec is None or spec.origin is None:
        pytest.skip("deepspeed is not installed")
    source = Path(spec.origin).parent / "runtime/lr_schedules.py"
    found = {
        node.name: tuple(argument.arg for argument in part.args.args[2:])
        for node in ast.parse(source.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == "__init__"
    }

    assert found == {name: (*keys, "last_batch_iteration") for name, keys in SCHEDULES.items()}


def constructor(source: Path, name: str) -> tuple[str, ...]:
    """What the constructor of a class takes, beside itself and the parameters to optimize."""
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            init = next(p for p in node.body if getattr(p, "name", "") == "__init__")
            arguments = init.args  # type: ignore[attr-defined]
            return tuple(a.arg for a in (*arguments.args[2:], *arguments.kwonlyargs))
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("optimizer", "package", "module", "name"),
    [
        ("adam", "deepspeed", "ops/adam/fused_adam.py", "FusedAdam"),
        ("adam", "deepspeed", "ops/adam/cpu_adam.py", "DeepSpeedCPUAdam"),
        ("adamw", "torch", "optim/adam.py", "Adam"),
        ("lion", "deepspeed", "ops/lion/fused_lion.py", "FusedLion"),
        ("lion", "deepspeed", "ops/lion/cpu_lion.py", "DeepSpeedCPULion"),
        ("lamb", "deepspeed", "ops/lamb/fused_lamb.py", "FusedLamb"),
        ("adagrad", "deepspeed", "ops/adagrad/cpu_adagrad.py", "DeepSpeedCPUAdagrad"),
        ("adagrad", "torch", "optim/adagrad.py", "Adagrad"),
        ("sgd", "torch", "optim/sgd.py", "SGD"),
        ("adamax", "torch", "optim/adamax.py", "Adamax"),
        ("nadam", "torch", "optim/nadam.py", "NAdam"),
        ("radam", "torch", "optim/radam.py", "RAdam"),
        ("rmsprop", "torch", "optim/rmsprop.py", "RMSprop"),
    ],
)
def test_the_parameters_of_optimizers_are_those_of_their_constructors(
    optimizer: str, package: str, module: str, name: str
) -> None:
    """No parameter that one of the implementations takes is called unknown."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    taken = constructor(Path(spec.origin).parent / module, name)

    assert taken
    assert set(taken) <= set(OPTIMIZERS[optimizer])

"""Which ds_config a script hands to DeepSpeed: a file, a switch, a text, a path of the shell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsforge.importing.read import ImportedSetup, read_files, read_texts

DS = (
    '{"train_micro_batch_size_per_gpu": 3, "train_batch_size": 24, '
    '"zero_optimization": {"stage": 2}}'
)
HF = "--output_dir o --per_device_train_batch_size 2"
LAUNCH = "deepspeed --num_gpus 8 train.py "
CHAT = "deepspeed --num_gpus 4 main.py --data_split 2,4,4 "


def of_script(text: str, **beside: str) -> ImportedSetup:
    """A script with files of data beside it."""
    files = {f"{name}.json": content for name, content in beside.items()}
    return read_texts({"run.sh": f"#!/bin/bash\n{text}\n", **files})


@pytest.mark.parametrize(
    "flags",
    [
        f"{HF} --deepspeed --deepspeed_config ds.json",
        f"--deepspeed_config ds.json {HF} --deepspeed",
        f"{HF} --deepspeed true --deepspeed_config ds.json",
        f"{HF} --deepspeed --deepspeed_config=ds.json --gradient_accumulation_steps 4",
        "--output_dir o --num_train_epochs 3 --deepspeed --deepspeed_config ds.json",
        "--deepspeed --deepspeed_config ds.json",
    ],
)
@pytest.mark.parametrize("launcher", ["deepspeed --num_gpus 8", "torchrun --nproc_per_node 8"])
def test_the_switch_beside_a_ds_config_does_not_hide_it(launcher: str, flags: str) -> None:
    """`deepspeed.add_config_arguments` has both; the file decides stage and batch."""
    setup = of_script(f"{launcher} train.py {flags}", ds=DS).setup

    assert (setup.engine, setup.zero_stage) == ("deepspeed", 2)
    assert (setup.micro_batch_size, setup.global_batch_size) == (3, 24)
    assert setup.gradient_accumulation_steps == 1


@pytest.mark.parametrize("flags", [f"{HF} --deepspeed", f"{HF} --deepspeed --deepspeed_config $X"])
def test_a_switch_without_a_file_leaves_the_stage_open(flags: str) -> None:
    """The program has its ds_config elsewhere: it is no plain data parallelism."""
    found = of_script(LAUNCH + flags)

    assert found.setup.engine in ("deepspeed", None)
    assert found.setup.zero_stage is None
    assert "zero_stage" in {left.key for left in found.open}


def test_a_ds_config_that_was_not_given_is_a_problem() -> None:
    """It is named, and the stage is open."""
    found = of_script(LAUNCH + f"{HF} --deepspeed --deepspeed_config other.json")

    assert [problem.rule for problem in found.problems] == ["file-not-given"]
    assert found.setup.zero_stage is None


def test_switched_off_is_plain_data_parallelism() -> None:
    """`deepspeed: false` of a file."""
    found = read_texts(
        {"a.yaml": "per_device_train_batch_size: 2\nsave_strategy: no\ndeepspeed: false\n"}
    )

    assert (found.setup.engine, found.setup.zero_stage) == ("ddp", 0)


@pytest.mark.parametrize("flag", ["model_name_or_path", "model_name", "actor_model_name_or_path"])
def test_the_model_of_a_program_of_its_own_is_read(flag: str) -> None:
    """Whatever its flag is called."""
    found = of_script(CHAT + f"--{flag} facebook/opt-6.7b --zero_stage 2 --deepspeed")

    assert found.setup.model == "facebook/opt-6.7b"
    assert flag not in {left.key for left in found.lost}


def test_the_actor_of_a_chat_model_trains() -> None:
    """Stage, batch, rate, length, precision and checkpointing of DeepSpeed-Chat's third step."""
    setup = of_script(
        CHAT + "--actor_zero_stage 3 --critic_zero_stage 2 --per_device_training_batch_size 4 "
        "--max_prompt_seq_len 256 --max_answer_seq_len 512 --actor_gradient_checkpointing "
        "--actor_learning_rate 1e-5 --actor_lora_dim 64 --dtype bf16 --offload --deepspeed"
    ).setup

    assert (setup.engine, setup.zero_stage, setup.offload_parameters) == ("deepspeed", 3, "cpu")
    assert (setup.micro_batch_size, setup.sequence_length) == (4, 768)
    assert (setup.precision, setup.recompute, setup.lora_rank) == ("bf16", "full", 64)
    assert setup.learning_rate == 1e-5


FOLDERS = {
    "pwd in backticks": "D=`pwd`",
    "pwd in a string": 'D="`pwd`"',
    "pwd": "D=$(pwd)",
    "dirname": 'D=$(dirname "$0")',
    "dirname in backticks": "D=`dirname $0`",
    "the usual line": 'D="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
    "output thrown away": 'D="$(cd -- "$(dirname -- "${BASH_SOURCE:-$0}")" &> /dev/null && pwd)"',
    "realpath": "D=$(realpath $(dirname $0))",
    "realpath of the script": 'D=$(dirname "$(realpath "$0")")',
    "readlink": 'D=$(dirname $(readlink -f "$0"))',
    "cut off": "D=${0%/*}",
    "cut off of the source": 'D="${BASH_SOURCE[0]%/*}"',
    "the variable": "D=$PWD",
}


@pytest.mark.parametrize("line", FOLDERS.values(), ids=FOLDERS)
def test_the_folder_of_the_script_is_known(line: str, tmp_path: Path) -> None:
    """A file that lies beside is read, however the script names its folder."""
    (tmp_path / "ds.json").write_text(DS)
    script = tmp_path / "run.sh"
    script.write_text(f'#!/bin/bash\n{line}\n{LAUNCH}--deepspeed --deepspeed_config "$D/ds.json"\n')
    found = read_files([script])

    assert found.setup.zero_stage == 2
    assert [left.key for left in found.open] == []


def test_the_folder_above_is_not_left(tmp_path: Path) -> None:
    """A path that leads up is looked up in the folder of the script alone."""
    (tmp_path / "ds.json").write_text(DS)
    script = tmp_path / "sub" / "run.sh"
    script.parent.mkdir()
    script.write_text(
        f'D=$(cd "$(dirname "$0")/.." && pwd)\n{LAUNCH}--deepspeed_config $D/ds.json\n'
    )
    found = read_files([script])

    assert found.setup.zero_stage is None
    assert [problem.rule for problem in found.problems] == ["file-not-given"]


@pytest.mark.parametrize(
    "begin", ["$(expr ", "$(expr echo ", "$(dirname ", "$(cd ", "$(echo ", "$(foo ", '"$(dirname "']
)
@pytest.mark.parametrize("levels", [1, 4, 30, 200, 4000])
def test_commands_within_commands_take_no_time(begin: str, levels: int) -> None:
    """Each level may be looked at more than once: a number of them is enough."""
    started = time.monotonic()
    of_script(f"D={begin * levels}1{')' * levels}\n{LAUNCH}{HF} --deepspeed_config $D/ds.json")

    assert time.monotonic() - started < 5


def test_a_path_that_is_not_worked_out_stays_in_sight() -> None:
    """Its stage is open, not left out."""
    found = of_script(
        LAUNCH + "--max_seq_length 128 --deepspeed --deepspeed_config $(pick)/ds.json"
    )

    assert [left.key for left in found.open] == ["zero_stage"]


@pytest.mark.parametrize(
    "count",
    [
        "tr ',' '\\n' | wc -l",
        "tr , '\\n' | wc -l",
        "awk -F, '{print NF}'",
        "awk -F',' '{print NF}'",
    ],
)
def test_devices_that_a_script_counts(count: str) -> None:
    """The usual lines that count a list; others are open, and no false problem."""
    text = "export CUDA_VISIBLE_DEVICES=4,5,6,7\nN=$(echo $CUDA_VISIBLE_DEVICES | %s)\n"
    launch = f"torchrun --nproc_per_node $N t.py {HF}"

    assert of_script(text % count + launch).setup.gpus_per_node == 4
    found = of_script(text % "sort -r" + launch)
    assert [problem.rule for problem in found.problems] == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("echo -n 0,1,2,3 | tr ',' '\\n' | wc -l", 3),
        ("echo -ne '0,1,2,3' | tr ',' '\\n' | wc -l", 3),
        ("echo -e 0,1,2,3 | tr ',' '\\n' | wc -l", 4),
        ("echo -n 0,1,2,3 | awk -F, '{print NF}'", 4),
        ("echo 0,1 2,3 | tr ',' '\\n' | wc -l", 3),
    ],
)
def test_a_list_without_an_end_of_line_is_counted_as_the_shell_does(line: str, count: int) -> None:
    """`wc -l` counts ends of lines, and `echo -n` writes none."""
    text = f"torchrun --nproc_per_node $({line}) t.py {HF}"

    assert of_script(text).setup.gpus_per_node == count


@pytest.mark.parametrize(
    "style", [HF, "--finetuning_type lora --cutoff_len 8 --template t --dataset d"]
)
def test_a_ds_config_as_text_is_read(style: str) -> None:
    """TrainingArguments take JSON instead of a path."""
    text = '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}'
    found = of_script(f"torchrun --nproc_per_node 8 t.py {style} --deepspeed '{text}'")
    places = {held.field: held.place for held in found.said}

    assert (found.setup.zero_stage, found.setup.offload_parameters) == (3, "cpu")
    assert places["zero_stage"] == "run.sh:2"
    assert [str(problem) for problem in found.problems] == []


def test_an_fsdp_config_as_text_is_read() -> None:
    """The other argument that takes either."""
    flags = "--fsdp full_shard --fsdp_config '{\"activation_checkpointing\": true}'"
    found = of_script(f"torchrun --nproc_per_node 8 t.py {HF} {flags}")

    assert found.setup.recompute == "full"
    assert [str(problem) for problem in found.problems] == []


def test_a_broken_text_is_a_problem() -> None:
    """It says what is wrong, and the stage is open."""
    found = of_script(f"torchrun --nproc_per_node 8 t.py {HF} --deepspeed '{{\"zero'")

    assert [problem.rule for problem in found.problems] == ["json-syntax"]
    assert found.setup.zero_stage is None

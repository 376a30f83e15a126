"""Whose a file is: by what only one program has. A program that nobody knows is said to be so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_scoring import cases, read_case

import dsforge
from dsforge.cli.main import main
from dsforge.errors import SpecError
from dsforge.importing.files import Files
from dsforge.importing.read import read_files, read_setup, read_texts
from dsforge.importing.recognition import STYLES

SHARED = (  # keys that many programs have: any of them together are nobody's
    "output_dir",
    "report_to",
    "num_train_epochs",
    "learning_rate",
    "lr_scheduler_type",
    "train_batch_size",
    "batch_size",
    "seed",
    "max_steps",
    "gradient_accumulation_steps",
    "trainer.total_epochs",
    "trainer.project_name",
    "model.path",
    "model.micro_batch_size",
    "data.batch_size",
    "pretrain",
    "rollout_batch_size",
    "gpus",
    "tp",
    "torch_dtype",
    "target_modules",
    "train_type",
    "cutoff_len",
    "use_slow_tokenizer",
    "micro_batch_size",
    "mixed_precision",
)
FOREIGN = {
    "verl": "actor_rollout_ref:\n  actor: {strategy: fsdp}\ntrainer:\n  n_gpus_per_node: 8\n"
    "  nnodes: 1\ndata:\n  train_batch_size: 1024\n",
    "ROLL": "pretrain: Qwen/Qwen2.5-7B\nrollout_batch_size: 64\nactor_train:\n"
    "  training_args: {per_device_train_batch_size: 1}\n",
    "FlagScale": "system:\n  tensor_model_parallel_size: 4\nmodel:\n  micro_batch_size: 1\n"
    "  global_batch_size: 64\n",
    "SimpleTuner": "model_family: flux\nmodel_type: lora\noutput_dir: o\nreport_to: none\n"
    "train_batch_size: 1\nmixed_precision: bf16\nnum_processes: 1\n"
    "data_backend_config: d.json\n",
    "OLMo-core": "trainer:\n  max_duration: 1ep\n  callbacks: {}\n",
    "PaddleNLP": "tensor_parallel_degree: 2\nsharding: stage2\nper_device_train_batch_size: 1\n",
}
NOBODYS = {
    "a block that only is called trainer": "trainer:\n  total_epochs: 3\n  logger: [console]\n",
    "data of an unknown program": "tokenizer: null\ntrain_batch_size: 1024\nprompt_key: prompt\n",
    "a script of diffusers": "output_dir: o\nreport_to: wandb\nnum_train_epochs: 3\n",
    "a benchmark": "tp: 8\npp: 2\nbatch_size: 4\n",
    "adapters of any program": "target_modules: all\ntorch_dtype: bfloat16\n",
    "a script of alpaca-lora alone": "cutoff_len: 256\nlearning_rate: 1e-4\n",
}
SCRIPTS = {
    "pipeline groups": "python dist_clm_train.py --batch-size 4 --micro-batch-size 1 "
    "--pipeline-group-size 4 --data-group-size 2",
    "own flags": "python train.py --output_dir o --report_to wandb --train_batch_size 1",
    "overrides": "python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes=2 "
    "data.train_batch_size=64 actor_rollout_ref.actor.strategy=fsdp",
}


def refused(text: str, name: str = "a.yaml") -> str:
    """The message with which a text is refused."""
    with pytest.raises(SpecError) as caught:
        read_texts({name: text})
    assert [problem.rule for problem in caught.value.problems] == ["style-unknown"]
    return str(caught.value.problems[0].message)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_program_that_is_not_read_is_named(name: str) -> None:
    """Nothing of another program's defaults is shown for it."""
    assert refused(FOREIGN[name]) == f"a file of {name}, which dsforge does not read"


@pytest.mark.parametrize("text", NOBODYS.values(), ids=NOBODYS)
def test_keys_that_many_programs_have_are_nobodys(text: str) -> None:
    """One line says that the program is not known."""
    assert refused(text) == "not a config or script that dsforge knows"


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_of_an_unknown_program_is_refused(text: str) -> None:
    """By its flags as by its file."""
    refused(f"#!/bin/bash\n{text}\n", "run.sh")


@given(st.sets(st.sampled_from(SHARED), min_size=1, max_size=2))
def test_two_keys_that_many_programs_have_decide_nothing(keys: set[str]) -> None:
    """Whatever two of them stand together: two may be chance."""
    text = "".join(f"{key}: 1\n" for key in sorted(keys) if "." not in key)
    blocks = {key.partition(".")[0] for key in keys if "." in key}
    for block in sorted(blocks):
        inner = sorted(key.partition(".")[2] for key in keys if key.startswith(block + "."))
        text += f"{block}:\n" + "".join(f"  {key}: 1\n" for key in inner)
    two = {"train_batch_size", "gradient_accumulation_steps"}
    if keys != two:  # both keys of a ds_config
        assert "dsforge" in refused(text)


def test_a_foreign_block_hides_no_known_program() -> None:
    """The public files that are read keep their program: none has a mark of a foreign one."""
    assert [case.name for case in cases() if not read_case(case).styles] == []


@pytest.mark.parametrize("words", [(), ("--out", "run")])
def test_nothing_of_an_unknown_program_is_priced_or_written(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 1, one error with the way out, no folder."""
    monkeypatch.chdir(tmp_path)
    Path("grpo.yaml").write_text(FOREIGN["verl"])
    gpu = ("--model", "gpt2", "--gpu", "h100-80gb")
    with pytest.raises(SystemExit) as end:
        main(["import", "grpo.yaml", *gpu, *words])
    said = capsys.readouterr()

    assert end.value.code == 1
    assert said.out == ""
    assert "grpo.yaml: a file of verl" in said.err
    assert "--as NAME" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grpo.yaml"]


def test_a_person_may_say_whose_a_file_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--as` wins over the signs, for files and for scripts; a ds_config stays one."""
    own = tmp_path / "own.yaml"
    own.write_text("output_dir: o\nreport_to: wandb\nlearning_rate: 1e-4\n")
    script = tmp_path / "own.sh"
    script.write_text("torchrun --nproc_per_node 4 own.py --output_dir o --learning_rate 1e-4\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "train_batch_size": 8}')
    with pytest.raises(SystemExit):
        main(["import", str(own), "--as", "transformers"])
    assert capsys.readouterr().out.startswith("transformers (")

    for path in (own, script):
        setup = read_files([path], "transformers").setup
        assert (setup.micro_batch_size, setup.learning_rate) == (8, 1e-4)
    assert read_files([own, tmp_path / "ds.json"], "transformers").setup.zero_stage == 1
    assert dsforge.import_config(own, program="axolotl").imported.style == "axolotl"


@pytest.mark.parametrize("name", sorted({style.name for style in STYLES}))
def test_every_name_can_be_said(name: str) -> None:
    """And whatever a file holds, it is read under it."""
    assert name in read_setup_styles(name)


def read_setup_styles(name: str) -> tuple[str, ...]:
    """Styles that took part where a person names one."""
    return read_setup(Files({"a.yaml": "seed: 1\nsteps: 2\n"}), name).styles


def test_a_name_that_is_none_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(SpecError) as caught:
        read_setup(Files({"a.yaml": "seed: 1\n"}), "verl")
    assert caught.value.problems[0].rule == "style-name"
    assert "axolotl" in caught.value.problems[0].hint


@pytest.mark.parametrize("name", [5, "x" * 500, "a\nb", b"trl", ["trl"]])
def test_any_value_that_is_no_name_is_refused(name: object) -> None:
    """Whatever its type, in one line."""
    with pytest.raises(SpecError) as caught:
        read_setup(Files({"a.yaml": "seed: 1\n"}), name)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert problem.rule == "style-name"
    assert "\n" not in problem.message
    assert len(problem.message) < 100


def test_the_way_out_is_a_command_that_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--as` is a flag of `dsforge import` alone; `--from` of others says so."""
    own = tmp_path / "own.yaml"
    own.write_text("seed: 1\n")
    for words in (["import", str(own)], ["estimate", "--from", str(own), "--gpu", "h100-80gb"]):
        with pytest.raises(SystemExit):
            main(words)
        assert "`dsforge import --as NAME`" in capsys.readouterr().err


def test_what_only_looks_like_a_programs_file_is_refused() -> None:
    """Where none of many keys is one that the program reads, its defaults say nothing."""
    strange = "".join(f"own_key_{number}: {number}\n" for number in range(20))
    own = "dataset_mixer_list: a 1.0\n" + strange
    message = refused(own)

    assert message == (
        "looks like a file of open-instruct, with 20 keys of which dsforge reads none"
    )
    assert read_setup(Files({"a.yaml": own}), "open-instruct").lost
    assert read_texts({"a.yaml": f"learning_rate: 1e-5\n{own}"}).lost


OWN_WORDS = (  # of TrainingArguments, none of them with a field in the setup
    *("save_strategy", "eval_strategy", "logging_strategy", "save_steps", "eval_steps"),
    *("logging_steps", "save_total_limit", "load_best_model_at_end", "metric_for_best_model"),
    *("hub_model_id", "hub_strategy", "push_to_hub", "dataloader_num_workers", "ddp_timeout"),
    *("remove_unused_columns", "disable_tqdm", "log_level", "seed", "report_to", "run_name"),
)


@given(st.sets(st.sampled_from(OWN_WORDS[3:])), st.sampled_from(("", "model_name_or_path: m/n\n")))
def test_a_file_in_the_words_of_its_program_is_shown(keys: set[str], model: str) -> None:
    """However few of them have a field: its program reads them, and its defaults hold."""
    text = "".join(f"{key}: 1\n" for key in (*OWN_WORDS[:3], *sorted(keys)))
    assert read_texts({"a.yaml": model + text}).style == "transformers"


def test_a_file_that_names_its_model_is_shown() -> None:
    """Whatever else is in it."""
    strange = "".join(f"own_key_{number}: {number}\n" for number in range(30))
    found = read_texts(
        {"a.yaml": f"model_name_or_path: m/n\nsave_strategy: no\n{strange}eval_strategy: no\n"}
    )
    assert found.setup.model == "m/n"


IDLE = {
    "a server": "swift deploy --model Qwen/Qwen2.5-7B-Instruct --infer_backend vllm",
    "an export": "swift export --model m/n --to_cached_dataset true --dataset d",
    "an export of Megatron": "megatron export --model m/n --to_mcore true",
    "a chat": "llamafactory-cli chat --model_name_or_path m/n --template t --dataset d",
    "an evaluation": "accelerate launch eval.py --model_name_or_path m/n --output_dir o",
    "an evaluation of torchtune": "tune run eleuther_eval --config eleuther_evaluation",
    "a reward server": "python -m openrlhf.cli.serve_rm --reward_pretrain m --max_len 8192",
    "a conversion": "torchrun --nproc_per_node 8 convert_sft_data.py --output_dir o "
    "--per_device_train_batch_size 1",
    "text of Megatron": "torchrun --nproc_per_node 8 tools/run_text_generation_server.py "
    "--num-layers 24 --hidden-size 64 --num-attention-heads 8 --seq-length 128",
    "a task of Megatron": "torchrun tasks/main.py --task LAMBADA --num-layers 24 "
    "--hidden-size 64 --num-attention-heads 8 --seq-length 128",
    "predictions": "torchrun t.py --output_dir o --per_device_train_batch_size 1 --do_predict",
}
HF_FLAGS = "--output_dir o --per_device_train_batch_size 1"
ALSO_TRAIN = (
    *("prepare_and_train", "convert_and_train", "generate_train_model", "evaluate_then_sft"),
    *("generation_finetuning", "prepare-and-finetune-model", "eval_train", "train", "run_train"),
)
ONLY_PREPARE = (
    *("convert_sft_data", "generate_train_data", "prepare_dpo_dataset", "merge_and_export"),
    *("evaluate_then_convert", "prepare", "run_eval", "eval_sft_model"),
)
SFT = "NPROC_PER_NODE=4 swift sft --model m/n --dataset d --per_device_train_batch_size 2"


@pytest.mark.parametrize("command", IDLE.values(), ids=IDLE)
def test_a_command_that_does_not_train_is_not_priced_as_training(command: str) -> None:
    """One line says what it does instead."""
    assert refused(f"#!/bin/bash\n{command}\n", "run.sh").startswith("nothing in it trains: ")


@pytest.mark.parametrize("name", ALSO_TRAIN)
def test_a_script_that_prepares_and_trains_is_read(name: str) -> None:
    """By its last word, or by one behind `and` and `then`."""
    assert read_texts({"run.sh": f"torchrun {name}.py {HF_FLAGS}\n"}).style == "transformers"


@pytest.mark.parametrize("name", ONLY_PREPARE)
def test_a_script_that_only_prepares_is_not_read(name: str) -> None:
    """A word of training before its last one says what for."""
    text = f"torchrun {name}.py {HF_FLAGS}\n"
    assert refused(text, "run.sh") == f"nothing in it trains: {name}.py"


@pytest.mark.parametrize("command", [text for name, text in IDLE.items() if name != "predictions"])
def test_a_person_may_say_whose_an_idle_command_is(command: str) -> None:
    """`--as NAME` reads it, but none that stands beside one that may train."""
    read_setup(Files({"run.sh": f"{command}\n"}), "transformers")
    found = read_setup(Files({"run.sh": f"{command} --a 1 --b 2 --c 3\n{SFT}\n"}), "ms-swift")

    assert (found.setup.micro_batch_size, found.setup.gpus_per_node) == (2, 4)
    assert [problem.rule for problem in found.problems] == []


@pytest.mark.parametrize("command", IDLE.values(), ids=IDLE)
def test_the_training_command_is_read_whatever_stands_around_it(command: str) -> None:
    """A preparing command before it, a server behind it."""
    long = command + " --lora_rank 8 --a 1 --b 2 --c 3 --output_dir o --num_train_epochs 3"
    for text in (f"{long}\n{SFT}\n", f"{SFT}\n{long}\n"):
        found = read_texts({"run.sh": f"#!/bin/bash\n{text}"})
        assert found.style == "ms-swift"
        assert (found.setup.micro_batch_size, found.setup.gpus_per_node) == (2, 4)
        assert [problem.rule for problem in found.problems] == []


@pytest.mark.parametrize("name", ["sft", "pt", "rlhf"])
@pytest.mark.parametrize("launcher", ["swift", "megatron"])
def test_what_trains_is_read(launcher: str, name: str) -> None:
    """The subcommands of ms-swift that train, and one that the run chooses."""
    for word in (name, "$1", "$TASK"):
        text = f"{launcher} {word} --model m/n --dataset d --tensor_model_parallel_size 2\n"
        assert read_texts({"run.sh": text}).style == "ms-swift"


def test_a_launchers_name_in_other_words_is_no_launcher() -> None:
    """`megatron` as the name of an image or a folder."""
    flags = "--model m/n --dataset d --tensor_model_parallel_size 2"
    refused(f"srun --container-image megatron processed {flags}\n", "run.sh")


FILES = {
    "predictions": "finetuning_type: lora\ntemplate: t\ndataset: d\ndo_predict: true\n",
    "a chat": "finetuning_type: lora\ntemplate: t\ninfer_backend: vllm\n",
    "a merge": "finetuning_type: lora\ntemplate: t\nexport_dir: o\n",
    "a recipe that evaluates": "model:\n  _component_: m\ntokenizer:\n  _component_: t\n"
    "checkpointer:\n  _component_: c\ntasks: [t]\ndevice: cuda\ndtype: bf16\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_a_file_that_does_not_train_is_not_priced_as_training(text: str) -> None:
    """Until it says that it trains, too."""
    assert refused(text).startswith("nothing in it trains: ")
    if "_component_" not in text:
        assert read_texts({"a.yaml": text + "do_train: true\n"}).style == "llama-factory"
    else:
        read_texts({"a.yaml": text + "optimizer:\n  _component_: torch.optim.AdamW\n"})

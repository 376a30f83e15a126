"""Configurations that DeepSpeed or transformers refuse, each only after all ranks are up."""

from __future__ import annotations

from dsforge.diagnose.rule import Hit, Rule

_BATCH = (
    r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size\s+"
    r"(?P<batch>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* "
)

_BLOCKS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedBF16Config": "bf16",
}  # pydantic names the class


def _batch(hits: tuple[Hit, ...]) -> dict[str, str]:
    """The arithmetic, with the batch that would be right."""
    values = dict(hits[0].values)
    right = int(values["micro"]) * int(values["steps"]) * int(values["world"])
    return {**values, "right": str(right)}


def _key_above(hits: tuple[Hit, ...]) -> dict[str, str]:
    """The key that pydantic names on the line above its complaint, and the block it stands in."""
    hit = hits[0]
    lines = [line.strip() for line in hit.before.splitlines() if line.strip()][-4:]
    key = lines[-1].rsplit(" ", 1)[-1] if lines else ""
    values = {**hit.values, "key": key, "block": ""}
    for line in lines[:-1]:
        if "validation error" in line:
            name = line.rsplit(" ", 1)[-1]
            values["block"] = f" in {_BLOCKS.get(name, name)}"
    number = values.get("value") or ""
    values["value"] = number or "a value of another type"
    whole = number.replace(".", "", 1).replace("e+", "", 1).isdigit()
    values["rounded"] = str(int(float(number))) if whole else "a whole number"
    return values


RULES = (
    Rule(
        "batch-world-size-one",
        ("train_batch_size is not equal",),
        _BATCH + r"(?P<world>1)\b(?!\d)",
        "batch sizes do not multiply, because the world size is 1: {batch} != {micro} x {steps} "
        "x 1",
        "the script was started with python instead of a launcher, or the launcher's variables "
        "did not reach it",
        "$ deepspeed --num_gpus N train.py ...   # or torchrun --nproc_per_node N\n"
        '- "train_batch_size": {batch}\n+ "train_batch_size": {right}    # for one rank',
        "deepspeed/runtime/config.py:603; hiyouga/LlamaFactory#2574",
        read=_batch,
        lines=1,
    ),
    Rule(
        "batch-arithmetic",
        ("train_batch_size is not equal",),
        _BATCH + r"(?P<world>\d+)",
        "batch sizes do not multiply: train_batch_size (={batch}) must be micro batch (={micro}) "
        "x accumulation (={steps}) x data-parallel ranks (={world}) = {right}",
        "the data-parallel size is the world size divided by tensor, pipeline and sequence "
        "parallelism",
        '- "train_batch_size": {batch}\n+ "train_batch_size": {right}',
        "deepspeed/runtime/config.py:603; deepspeedai/DeepSpeed#17",
        read=_batch,
        lines=1,
    ),
    Rule(
        "batch-zero",
        ("has to be greater than 0", "in _set_batch_related_parameters"),
        r"in _set_batch_related_parameters(?:\n[^\n]*){1,3}\nZeroDivisionError|"
        r"(?:Train batch size|Micro batch size per gpu|Gradient accumulation steps): "
        r"-?\d+ has to be greater than 0",
        "the micro batch comes out as 0: it is set so, or the global batch is smaller than the "
        "number of ranks",
        "DeepSpeed divides train_batch_size by micro batch and ranks, rounding down",
        '+ "train_batch_size": a multiple of the data-parallel ranks\n'
        '- "train_micro_batch_size_per_gpu": 0\n+ "train_micro_batch_size_per_gpu": 1',
        "deepspeed/runtime/config.py:596; LIN-SHANG/InstructERC#16",
        lines=4,
    ),
    Rule(
        "batch-missing",
        ("needs to be provided",),
        r"Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided",
        "ds_config gives no batch size",
        "two of global batch, micro batch and accumulation are enough; `auto` counts only under "
        "the Hugging Face Trainer",
        '+ "train_micro_batch_size_per_gpu": 1\n+ "gradient_accumulation_steps": 1',
        "deepspeed/runtime/config.py (_set_batch_related_parameters)",
        confidence=0.95,
    ),
    Rule(
        "config-unknown-key",
        ("extra inputs are not permitted", "extra fields not permitted"),
        r"extra (?:inputs are|fields) not permitted",
        "ds_config has a key that DeepSpeed does not know: `{key}`{block}",
        "keys inside a block are checked; a misspelt or removed one is refused",
        '- "{key}": ...    # remove it, or spell it as the documentation does\n'
        "$ dsforge lint ds_config.json",
        "deepspeed/runtime/config_utils.py (pydantic, extra=forbid)",
        confidence=0.95,
        read=_key_above,
    ),
    Rule(
        "config-fractional",
        ("valid integer", "value is not a valid integer", "int_from_float"),
        r"Input should be a valid integer, got a number with a fractional part"
        r"(?:[^\n]{0,60}input_value=(?P<value>[\d.e+]+))?|value is not a valid integer",
        "ds_config gives a fraction where a whole number is due: `{key}` (={value})",
        "0.9 x hidden_size^2, the usual formula for the prefetch bucket, is no integer",
        '- "{key}": {value}\n+ "{key}": {rounded}',
        "deepspeedai/DeepSpeed#6525; huggingface/transformers#36081",
        confidence=0.95,
        read=_key_above,
    ),
    Rule(
        "config-wrong-type",
        ("input should be a valid", "input should be"),
        r"Input should be (?:a valid )?(?P<due>[^\n\[]{1,80})(?:\[[^\n]{0,60}input_value="
        r"(?P<value>[^\n,\]]{1,60}))?",
        "ds_config gives {value} for `{key}`, which should be {due}",
        "`auto` is filled in by the Hugging Face integration only; blocks are typed",
        '- "{key}": {value}\n+ "{key}": {due}',
        "deepspeed/runtime/config_utils.py (pydantic)",
        confidence=0.85,
        read=_key_above,
    ),
    Rule(
        "config-two-precisions",
        ("simultaneously enabled", "cannot be enabled at once"),
        r"b?float16 and fp16 (?:modes )?cannot be (?:simultaneously enabled|enabled at once)",
        "ds_config enables both fp16 and bf16",
        "a run has one compute precision",
        '- "fp16": {{"enabled": true}}\n+ "fp16": {{"enabled": false}}',
        "deepspeed/runtime/config.py:512",
        confidence=0.95,
    ),
    Rule(
        "config-duplicate-key",
        ("duplicate keys in deepspeed config",),
        r"Duplicate keys in DeepSpeed config: (?P<keys>[^\n]{1,100})",
        "ds_config has the same key twice: {keys}",
        "JSON readers take the last one; DeepSpeed refuses",
        "- the earlier of the two lines of {keys}",
        "deepspeed/runtime/config_utils.py:211",
        confidence=0.95,
    ),
    Rule(
        "config-missing",
        ("existing deepspeed config",),
        r"Expected a string path to an existing deepspeed config[^\n]{0,80}Received: "
        r"(?P<path>[^\n]{1,200})",
        "the DeepSpeed config {path} does not exist where the ranks run",
        "paths are relative to the folder the launcher changes to, on every node",
        "$ ls -l {path}   # on every node; give the absolute path",
        "deepspeed/runtime/config.py:451",
        confidence=0.95,
    ),
    Rule(
        "config-json",
        ("jsondecodeerror",),
        r"JSONDecodeError: (?P<what>[^\n:]{1,80}): line (?P<row>\d+) column (?P<column>\d+)",
        "a JSON file does not parse: {what} at line {row}, column {column}",
        "JSON allows neither comments nor a comma after the last element",
        "$ python -m json.tool ds_config.json",
        "Python json.decoder",
        confidence=0.85,
    ),
    Rule(
        "config-auto-mismatch",
        ("mismatch trainingarguments",),
        r"correct the following DeepSpeed config values that mismatch TrainingArguments values:?"
        r"\s*(?P<what>[^\n]{0,200})",
        "ds_config and TrainingArguments say different things: {what}",
        "the Trainer owns these values; ds_config should leave them to it",
        '+ "auto"    # for each value the message lists',
        "transformers/integrations/deepspeed.py:261",
        confidence=0.95,
        lines=1,
    ),
    Rule(
        "offload-client-optimizer",
        ("zero-offload with a client provided optimizer",),
        r"ZeRO-Offload with a client provided optimizer \((?P<kind>[^\n)]{1,80})\)",
        "CPU offload was given torch's own optimizer ({kind}), which runs on the host far too "
        "slowly",
        "DeepSpeed insists on its CPUAdam there unless told otherwise",
        '+ "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-5}}}}\n'
        '# or: "zero_force_ds_cpu_optimizer": false',
        "deepspeed/runtime/engine.py:2345",
        confidence=0.95,
    ),
    Rule(
        "untested-optimizer",
        ("untested zero optimizer",),
        r"You are using an untested ZeRO Optimizer",
        "ZeRO was given an optimizer that DeepSpeed has not tested with it",
        "Adam, AdamW and Lion are; others work where their state is element-wise",
        '+ "zero_allow_untested_optimizer": true',
        "deepspeed/runtime/engine.py (_do_optimizer_sanity_check)",
        confidence=0.95,
    ),
    Rule(
        "pipeline-zero",
        ("incompatible with pipeline parallelism",),
        r"ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
        "pipeline parallelism was combined with ZeRO 2 or 3",
        "a pipeline runs many micro batches; sharded gradients would be reduced for each",
        '- "stage": 2\n+ "stage": 1',
        "deepspeed/runtime/pipe/engine.py:77; deepspeedai/DeepSpeed#1629",
        confidence=0.95,
    ),
    Rule(
        "no-sync-zero",
        ("no_sync context manager is incompatible",),
        r"no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage "
        r"(?P<stage>\d)",
        "`no_sync` was used under ZeRO stage {stage}, whose gradients are sharded as they come",
        "accumulation belongs to the engine: its own setting, not the loop's context manager",
        '+ "gradient_accumulation_steps": N    # and remove no_sync from the loop\n'
        '- "stage": {stage}\n+ "stage": 1    # where no_sync must stay',
        "deepspeed/runtime/engine.py:3228; huggingface/transformers#35157",
        confidence=0.95,
    ),
    Rule(
        "precision-unsupported",
        ("is not supported on your device", "your setup doesn't support bf16"),
        r"Type (?P<kind>\w+) is not supported on your device|Your setup doesn't support "
        r"(?P<other>bf16)",
        "this device does not compute in {kind}{other}",
        "bf16 needs Ampere or newer; V100 and T4 have fp16 only",
        '- "bf16": {{"enabled": true}}\n'
        '+ "fp16": {{"enabled": true, "initial_scale_power": 16, "hysteresis": 2}}',
        "deepspeed/runtime/engine.py:2004",
        confidence=0.95,
    ),
    Rule(
        "not-divisible",
        ("divisible by", "must be a multiple of", "is not a multiple of"),
        r"(?:^|: )(?P<what>[^\n:]{1,80}?) (?:must be|should be|is not|to be|not) (?:evenly )?"
        r"(?:divisible by|a multiple of) (?P<by>[\w`' ().=-]{1,60})",
        "a parallel size does not divide the model: {what} / {by}",
        "heads, kv heads, layers and experts are split over ranks",
        "$ dsforge plan --model MODEL   # lists the legal sizes and why others are not",
        "megatron/core/transformer/transformer_config.py; pytorch/torchtitan#2574",
        confidence=0.8,
    ),
)

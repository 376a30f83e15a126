"""Checkpoints and weights that do not fit, are empty, cut short or of another world size."""

from __future__ import annotations

from dsforge.diagnose.rule import Rule

RULES = (
    Rule(
        "empty-checkpoint",
        ("torch.size([0])", "shape is torch.size([0])", "safetensors file is empty"),
        r"(?:size mismatch for (?P<name>[\w.]{1,200}): )?copying a param with shape "
        r"torch\.Size\(\[0\]\)|torch\.Size\(\[0\]\)",
        "the saved weights are empty: `{name}` has no elements in the file",
        "under ZeRO-3 each rank holds shards; a plain save_pretrained or torch.save of rank 0 "
        "writes placeholders",
        "$ python <checkpoint>/zero_to_fp32.py <checkpoint> OUT   # the real weights, if a "
        "DeepSpeed checkpoint exists\n"
        '+ "stage3_gather_16bit_weights_on_model_save": true',
        "deepspeedai/DeepSpeed#2413; hiyouga/LlamaFactory#253",
        confidence=0.95,
        explains=("shape-mismatch",),
        lines=1,
    ),
    Rule(
        "shape-mismatch",
        ("size mismatch for",),
        r"size mismatch for (?P<name>[\w.]{1,200}): copying a param with shape "
        r"(?:torch\.Size\()?(?P<saved>\[[\d, ]*\])\)?[^\n]{0,80}?shape in current model is "
        r"(?:torch\.Size\()?(?P<model>\[[\d, ]*\])",
        "the weights in the file do not fit the model: `{name}` is {saved}, the model has {model}",
        "another size of the model, another vocabulary, or shards of another tensor-parallel size",
        "$ grep -e vocab_size -e hidden_size config.json   # of both\n"
        "model.resize_token_embeddings(<the first size of the file>)   # where it is the embedding",
        "torch/nn/modules/module.py:load_state_dict",
        confidence=0.9,
        lines=1,
    ),
    Rule(
        "world-size-changed",
        ("being loaded used a dp world size", "used a dp world size"),
        r"used a DP world size of (?P<saved>\d+) but the current world size is (?P<now>\d+)",
        "the checkpoint is of {saved} data-parallel ranks, this run has {now}",
        "ZeRO's optimizer state is sharded for one world size; the universal format is not",
        "$ python -m deepspeed.checkpoint.ds_to_universal --input_folder CKPT/global_stepN "
        "--output_folder CKPT/global_stepN_universal\n"
        '+ "checkpoint": {{"load_universal": true}}',
        "deepspeed/runtime/engine.py:4749; deepspeedai/DeepSpeed#2898",
        confidence=0.95,
    ),
    Rule(
        "universal-checkpoint",
        ("invalid for universal checkpoint", "universal_checkpoint_info", "latest_universal"),
        r"Invalid for universal checkpoint: (?P<path>\S{1,300}) does not exist|"
        r"Required universal_checkpoint_info state is missing|universal_checkpoint_info",
        "`load_universal` is set, but the checkpoint was not converted ({path} is missing)",
        "a universal checkpoint is made by a converter after the save",
        "$ python -m deepspeed.checkpoint.ds_to_universal --input_folder CKPT/global_stepN "
        "--output_folder CKPT/global_stepN_universal\n"
        '- "load_universal": true    # to load it as it was saved, with the same world size',
        "deepspeed/runtime/engine.py:4435; checkpoint/ds_to_universal.py:1088",
        confidence=0.95,
    ),
    Rule(
        "truncated-weights",
        (
            "deserializing header",
            "metadataincompletebuffer",
            "headertoolarge",
            "invalidheader",
            "incompletemetadata",
            "headertoosmall",
            "failed reading zip archive",
            "failed finding central directory",
            "incomplete metadata",
            "torch/serialization.py",
        ),
        r"deserializing header|MetadataIncompleteBuffer|"
        r"HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*|"
        r"incomplete metadata|PytorchStreamReader failed reading zip archive|"
        r"serialization\.py\", line \d+, in load\b(?:\n[^\n]*){1,8}\n"
        r"(?:OSError: \[Errno 22\]|EOFError|_pickle\.UnpicklingError: invalid load key)",
        "a weights file is cut short or is no weights file at all",
        "a download or save ended early (disk full, killed), or git left an LFS pointer",
        "$ ls -l *.safetensors; head -c 200 <file>   # `version https://git-lfs` is a pointer\n"
        "$ git lfs pull   # or download it again",
        "safetensors; torch caffe2/serialize/inline_container.cc",
        confidence=0.95,
        lines=9,
    ),
    Rule(
        "weights-only-load",
        ("weights only load failed", "weights_only"),
        r"Weights only load failed",
        "torch refuses to unpickle objects from this file",
        "since torch 2.6 only tensors and plain containers are loaded unasked",
        "torch.load(path, weights_only=False)   # only for a file you made yourself\n"
        "torch.serialization.add_safe_globals([TheClass])",
        "torch/serialization.py",
        confidence=0.95,
    ),
    Rule(
        "optimizer-groups",
        ("parameter group that doesn't match", "different number of parameter groups"),
        r"parameter group that doesn't match the size of optimizer's group|"
        r"different number of parameter groups",
        "the saved optimizer state is of another set of parameters",
        "layers were frozen, added or LoRA was switched on since the save",
        "engine.load_checkpoint(path, load_optimizer_states=False, load_lr_scheduler_states=False)",
        "torch/optim/optimizer.py",
        confidence=0.95,
    ),
    Rule(
        "no-checkpoint",
        ("unable to find latest file",),
        r"Unable to find latest file at (?P<path>\S{1,300}?),",
        "there is no checkpoint at {path}: the run starts from the beginning",
        "DeepSpeed only warns; the folder is not shared, or saved elsewhere",
        "$ ls -l {path}   # on every node",
        "deepspeed/runtime/engine.py:4438",
        kind="hint",
        confidence=0.6,
        silent=True,
    ),
)

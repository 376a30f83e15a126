"""The names that checkpoints need, and checks of what a pickle would call.

There is no list of dangerous names: such a list is never complete. What is called and not listed
here is refused; a name that is only held, as a type in a config, is a warning.
"""

from __future__ import annotations

import re

from dsforge.checkpoints.findings import listed
from dsforge.checkpoints.pickles.reader import Pickled
from dsforge.errors import DsforgeError, UntrustedError

LOADERS = re.compile(  # what torch, numpy and DeepSpeed call to build plain things
    r"torch\._utils\._rebuild_(tensor(_v[23])?|parameter(_with_state)?|qtensor|meta_tensor_no_storage"
    r"|(sparse|nested)_tensor)"
    r"|torch\._tensor\._rebuild_from_type_v2|torch\.(Size|device)"
    r"|torch\.serialization\._get_layout|_codecs\.encode"
    r"|collections\.(OrderedDict|defaultdict|Counter|deque)"
    r"|(builtins|__builtin__)\.(set|frozenset|bytes|bytearray|complex|slice|x?range)"
    r"|numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)|numpy\.dtype"
    r"|deepspeed\.runtime\.fp16\.loss_scaler\.(Dynamic)?LossScaler(Base)?"
    r"|deepspeed\.runtime\.zero\.config\.ZeroStageEnum"
    r"|deepspeed\.utils\.tensor_fragment\.fragment_address"
    r"|deepspeed\.checkpoint\.(universal_checkpoint|constants)\.SubparamShape"
    r"|argparse\.Namespace|datetime\.(timedelta|datetime|date|time|timezone)"
    r"|pathlib\.(PurePath|PosixPath|PurePosixPath|WindowsPath|PureWindowsPath)"
    r"|megatron\.(model|core|core\.transformer)\.enums\."
    r"(ModelType|LayerType|AttnType|AttnMaskType|PositionEmbeddingType|AttnBackend)"
)
TYPES = re.compile(  # what is held and does nothing
    r"torch\.(\w+Storage|Tensor|b?float\d*|float8_\w+|double|half|u?int\d*|long|short|bool)"
    r"|torch\.(complex\d+|q?u?int\d+x?\d*|strided|sparse_\w+|per_(tensor|channel)_\w+"
    r"|float4_e2m1fn_x2)|torch\.storage\.(Untyped|Typed)Storage"
    r"|torch\.nn\.parameter\.(Parameter|Buffer)"
    r"|(builtins|__builtin__)\.(dict|list|int|float|str|bool|tuple|slice|complex|bytes)"
    r"|__builtin__\.(long|unicode)|numpy\.ndarray"  # long is int as Python 2 calls it
    r"|deepspeed\.runtime\.zero\.config\.ZeroStageEnum"
    r"\.(disabled|optimizer_states|gradients|weights)"
)
_TRAINER = r"transformers\.(training_args|training_args_seq2seq|trainer_utils|debug_utils"
TRAINER = re.compile(  # what the arguments of the Hugging Face Trainer are made of
    rf"{_TRAINER}|trainer_pt_utils|integrations\.deepspeed|utils\.quantization_config)\."
    r"(Seq2Seq)?(TrainingArguments|OptimizerNames|ParallelMode|IntervalStrategy|SaveStrategy"
    r"|EvaluationStrategy|HubStrategy|SchedulerType|FSDPOption|DebugOption|AcceleratorConfig"
    r"|HfTrainerDeepSpeedConfig|HfDeepSpeedConfig|TrainerMemoryTracker|EvalLoopOutput)"
    r"|accelerate\.(state|utils\.dataclasses|utils\.deepspeed)\."
    r"(PartialState|AcceleratorState|DistributedType|DeepSpeedPlugin|HfDeepSpeedConfig"
    r"|FullyShardedDataParallelPlugin|DynamoBackend|TorchDynamoPlugin|GradientAccumulationPlugin"
    r"|SageMakerDistributedType|PrecisionType)"
    r"|transformers\.integrations\.deepspeed\.HfTrainerDeepSpeedConfig"
    r"|trl\.trainer\.\w+_config\.[A-Z]\w*Config|trl\.trainer\.utils\.[A-Z]\w*Config"
)
NO_LOAD = "do not load it: torch.load would run it"
HELD_HINT = "load it with weights_only=True, unless you trust its author"


def is_known(name: str) -> bool:
    """Whether a checkpoint may hold a name."""
    return bool(LOADERS.fullmatch(name) or TYPES.fullmatch(name))


def called_unknown(pickled: Pickled) -> list[str]:
    """What a pickle would call, or hand to what it calls, that no checkpoint needs."""
    called = {name for name in pickled.called if not LOADERS.fullmatch(name)}
    return sorted(called | {name for name in pickled.handed if not is_known(name)})


def held_unknown(pickled: Pickled) -> list[str]:
    """Names that a pickle would import without calling them, and that no checkpoint needs."""
    return sorted(name for name in pickled.names if not is_known(name))


def check_called(pickled: Pickled, file: str) -> None:
    """Raises UntrustedError where loading a file would call what no checkpoint needs."""
    if called := called_unknown(pickled):
        raise UntrustedError(f"{file} would call {listed(called)}", NO_LOAD)


def check_names(pickled: Pickled, file: str) -> None:
    """Raises DsforgeError where a file names anything that no checkpoint needs."""
    check_called(pickled, file)
    if held := held_unknown(pickled):
        raise DsforgeError(f"{file} would import {listed(held)}", HELD_HINT)

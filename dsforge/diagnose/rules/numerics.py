"""Numbers that fail: loss scale, NaN, gradients that do not exist, values that index nothing."""

from __future__ import annotations

from dsforge.diagnose.rule import Rule

RULES = (
    Rule(
        "loss-scale-floor",
        ("loss scale already at minimum", "loss scale below minimum", "reducing to 1"),
        r"Current loss scale already at minimum|loss scale below minimum",
        "the fp16 loss scale reached its minimum: gradients overflow at every step",
        "fp16 ends at 65504; models trained in bf16 do not fit in, and a learning rate that is "
        "too high ends there as well",
        '- "fp16": {{"enabled": true}}\n+ "bf16": {{"enabled": true}}    # Ampere or newer\n'
        '# V100, T4: + "fp16": {{"enabled": true, "initial_scale_power": 16, "hysteresis": 4, '
        '"min_loss_scale": 1}}, a lower learning rate, gradient_clipping 1.0',
        "deepspeed/runtime/fp16/loss_scaler.py:259; hiyouga/LlamaFactory#251",
        confidence=0.95,
        explains=("loss-nan",),
    ),
    Rule(
        "loss-nan",
        (
            "loss nan",
            "loss: nan",
            "loss': nan",
            "loss=nan",
            "loss': 'nan",
            "loss = nan",
            "loss -nan",
            "nan or inf",
            "found nan",
            "is nan",
            "are nan",
            "became nan",
            "norm': nan",
            "norm': 'nan",
            "norm nan",
            "norm: nan",
            "loss value is nan",
        ),
        r"(?:\b|')(?:loss|lm loss|train_loss)'?\s*[:=]?\s*'?(?:value )?(?:is )?-?nan\b|"
        r"NaN or Inf found|found NaN in (?:local|the) |(?:loss|gradient)s? (?:is|are|became) "
        r"(?:nan|inf)|grad_norm'?: ?'?nan",
        "the loss became NaN",
        "an overflow (fp16), a learning rate that is too high, a batch without labels (all "
        "positions masked), or broken weights; it never comes back by itself",
        '+ "gradient_clipping": 1.0\n- "lr": ...\n+ "lr": a tenth, with warm-up\n'
        '+ "bf16": {{"enabled": true}}    # instead of fp16\n'
        "# and drop samples whose labels are all -100",
        "deepspeedai/DeepSpeedExamples#418; modelscope/ms-swift#4374",
        confidence=0.8,
        silent=True,
    ),
    Rule(
        "fp16-gradients",
        ("unscale fp16 gradients",),
        r"Attempting to unscale FP16 gradients",
        "the weights themselves were loaded in fp16, so gradients are fp16 and cannot be unscaled",
        "mixed precision keeps fp32 weights and computes in fp16",
        "- torch_dtype=torch.float16\n+ torch_dtype=torch.float32    # or bf16 and no scaler",
        "torch/amp/grad_scaler.py",
        confidence=0.95,
    ),
    Rule(
        "vocabulary-mismatch",
        (
            "srcindex < srcselectdimsize",
            "indexselectlargeindex",
            "index out of range in self",
            "vectorized_gather_kernel",
        ),
        r"srcIndex < srcSelectDimSize|indexSelectLargeIndex|index out of range in self|"
        r"vectorized_gather_kernel[^\n]{0,80}Assertion",
        "a token id is larger than the embedding: tokenizer and model do not belong together",
        "tokens were added without resizing the embedding, or a tokenizer of another model is used",
        "model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)\n"
        "$ python -c \"from transformers import *; print(len(AutoTokenizer.from_pretrained('M')), "
        "AutoConfig.from_pretrained('M').vocab_size)\"\nCUDA_LAUNCH_BLOCKING=1   # shows the line",
        "torch aten/src/ATen/native/cuda/Indexing.cu",
        explains=("device-assert", "nccl-error", "nccl-timeout"),
    ),
    Rule(
        "label-out-of-range",
        ("n_classes", "is out of bounds"),
        r"Assertion `t >= 0 && t < n_classes` failed|Target (?P<label>-?\d+) is out of bounds",
        "a label {label} lies outside of the model's classes",
        "labels are token ids below the vocabulary size, or -100 for positions to ignore",
        "labels[labels == tokenizer.pad_token_id] = -100\n"
        "model.resize_token_embeddings(len(tokenizer))\nCUDA_LAUNCH_BLOCKING=1",
        "torch aten/src/ATen/native/cuda/NLLLoss2d.cu; aten/native/LossNLL.cpp",
        explains=("device-assert", "nccl-error", "nccl-timeout"),
    ),
    Rule(
        "device-assert",
        ("device-side assert triggered",),
        r"device-side assert triggered",
        "a GPU kernel refused its input (device-side assert), most often an index out of range",
        "kernels run later than the line that starts them, so the traceback points elsewhere",
        "CUDA_LAUNCH_BLOCKING=1   # then the traceback shows the operation\n"
        "$ grep -B2 Assertion <log>   # names the kernel and its condition",
        "CUDA error 710",
        confidence=0.7,
    ),
    Rule(
        "illegal-memory-access",
        ("illegal memory access", "misaligned address", "unspecified launch failure"),
        r"an illegal memory access was encountered|misaligned address|unspecified launch failure",
        "a GPU kernel read or wrote outside of its memory",
        "a custom kernel (flash-attn, quantisation, a DeepSpeed op) built for another shape or "
        "version, or a failing card",
        "CUDA_LAUNCH_BLOCKING=1\n$ nvidia-smi -q -d ECC; dmesg -T | grep -i xid\n"
        'attn_implementation="sdpa"   # instead of flash_attention_2',
        "CUDA error 700",
        confidence=0.75,
        explains=("nccl-timeout",),
    ),
    Rule(
        "no-gradient",
        ("does not require grad",),
        r"element 0 of tensors does not require grad",
        "the loss has no gradient: nothing before it can be trained",
        "all weights are frozen, or gradient checkpointing sits behind frozen inputs (LoRA)",
        "model.enable_input_require_grads()\n"
        'gradient_checkpointing_kwargs={{"use_reentrant": False}}',
        "torch/csrc/autograd/variable.cpp; huggingface/peft#1844",
        confidence=0.9,
    ),
    Rule(
        "unused-parameters",
        ("expected to have finished reduction",),
        r"Expected to have finished reduction in the prior iteration",
        "some parameters got no gradient, and data parallelism waits for them",
        "a branch of the model was not used in this step, or its output does not reach the loss",
        "DistributedDataParallel(model, find_unused_parameters=True)\n"
        "TORCH_DISTRIBUTED_DEBUG=DETAIL   # names them",
        "torch/csrc/distributed/c10d/reducer.cpp",
        confidence=0.95,
    ),
    Rule(
        "zero3-partitioned",
        (
            "must be 2-d",
            "size of tensor a (0)",
            "expected param",
            "shape '[0]'",
            "mat2 must be a matrix",
        ),
        r"'weight' must be 2-D|shape '\[0\]'|size of tensor a \(0\)|mat2 must be a matrix, got 1-D|"
        r"expected param [^\n]{0,300}to be available",
        "a ZeRO-3 parameter was used while its shards were not gathered",
        "a weight is read outside of the module that owns it (tied weights, initialisation, "
        "custom attention)",
        "with deepspeed.zero.GatheredParameters([module.weight], modifier_rank=0): ...\n"
        "deepspeed.zero.register_external_parameter(self, other.weight)",
        "deepspeed/runtime/zero/partition_parameters.py:65",
        confidence=0.85,
    ),
    Rule(
        "zero3-trace",
        ("parameters in the parameter fetch queue", "tracing error at step"),
        r"tracing error at step (?P<step>\d+)|parameters in the parameter fetch queue to be",
        "ZeRO-3 met modules in another order than in the step before",
        "the forward depends on the data (experts, modalities, drop-out of layers); the prefetch "
        "is recorded in the first step",
        "deepspeed.utils.set_z3_leaf_modules(model, [MoeBlock])\n"
        '+ "stage3_prefetch_bucket_size": 0',
        "deepspeed/runtime/zero/partitioned_param_coordinator.py:437; deepspeedai/DeepSpeed#1960",
        confidence=0.95,
    ),
)

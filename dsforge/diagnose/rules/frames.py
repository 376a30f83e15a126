"""Where in a training step an out-of-memory error was raised, from the frames above it."""

from __future__ import annotations

from dsforge.diagnose.rule import Hit

_RECOMPUTE = "+ gradient_checkpointing: true    # train.yaml"
_MICRO = (
    '- "train_micro_batch_size_per_gpu": N\n+ "train_micro_batch_size_per_gpu": N/2\n'
    '+ "gradient_accumulation_steps": twice as many'
)
_STAGE = '- "stage": 2\n+ "stage": 3    # or offload_optimizer: {"device": "cpu"}'
_OFFLOAD = '+ "offload_optimizer": {"device": "cpu", "pin_memory": true}'
_BUCKETS = (
    '+ "stage3_max_live_parameters": 100000000\n+ "stage3_prefetch_bucket_size": 10000000\n'
    '+ "reduce_bucket_size": 50000000'
)

# (term of the ledger, words of frames, what it is doing, what helps); the lowest frame wins.
MOMENTS = (
    (
        "logits",
        ("cross_entropy", "loss_function", "lm_head", "logits.float", "nll_loss"),
        "at the loss (logits and their fp32 copy)",
        _MICRO,
    ),
    (
        "buffers",
        (
            "fetch_sub_module",
            "partition_parameters.py",
            "all_gather_coalesced",
            "reduce_ipg",
            "average_tensor",
            "allreduce_bucket",
        ),
        "in ZeRO's buckets and gathered parameters",
        _BUCKETS,
    ),
    (
        "optimizer_state",
        (
            "initialize_optimizer_states",
            "_optimizer_step",
            "optimizer.step",
            "exp_avg",
            "fused_adam.py",
            "_create_fp32_partitions",
            "_setup_for_real_optimizer",
            "clone().float",
        ),
        "in the optimizer (fp32 master weights and moments)",
        _OFFLOAD,
    ),
    (
        "gradients",
        ("_engine_run_backward", "in backward", "run_backward", ".backward("),
        "in backward (gradients and recomputed activations)",
        _MICRO,
    ),
    (
        "weights",
        (
            "_configure_distributed_model",
            "self.module.to(",
            "param_applied = fn(",
            "load_state_dict",
            "in from_pretrained",
            "_load_pretrained_model",
        ),
        "while the weights went to the device",
        _STAGE,
    ),
    (
        "activations",
        ("in forward", "attention", "mlp", "_call_impl"),
        "in forward (activations)",
        _RECOMPUTE + "\n" + _MICRO,
    ),
)


def moment(before: str, phase: str) -> tuple[str, str]:
    """What the step was doing, and what reduces it."""
    term = term_of(before)
    for name, _, doing, remedy in MOMENTS:
        if name == term:
            return doing, remedy
    return (f"while {phase}" if phase else "", _MICRO)


def term_of(before: str) -> str:
    """The term of the ledger that grows at the frames before an error; empty where unknown.

    Only the last traceback counts, and in it the most telling frame: the loss, a bucket or the
    optimizer says more than the forward that leads to it.
    """
    frames = before.rpartition("Traceback (most recent call last)")[2].lower()
    for name, words, _, _ in MOMENTS:
        if any(word in frames for word in words):
            return name
    return ""


HOST_REMEDIES = {
    "loading the model": "# one copy of the model per rank is loaded: use zero.Init, or "
    "low_cpu_mem_usage=True",
    "saving a checkpoint": '- "stage3_gather_16bit_weights_on_model_save": true    # the whole '
    "model in one process\n$ python zero_to_fp32.py CHECKPOINT OUT   # after the run",
}
LESS_OFFLOAD = (
    '- "offload_param": {"device": "cpu"}    # the largest first\n'
    '- "pin_memory": true\n+ "pin_memory": false'
)


def host_moment(hits: tuple[Hit, ...]) -> dict[str, str]:
    """The phase in which host memory ran out, and what makes that phase smaller."""
    phase = next((hit.phase for hit in hits if hit.phase), "")
    remedy = HOST_REMEDIES.get(phase, LESS_OFFLOAD)
    return {"phase": f" while {phase}" if phase else "", "remedy": remedy}

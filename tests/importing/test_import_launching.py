"""Machines and devices of batch scripts and launchers, in every spelling that these take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.importing.read import ImportedSetup, read_texts

TRAIN = "t.py --output_dir o --per_device_train_batch_size 2\n"
RANKED = f"srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 {TRAIN}"
SPELLINGS = {
    "nodes": ("-N{}", "-N {}", "-N  {}", "--nodes={}", "--nodes {}"),
    "ntasks": ("-n{}", "-n {}", "--ntasks={}", "--ntasks {}"),
    "gpus": ("-G{}", "-G {}", "--gpus={}", "--gpus {}"),
}
BESIDE = ("", "-J run", "-Jrun", "-p gpu", "--exclusive", "-t 1:00:00", "--comment=a-N9", "-A lab2")


def batch(headers: list[str], command: str) -> ImportedSetup:
    """A batch script with some headers, each on a line of its own."""
    lines = "".join(f"#SBATCH {header}\n" for header in headers)
    return read_texts({"run.sh": f"#!/bin/bash\n{lines}{command}"})


@pytest.mark.parametrize("written", SPELLINGS["nodes"])
def test_the_number_of_nodes_counts_however_it_is_written(written: str) -> None:
    """`sbatch` takes a letter with its value glued to it."""
    found = batch([written.format(4), "--gres=gpu:a100:4"], RANKED)

    assert (found.setup.nodes, found.setup.gpus_per_node) == (4, 4)
    assert found.setup.global_batch_size == 32
    assert found.open == ()


@given(
    st.tuples(*(st.sampled_from(spellings) for spellings in SPELLINGS.values())),
    st.sampled_from(BESIDE),
    st.booleans(),
)
def test_spellings_of_headers_say_the_same(
    written: tuple[str, str, str], beside: str, one_line: bool
) -> None:
    """On one line or on several, among others."""
    headers = [text.format(count) for text, count in zip(written, (4, 16, 16), strict=True)]
    headers = [header for header in [beside, *headers] if header]
    headers = [" ".join(headers)] if one_line else headers
    setup = batch(headers, f"srun python {TRAIN}").setup

    assert (setup.nodes, setup.gpus_per_node) == (4, 4)


@pytest.mark.parametrize(
    ("launcher", "blank"),
    [
        (launcher, blank)
        for launcher in ("srun -N{0}", "mpirun -N{0} -n{1}", "mpiexec -n{1} -N{0}")
        for blank in ("", " ")
    ],
)
def test_launchers_take_glued_letters_too(launcher: str, blank: str) -> None:
    """`srun -N2`, `mpirun -n8 -N4`."""
    numbers = (2, 4) if launcher.startswith("srun") else (4, 8)
    command = launcher.format(*(f"{blank}{number}" for number in numbers))
    inner = "torchrun --nnodes 2 --nproc_per_node 4 " if launcher.startswith("srun") else "python "
    setup = read_texts({"run.sh": f"{command} {inner}{TRAIN}"}).setup

    assert (setup.nodes, setup.gpus_per_node) == (2, 4)


@pytest.mark.parametrize("written", ["-l select=2:ngpus=4", "-lselect=2:ngpus=4"])
def test_pbs_takes_a_glued_letter(written: str) -> None:
    """As `qsub` does."""
    found = read_texts({"run.pbs": f"#!/bin/bash\n#PBS {written}\nmpirun python {TRAIN}"})

    assert (found.setup.nodes, found.setup.gpus_per_node) == (2, 4)

"""Ranks of a run: Slurm's headers, launchers and variables -> machines and devices."""

from __future__ import annotations

import re

from dsforge.importing.forms import Source
from dsforge.importing.shell.expansion import OPEN, is_unknown
from dsforge.importing.shell.launches import Launch
from dsforge.importing.values import Settings, Unknown, Value
from dsforge.importing.work import Work, settings_of_flags

HEADER = re.compile(r"^[ \t]*#(?:SBATCH|DSUB|BSUB)[ \t]+(.+)$", re.MULTILINE)
PBS = re.compile(r"^#PBS[ \t]+-l[ \t]*select=(\d{1,5})(?:\S*?ngpus=(\d{1,3}))?", re.MULTILINE)
OPTION = re.compile(  # a letter may have its value glued to it: `-N4`
    r"(?<!\S)(?:(--[A-Za-z][\w-]*)(?:[= \t]+|(?=\s|$))|(-[A-Za-z])[= \t]*)([^\s#-][^\s#]*)?"
)
GLUED = re.compile(r"([A-Za-z])(\d[\d-]*)")
SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus"}
RANKED = ("torchrun", "torch.distributed.launch", "torch.distributed.run")
TORCHRUN = "torch/distributed/run.py, get_args_parser"
DEEPSPEED = "deepspeed/launcher/runner.py, parse_args"
HOST = re.compile(r"^[ \t]*[^\s#]{1,253}[ \t]+slots=(\d{1,4})\b", re.MULTILINE)
MOST_HEADERS = 200
MOST_HOSTS = 100_000


class Slurm:
    """The headers of a batch script."""

    def __init__(self, source: Source) -> None:
        values: dict[str, Value] = {}
        for match in list(HEADER.finditer(source.text))[:MOST_HEADERS]:
            line = source.text.count("\n", 0, match.start()) + 1
            for option in OPTION.finditer(match[1]):
                written = option[1] or option[2]
                name = SHORT.get(written, written.lstrip("-"))
                values[name] = Value(option[3] or True, source.place(line))
        self.settings = Settings(values)
        self.pbs = PBS.search(source.text)
        self.source = source

    @property
    def is_there(self) -> bool:
        """Whether the script has headers at all."""
        return len(self.settings) > 0 or self.pbs is not None

    @property
    def nodes(self) -> Value | None:
        """Machines; `2-4` means at least 2."""
        if self.pbs:
            return Value(self.pbs[1], self.source.place(1))
        found = self.settings.find("nodes")
        if found is not None and found.text:
            return found._replace(value=found.text.partition("-")[0])
        return found

    @property
    def gpus(self) -> Value | None:
        """Devices of a machine, by whichever header gives them."""
        if self.pbs and self.pbs[2]:
            return Value(self.pbs[2], self.source.place(1))
        found = self.settings.find("gpus_per_node", "gres", "gpus")
        tasks = self.settings.find("ntasks_per_node", "tasks_per_node")
        each = self.settings.find("gpus_per_task")
        total = self.settings.at("gpus_per_node", "gres") is None and found is not None
        if found is not None:
            count = re.search(r"(?:^|:|=)(\d{1,4})(?:\(|$|,)", found.text)
            if count is None:
                one = re.match(r"gpu(:\w+)?$", found.text)
                return found._replace(value="1" if one else Unknown(found.shown))
            nodes = self.nodes
            share = (nodes.whole if nodes else 1) if total else 1
            number = int(count[1])
            return found._replace(value=number // share if share and number >= share else number)
        if tasks is not None and (tasks.whole or 0) > 1:  # one task a device
            return tasks._replace(value=(tasks.whole or 1) * (each.whole or 1 if each else 1))
        return each

    @property
    def variables(self) -> dict[str, str]:
        """What Slurm sets for the script."""
        found: dict[str, str] = {}
        nodes, gpus = self.nodes, self.gpus
        tasks = self.settings.find("ntasks_per_node")
        if nodes is not None and nodes.whole:
            for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NNODES"):
                found[name] = str(nodes.whole)
        if gpus is not None and gpus.whole:
            found["SLURM_GPUS_ON_NODE"] = found["SLURM_GPUS_PER_NODE"] = str(gpus.whole)
        if tasks is not None and tasks.whole:
            found["SLURM_NTASKS_PER_NODE"] = found["SLURM_TASKS_PER_NODE"] = str(tasks.whole)
            if nodes is not None and nodes.whole:
                found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(tasks.whole * nodes.whole)
        return found


def say_slurm(work: Work, slurm: Slurm) -> None:
    """Machines and devices that a batch script asks for; one machine where it does not say."""
    if not slurm.is_there:
        return
    work.took_part("slurm")
    nodes, gpus = slurm.nodes, slurm.gpus
    work.draft.whole("nodes", nodes)
    if nodes is None:
        work.draft.assume("nodes", 1, "sbatch, --nodes: one machine")
    if gpus is not None:
        work.draft.whole("gpus_per_node", gpus)


def say_launch(work: Work, launch: Launch, source: Source) -> None:
    """What the launchers of a command say of ranks."""
    for name, flags in launch.launchers.items():
        settings = settings_of_flags(flags, source)
        if name in RANKED:
            _torchrun(work, settings)
        elif name == "deepspeed":
            _deepspeed(work, settings)
        elif name == "colossalai":
            _colossalai(work, settings)
        elif name == "srun":
            _counted(work, "nodes", _unglued(settings).find("nodes", "N"))
        elif name in ("mpirun", "mpiexec"):
            _mpi(work, _unglued(settings))
        elif name == "mason.py":  # it replaces `--num_processes` by all devices of its nodes
            _counted(work, "nodes", settings.find("num_nodes"))
            _counted(work, "gpus_per_node", settings.find("gpus"))
    _visible(work, launch, source)


def _unglued(settings: Settings) -> Settings:
    """Settings in which `-N4` is `-N 4`."""
    found: dict[str, Value] = {}
    for key in settings.keys:
        match, value = GLUED.fullmatch(key), settings.at(key)
        if value is not None:
            found |= {match[1]: value._replace(value=match[2])} if match else {key: value}
    return Settings(found)


def _counted(work: Work, field: str, value: Value | None) -> None:
    """A count; one that only the run knows does not replace one that is known."""
    if value is None or (value.is_open and work.draft.value(field) is not None):
        return
    if value.word in ("gpu", "auto", "cpu"):
        value = value._replace(value=Unknown(value.text))
        if work.draft.value(field) is not None:
            return
    work.draft.whole(field, value)


def _torchrun(work: Work, settings: Settings) -> None:
    nodes = settings.find("nnodes")
    if nodes is not None and ":" in nodes.text:
        nodes = nodes._replace(value=nodes.text.rpartition(":")[2])
    if nodes is None and not work.draft.is_said("nodes"):
        work.draft.assume("nodes", 1, TORCHRUN)
    _counted(work, "nodes", nodes)
    devices = settings.find("nproc_per_node")
    if devices is None and not work.draft.is_said("gpus_per_node"):
        work.draft.assume("gpus_per_node", 1, TORCHRUN)
    _counted(work, "gpus_per_node", devices)


def _deepspeed(work: Work, settings: Settings) -> None:
    devices = settings.find("num_gpus", "num_accelerators")
    nodes = settings.find("num_nodes")
    chosen = settings.find("include", "i")
    if chosen is not None and chosen.text and not chosen.is_open:
        hosts = [part for part in chosen.text.split("@") if part]
        slots = [part.partition(":")[2] for part in hosts]
        counts = {len([s for s in slot.split(",") if s]) for slot in slots}
        if all(slots) and len(counts) == 1:
            devices = chosen._replace(value=counts.pop())
        nodes = nodes or chosen._replace(value=len(hosts))
    _counted(work, "gpus_per_node", devices)
    _counted(work, "nodes", nodes)
    named = settings.find("hostfile", "H")
    say_hostfile(work, named)
    if nodes is None and named is None:
        work.draft.assume("nodes", 1, DEEPSPEED + ": no hostfile is named")


def say_hostfile(work: Work, value: Value | None) -> None:
    """Machines and their devices by the hostfile that a value names, where it was given."""
    found = work.files.beside(value.text) if value is not None and value.text else None
    if found is None:
        return
    slots = HOST.findall(found.text)[:MOST_HOSTS]
    if slots and not work.draft.is_said("nodes"):
        work.draft.say("nodes", len(slots), found.name)
    if len(set(slots)) == 1 and not work.draft.is_said("gpus_per_node"):
        work.draft.say("gpus_per_node", int(slots[0]), found.name)


def _colossalai(work: Work, settings: Settings) -> None:
    """Hosts by name, the first ones of a hostfile, or this machine alone."""
    _counted(work, "gpus_per_node", settings.find("nproc_per_node"))
    _hosts(work, settings.find("host", "include"))
    nodes = settings.find("num_nodes")
    if nodes is not None and (nodes.whole or 0) > 0:
        work.draft.whole("nodes", nodes)
    if settings.find("hostfile", "host") is None:
        work.draft.assume("nodes", 1, "colossalai/cli/launcher/run.py: this machine alone")


def _hosts(work: Work, value: Value | None) -> None:
    if value is not None and value.text and not value.is_open:
        hosts = len([host for host in value.text.split(",") if host])
        work.draft.whole("nodes", value._replace(value=hosts))


def _mpi(work: Work, settings: Settings) -> None:
    """Ranks of all machines, and those of each."""
    total, each = settings.find("np", "n"), settings.find("npernode", "ppn", "N")
    if each is not None and each.whole:
        _counted(work, "gpus_per_node", each)
        if total is not None and total.whole and not total.whole % each.whole:
            work.draft.whole("nodes", total._replace(value=total.whole // each.whole))
    elif total is not None and total.whole and settings.find("hostfile", "host", "f") is None:
        work.draft.assume("nodes", 1, "mpirun: no hostfile is named")
        _counted(work, "gpus_per_node", total)


def _visible(work: Work, launch: Launch, source: Source) -> None:
    """Devices by the variables of the environment, where no launcher gives them."""
    place = source.place(launch.program.line)
    by_variable = bool({"swift", "megatron", "llamafactory-cli"} & launch.launchers.keys())
    for field, name in (("nodes", "NNODES"), ("gpus_per_node", "NPROC_PER_NODE")):
        text = launch.variables.get(name, "")
        if by_variable and text and not work.draft.is_said(field):
            value = Value(Unknown(f"${name}") if is_unknown(text) else text, place)
            work.draft.whole(field, value)
    devices = launch.variables.get("CUDA_VISIBLE_DEVICES") or launch.variables.get(
        "ASCEND_RT_VISIBLE_DEVICES", ""
    )
    if devices and OPEN not in devices and not work.draft.is_said("gpus_per_node"):
        count = len([one for one in devices.split(",") if one.strip()])
        if count:
            work.draft.say("gpus_per_node", count, place)
            work.draft.assume("nodes", 1, "one command on one machine")
    alone = not launch.launchers or by_variable or "axolotl" in launch.launchers
    if alone and "accelerate" not in launch.launchers:
        work.draft.assume("nodes", 1, "one command on one machine")

"""Faults that are planted for real on the test hosts, one at a time; leaving one puts all back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import hosts
import pytest
from planting import Environment, Scene, fault

from dsforge import process

MASTER_PORT = 29500
OLD_LOCK_S = 600
SKEW_S = 90
LIMIT_BYTES = 256 << 20
SHAPED = ("rate", "50mbit", "burst", "64kb", "latency", "100ms")
SKEWED_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(which, now);
  if (which == CLOCK_REALTIME) now->tv_sec += SKEW;
  return code;
}
"""


@fault("host-down", (1,), "remove it from hostfile")
def second_host_down(scene: Scene) -> Iterator[None]:
    """The second host has no network."""
    with scene.hosts.unplugged(1):
        yield


@fault("ssh-key", (1,), "ssh-copy-id -p 2222 10.77.0.2", evidence="Permission denied")
def key_refused(scene: Scene) -> Iterator[None]:
    """The second host knows no key."""
    with scene.replaced(scene.ssh / "authorized_keys", Path("/dev/null")):
        yield


@fault("ssh-host-key", (1,), "ssh-keygen -R 10.77.0.2")
def host_key_changed(scene: Scene) -> Iterator[None]:
    """The second host was set up anew: its key is another."""
    known = scene.ssh / "known_hosts"
    text = known.read_text()
    other = (scene.ssh / "user_key.pub").read_text()
    lines = [line for line in text.splitlines() if "10.77.0.2" not in line]
    known.write_text("\n".join([*lines, f"[10.77.0.2]:{hosts.SSH_PORT} {other}"]))
    yield
    known.write_text(text)


@fault("ssh-refused", (0, 1), "ssh_port")
def wrong_ssh_port(scene: Scene) -> Iterator[None]:
    """The cluster file names a port on which no sshd listens."""
    scene.edit("plan.json", f'"ssh_port": {hosts.SSH_PORT}', '"ssh_port": 2299')
    yield


@fault("host-unknown", (), "IP address", evidence="no-such-host")
def name_does_not_resolve(scene: Scene) -> Iterator[None]:
    """The hostfile has a name that nobody knows."""
    scene.edit("hostfile", "10.77.0.2", "no-such-host")
    yield


@fault("host-twice", (), "one line for each host")
def host_listed_twice(scene: Scene) -> Iterator[None]:
    """The hostfile has one host in two lines."""
    scene.edit("hostfile", "10.77.0.2", "10.77.0.1")
    yield


@fault("host-same", (0,), "remove one from hostfile", also=("host-by-name",))
def one_machine_under_two_names(scene: Scene) -> Iterator[None]:
    """The hostfile has the first host by its address and by a name."""
    folder = Path("/etc/netns") / scene.hosts.hosts[0].namespace
    folder.mkdir(parents=True)
    (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 node1\n")
    scene.edit("hostfile", "10.77.0.2", "node1")
    known = scene.ssh / "known_hosts"
    text = known.read_text()
    known.write_text(f"{text}[node1]:{hosts.SSH_PORT} {(scene.ssh / 'host_key.pub').read_text()}")
    yield
    known.write_text(text)
    shutil.rmtree(folder)


@fault("clock-skew", (1,), "timedatectl set-ntp true", evidence="behind")
def skewed_clock(scene: Scene) -> Iterator[None]:
    """Every program on the second host reads a clock that is 90 s behind."""
    source, library = scene.scratch / "skew.c", scene.scratch / "skew.so"
    source.write_text(SKEWED_CLOCK.replace("SKEW;", f"-{SKEW_S};"))
    command = ("cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl")
    process.run(command, timeout_s=60).check("cc")
    config = scene.ssh / f"sshd_{scene.second.address}"
    text = config.read_text()
    config.write_text(f"{text}SetEnv LD_PRELOAD={library}\n")
    reload(scene)
    yield
    config.write_text(text)
    reload(scene)


def reload(scene: Scene) -> None:
    """Let the second host's sshd read its settings again."""
    os.kill(scene.hosts.services[1], signal.SIGHUP)
    time.sleep(0.3)
    deadline = time.monotonic() + hosts.START_LIMIT_S
    while not hosts._listens(scene.second):
        assert time.monotonic() < deadline, "sshd has not come back"
        time.sleep(0.05)


@fault("interpreter-missing", (1,), "make the same environment there")
def interpreter_missing(scene: Scene) -> Iterator[None]:
    """The second host has no virtual environment at that path."""
    with scene.hidden(Path(sys.executable).parent):
        yield


@fault("python-differs", (1,), "make the environment there again with Python")
def other_interpreter(scene: Scene) -> Iterator[None]:
    """The second host has another Python behind the same path."""
    own = Path(sys.executable).resolve()
    for other in sorted(Path("/usr/bin").glob("python3.1[0-9]")):
        said = subprocess.run([other, "--version"], capture_output=True, text=True, check=True)
        if said.stdout.split()[1] != sys.version.split()[0]:
            break
    else:
        pytest.skip("this machine has no second Python")
    with scene.replaced(own, other):
        yield


@fault("package-missing", (1,), "-m pip install deepspeed==")
def missing_package(scene: Scene) -> Iterator[None]:
    """The second host lacks deepspeed."""
    with scene.hidden(scene.packages / "deepspeed"):
        yield


@fault("package-differs", (), "pip install deepspeed==", evidence="deepspeed is 0.14.4 here")
def other_package_version(scene: Scene) -> Iterator[None]:
    """The second host has an older deepspeed."""
    real = next(scene.packages.glob("deepspeed-*.dist-info")) / "METADATA"
    older = scene.scratch / "METADATA"
    older.write_text(re.sub(r"(?m)^Version: .*$", "Version: 0.14.4", real.read_text(), count=1))
    with scene.replaced(real, older):
        yield


@fault("folder-missing", (1,), "rsync -a")
def different_paths(scene: Scene) -> Iterator[None]:
    """The second host keeps the run somewhere else."""
    with scene.hidden(scene.run.parent):
        yield


@fault("files-differ", (1,), "rsync -a", evidence="not the same")
def other_config(scene: Scene) -> Iterator[None]:
    """The second host has an older ds_config.json."""
    older = scene.scratch / "older.json"
    text = scene.config.read_text()
    older.write_text(text.replace('"gradient_clipping": 1.0', '"gradient_clipping": 0.5'))
    assert older.read_text() != text
    with scene.replaced(scene.config, older):
        yield


@fault("slots-missing", (1,), "10.77.0.2 slots=", also=("slots-unplanned", "shm-small"))
def too_many_slots(scene: Scene) -> Iterator[None]:
    """The hostfile promises more than the second host has."""
    scene.edit("hostfile", "10.77.0.2 slots=1", "10.77.0.2 slots=64")
    yield


@fault("slots-unplanned", (), "10.77.0.2 slots=1", also=("host-uneven",))
def slots_of_another_plan(scene: Scene) -> Iterator[None]:
    """The hostfile has more slots on one host than the plan."""
    scene.edit("hostfile", "10.77.0.2 slots=1", "10.77.0.2 slots=2")
    yield


@fault("env-line", (), "")
def comment_in_env_file(scene: Scene) -> Iterator[None]:
    """`.deepspeed_env` has a comment."""
    path = scene.run / ".deepspeed_env"
    path.write_text(f"# our cluster\n{path.read_text()}")
    yield


@fault("env-stays", (0, 1), "`HF_HOME=/data/hf` into .deepspeed_env")
def variable_that_does_not_travel(_: Scene) -> Iterator[Environment]:
    """The launching shell sets a variable that the launcher does not carry."""
    yield {"HF_HOME": "/data/hf"}


@fault("env-home", (0,), "remove it", evidence="NCCL_IB_DISABLE")
def forgotten_file_at_home(scene: Scene) -> Iterator[Environment]:
    """The home folder has a `.deepspeed_env` of another cluster."""
    (scene.scratch / ".deepspeed_env").write_text("NCCL_IB_DISABLE=1\n")
    yield {"HOME": str(scene.scratch)}


@fault("open-files", (1,), "LimitNOFILE")
def few_open_files(scene: Scene) -> Iterator[None]:
    """Programs on the second host may open few files."""
    pid = str(scene.hosts.services[1])
    before = process.run(
        ("prlimit", "-p", pid, "-n", "--noheadings", "--raw", "-o", "SOFT,HARD"), timeout_s=5
    )
    process.run(("prlimit", "-p", pid, "-n128:"), timeout_s=5).check("prlimit")
    yield
    limits = ":".join(before.output.split())
    process.run(("prlimit", "-p", pid, f"-n{limits}"), timeout_s=5).check("prlimit")


@fault("port-taken", (0,), "MASTER_PORT=29501", evidence="python")
def master_port_taken(scene: Scene) -> Iterator[None]:
    """A rank of the last run still has the master port."""
    code = f"import socket, time; s = socket.create_server(('', {MASTER_PORT})); time.sleep(300)"
    command = ("ip", "netns", "exec", scene.hosts.hosts[0].namespace, sys.executable, "-c", code)
    quiet = subprocess.DEVNULL
    left = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    time.sleep(0.5)
    yield
    left.kill()
    left.wait()


@fault("port-blocked", (1,), "let TCP between the hosts through")
def port_blocked(scene: Scene) -> Iterator[None]:
    """A firewall on the second host drops what comes from the master port."""
    rule = ("ipproto", "tcp", "sport", str(MASTER_PORT), "blackhole")
    scene.ip("rule", "add", *rule)
    yield
    scene.ip("rule", "del", *rule)


@fault("first-address", (0,), "--master_addr 10.77.0.1", evidence="172.17.0.1")
def wrong_first_address(scene: Scene) -> Iterator[None]:
    """`hostname -I` of the first host begins with an address behind which nobody is."""
    for words in (
        ("del", "10.77.0.1/24"),
        ("add", "172.17.0.1/16"),
        ("add", "10.77.0.1/24"),
    ):
        scene.ip("addr", *words, "dev", hosts.INTERFACE, index=0)
    yield
    scene.ip("addr", "del", "172.17.0.1/16", "dev", hosts.INTERFACE, index=0)


@fault("interface-missing", (0, 1), "GLOO_SOCKET_IFNAME=eth0")
def interface_of_another_cluster(scene: Scene) -> Iterator[None]:
    """`.deepspeed_env` names an interface that no host has."""
    scene.edit(".deepspeed_env", "IFNAME=eth0", "IFNAME=ib0")
    yield


@fault("interface-wrong", (0, 1), "GLOO_SOCKET_IFNAME=eth0", also=("env-interface",))
def wrong_interface(scene: Scene) -> Iterator[None]:
    """`.deepspeed_env` names the container bridge that every host has."""
    scene.edit(".deepspeed_env", "IFNAME=eth0", "IFNAME=docker0")
    for index in (0, 1):
        scene.ip("link", "add", "docker0", "type", "bridge", index=index)
        scene.ip("addr", "add", "172.17.0.1/16", "dev", "docker0", index=index)
        scene.ip("link", "set", "docker0", "up", index=index)
    yield
    for index in (0, 1):
        scene.ip("link", "del", "docker0", index=index)


@fault("name-loopback", (0, 1), "GLOO_SOCKET_IFNAME=eth0")
def own_name_is_loopback(scene: Scene) -> Iterator[None]:
    """No interface is named, and each host's own name means the host itself."""
    scene.edit(".deepspeed_env", "GLOO_SOCKET_IFNAME=eth0\n", "")
    with ExitStack() as stack:
        name = os.uname().nodename
        table = scene.scratch / "hosts"
        table.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        for index in (0, 1):
            stack.enter_context(
                scene.mounted(str(table), Path("/etc/hosts"), "--bind", index=index)
            )
        yield


@fault("mtu-path", (), "mtu 1500", also=("mtu-differs",))
def small_mtu_in_the_switch(scene: Scene) -> Iterator[None]:
    """The switch drops full packets on their way to the second host."""
    switch = f"{scene.second.namespace.rpartition('-')[0]}-switch"
    hosts._ip("-n", switch, "link", "set", "port2", "mtu", "1300")
    yield
    hosts._ip("-n", switch, "link", "set", "port2", "mtu", "1500")


@fault("mtu-differs", (0, 1), "mtu 1400", also=("mtu-path",))
def other_mtu(scene: Scene) -> Iterator[None]:
    """The second host has another MTU."""
    scene.ip("link", "set", hosts.INTERFACE, "mtu", "1400")
    yield
    scene.ip("link", "set", hosts.INTERFACE, "mtu", "1500")


@fault("bandwidth", (), "traffic shaping", evidence="and needs 600 Mbit/s; a step")
def shaped_link(scene: Scene) -> Iterator[None]:
    """The link carries 50 Mbit/s."""
    for host in scene.hosts.hosts:
        words = ("-n", host.namespace, "qdisc", "add", "dev", hosts.INTERFACE, "root", "tbf")
        process.run(("tc", *words, *SHAPED), timeout_s=5).check("tc")
    yield
    for host in scene.hosts.hosts:
        words = ("-n", host.namespace, "qdisc", "del", "dev", hosts.INTERFACE, "root")
        process.run(("tc", *words), timeout_s=5).check("tc")


@fault("disk-full", (1,), "`output` in train.yaml")
def disk_full(scene: Scene) -> Iterator[None]:
    """The disk of the run folder on the second host has no room."""
    copy = scene.scratch / "copy"
    shutil.copytree(scene.run, copy)
    with scene.mounted("none", scene.run, "-t", "tmpfs", "-o", "size=8m"):
        scene.inside("cp", "-a", f"{copy}/.", str(scene.run))
        yield


@fault("shm-small", (1,), "--shm-size")
def small_shared_memory(scene: Scene) -> Iterator[None]:
    """The second host has the /dev/shm of a careless container."""
    with scene.mounted("none", Path("/dev/shm"), "-t", "tmpfs", "-o", "size=16m"):
        yield


@fault("memory-limit", (1,), "raise the memory limit")
def memory_limit(scene: Scene) -> Iterator[None]:
    """The second host runs under a cgroup with 256 MiB."""
    found = re.search(r"(?m)^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text())
    root = Path("/sys/fs/cgroup/memory" if found else "/sys/fs/cgroup")
    top = root / (found[1].lstrip("/") if found else "")
    group = top / f"dsforge-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if found else "memory.max")).write_text(str(LIMIT_BYTES))
        (group / "cgroup.procs").write_text(str(scene.hosts.services[1]))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    kind = ("-t", "cgroup", "-o", "memory") if found else ("-t", "cgroup2")
    with ExitStack() as stack:  # a network namespace comes with a /sys without cgroups
        if found:
            stack.enter_context(scene.hidden(root.parent))
            scene.inside("mkdir", str(root))
        stack.enter_context(scene.mounted("cgroup", root, *kind))
        yield
    for pid in (group / "cgroup.procs").read_text().split():
        (top / "cgroup.procs").write_text(pid)
    group.rmdir()


def ops(scene: Scene) -> Path:
    """The folder in which the ops of this run are built."""
    lines = dict(
        line.split("=", 1) for line in (scene.run / ".deepspeed_env").read_text().splitlines()
    )
    return Path(lines["TORCH_EXTENSIONS_DIR"])


@fault("op-lock", (0, 1), "dsforge preflight --fix")
def stale_lock(scene: Scene) -> Iterator[None]:
    """A build that died left its lock."""
    lock = ops(scene) / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - OLD_LOCK_S,) * 2)
    yield
    shutil.rmtree(lock.parent)


@fault("op-unbuildable", (1,), "apt-get install g++", evidence="no C++ compiler")
def no_compiler(scene: Scene) -> Iterator[None]:
    """The second host has no compiler."""
    with ExitStack() as stack:
        for name in {Path(p).resolve() for p in map(shutil.which, ("c++", "g++")) if p}:
            stack.enter_context(scene.replaced(name, Path("/dev/null")))
        yield


@fault("op-unbuildable", (1,), "-m pip install ninja", evidence="ninja")
def no_ninja(scene: Scene) -> Iterator[None]:
    """The second host has no ninja."""
    with ExitStack() as stack:
        places = [Path(sys.executable).parent / "ninja", *map(Path, ("/usr/bin/ninja",))]
        for path in places:
            if path.exists():
                stack.enter_context(scene.replaced(path, Path("/dev/null")))
        yield


@fault("op-unbuildable", (1,), "-dev", evidence="Python.h")
def no_python_headers(scene: Scene) -> Iterator[None]:
    """The second host has Python without its headers."""
    import sysconfig

    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    with scene.replaced(header, Path("/dev/null")):
        yield


@contextmanager
def offloading(scene: Scene) -> Iterator[Path]:
    """Inside, the config keeps optimizer states on a disk that both hosts have."""
    swap = scene.scratch / "swap"
    swap.mkdir()
    config = json.loads(scene.config.read_text())
    config["zero_optimization"] |= {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": str(swap), "pin_memory": False},
    }
    scene.config.write_text(json.dumps(config))
    yield swap


@fault("op-unbuildable", (1,), "apt-get install libaio-dev", evidence="libaio")
def no_libaio(scene: Scene) -> Iterator[None]:
    """The second host lacks libaio, and the states are offloaded to disk."""
    libraries = {path.resolve() for path in Path("/usr/lib").glob("*/libaio.*")}
    if not Path("/usr/include/libaio.h").exists():
        pytest.skip("libaio-dev is not installed here (see scripts/system.sh)")
    with offloading(scene), ExitStack() as stack:
        for library in libraries:
            stack.enter_context(scene.replaced(library, Path("/dev/null")))
        yield


@fault("nvme-direct", (1,), "`nvme: path` in the cluster file", evidence="Read-only")
def swap_folder_not_writable(scene: Scene) -> Iterator[None]:
    """The disk for offload is mounted read-only on the second host."""
    with offloading(scene) as swap, scene.mounted("none", swap, "-t", "tmpfs", "-o", "ro"):
        yield

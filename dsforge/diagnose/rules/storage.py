"""Disks: full, over quota, read-only, without O_DIRECT; files and their limits."""

from __future__ import annotations

from dsforge.diagnose.rule import Rule

SAVING = ("stream-writer", "peer-lost", "truncated-weights")

RULES = (
    Rule(
        "disk-full",
        ("no space left on device", "errno 28"),
        r"^(?![^\n]{0,400}/dev/shm/)[^\n]{0,1500}?No space left on device"
        r"(?:[^\n]{0,4}: '(?P<path>[^'\n]{1,300})')?|Errno 28",
        "the disk is full{where}",
        "a checkpoint with optimizer state is 12 to 16 bytes per parameter, and old ones stay",
        "$ df -h . /tmp ~/.cache; du -sh checkpoints/*\n"
        "+ keep_checkpoints: 2    # train.yaml; TMPDIR and HF_HOME can go elsewhere",
        "errno ENOSPC",
        confidence=0.95,
        read=lambda hits: {
            "where": f" ({hits[0].values['path']})" if hits[0].values["path"] else ""
        },
        explains=SAVING,
    ),
    Rule(
        "disk-quota",
        ("disk quota exceeded", "errno 122"),
        r"Disk quota exceeded|Errno 122",
        "the quota of this user or project is used up",
        "home folders of clusters are small; caches and checkpoints end up there",
        "$ quota -s; lfs quota -h -u $USER /scratch\nHF_HOME=/scratch/$USER/hf\n"
        "TORCH_EXTENSIONS_DIR=/scratch/$USER/torch_extensions",
        "errno EDQUOT",
        confidence=0.95,
        explains=SAVING,
    ),
    Rule(
        "file-size-limit",
        ("file too large", "errno 27", "file size limit exceeded"),
        r"\[Errno 27\] File too large|File size limit exceeded",
        "a file may not become that large",
        "a limit on the file size (ulimit -f), or a file system such as FAT",
        "$ ulimit -f unlimited\n$ df -T .",
        "errno EFBIG",
        confidence=0.95,
        explains=SAVING,
    ),
    Rule(
        "stream-writer",
        ("unexpected pos", "pytorchstreamwriter failed", "file write failed"),
        r"unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing file|file write failed",
        "torch.save could not write to the end of the file",
        "almost always a full disk or a quota, which torch does not name",
        "$ df -h <folder of the checkpoint>; quota -s",
        "torch caffe2/serialize/inline_container.cc",
        confidence=0.85,
        explains=("peer-lost",),
    ),
    Rule(
        "open-files",
        ("too many open files", "errno 24"),
        r"Too many open files|received 0 items of ancdata",
        "the limit on open files is too low",
        "data workers, shards and sockets between many ranks each take one",
        "$ ulimit -n 65536   # before the launch, and in /etc/security/limits.conf\n"
        'torch.multiprocessing.set_sharing_strategy("file_system")',
        "errno EMFILE",
        confidence=0.95,
        explains=("peer-lost",),
    ),
    Rule(
        "read-only",
        ("read-only file system", "errno 30"),
        r"Read-only file system(?:: '(?P<path>[^'\n]{1,300})')?",
        "the folder {path} is mounted read-only on this node",
        "images and data sets often are; outputs and caches must go elsewhere",
        "TMPDIR=/scratch/tmp\nHF_HOME=/scratch/hf\nTORCH_EXTENSIONS_DIR=/scratch/torch_extensions",
        "errno EROFS",
        confidence=0.95,
    ),
    Rule(
        "no-permission",
        ("errno 13", "permissionerror"),
        r"\[Errno 13\] Permission denied(?:: '(?P<path>[^'\n]{1,300})')?",
        "this user may not use {path}",
        "a folder of another user or of root, often made by a container",
        "$ ls -ld {path}; id   # on every node",
        "errno EACCES",
        confidence=0.9,
    ),
    Rule(
        "nvme-o-direct",
        ("error = 22", "o_direct"),
        r"open for (?:write|read)\s+failed on\s*(?P<path>\S{1,300}) error = 22|O_DIRECT",
        "the file system of the NVMe folder has no O_DIRECT ({path})",
        "NVMe offload writes past the page cache; tmpfs and some network and overlay file systems "
        "refuse",
        '- "nvme_path": ...\n+ "nvme_path": "/local_nvme"    # ext4 or xfs on a local disk\n'
        "$ dd if=/dev/zero of=/local_nvme/probe bs=1M count=8 oflag=direct",
        "deepspeed/ops/csrc/aio/common/deepspeed_aio_common.cpp:262; deepspeedai/DeepSpeed#3376",
        confidence=0.95,
        explains=("nvme-file",),
    ),
    Rule(
        "nvme-file",
        ("deepspeed_aio", "swap_out_bytes", "num_bytes"),
        r"open for (?:write|read)\s+failed on\s*(?P<path>\S{1,300}) error = (?P<code>\d+)|"
        r"assert(?:ion)?[^\n]{0,60}(?:num_bytes|swap_out_bytes|nbytes)[^\n]{0,60}|"
        r"deepspeed_aio failure",
        "NVMe offload cannot read or write its file {path} (error {code})",
        "2: the folder is missing on this node; 13: not allowed; 28: full",
        "$ mkdir -p <nvme_path>; df -h <nvme_path>   # on every node",
        "deepspeed/ops/csrc/aio; deepspeedai/DeepSpeed#1070",
        confidence=0.85,
    ),
    Rule(
        "nvme-buffer",
        ("than buffer size", "elements_per_buffer", "no buffer available to swap"),
        r"More elements (?P<need>\d+) than buffer size (?P<have>\d+)|"
        r"No buffer available to swap param",
        "the NVMe buffer ({have} elements) is smaller than the largest parameter ({need})",
        "each swapped tensor must fit into one pinned buffer",
        '- "buffer_size": {have}\n+ "buffer_size": {need}    # round up to a multiple of 1024\n'
        '+ "buffer_count": 5',
        "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py:357; "
        "deepspeedai/DeepSpeed#3506",
        confidence=0.95,
    ),
)

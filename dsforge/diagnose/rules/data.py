"""Models, tokenizers and data that cannot be found or read."""

from __future__ import annotations

from dsforge.diagnose.rule import Rule

RULES = (
    Rule(
        "model-gated",
        ("gated repo", "401 client error", "403 client error"),
        r"gated repo|40[13] Client Error",
        "the hub refuses the model: it is gated, private, or the token is missing on this node",
        "the licence must be accepted once per account, and every node needs the token",
        "$ huggingface-cli login   # on every node, or:\nHF_TOKEN=<your token>",
        "huggingface_hub/errors.py",
        confidence=0.95,
        explains=("model-missing", "hub-unreachable"),
    ),
    Rule(
        "hub-unreachable",
        (
            "couldn't connect to 'https://huggingface.co'",
            "couldn't connect to the hugging face",
            "offline mode is enabled",
            "localentrynotfounderror",
            "couldn't connect to '",
        ),
        r"couldn't connect to|offline mode is enabled|LocalEntryNotFoundError|"
        r"Cannot (?:reach|find) the requested files in the (?:local|disk) cache",
        "the model hub cannot be reached from this node, and the model is not in its cache",
        "compute nodes often have no way out; each node has its own cache unless it is shared",
        "$ huggingface-cli download MODEL --local-dir /shared/models/MODEL   # where there is "
        "a network\nHF_HUB_OFFLINE=1\nHF_HOME=/shared/hf",
        "transformers/utils/hub.py",
        confidence=0.9,
        explains=("model-missing",),
    ),
    Rule(
        "unknown-architecture",
        ("does not recognize this architecture", "unrecognized model in"),
        r"model type `(?P<kind>[\w.-]{1,60})`[^\n]{0,60}does not recognize this architecture|"
        r"does not recognize this architecture|Unrecognized model in",
        "this transformers does not know the architecture {kind}",
        "the model is newer than the installed library",
        "$ pip install --upgrade transformers   # on every node",
        "transformers/models/auto/configuration_auto.py:440",
        confidence=0.95,
    ),
    Rule(
        "model-missing",
        (
            "is not a local folder",
            "can't load the configuration of",
            "can't load tokenizer for",
            "repo id must be",
            "does not appear to have a file named",
            "no file named",
        ),
        r"(?<!\S)(?P<model>[^\s\n]{1,200})"
        r" is not a local folder and is not a valid model identifier|"
        r"Can't load (?:the configuration of|tokenizer for) '(?P<other>[^'\n]{1,200})'|"
        r"Repo id must [^\n]{0,120}: '(?P<path>[^'\n]{1,200})'|"
        r"(?<!\S)(?P<folder>[^\s\n]{1,200})"
        r" does not appear to have a file named (?P<file>\S{1,80})|"
        r"no file named (?P<weights>[\w.-]{1,60})",
        "the model {model} is not found here{what}",
        "the path differs from node to node, or the download is not complete",
        "$ ls -l {model}   # on every node",
        "transformers/utils/hub.py:570",
        confidence=0.85,
        read=lambda hits: {
            "model": next(
                (
                    hits[0].values[name]
                    for name in ("model", "other", "path", "folder")
                    if hits[0].values[name]
                ),
                "folder",
            ),
            "what": next(
                (
                    f": no {hits[0].values[name]}"
                    for name in ("file", "weights")
                    if hits[0].values[name]
                ),
                "",
            ),
        },
    ),
    Rule(
        "remote-code",
        ("trust_remote_code",),
        r"requires you to execute|contains custom code|"
        r"(?:set the option|pass the argument) `?trust_remote_code=True",
        "the model brings code of its own, which must be allowed",
        "it is downloaded and run: read it first",
        "trust_remote_code=True   # with a pinned revision",
        "transformers/dynamic_module_utils.py",
        confidence=0.9,
    ),
    Rule(
        "no-chat-template",
        ("chat_template is not set", "does not have a chat template"),
        r"chat_template is not set|does not have a chat template",
        "the tokenizer has no chat template",
        "base models have none; prompts must be rendered in some form",
        'tokenizer.chat_template = open("template.jinja").read()   # or use the instruct model\'s',
        "transformers/tokenization_utils_base.py:3365",
        confidence=0.95,
    ),
    Rule(
        "no-padding-token",
        ("does not have a padding token",),
        r"tokenizer does not have a padding token",
        "the tokenizer has no padding token, so samples cannot be put into a batch",
        "many base models never padded",
        "tokenizer.pad_token = tokenizer.eos_token",
        "transformers/tokenization_utils_base.py:2428",
        confidence=0.95,
    ),
    Rule(
        "empty-dataset",
        (
            "num_samples should be a positive",
            "dataset is empty",
            "the dataloader is empty",
            "empty dataset",
        ),
        r"num_samples should be a positive integer value, but got num_samples=0|"
        r"(?:dataset|dataloader) is empty|empty dataset",
        "there is no sample to train on",
        "a filter (length, split, column names) removed all, or the path is wrong",
        "$ head -n1 data.jsonl; wc -l data.jsonl   # on every node",
        "torch/utils/data/sampler.py",
        confidence=0.85,
    ),
    Rule(
        "worker-killed",
        ("dataloader worker",),
        r"DataLoader worker \(pid[^\n)]{0,40}\) (?:is killed by signal: (?P<signal>[\w ]{1,30})|"
        r"exited unexpectedly)",
        "a data-loading worker died {signal}",
        "host memory: each worker holds its own copy of the data set's Python objects",
        "dataloader_num_workers=2\n$ dmesg -T | grep -i oom",
        "torch/utils/data/dataloader.py",
        confidence=0.75,
    ),
)

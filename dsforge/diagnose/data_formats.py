"""What a row's missing column tells of the format that a trainer reads, and how to say it."""

from __future__ import annotations

import re
from typing import NamedTuple

from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.traceback_frames import last_traceback
from dsforge.diagnose.unknown_errors import unknown_error

_ALPACA = re.compile(r"instruction|input|output|response")
_SHAREGPT = re.compile(r"from|value|conversations?")
_CHAT = re.compile(r"messages|role|content")
_PREFERENCE = re.compile(r"prompt|chosen|rejected|completion")
_OF_TRAINERS = ("query", "label")  # names that others use as well
_VISION = re.compile(r"pixel_values(?:_videos)?|image_grid_thw|images?")

_AXOLOTL = (
    "# the `type` of this entry of `datasets` reads `{key}`: alpaca reads instruction, input, "
    "output; chat_template reads messages of role and content\n"
    "type: chat_template    # with field_messages: conversations and "
    "message_property_mappings: {{role: from, content: value}} for ShareGPT"
)
_LLAMA_FACTORY = (
    '# dataset_info.json: "formatting": "sharegpt" (alpaca where that key is missing or misspelt, '
    'such as "format"), with "columns" and "tags" as the rows name them'
)
_SWIFT = (
    "# ms-swift: rows of messages (role, content), or "
    '--columns \'{{"<name in the file>": "query"}}\''
)
_TRL = (
    "# TRL: DPOTrainer reads prompt, chosen, rejected; KTOTrainer prompt, completion, label; "
    "SFTTrainer text, messages, or prompt and completion; RewardTrainer chosen, rejected"
)
_ROWS_OF_ALPACA = (
    "# {key}: rows in Alpaca's format (instruction, input, output) are read. Chats need "
    '"formatting": "sharegpt" in LLaMA-Factory\'s dataset_info.json, and in axolotl '
    "`type: chat_template`"
)
_ROWS_OF_SHAREGPT = (
    "# {key}: rows in ShareGPT's format (conversations of from and value) are read, in place of "
    "messages of role and content"
)
_ROWS_OF_CHATS = (
    "# {key}: rows of messages (role, content) are read, in place of conversations (from, value) "
    "or instruction and output"
)
_ROWS_WITH_IMAGES = (
    "# {key}: a row without an image, for which the processor gives none; keep to rows with "
    "images: dataset.filter(lambda row: row['image'] is not None)"
)
_TRAINERS = (  # by what stands in the traceback
    (re.compile(r"axolotl[/\\]"), _AXOLOTL),
    (re.compile(r"LL?a?MA-?Factory|llamafactory|llmtuner", re.IGNORECASE), _LLAMA_FACTORY),
    (re.compile(r"swift[/\\]"), _SWIFT),
    (re.compile(r"[/\\]trl[/\\]"), _TRL),
)


class _Reader(NamedTuple):
    """Who reads the rows, by the frames of the traceback, and what it reads."""

    frames: re.Pattern[str]
    keys: re.Pattern[str]  # the columns of which this is said
    name: str
    reads: str
    change: str


_READERS = (
    _Reader(
        re.compile(r"sft_trainer|UnslothSFTTrainer"),
        re.compile(r"text"),
        "TRL's SFTTrainer",
        "the column `text` (its default `dataset_text_field`) where it finds neither `messages` "
        "nor `prompt` and `completion`, and no formatting function is given",
        'SFTConfig(dataset_text_field="<the column that holds the whole text>")\n'
        'dataset = dataset.map(lambda row: {{"text": tokenizer.apply_chat_template('
        'row["<turns>"], tokenize=False)}})    # or rename the columns to messages, '
        "or to prompt and completion",
    ),
    _Reader(
        re.compile(r"trl[/\\][^\n]{0,60}dpo_trainer|UnslothDPOTrainer|DPODataCollator"),
        re.compile(r"prompt|chosen|rejected"),
        "TRL's DPOTrainer",
        "`prompt`, `chosen` and `rejected`, each a text or a list of messages",
        'dataset = dataset.rename_columns({{"<question>": "prompt", "<better answer>": "chosen", '
        '"<worse answer>": "rejected"}})    # train and eval set',
    ),
    _Reader(
        re.compile(r"(?:grpo|rloo)_trainer|Unsloth(?:GRPO|RLOO)Trainer"),
        re.compile(r"prompts?|answers?|solution|ground_truth|target"),
        "TRL's GRPOTrainer or RLOOTrainer",
        "`prompt` in each row, and hands all other columns to the reward functions by name",
        'dataset = dataset.map(lambda row: {{"prompt": [{{"role": "user", "content": '
        'row["<question>"]}}], "{key}": row["<its column>"]}})\n'
        "remove_unused_columns=False    # GRPOConfig: keeps the columns that rewards read",
    ),
    _Reader(
        re.compile(r"kto_trainer|bco_trainer|UnslothKTOTrainer"),
        re.compile(r"prompt|completion|label"),
        "TRL's KTOTrainer",
        "`prompt`, `completion` and `label` (true or false)",
        'dataset = dataset.rename_columns({{"<question>": "prompt", "<answer>": "completion", '
        '"<is it good>": "label"}})    # or rows of chosen and rejected: unpair_preference_dataset',
    ),
    _Reader(
        re.compile(r"trl[/\\][^\n]{0,60}reward_trainer|UnslothRewardTrainer"),
        re.compile(r"chosen\w*|rejected\w*"),
        "TRL's RewardTrainer",
        "`chosen` and `rejected` (releases before 0.13: their token ids, input_ids_chosen and so "
        "on, made beforehand)",
        'dataset = dataset.rename_columns({{"<better>": "chosen", "<worse>": "rejected"}})\n'
        "$ pip show trl    # the columns of its documentation for this release",
    ),
    _Reader(
        re.compile(r"verl[/\\][^\n]{0,80}(?:workers|agent_loop|rollout|ray_trainer|reward)"),
        re.compile(r"raw_prompt"),
        "verl",
        "the messages as they are in the file, which its data set keeps only with "
        "data.return_raw_chat (for another template of the reward model, for rollouts of several "
        "turns)",
        "data.return_raw_chat=True",
    ),
    _Reader(
        re.compile(r"verl[/\\][^\n]{0,80}(?:rl_dataset|ray_trainer|reward|sft_dataset)"),
        re.compile(r"prompt|data_source|reward_model|ground_truth|extra_info|messages|question"),
        "verl",
        "parquet files with `prompt` (a list of messages), `data_source`, `reward_model` "
        "(with `ground_truth`) and `extra_info`",
        "data.prompt_key=<the column of the prompts>    # or make the files as "
        "examples/data_preprocess/gsm8k.py does\n"
        "import pandas; print(pandas.read_parquet(FILE).iloc[0])",
    ),
    _Reader(
        re.compile(r"openrlhf[/\\][^\n]{0,80}dataset"),
        re.compile(r"input|output|prompt|chosen|rejected|label|context_messages"),
        "OpenRLHF",
        "the columns that its --input_key, --output_key, --prompt_key, --chosen_key, "
        "--rejected_key and --label_key name",
        "--input_key <column> --output_key <column>    # as the rows name them; with "
        "--apply_chat_template for lists of messages",
    ),
    _Reader(
        re.compile(
            r"swift[/\\](?:llm[/\\])?(?:utils[/\\]|dataset[/\\])?\w{0,20}(?:preprocess|dataset)"
        ),
        re.compile(
            r"messages|conversations?|query|response|instruction|output|history|role|content"
        ),
        "ms-swift",
        "rows of `messages` (role, content), of `query` and `response`, of `instruction`, `input` "
        "and `output`, or ShareGPT's `conversations`, and takes the format from the columns of "
        "the first row",
        '{{"messages": [{{"role": "user", "content": "..."}}, '
        '{{"role": "assistant", "content": "..."}}]}}    # each line of the file\n'
        '--columns \'{{"<name in the file>": "{key}"}}\'    # other names; all rows must '
        "have the columns of the first",
    ),
    _Reader(
        re.compile(
            r"(?:LazySupervised|Supervised)Dataset|(?:llava|fastchat)[/\\]train|make_supervised"
        ),
        re.compile(r"conversations?|from|value|image"),
        "the script (as FastChat's and LLaVA's)",
        "rows in ShareGPT's format: `conversations`, a list of `from` (human, gpt) and `value`, "
        "and `image` for pictures",
        'rows = [{{"id": str(i), "conversations": [{{"from": "human", "value": '
        'r["<question>"]}}, {{"from": "gpt", "value": r["<answer>"]}}]}} '
        "for i, r in enumerate(rows)]",
    ),
    _Reader(
        re.compile(r"torchtune[/\\][^\n]{0,80}(?:data|datasets)[/\\]"),
        re.compile(r"\w{1,30}"),
        "torchtune",
        "the columns that `column_map` names (instruction, input, output; conversations or "
        "messages; chosen and rejected)",
        "dataset.column_map: {{{key}: <the column in the file>}}    # in the recipe's config",
    ),
)
_FORMATS = (  # by the column, where the traceback names no trainer
    (_ALPACA, _ROWS_OF_ALPACA),
    (_SHAREGPT, _ROWS_OF_SHAREGPT),
    (_CHAT, _ROWS_OF_CHATS),
    (_VISION, _ROWS_WITH_IMAGES),
    (_PREFERENCE, _TRL),
)


def data_format(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The format that a missing column belongs to, for the trainer whose code reads it."""
    hit = hits[0]
    key = hit.values.get("key", "")
    remedy = next((fix for name, fix in _FORMATS if name.fullmatch(key)), "")
    frames = last_traceback(hit.before)
    of_format = remedy or key in _OF_TRAINERS
    for trainer, fix in _TRAINERS:
        if trainer.search(frames) and of_format and not _VISION.fullmatch(key):
            remedy = fix
            break
    return {
        **unknown_error(hits),
        "remedy": remedy.format(key=key),
        **_reader_of(frames, key),
    }


def _reader_of(frames: str, key: str) -> dict[str, str]:
    """The program that reads a column, what it reads, and how to give it; empty where unknown."""
    for reader in _READERS:
        if reader.frames.search(frames) and reader.keys.fullmatch(key):
            change = reader.change.format(key=key)
            return {"reader": reader.name, "reads": reader.reads, "change": change}
    return {"reader": "", "reads": "", "change": ""}

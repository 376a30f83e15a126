"""What a row's missing column tells of the format that a trainer reads, and how to say it."""

from __future__ import annotations

import re

from dsforge.diagnose.rule import MatchedLine
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
    frames = hit.before.rpartition("Traceback (most recent call last)")[2]
    of_format = remedy or key in _OF_TRAINERS
    for trainer, fix in _TRAINERS:
        if trainer.search(frames) and of_format and not _VISION.fullmatch(key):
            remedy = fix
            break
    return {**unknown_error(hits), "remedy": remedy.format(key=key)}

"""Conversations, a tokenizer, and chat templates in the published styles."""

import functools
import re
from pydoc_data.topics import topics
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<start_of_turn>model\n' }}"
    "{% generation %}{{ message['content'] | trim + '<end_of_turn>\n' }}{% endgeneration %}"
    "{% else %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
TOOLS = (  # in the style of ChatML with tools
    "{% if tools %}{{ '<|im_start|>system\n# Tools' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}"
    "{% for call in message['tool_calls'] %}{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# A style in which the text ends with <eos> if no answer is asked for.
PHI3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|end|>\n' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# As Qwen2-VL publishes it, without its videos and vision ids.
QWEN2_VL = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
AROUND = {"before": "<|vision_start|>", "after": "<|vision_end|>"}
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "phi3": PHI3}

_SPECIAL = [
    *[
        "<pad>",
        "<bos>",
        "<eos>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ],
    *["[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>"],
]


def untagged(template: str) -> str:
    """Return a template without its generation blocks."""
    return re.sub(r"\{% (end)?generation %\}", "", template)


KINDS = ("bytes", "metaspace", "prepend", "wordpiece", "stripping", "normalized")


@functools.cache
def _trained(kind: str) -> str:
    special = [AddedToken(text, special=True, normalized=kind == "normalized") for text in _SPECIAL]
    if kind == "stripping":  # as some tokens of Phi and Gemma do
        special = [AddedToken(text, special=True, lstrip=True, rstrip=True) for text in _SPECIAL]
    settings: dict[str, Any] = {"vocab_size": 600, "special_tokens": special, "show_progress": False}
    tokenizer = Tokenizer(models.BPE(unk_token="<pad>"))
    trainer: Any = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **settings)
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    elif kind == "prepend":  # as older tokenizers of SentencePiece are converted
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<pad>"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(**settings)
    else:
        tokenizer = Tokenizer(models.BPE())
        if kind == "normalized":
            tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)[:12]], trainer)
    text: str = tokenizer.to_str()
    return text


def make_tokenizer(template: Any = CHATML, kind: str = "bytes") -> Any:
    """Return a tokenizer of 600 tokens with this chat template; a byte-level BPE, or another of KINDS."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(kind)),
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=template,
    )


@functools.cache
def vision_tokenizer() -> Any:
    """A tokenizer with the tokens and the template of Qwen2-VL."""
    made = make_tokenizer(QWEN2_VL)
    made.add_special_tokens({"additional_special_tokens": [*AROUND.values(), "<|image_pad|>", "<|video_pad|>"]})
    return made


def qwen2_vl_processor(max_tokens: int) -> Any:
    """The processor of Qwen2-VL, of pixels as `Patches` has them: neither scaled nor normalised, and resized bilinearly."""
    images = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl")
    videos = pytest.importorskip("transformers.models.qwen2_vl.video_processing_qwen2_vl")
    processing = pytest.importorskip("transformers.models.qwen2_vl.processing_qwen2_vl")
    settings = {"do_rescale": False, "do_normalize": False, "min_pixels": 1, "max_pixels": max_tokens * 28 * 28}
    return processing.Qwen2VLProcessor(
        images.Qwen2VLImageProcessor(**settings, resample=2),
        vision_tokenizer(),
        videos.Qwen2VLVideoProcessor(),
        chat_template=QWEN2_VL,
    )


def chat_of(number: int, turns: int | None = None) -> list[dict[str, str]]:
    """Return a conversation of one to three questions and answers, the longer the higher the number."""
    messages = []
    for turn in range(1 + number % 3 if turns is None else turns):
        messages.append({"role": "user", "content": f"Question {number}.{turn}: what is {'a ' * (number % 5)}name?"})
        messages.append(
            {"role": "assistant", "content": f"Answer {number}.{turn}, {'which is long, ' * (number % 7)}é."}
        )
    return messages


def records(size: int) -> list[dict[str, Any]]:
    """Return records in OpenAI's layout."""
    return [{"messages": chat_of(number)} for number in range(size)]

"""Questions and answers about Python from `pydoc_data.topics`, and a small tokenizer and model for them.

`sft.py` and `preferences.py` use them. In a script of your own these are data, tokenizer and model of a hub.
"""

import hashlib
import signal
from collections.abc import Mapping
from os import getpid, kill
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>"]
SAVE_EVERY = 10  # steps

Message = dict[str, str]


def questions() -> list[tuple[str, list[str]]]:
    """Return the topics of Python's documentation, and the first paragraphs about each."""
    found = []
    for name in sorted(topics):
        parts = [" ".join(part.split())[:300] for part in topics[name].split("\n\n")]
        found.append((name, [part for part in parts if len(part) > 60][:3]))
    return [(name, parts) for name, parts in found if parts]


def ask(text: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of 800 tokens on the topics."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [part for _, parts in questions() for part in parts]
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=800, special_tokens=SPECIAL, show_progress=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )


def make_model(tokenizer: Any) -> Any:
    """Return a Llama of two small layers, the same each time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), use_cache=False, **sizes))


def save(path: Path, step: int, parts: Mapping[str, Any]) -> None:
    """Write the step and the parts' states atomically: a kill never leaves a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, unfinished)
    unfinished.replace(path)


def load(path: Path, parts: Mapping[str, Any]) -> int:
    """Load the parts' states, and return the step."""
    found = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(found[name])
    return int(found["step"])


def die() -> None:
    kill(getpid(), signal.SIGKILL)


def digest(model: Any) -> str:
    weights = [value.detach().numpy().tobytes() for value in model.state_dict().values()]
    return hashlib.blake2b(b"".join(weights), digest_size=8).hexdigest()

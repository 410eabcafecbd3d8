"""Texts with random masks, by the collator of transformers with a seed: killed, resumed, and the same bit for bit.

    python examples/fields/masked_text.py

With `seed=42` the collator keeps a generator of its own, which the Loader seeds with each batch. Under a DataLoader, each epoch has the
same masks.
"""

from killed import compare
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

import loaderkit as lk

TEXTS, WORDS = 48, 40


def make(workers: int) -> lk.Loader:
    words = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[MASK]", *map(str, range(100))])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")),
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )
    texts = [{"input_ids": [3 + (text + word) % 100 for word in range(WORDS)]} for text in range(TEXTS)]
    collate = DataCollatorForLanguageModeling(tokenizer, seed=42)
    return lk.Loader(texts, batch_size=4, shuffle=True, seed=1, num_workers=workers, collate_fn=collate)


if __name__ == "__main__":
    compare(make)

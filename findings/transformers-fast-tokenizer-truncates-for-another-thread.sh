#!/usr/bin/env bash
# A good guess: max_length= belongs to a call, so threads that share a fast tokenizer each get their own length; or the tokenizer raises "Already borrowed".
# What happens instead: nothing is raised, and some results have the other thread's length. A call sets the length on the shared tokenizer and encodes
# afterwards; another thread sets its own in between. Threads that all give the same settings get what they ask for.
# transformers 5.24.0, tokenizers 0.23.3, Python 3.11 or later; also without the GIL
# Output seen: two threads, max_length 5 and 9: some results have another length, none raised
# Output seen: two threads, max_length 5 and 5: all have the wanted length
# Who meets it: a thread that tokenizes training texts beside one that cuts prompts or evaluation texts at another length; a server. Give each thread a tokenizer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0 tokenizers==0.23.3

cat > "$folder/case.py" <<'PYTHON'
import threading

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"unknown": 0, "a": 1, "b": 2}, unk_token="unknown"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="unknown")
CALLS = 20_000


def wrong_lengths(*lengths):
    found = []

    def call(length):
        for _ in range(CALLS):
            found.append(len(tokenizer("a b " * 20, truncation=True, max_length=length)["input_ids"]) - length)

    threads = [threading.Thread(target=call, args=(length,)) for length in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == CALLS * len(lengths), "a call raised"
    return sum(map(bool, found))


other, same = wrong_lengths(5, 9), wrong_lengths(5, 5)
print(f"two threads, max_length 5 and 9: {other} of {2 * CALLS} results have another length, none raised")
print(f"two threads, max_length 5 and 5: {same} of {2 * CALLS} have another length")
if not other or same:
    raise SystemExit("the behaviour changed")
PYTHON
"$folder/venv/bin/python" "$folder/case.py"

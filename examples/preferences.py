"""Train on preference pairs by DPO, with both answers of a pair in one batch; killed and resumed.

    python examples/preferences.py --kill-after 25
    python examples/preferences.py --resume

The chosen answer to a question about Python is about its topic, the rejected one about another topic. The first command saves every 10
steps and kills itself (SIGKILL). The second continues after the last checkpoint, and prints the digest of the weights that a run without
interruption prints:

    python examples/preferences.py

The loss is that of Rafailov et al., "Direct Preference Optimization" (2023).
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from chat_data import SAVE_EVERY, ask, die, digest, load, make_model, make_tokenizer, questions, save
from torch import Tensor
from torch.nn.functional import logsigmoid

import loaderkit as lk

BETA, TOKENS = 0.3, 4096


def pairs() -> list[dict[str, list[dict[str, str]]]]:
    """Return pairs whose prompt is what both conversations begin with."""
    found = questions()
    records = []
    for number, (name, parts) in enumerate(found):
        question, other = f"What is {name}?", found[number - 7][1]
        records.append({"chosen": ask(question, parts[0]), "rejected": ask(question, other[0])})
    return records


def log_likelihood(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the log-likelihood (2B,) of each answer."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    each = logits.log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
    total: Tensor = (each * (labels != -100)).sum(1)
    return total


def margin(model: Any, reference: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return how much more the model prefers each chosen answer (B,) than the reference does."""
    with torch.no_grad():
        before = log_likelihood(reference, batch)
    chosen, rejected = (log_likelihood(model, batch) - before).chunk(2)
    return BETA * (chosen - rejected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/preferences.pt"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()

    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    data = lk.PreferenceDataset(lk.RecordDataset(pairs()), tokenizer)
    length = lk.measure_lengths(data, lambda pair: 2 * max(len(side["input_ids"]) for side in pair.values()))
    plan = lk.TokenBudget(length, TOKENS)
    collate = lk.ChatCollate(pad_token=tokenizer.pad_token_id)
    loader = lk.Loader(data, plan=plan, collate_fn=collate, num_workers=given.workers)
    model, reference = make_model(tokenizer), make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    step = 0
    if given.resume:
        step = load(given.checkpoint, parts)
        print(f"resumed after step {step}, at epoch {loader.cursor.epoch}, batch {loader.cursor.batches}")

    while step < given.steps:
        for batch in loader:
            step += 1
            found = margin(model, reference, batch)
            loss = -logsigmoid(found).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % SAVE_EVERY == 0:
                print(f"step {step}: loss {loss.item():.4f}, {(found > 0).float().mean():.0%} preferred", flush=True)
                save(given.checkpoint, step, parts)
            if step == given.kill_after:
                print(f"killed after step {step}", flush=True)
                die()
            if step == given.steps:
                break
    print(f"final weights: {digest(model)}")


if __name__ == "__main__":
    main()

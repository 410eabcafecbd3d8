"""Fine-tune a language model on conversations, packed, with the loss on the answers alone; killed and resumed.

    python examples/sft.py --kill-after 25
    python examples/sft.py --resume

The first command trains a small Llama on questions about Python, saves every 10 steps, and kills itself (SIGKILL). The second continues
after the last checkpoint. It prints a digest of the final weights. A run without interruption prints the same digest:

    python examples/sft.py

Before it trains, the script compares a packed batch with its conversations one by one: the loss is the same, as `position_ids` keep
them apart.
"""

import argparse
from pathlib import Path

import torch
from chat_data import SAVE_EVERY, ask, die, digest, load, make_model, make_tokenizer, questions, save
from torch import Tensor

import loaderkit as lk

ROW, ROWS = 512, 4


def conversations() -> list[dict[str, list[dict[str, str]]]]:
    """Return one record a topic: a question, and one more for each further paragraph."""
    records = []
    for name, parts in questions():
        turns = ask(f"What does Python's documentation say about {name}?", parts[0])
        for part in parts[1:]:
            turns += ask("Go on.", part)
        records.append({"messages": turns})
    return records


def packed_loss(model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of the answers' tokens."""
    loss: Tensor = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], labels=batch["labels"]).loss
    return loss


def loss_alone(model: torch.nn.Module, batch: dict[str, Tensor]) -> float:
    """Return the same, from the conversations one by one."""
    total = 0.0
    pairs = list(zip(lk.unpack(batch, "input_ids"), lk.unpack(batch, "labels"), strict=True))
    for ids, labels in pairs:
        total += model(input_ids=ids[None], labels=labels[None]).loss.item() * int((labels != -100).sum())
    return total / sum(int((labels != -100).sum()) for _, labels in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/sft.pt"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()

    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    chats = lk.ChatDataset(lk.RecordDataset(conversations()), tokenizer)
    lengths = lk.measure_lengths(chats, "input_ids", num_workers=given.workers)
    plan = lk.PackPlan(lengths, ROW, ROWS, too_long="drop")
    collate = lk.PackCollate(
        tokens="input_ids", row_length=ROW, pad_value=tokenizer.pad_token_id, labels=None, fields={"labels": -100}
    )
    loader = lk.Loader(chats, plan=plan, collate_fn=collate, num_workers=given.workers)
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    step = 0
    if given.resume:
        step = load(given.checkpoint, parts)
        print(f"resumed after step {step}, at epoch {loader.cursor.epoch}, batch {loader.cursor.batches}")
    else:
        batch = next(iter(lk.Loader(chats, plan=plan, collate_fn=collate)))
        with torch.no_grad():
            losses = packed_loss(model, batch).item(), loss_alone(model, batch)
        count = len(lk.unpack(batch, "input_ids"))
        print(f"{count} conversations in {ROWS} rows: loss {losses[0]:.5f} packed, {losses[1]:.5f} one by one")

    while step < given.steps:
        for batch in loader:
            step += 1
            loss = packed_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % SAVE_EVERY == 0:
                print(f"step {step}: {loss.item():.4f} nats a token of an answer", flush=True)
                save(given.checkpoint, step, parts)
            if step == given.kill_after:
                print(f"killed after step {step}", flush=True)
                die()
            if step == given.steps:
                break
    print(f"final weights: {digest(model)}")


if __name__ == "__main__":
    main()

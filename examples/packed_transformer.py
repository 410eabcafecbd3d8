"""A small transformer on packed rows: with document masks its loss and gradients are those of the texts one by one.

    python examples/packed_transformer.py

`PackPlan` fills rows of 1,024 bytes with several texts of `pydoc_data.topics`; `lk.document_mask` keeps them apart and
`position_ids` count from 0 in each. The script compares a packed batch with the same texts alone, then trains.
"""

import argparse
import itertools
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

import loaderkit as lk

ROW, WIDTH, HEADS = 1024, 64, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        rows, steps, _ = hidden.shape
        query, key, value = self.qkv(self.before(hidden)).view(rows, steps, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, steps, WIDTH))
        result: Tensor = hidden + self.net(self.after(hidden))
        return result


class Transformer(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(ROW, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        hidden = self.tokens(tokens.long()) + self.places(positions)
        for block in self.blocks:
            hidden = block(hidden, mask)
        logits: Tensor = self.head(hidden)
        return logits


def packed_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Sum the loss over all positions that have a label."""
    logits = model(batch["tokens"], batch["position_ids"], lk.document_mask(batch["document_ids"]))
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")


def loss_alone(model: nn.Module, tokens: Tensor) -> Tensor:
    """Sum the loss over one text alone, without packing or a mask."""
    positions = torch.arange(len(tokens))[None]
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    logits = model(tokens[None], positions, mask)
    return nn.functional.cross_entropy(logits[0, :-1], tokens[1:].long(), reduction="sum")


def compare(model: nn.Module, batch: dict[str, Tensor]) -> tuple[float, float, float]:
    """Return both losses, and the largest difference of a gradient relative to the largest gradient."""
    texts = lk.unpack(batch)
    found = []
    for packed_too in (True, False):
        model.zero_grad()
        loss = (
            packed_loss(model, batch) if packed_too else torch.stack([loss_alone(model, text) for text in texts]).sum()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        found.append((loss.item(), torch.cat([weight.grad.flatten() for weight in model.parameters()])))  # type: ignore[union-attr]
    (packed, ours), (alone, theirs) = found
    return packed, alone, float((ours - theirs).abs().max() / theirs.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    texts = {"text": [part for name in sorted(topics) for part in topics[name].split("\n\n") if len(part) > 40]}
    data = lk.TextDataModule(
        texts,
        splits={"train": 1},
        batching=lk.TextBatching(how="packed", max_length=ROW),
        loader=lk.LoaderConfig(batch_size=4),
    )
    loader = data.train_dataloader()
    torch.manual_seed(0)
    model = Transformer(data.vocab_size).double()
    batch = next(iter(loader))
    packed, alone, difference = compare(model, batch)
    count = len(lk.unpack(batch))
    print(f"{count} texts in {len(batch['tokens'])} rows: loss {packed:.9f} packed, {alone:.9f} one by one")
    print(f"gradients differ by {difference:.1e} of the largest")
    model = model.float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    real = places = 0
    for step, batch in enumerate(itertools.islice(loader, given.steps)):
        loss = packed_loss(model, batch) / (batch["labels"] != -100).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        real, places = real + int((batch["document_ids"] >= 0).sum()), places + batch["tokens"].numel()
        if step % 20 == 0:
            print(f"step {step:3}: {loss.item():.4f} nats a byte", flush=True)
    print(f"{places / real:.4f} places for each token; {loss.item():.4f} nats a byte in the end")


if __name__ == "__main__":
    main()

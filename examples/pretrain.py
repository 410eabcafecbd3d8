"""Pretraining of a language model: real text, byte-pair tokens, packed rows; killed, and resumed on any number of ranks.

    python examples/pretrain.py --kill-after 50
    python examples/pretrain.py
    torchrun --standalone --nproc-per-node 2 examples/pretrain.py --folder runs/two

The documents are Python's own help texts (`pydoc_data.topics`). A document longer than a row is cut, and each token comes once
an epoch. With `--windows` documents are shuffled and joined, and cut into windows, as Megatron does. Started by torchrun,
the model is sharded by FSDP2. The checkpoint is one of torch.distributed.checkpoint, so the ranks may change.
"""

import argparse
import os
import signal
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard

import loaderkit as lk

ROW, WIDTH, HEADS, VOCABULARY, END = 256, 96, 4, 2048, 0


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
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(ROW, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: Any) -> Tensor:
        """Return the mean loss of a packed batch, or of windows (B, T + 1)."""
        if isinstance(batch, Tensor):
            batch = {"tokens": batch[:, :-1], "labels": batch[:, 1:], "document_ids": torch.zeros_like(batch[:, :-1])}
            batch["position_ids"] = torch.arange(batch["tokens"].shape[1], device=batch["tokens"].device)
        hidden = self.tokens(batch["tokens"]) + self.places(batch["position_ids"])
        mask = lk.document_mask(batch["document_ids"])  # no token sees another document
        for block in self.blocks:
            hidden = block(hidden, mask)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), batch["labels"].flatten())


class Training:
    """The model, the optimizer and the number of steps, as torch.distributed.checkpoint saves them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def write_tokens(folder: Path) -> None:
    """Train a tokenizer on the texts and write their tokens, once."""
    if folder.is_dir():
        return
    documents = [topics[name] for name in sorted(topics)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    part = folder.with_suffix(".part")
    encode = lk.TokenFormat(tokenizer=lambda text: tokenizer.encode(text).ids, end_token=END)
    lk.write_shards(documents, part, format=encode, samples_per_shard=20)
    tokenizer.save(str(part / "tokenizer.json"))
    part.rename(folder)


def make_loader(tokens: Path, batch_size: int, windows: bool, device: torch.device) -> lk.DeviceLoader:
    documents = lk.DocumentDataset(tokens)
    if windows:
        data = lk.WindowDataset(documents, ROW + 1, stride=ROW)
        loader = lk.Loader(data, batch_size, shuffle=True, num_workers=1)
    else:
        plan = lk.PackPlan(documents.lengths(), ROW, batch_size, too_long="split")
        loader = lk.Loader(documents, plan=plan, collate_fn=lk.PackCollate(row_length=ROW), num_workers=1)
    return lk.DeviceLoader(loader, device, transform=lk.WidenTokens())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrain"))
    parser.add_argument("--tokens", type=Path, default=Path("runs/pretrain-tokens"))
    parser.add_argument("--windows", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=8, help="rows of all ranks in a step")
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"} | os.environ)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")  # torchrun says which rank this is; else one
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_tokens(given.tokens)
    dist.barrier()

    torch.manual_seed(0)
    model = Transformer().to(device)
    if ranks > 1:
        mesh = dist.device_mesh.init_device_mesh(device.type, (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    loader = make_loader(given.tokens, given.batch_size // ranks, given.windows, device)
    parts = {"training": training, "loader": loader}
    saved = sorted(path.parent for path in given.folder.glob("step-*/.metadata"))  # a whole checkpoint has it
    if saved:
        load(parts, checkpoint_id=saved[-1])
        say(rank, f"resumed after step {training.step}, on {ranks} ranks")

    while training.step < given.steps:
        for batch in loader:
            if training.step == given.kill_after:
                say(rank, f"killed after step {training.step}")
                os.kill(os.getpid(), signal.SIGKILL)
            loss = model(batch)
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
            training.step += 1
            if training.step % 20 == 0:
                say(rank, f"step {training.step:3}: {loss.item():.4f} nats a token")
                save(parts, checkpoint_id=given.folder / f"step-{training.step:06}")
            if training.step == given.steps:
                break
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(weights, given.folder / "weights.pt")
    dist.barrier()  # torchrun ends all ranks when one fails: let rank 0 write first
    dist.destroy_process_group()


def say(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()

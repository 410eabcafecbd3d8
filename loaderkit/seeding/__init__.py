"""Which random numbers belong to which sample."""

from loaderkit.seeding.draws import DeclaresDraws, Draws, NoSeeds, SampleRngSeeds, draws, draws_nothing
from loaderkit.seeding.generators import generator
from loaderkit.seeding.global_seeds import seed_all, seed_worker, torch_seed
from loaderkit.seeding.keys import derive_seed, hash_positions, mixed_word
from loaderkit.seeding.samples import SampleSeeds, part_of_batch, per_sample, sample_rng, seeds_apart

__all__ = [
    "DeclaresDraws",
    "Draws",
    "NoSeeds",
    "SampleRngSeeds",
    "SampleSeeds",
    "derive_seed",
    "draws",
    "draws_nothing",
    "generator",
    "hash_positions",
    "mixed_word",
    "part_of_batch",
    "per_sample",
    "sample_rng",
    "seed_all",
    "seed_worker",
    "seeds_apart",
    "torch_seed",
]

"""Which random numbers belong to which sample."""

from loaderkit.seeding.draws import Draws, draws, draws_nothing
from loaderkit.seeding.generators import generator
from loaderkit.seeding.global_seeds import seed_all, workers_seed
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.samples import SampleSeeds, part_of_batch, per_sample

__all__ = [
    "Draws",
    "SampleSeeds",
    "draws",
    "draws_nothing",
    "generator",
    "hash_positions",
    "part_of_batch",
    "per_sample",
    "seed_all",
    "workers_seed",
]

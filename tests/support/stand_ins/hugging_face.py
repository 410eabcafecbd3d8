"""What scripts under transformers and Accelerate import, for the server that forks them: it takes seconds of CPU."""

import gc

import accelerate  # noqa: F401
import datasets  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.bert import modeling_bert  # noqa: F401

import loaderkit as lk

get_checkpoint_conversion_mapping("bert")  # the first call makes all of them
lk.integrations.huggingface.last_checkpoint(".")
torch.optim.AdamW([torch.zeros(1)])
gc.collect()
gc.freeze()  # a Trainer collects garbage when it starts

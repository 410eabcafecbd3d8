"""Windows of time series of random lengths, by PyTorch Forecasting: killed, resumed, and the same bit for bit.

    pip install pytorch-forecasting
    python examples/fields/time_series.py

`randomize_length` draws from torch's global generator, which the Loader seeds with each sample.
"""

import numpy as np
import pandas as pd
from killed import compare
from pytorch_forecasting import TimeSeriesDataSet

import loaderkit as lk

SERIES, STEPS = 4, 40


def make(workers: int) -> lk.Loader:
    table = pd.DataFrame(
        {
            "time": np.tile(np.arange(STEPS), SERIES),
            "series": np.repeat([f"shop {number}" for number in range(SERIES)], STEPS),
            "sales": np.random.default_rng(0).normal(size=SERIES * STEPS).cumsum(),
        }
    )
    data = TimeSeriesDataSet(
        table,
        time_idx="time",
        target="sales",
        group_ids=["series"],
        min_encoder_length=4,
        max_encoder_length=16,
        max_prediction_length=4,
        min_prediction_length=1,
        time_varying_unknown_reals=["sales"],
        randomize_length=True,
    )
    collate = data.to_dataloader().collate_fn  # it pads windows to the longest
    return lk.Loader(data, batch_size=8, shuffle=True, seed=1, num_workers=workers, collate_fn=collate)


if __name__ == "__main__":
    compare(make)

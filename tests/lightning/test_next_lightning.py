"""Lightning's next release: runs resume under it, and what a Loader says of Lightning is what the installed one does."""

from pathlib import Path
from typing import Any

import next_lightning
import pytest
from lightning_runs import checkpoints_of, resume_everywhere, run_in_process

import loaderkit as lk


def said_when_saving() -> str:
    loader = lk.Loader(range(20), 4)
    loader.sampler.set_epoch(0)  # as a Trainer does
    with pytest.warns(UserWarning, match="got directly") as said:
        loader.state_dict()
    return str(said[0].message)


def test_a_warning_of_dropped_states_is_for_a_lightning_that_drops_them() -> None:
    dropped = "Lightning drops the state if `trainer.estimated_stepping_batches` is read"
    assert dropped in said_when_saving()
    with next_lightning.installed():
        text = said_when_saving()
    assert dropped not in text
    assert "Use loaderkit.DataModule and its loaders, which are exact in all these cases." in text


@pytest.mark.slow
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=["alone", "workers"])
def test_runs_resume_exactly_under_the_next_lightning(direct: bool, workers: dict[str, Any], tmp_path: Path) -> None:
    """Also a bare Loader's, if the model reads `estimated_stepping_batches`: no state is dropped any more."""
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 4, "reads_steps": True, "next_lightning": True}
    whole |= {"direct": direct, "loader": workers}
    run_in_process(whole)
    checkpoints = [path for path in checkpoints_of(whole) if "step" in path.stem]
    assert len(checkpoints) > 5
    assert len(set(resume_everywhere(whole, checkpoints))) > 5

"""Under the Trainer of transformers: runs that are killed and resumed, and evaluation on several ranks."""

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from killed_runs import PRELOAD, Runs, Survives, check_survives, count_exact, survivor

import loaderkit as lk

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[huggingface]'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface_trainer.py"
JOB, SIZE = "trainer_job.py", 43
ACCUMULATE = {"gradient_accumulation_steps": 2}
STEPS = {"max_steps": 14, **ACCUMULATE}  # for data without a length
BEST = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "mean",
    "eval_on_start": True,
    "save_total_limit": 2,
    "dataloader_num_workers": 1,
}
# Each with the batches of a rank in which it may be killed, all after its first checkpoint.
CASES: dict[str, tuple[range, dict[str, Any]]] = {
    "two ranks, accumulation": (range(5, 12), {"ranks": 2, "settings": ACCUMULATE}),
    "one rank": (range(5, 22), {}),
    "accumulation": (range(5, 22), {"settings": ACCUMULATE}),
    "best model, evaluation, workers": (range(5, 22), {"settings": BEST}),
    "checkpoints at epochs' ends": (range(12, 22), {"settings": {"save_strategy": "epoch"}}),
    "max_steps in an epoch": (range(5, 14), {"settings": {**ACCUMULATE, "max_steps": 7}}),
    "datasets.Dataset": (range(5, 22), {"data": "hf"}),
    "datasets.IterableDataset": (range(5, 28), {"data": "hf_stream", "settings": STEPS}),
    "datasets.IterableDataset, two ranks": (
        range(5, 14),
        {"data": "hf_stream", "ranks": 2, "settings": {"max_steps": 14}},
    ),
    "StreamDataset, two ranks": (range(5, 14), {"data": "stream", "ranks": 2, "settings": {"max_steps": 14}}),
    "LengthBuckets": (range(5, 20), {"data": "lengths"}),
    "LengthBuckets, two ranks": (range(5, 10), {"data": "lengths", "ranks": 2}),
}


@pytest.fixture(scope="module")
def survives(tmp_path_factory: pytest.TempPathFactory) -> Survives:
    return survivor(tmp_path_factory, JOB, CASES)


def test_a_killed_run_resumes_to_the_same_weights(survives: Survives, pytestconfig: pytest.Config) -> None:
    """By default on two ranks; `--kills` takes one case after another, and counts what the Trainer's own loader does."""
    check_survives(survives, CASES, pytestconfig.getoption("kills"), own_data=(None, "hf", "hf_stream"), still=1)


def test_a_kill_while_it_saves_leaves_a_checkpoint_to_resume_from(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """It saves at each step, on two ranks, and is killed at random times: most of the time it is saving."""
    kills = pytestconfig.getoption("kills")
    if kills == 1:
        pytest.skip("takes many kills: --kills 10")
    runs = Runs(tmp_path, JOB, ranks=2, settings={"save_steps": 1, "save_total_limit": 2})
    start = time.monotonic()
    runs.start("whole", "whole.pt")
    took = time.monotonic() - start
    halves = resumed = 0
    for number in range(kills):
        folder = f"killed-{number}"
        runs.start(folder, "x.pt", kill_after_s=random.Random(number).uniform(0.3, 1) * took, code=-9)
        last = lk.integrations.huggingface.last_checkpoint(tmp_path / folder)
        halves += last != max(
            map(str, (tmp_path / folder).glob("*")), key=lambda path: int(path.split("-")[-1]), default=None
        )
        resumed += last is not None
        runs.start(folder, f"{number}.pt", resume=True)
        assert runs.same("whole.pt", f"{number}.pt"), number
    print(f"{kills} of {kills} exact, {resumed} of them resumed, {halves} times after half a checkpoint")


def test_the_example_is_killed_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    assert count_exact(tmp_path, EXAMPLE, steps=60, kills=1, preload=PRELOAD) == 1


def test_another_number_of_ranks_resumes_if_an_optimizer_step_has_as_many_samples(tmp_path: Path) -> None:
    runs = Runs(tmp_path, JOB, settings={**ACCUMULATE, "num_train_epochs": 1})
    runs.start("two", "two.pt", ranks=2, kill_at=4, code=-9)  # after two optimizer steps of 16 samples
    shutil.copytree(tmp_path / "two", tmp_path / "again")
    text = runs.start("again", "again.pt", resume=True, code=1)
    assert "An optimizer step had 16 samples over all ranks, and has 8 now" in text
    assert "the Trainer takes it for epoch 0 after batch 4 of 11" in text
    settings = {"gradient_accumulation_steps": 4, "num_train_epochs": 1}
    text = runs.start("again", "again.pt", resume=True, settings=settings | {"ignore_data_skip": True}, code=1)
    assert "ignore_data_skip=True trains on the whole epoch again" in text
    runs.start("two", "one.pt", resume=True, settings=settings)
    assert Path(runs.read("one.pt")["resumed"]).name == "checkpoint-2"
    read = Counter(n for _, numbers in runs.log("two.pt", 2) + runs.log("one.pt", 1) for n in numbers)
    assert read == Counter(range(SIZE))


def test_evaluation_gives_one_processs_metrics_and_repeats_nothing(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """On two ranks; with `--kills` above 1 also what the Trainer's own loader gives, whose last step repeats samples."""
    runs = Runs(tmp_path, JOB, evaluate=True)

    def metrics(loader: str, ranks: int) -> Any:
        runs.start("unused", "metrics.json", loader=loader, ranks=ranks)
        return json.loads((tmp_path / "metrics.json").read_text())

    one, two = metrics("ours", 1), metrics("ours", 2)
    assert one["eval_labels"] == two["eval_labels"] == [n % 3 for n in range(SIZE)]
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-6)
    if pytestconfig.getoption("kills") > 1:
        own = metrics("own", 2)
        print(f"loss {two['eval_loss']} as of one process; with the Trainer's own loader {own['eval_loss']}")


@pytest.mark.parametrize("seed", range(3))
def test_a_half_written_checkpoint_is_not_taken(seed: int, tmp_path: Path) -> None:
    assert lk.integrations.huggingface.last_checkpoint(tmp_path) is None
    text = json.dumps({"stateful_callbacks": {"loaderkit": {"loader": {}}}})
    for step in (2, 10, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert lk.integrations.huggingface.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    cut = random.Random(seed).randrange(len(text))
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text(text[:cut])
    (tmp_path / "checkpoint-12").mkdir()
    assert lk.integrations.huggingface.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")


def test_what_cannot_be_exact_is_refused(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Resumable(lk.integrations.huggingface.ResumableTrainer, Trainer):  # type: ignore[misc]
        pass

    def trainer(**settings: Any) -> Any:
        args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **settings)
        return Resumable(torch.nn.Linear(2, 2), args, train_dataset=lk.ArrayDataset({"x": torch.ones(9, 2)}))

    with pytest.raises(ValueError, match="found no whole checkpoint of a ResumableTrainer in"):
        trainer().train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(ValueError, match="checkpoint-3 is not a whole checkpoint"):
        trainer().train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    with pytest.raises(ValueError, match=r"Give the Trainer train_dataset=lk\.Loader\(dataset, plan=lk\.LengthBuckets"):
        trainer(train_sampling_strategy="group_by_length").get_train_dataloader()
    two = trainer()
    two.args = SimpleNamespace(world_size=2, eval_batch_size=4)
    with pytest.raises(ValueError, match="the evaluation data, Numbers, does not say how 2 ranks share it"):
        two.get_eval_dataloader(Numbers())


class Numbers(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))

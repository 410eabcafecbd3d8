"""The examples run as they stand, and show what they promise."""

import importlib.util
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from scripts import run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SUPPORT = ROOT / "tests" / "support"
OTHER_TEXTS = sys.version_info >= (3, 14)  # Python's own documentation, which some examples train on


@pytest.mark.slow
def test_the_demo_shows_an_exact_resume_and_what_dataloader_does(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "demo.py", "--folder", "here/demo")
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:4]] for cells in map(cut, text.splitlines()) if cells}
    assert rows["samples trained twice in that epoch"][0] == "0"
    assert rows["samples never trained in that epoch"][0] == "0"
    assert rows["samples in the same order"] == ["yes", "no"]
    assert rows["final weights bit-identical"] == ["yes", "no"]
    assert int(rows["samples trained twice in that epoch"][1]) > 0
    assert int(rows["samples never trained in that epoch"][1]) > 0
    changed = rows["of 297 test digits, answers that the kill changed"]
    assert changed[0] == "0"
    assert int(changed[1]) > 0
    assert "accuracy" not in text  # of one run it shows chance, not what the kill cost
    assert 0 < int(rows["place in the data, in the checkpoint"][0].removesuffix(" bytes")) < 1024
    assert text.count("SIGKILL after step") == 2
    assert "the uninterrupted one, bit for bit" in text
    assert (tmp_path / "here" / "demo.png").read_bytes().startswith(b"\x89PNG")


def cut(line: str) -> list[str]:
    return line.split("│") if line.startswith("│") else []


@pytest.mark.slow
def test_the_demo_fails_where_the_resume_is_not_exact(tmp_path: Path) -> None:
    """With a Loader that forgets its place the demo exits with 1."""
    script = tmp_path / "forgetful.py"
    script.write_text(
        "import functools, multiprocessing, sys\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import demo_training\n"
        "demo_training.EPOCHS = 2\n"
        "import demo\n"
        "from loaderkit import Loader\n"
        "Loader.load_state_dict = lambda self, state: None\n"
        "fork = multiprocessing.get_context('fork')  # takes over what this process has imported and changed\n"
        "multiprocessing.get_context = lambda method=None: fork\n"
        "outcome = functools.cache(functools.partial(demo.kill_and_resume, 'loaderkit'))\n"
        "demo.kill_and_resume = lambda kind, folder: outcome(folder)  # what DataLoader does is not asked here\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(demo.main())\n"
    )
    assert "loaderkit's resumed run is not the uninterrupted one" in run(tmp_path, script, code=1)


@pytest.mark.slow
def test_a_lightning_run_that_was_stopped_resumes_on_other_workers(tmp_path: Path) -> None:
    script = EXAMPLES / "image_classification_lightning.py"
    options = ("--epochs", "2")
    run(tmp_path, script, *options, "--folder", "whole", "--workers", "0")
    run(tmp_path, script, *options, "--folder", "cut", "--stop-after", "70", code=1)
    text = run(tmp_path, script, *options, "--folder", "cut", "--resume", "last", "--workers", "1")
    assert "94 steps, accuracy 0." in text
    weights = [torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"] for name in ("whole", "cut")]
    assert len(weights[0]) == 6
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_a_plain_loop_that_was_killed_resumes_to_the_same_weights(tmp_path: Path) -> None:
    script = EXAMPLES / "image_classification_torch.py"
    killed = run(tmp_path, script, "--kill-after", "70", code=-signal.SIGKILL)
    assert "killed in epoch 1, after batch 23" in killed
    resumed = run(tmp_path, script, "--resume", "--workers", "1", fresh=True)
    assert "resumed at epoch 1, batch 13 of 47" in resumed
    whole = run(tmp_path, script, "--checkpoint", "other.pt", "--workers", "0")
    assert re.findall("final weights: .*", whole) == re.findall("final weights: .*", resumed) != []


@pytest.mark.slow
def test_two_killed_ranks_and_one_more_give_every_sample_exactly_once(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "ddp.py", "--samples", "601")
    assert "two ranks: killed in the middle of the epoch" in text
    assert "320 samples by two ranks, 281 by one" in text
    assert "601 of 601 samples trained, each 1 time(s)" in text


@pytest.mark.slow
@pytest.mark.timeout(3000)  # of many kills
def test_a_node_that_is_killed_and_one_that_joins_leave_each_sample_to_be_trained_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for _ in range(request.config.getoption("--kills")):
        text = run(tmp_path, EXAMPLES / "elastic.py")
        kill_at = int(re.findall(r"node 1 was killed at step (\d+): exit code -9", text)[0])
        assert "nodes 0 and 2 ended with 0 and 0" in text
        alone = int(re.findall(r"node 0: rank 0 of 1 begins after step (\d+)", text)[-1])
        joined = [int(step) for step in re.findall(r"node [02]: rank [01] of 2 begins after step (\d+)", text)[-2:]]
        assert 0 < alone <= kill_at + 1
        assert joined == 2 * [alone + 5]  # the last save of the seven steps that node 0 made alone
        assert "1600 of 1600 samples trained, each 1 time(s)" in text
        assert text.endswith("the same training\n")


@pytest.mark.slow
def test_two_killed_ranks_on_s3_and_one_more_give_every_sample_exactly_once(tmp_path: Path) -> None:
    for package in ("moto", "s3fs", "flask", "flask_cors"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[test]'")
    text = run(tmp_path, EXAMPLES / "shards_on_s3.py")
    assert "two ranks: killed in the middle of the epoch" in text
    assert "320 samples by two ranks, 1477 by one" in text
    assert "1797 of 1797 samples trained, each 1 time(s)" in text


@pytest.mark.slow
def test_a_stream_from_a_service_that_was_killed_comes_once_in_the_same_order(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "stream_service.py")
    assert "killed after batch 30 of its epoch, with 2 workers: exit code -9" in text
    (found, wanted) = map(int, re.findall(r"(\d+) samples of (\d+), each once: True", text)[0])
    assert found == wanted > 30 * 32  # it was killed on its way
    assert "the same order as the uninterrupted run: True; the same weights, bit for bit: True" in text
    assert "leaked semaphore" not in text


@pytest.mark.slow
def test_raw_texts_that_were_killed_come_once_and_give_the_same_weights(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "raw_texts.py")
    assert "killed after batch 30 of its epoch, with 2 workers: exit code -9" in text
    (texts, tokens) = re.findall(r"(\d+) texts, ([\d,]+) tokens, each once: True", text)[0]
    assert int(texts) > 50
    assert int(tokens.replace(",", "")) > 30 * 8 * 512 * 0.9  # it was killed on its way
    assert "the same weights as the uninterrupted run, bit for bit: True" in text
    assert "leaked semaphore" not in text


@pytest.mark.slow
def test_the_command_line_trains_resumes_and_validates(tmp_path: Path) -> None:
    command = (EXAMPLES / "cli" / "main.py", "fit", "--config", EXAMPLES / "cli" / "config.yaml")
    text = run(tmp_path, *command, "--data.loader.num_workers", "1", "--trainer.max_epochs", "1")
    assert "47 steps, accuracy 0." in text
    text = run(tmp_path, *command, "--trainer.max_epochs", "2", "--ckpt_path", "runs/cli/last.ckpt")
    assert "94 steps, accuracy 0." in text
    assert torch.load(tmp_path / "runs" / "cli" / "last.ckpt", weights_only=True)["global_step"] == 90


@pytest.mark.slow
def test_pictures_in_tar_shards_after_a_kill_give_the_weights_of_an_uninterrupted_run(tmp_path: Path) -> None:
    script = EXAMPLES / "pictures_from_tar.py"
    killed = run(tmp_path, script, "--kill-after", "70", code=-signal.SIGKILL)
    assert "killed in epoch 1, before batch 23" in killed
    resumed = run(tmp_path, script, "--workers", "0")
    whole = run(tmp_path, script, "--workers", "0", "--folder", "whole")
    assert re.findall("94 steps, accuracy 0.*", resumed) == re.findall("94 steps, accuracy 0.*", whole) != []
    assert re.findall("final weights: .*", resumed) == re.findall("final weights: .*", whole) != []


@pytest.mark.slow
def test_a_killed_language_model_goes_on_with_the_losses_of_an_uninterrupted_run(tmp_path: Path) -> None:
    script = EXAMPLES / "language_model.py"
    killed = run(tmp_path, script, "--steps", "42", "--kill-after", "41", code=-signal.SIGKILL)
    assert "killed in epoch 0, before batch 41" in killed
    resumed = run(tmp_path, script, "--steps", "42", "--workers", "1")
    whole = run(tmp_path, script, "--steps", "42", "--folder", "whole")
    losses = [re.findall(r"step +(\d+): (\S+) nats", text) for text in (resumed, whole)]
    assert [step for step, _ in losses[0]] == ["40"]
    assert losses[0] == losses[1][-1:]
    weights = [
        torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("runs/language_model", "whole")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_a_run_in_stages_that_was_killed_goes_on_with_a_stage_that_is_added(tmp_path: Path) -> None:
    script = EXAMPLES / "stages.py"
    killed = run(tmp_path, script, "--kill-after", "70", code=-signal.SIGKILL)
    assert "killed in stage 1, after step 70" in killed
    assert "mail" not in killed
    resumed = run(tmp_path, script, "--anneal", "--workers", "1")
    assert "resumed in stage 1, step 60 of 120" in resumed
    whole = run(tmp_path, script, "--anneal", "--folder", "whole")
    assert re.findall("step 120, stage 2: .*", whole) == re.findall("step 120, stage 2: .*", resumed) != []
    assert re.findall("final weights: .*", whole) == re.findall("final weights: .*", resumed) != []


@pytest.mark.slow
def test_a_tables_checkpoint_predicts_without_the_training_data(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "table_csv.py", "--epochs", "8")
    right = re.search(r"(\d+) of 45 wines right, from the checkpoint alone", text)
    assert right
    assert int(right[1]) > 40
    assert not (tmp_path / "runs" / "table" / "wines.csv").exists()


@pytest.mark.slow
def test_an_lstm_learns_sections_from_batches_with_little_padding(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "text_classification.py", "--epochs", "3")
    padded = re.search(r"([\d.]+) tokens computed for each real one", text)
    right = re.search(r"(\d+) of (\d+) paragraphs are put under their section, of 16", text)
    assert padded
    assert right
    assert float(padded[1]) < 1.15
    assert int(right[1]) > int(right[2]) / 4


@pytest.mark.slow
def test_boxes_are_drawn_on_augmented_pictures(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "detection.py", "--epochs", "2")
    boxes = re.search(r"8 pictures with (\d+) boxes of 5 classes", text)
    assert boxes
    assert 6 <= int(boxes[1]) <= 12  # of 12, some are cut off
    assert (tmp_path / "runs" / "detection" / "boxes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_packed_transformers_loss_and_gradients_are_those_of_the_texts_alone(tmp_path: Path) -> None:
    text = run(tmp_path, EXAMPLES / "packed_transformer.py", "--steps", "21")
    found = re.search(r"(\d+) texts in (\d+) rows: loss ([\d.]+) packed, ([\d.]+) one by one", text)
    difference = re.search(r"gradients differ by (\S+) of the largest", text)
    losses = [float(loss) for loss in re.findall(r"step +\d+: (\S+) nats", text)]
    assert found
    assert difference
    assert int(found[1]) > (1.5 if OTHER_TEXTS else 2) * int(found[2])
    assert abs(float(found[3]) / float(found[4]) - 1) < 1e-9
    assert float(difference[1]) < 1e-9
    assert losses[1] < 0.7 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "preferences"])
def test_fine_tuning_that_was_killed_goes_on_to_the_weights_of_an_uninterrupted_run(name: str, tmp_path: Path) -> None:
    script, steps = EXAMPLES / f"{name}.py", ("--steps", "50")
    killed = run(tmp_path, script, *steps, "--kill-after", "35", code=-signal.SIGKILL)
    assert "killed after step 35" in killed
    resumed = run(tmp_path, script, *steps, "--resume", "--workers", "1")
    assert "resumed after step 30" in resumed
    whole = run(tmp_path, script, *steps, "--checkpoint", "other.pt", "--workers", "0")
    assert re.findall("step 40: .*", whole) == re.findall("step 40: .*", resumed) != []
    assert re.findall("final weights: .*", whole) == re.findall("final weights: .*", resumed) != []
    if name == "sft":
        packed, alone = re.findall(r"conversations in 4 rows: loss (\S+) packed, (\S+) one by one", whole)[0]
        assert abs(float(packed) - float(alone)) < 1e-4
    losses = [float(found) for found in re.findall(r"step \d+: (?:loss )?([\d.]+)", whole)]
    assert losses[-1] < (0.9 if OTHER_TEXTS else 0.8) * losses[0]


FIELDS = sorted(path for path in (EXAMPLES / "fields").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("script", FIELDS, ids=lambda path: path.stem)
def test_augmentations_of_a_fields_library_are_the_same_after_a_kill(script: Path, tmp_path: Path) -> None:
    for module in re.findall(r"^(?:from|import) (\w+)", script.read_text(), re.MULTILINE):
        if module != "killed" and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: python benchmarks/fields.py --examples installs it apart")
    text = run(tmp_path, script, fresh=True)
    assert re.search(r"killed after batch \d+, with 2 workers: exit code -9", text)
    assert "the same as the whole run, bit for bit: True" in text


def test_each_fields_script_has_its_output() -> None:
    text = (EXAMPLES / "fields" / "output.md").read_text()
    assert len(FIELDS) > 10
    assert set(re.findall(r"^## (\S+)\.py", text, re.MULTILINE)) == {script.stem for script in FIELDS}
    assert text.count("bit for bit: True") == text.count("## ") > 10


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_each_example_says_what_it_shows_and_how_to_run_it(script: Path) -> None:
    text = script.read_text()
    assert text.startswith('"""')
    if "__main__" in text:
        assert f"python {script.relative_to(ROOT)}" in text
        assert f"]({script.relative_to(EXAMPLES).as_posix()})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clips"), [("audio", 186), ("video", 40)])
def test_clips_of_media_after_a_kill_give_the_weights_of_an_uninterrupted_run(
    name: str, clips: int, tmp_path: Path
) -> None:
    pytest.importorskip("av", reason="PyAV is not installed: pip install '.[media]'")
    script = EXAMPLES / f"{name}.py"
    assert "killed after step 40" in run(tmp_path, script, "--kill-after", "40", code=-signal.SIGKILL)
    resumed = run(tmp_path, script, "--workers", "0")
    assert "resumed at epoch 1, batch 0 of 30" in resumed
    whole = run(tmp_path, script, "--workers", "1", "--folder", "whole")
    assert "resumed" not in whole
    accuracies = re.findall(rf"accuracy (.*) on {clips} clips", whole)
    assert accuracies == re.findall(rf"accuracy (.*) on {clips} clips", resumed)
    assert float(accuracies[0]) > 0.8
    assert re.findall("final weights: .*", resumed) == re.findall("final weights: .*", whole) != []


@pytest.mark.slow
def test_a_vision_language_model_that_was_killed_ends_with_the_weights_of_an_uninterrupted_run(tmp_path: Path) -> None:
    script = EXAMPLES / "multimodal.py"
    assert "killed after step 100" in run(tmp_path, script, "--kill-after", "100", code=-signal.SIGKILL)
    resumed = run(tmp_path, script, "--workers", "0")
    assert "resumed after step 80, at epoch" in resumed
    whole = run(tmp_path, script, "--workers", "1", "--folder", "whole")
    assert "resumed" not in whole
    assert re.findall("step 240: .*", resumed) == re.findall("step 240: .*", whole) != []
    right = re.findall(r"(\d+) of 18 pictures get their caption", whole)
    assert int(right[0]) > 14
    assert re.findall("final weights: .*", resumed) == re.findall("final weights: .*", whole) != []


@pytest.mark.slow
@pytest.mark.parametrize("windows", [False, True], ids=["packed", "windows"])
def test_a_pretraining_that_was_killed_resumes_to_the_same_weights(windows: bool, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install '.[examples]'")
    command = (EXAMPLES / "pretrain.py", "--steps", "60", *["--windows"] * windows)
    killed = run(tmp_path, *command, "--kill-after", "50", code=-signal.SIGKILL)
    assert "killed after step 50" in killed
    resumed = run(tmp_path, *command, fresh=True)
    assert "resumed after step 40, on 1 ranks" in resumed
    whole = run(tmp_path, *command, "--folder", "whole")
    assert re.findall("step  60: .*", whole) == re.findall("step  60: .*", resumed) != []
    weights = [torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("runs/pretrain", "whole")]
    assert len(weights[0]) == 28
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_a_sharded_pretraining_that_was_killed_resumes_on_other_ranks(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install '.[examples]'")
    script = (EXAMPLES / "pretrain.py", "--steps", "40")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = (*launcher, SUPPORT / "runs" / "run_unfinalized.py", *script)
    killed = run(tmp_path, *two, "--kill-after", "30", code=1, fresh=True)
    assert "killed after step 30" in killed
    shutil.copytree(tmp_path / "runs" / "pretrain", tmp_path / "one")
    again = run(tmp_path, *two, fresh=True)
    assert "resumed after step 20, on 2 ranks" in again
    whole = run(tmp_path, *two, "--folder", "whole", fresh=True)
    assert re.findall("step  40: .*", whole) == re.findall("step  40: .*", again) != []
    weights = [torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("runs/pretrain", "whole")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert "resumed after step 20, on 1 ranks" in run(tmp_path, *script, "--folder", "one")

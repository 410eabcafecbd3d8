"""DetectionDataModule: boxes go with their pictures, from COCO's files and from dicts; runs resume exactly."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images_made import need_picture_decoder
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import loaderkit as lk
from loaderkit import DetectionDataModule, LoaderConfig

SIZE = 12


def picture(number: int) -> torch.Tensor:
    found = torch.zeros(3, SIZE, SIZE + number, dtype=torch.uint8)
    found[:, 2:5, 3:9] = 100 + number  # the object
    return found


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    for number in range(SIZE):
        Image.fromarray(picture(number).permute(1, 2, 0).numpy()).save(tmp_path / f"{number:02}.png")
    content = {
        "images": [{"id": 7 * number, "file_name": f"{number:02}.png"} for number in range(SIZE)],
        "annotations": [
            {"image_id": 7 * number, "category_id": 90 if number % 2 else 30, "bbox": [3, 2, 6, 3]}
            for number in range(SIZE)
            if number != 4
        ],
        "categories": [{"id": 90, "name": "odd"}, {"id": 30, "name": "even"}],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    return path


def dicts() -> list[dict[str, Any]]:
    return [
        {
            "image": picture(number),
            "boxes": [[3, 2, 9, 5]],
            "labels": ["odd" if number % 2 else "even"],
            "image_id": 7 * number,
        }
        for number in range(SIZE)
        if number != 4
    ]


def check(pictures: list[Any], targets: list[Any]) -> list[int]:
    """Each box holds its picture's object; return which pictures these are."""
    found = []
    for image, target in zip(pictures, targets, strict=True):
        number = int(target["image_id"]) // 7
        found.append(number)
        assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
        assert len(target["labels"]) == (number != 4)
        for (left, top, right, bottom), label in zip(
            target["boxes"].int().tolist(), target["labels"].tolist(), strict=True
        ):
            assert (image[:, top:bottom, left:right] == 100 + number).all()
            assert (image == 100 + number).sum() == 3 * (bottom - top) * (right - left) > 0
            assert label == 1 + number % 2
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", ["coco", "dicts"])
def test_boxes_hold_their_objects_also_after_a_flip(coco: Path, source: str, workers: int) -> None:
    data = DetectionDataModule(
        coco if source == "coco" else dicts(),
        train_transform=v2.RandomHorizontalFlip(0.5),
        loader=LoaderConfig(batch_size=2, num_workers=workers),
    )
    assert (data.num_classes, data.classes) == (3, ["even", "odd"])  # without setup
    found = [number for pictures, targets in data.train_dataloader() for number in check(pictures, targets)]
    assert sorted(found) == [number for number in range(SIZE) if number != 4 or source == "coco"]
    assert found != sorted(found)


def test_pictures_of_several_sizes_are_padded_and_scaled_on_the_device(coco: Path) -> None:
    pad = lk.Pad(dims=(1, 2), lengths=True)
    data = DetectionDataModule(coco, images=pad, loader=LoaderConfig(batch_size=3))
    batch = next(iter(data.train_dataloader()))
    pictures, targets, sizes = batch
    assert pictures.dtype == torch.uint8
    assert sizes[:, 1].max() == pictures.shape[3]
    check(list(pictures), targets)
    made = data.on_after_batch_transfer(batch, 0)
    assert made[0].dtype == torch.float32
    assert made[0].max() <= 1


def test_parts_are_split_by_pictures_and_predict_needs_no_boxes(coco: Path) -> None:
    data = DetectionDataModule(
        coco,
        predict=[{"image": "03.png"}],
        root=coco.parent,
        splits={"train": 0.7, "val": 0.3},
        loader=LoaderConfig(batch_size=1),
    )
    sides = [
        {number for pictures, targets in loader for number in check(pictures, targets)}
        for loader in (data.train_dataloader(), data.val_dataloader())
    ]
    assert sides[0] | sides[1] == set(range(SIZE))
    assert not sides[0] & sides[1]
    assert all(sides)
    ((pictures, targets),) = data.predict_dataloader()
    assert (pictures[0] == picture(3)).all()
    assert targets[0]["boxes"].shape == (0, 4)


def test_each_setting_reaches_the_pictures(coco: Path) -> None:
    content = json.loads(coco.read_text())
    for annotation in content["annotations"]:
        annotation["segmentation"] = [[3, 2, 8, 2, 8, 4, 3, 4]]
    coco.write_text(json.dumps(content))
    data = DetectionDataModule(coco, val=coco, masks=True, eval_transform=lambda picture, target: (picture * 0, target))
    assert all((pictures[0] == 0).all() for pictures, _ in data.val_dataloader())
    for (image,), (target,) in data.train_dataloader():
        assert target["masks"].shape == (len(target["boxes"]), *image.shape[1:])
        drawn = (image[0] > 0) & (len(target["boxes"]) > 0)
        assert torch.equal(target["masks"].sum(dim=0), drawn.long())


def test_a_picture_keeps_its_side_when_the_folder_moves_or_pictures_come_first(
    coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(data: Any, **more: Any) -> set[str]:
        splits = {"train": 0.5, "val": 0.5}
        loader = DetectionDataModule(data, splits=splits, classes=["even", "odd"], **more).val_dataloader()
        return {f"{int(target['image_id']) // 7:02}.png" for _, targets in loader for target in targets}

    here = held(coco)
    assert 0 < len(here) < SIZE
    moved = coco.parent.parent / "elsewhere"
    shutil.copytree(coco.parent, moved)
    assert held(moved / coco.name) == here
    monkeypatch.chdir(moved)
    assert held(coco.name) == here
    samples = [
        {"image": f"{number:02}.png", "boxes": [], "labels": [], "image_id": 7 * number} for number in range(SIZE)
    ]
    for data in (samples, samples[::-1], [*samples[5:], *samples]):  # some are there twice: on one side
        assert held(data, root=moved) == here


def test_a_resume_gives_the_pictures_and_flips_that_were_left(coco: Path) -> None:
    def make() -> Any:
        data = DetectionDataModule(
            coco, train_transform=v2.RandomHorizontalFlip(0.5), loader=LoaderConfig(batch_size=2, seed=3)
        )
        data.setup("fit")
        return lk.Loader.from_config(data._data("train"), data.loader_config, shuffle=True)

    def plain(batch: Any) -> Any:
        return [one.tolist() for one in batch[0]], [target["boxes"].tolist() for target in batch[1]]

    whole = list(map(plain, make()))
    assert len(whole) == SIZE // 2
    first = make()
    for batch, wanted in zip(first, whole[:2], strict=False):
        assert plain(batch) == wanted
        if first.cursor.batches == 2:
            break
    second = make()
    second.load_state_dict(first.state_dict())
    assert list(map(plain, second)) == whole[2:]


def test_other_data_has_another_fingerprint(coco: Path) -> None:
    def fingerprint(data: Any) -> str:
        module = DetectionDataModule(data, classes=["even", "odd"])
        module.setup("fit")
        text: str = module._data("train").fingerprint()
        return text

    others = dicts()
    others[3]["boxes"] = np.array([[3, 2, 9, 6]])
    assert fingerprint(dicts()) == fingerprint(dicts())
    assert len({fingerprint(data) for data in (coco, dicts(), others)}) == 3


def test_a_target_with_polygons_of_unequal_sizes_can_be_saved() -> None:
    def state(last: float) -> Any:
        polygons = [[3, 2, 9, 2, 9, 5], torch.tensor([3.0, 2, 9, 2, 9, 5, 3, last])]
        module = DetectionDataModule([{**sample, "polygons": polygons} for sample in dicts()])
        module.setup("fit")
        loader = module.train_dataloader()
        next(iter(loader))
        return loader.state_dict()

    assert state(5) == state(5) != state(6)


def changed(**fields: Any) -> list[dict[str, Any]]:
    """Samples with other values of some fields; None: without the field."""
    return [{k: v for k, v in {**sample, **fields}.items() if v is not None} for sample in dicts()]


def test_labels_may_be_numbers_where_classes_say_which() -> None:
    for labels in ([7], np.array([7]), torch.tensor([7]), [torch.tensor(7)]):
        data = DetectionDataModule(changed(labels=labels), classes=[5, 7])  # type: ignore[list-item]
        assert data.num_classes == 3
        assert next(iter(data.train_dataloader()))[1][0]["labels"].tolist() == [2]
        with pytest.raises(ValueError, match=r"labels are ints such as 7, wanted names[.] Or list the labels"):
            DetectionDataModule(changed(labels=labels)).num_classes  # noqa: B018


def test_a_training_sample_without_boxes_or_labels_is_refused(tmp_path: Path) -> None:
    for sample in ({"labels": None}, {"boxes": None}, {"labels": None, "boxes": None, "annotations": []}):
        data = DetectionDataModule(changed(**sample), val=changed(**sample), classes=["odd", "even"])
        for make in (data.train_dataloader, data.val_dataloader):
            with pytest.raises(ValueError, match=r"sample 0 has .*wanted a dict with image, boxes, labels"):
                make()
    assert len(list(DetectionDataModule(predict=changed(labels=None, boxes=None)).predict_dataloader())) == SIZE - 1
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"broken.png: not a picture that can be decoded"):
        next(iter(DetectionDataModule(changed(image=broken)).train_dataloader()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: next(
                iter(DetectionDataModule(changed(image=np.zeros((9, 9, 3), np.uint8))).train_dataloader())
            ),
            r"has an image \(9, 9, 3\), wanted a path or uint8 \(3, H, W\)",
        ),
        (
            lambda path: next(iter(DetectionDataModule(changed(image=Image.new("RGB", (9, 9)))).train_dataloader())),
            "has an image Image, wanted a path",
        ),
        (lambda path: DetectionDataModule(dicts(), splits={"val": 1}), "wanted shares of the training data"),
        (
            lambda path: DetectionDataModule(dicts(), dicts(), splits={"train": 0.5, "val": 0.5}),
            "without their own data",
        ),
        (lambda path: next(iter(DetectionDataModule(dicts(), classes=["cat"]).train_dataloader())), "wanted one of"),
        (lambda path: DetectionDataModule(path, classes=["odd"]).train_dataloader(), r"categories \['even'\] are not"),
        (lambda path: DetectionDataModule().classes, "there is no data"),
    ],
)
def test_what_does_not_fit_is_refused(coco: Path, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(coco)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "nothing", '{"images": [], "annotations": [{"image_id": 3}], "categories": []}']
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"a.json: can't be read as COCO annotations"):
        DetectionDataModule(path).train_dataloader()


def test_a_decoder_is_named_and_part_of_the_fingerprint_if_its_pixels_may_be_others(tmp_path: Path) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "1.jpg")
    samples = [{"image": str(tmp_path / "1.jpg"), "boxes": [[0, 0, 2, 2]], "labels": ["x"]}]
    found = []
    need_picture_decoder("torchcodec")
    for decoder in (None, "torchvision", "torchcodec", "pillow"):
        settings: Any = {"loader": lk.LoaderConfig(batch_size=1), "decoder": decoder}
        data = lk.DetectionDataModule(train=samples, classes=["x"], **settings)
        data.setup("fit")
        found.append(str(data.train_dataloader().state_dict()["identity"]))
        assert next(iter(data.train_dataloader()))[0][0].shape == (3, 6, 8)
    assert found[0] == found[1] == found[2]
    assert found[3] != found[0]
    with pytest.raises(ValueError, match="DetectionDataModule: decoder is 'opencv'"):
        lk.DetectionDataModule(train=samples, classes=["x"], decoder="opencv")  # type: ignore[arg-type]

"""Pictures with boxes: the augmentations move the boxes along, and each epoch draws others.

    python examples/detection.py

Writes four pictures that come with scikit-image and a file of annotations as COCO's, reads them by `DetectionDataModule`
with torchvision's transforms, and draws three epochs, boxes included, into `runs/detection/boxes.png`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.utils import draw_bounding_boxes, make_grid

import loaderkit as lk

try:
    from skimage import data as pictures
except ImportError as error:
    raise SystemExit("This example draws on pictures of scikit-image: pip install scikit-image") from error

OBJECTS = {  # x, y, width, height
    "astronaut": [("person", [20, 12, 365, 500]), ("rocket", [348, 0, 118, 283])],
    "chelsea": [("cat", [28, 0, 370, 300])],
    "coffee": [("cup", [165, 14, 250, 296]), ("spoon", [326, 62, 102, 266])],
    "rocket": [("rocket", [306, 122, 34, 290])],
}
COLOURS = {"person": "yellow", "rocket": "cyan", "cat": "lime", "cup": "red", "spoon": "white"}
NAMES = list(COLOURS)


def values_of_boxes(sample: tuple[Any, dict[str, Tensor]]) -> tuple[Tensor, ...]:
    """Return the fields that belong to each box."""
    return tuple(sample[1][name] for name in ("labels", "area", "iscrowd"))


class Artist(pl.LightningModule):
    """Draws the batches that a detector would train on."""

    def __init__(self, classes: list[str]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.classes, self.drawn, self.boxes = classes, list[Tensor](), 0

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for picture, target in zip(*batch, strict=True):
            names = [self.classes[label - 1] for label in target["labels"].tolist()]
            self.boxes += len(names)
            colours = [COLOURS[name] for name in names]
            drawn = draw_bounding_boxes(picture, target["boxes"], names, colours, width=3) if names else picture
            self.drawn.append(drawn.as_subclass(Tensor))

    def configure_optimizers(self) -> None:
        """Train nothing."""


def write_pictures(folder: Path) -> Path:
    """Write the pictures, and their objects (x, y, width, height) as COCO has them."""
    folder.mkdir(parents=True, exist_ok=True)
    annotations: list[dict[str, Any]] = []
    for number, (name, objects) in enumerate(OBJECTS.items()):
        Image.fromarray(getattr(pictures, name)()).save(folder / f"{name}.png")
        for category, box in objects:
            found = {"image_id": number, "category_id": NAMES.index(category), "bbox": box}
            annotations.append({"id": len(annotations), **found, "area": box[2] * box[3], "iscrowd": 0})
    path = folder / "annotations.json"
    content = {
        "images": [{"id": number, "file_name": f"{name}.png"} for number, name in enumerate(OBJECTS)],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(NAMES)],
    }
    path.write_text(json.dumps(content))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/detection"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    data = lk.DetectionDataModule(
        write_pictures(given.folder),
        images="stack",
        train_transform=v2.Compose(
            [
                v2.RandomHorizontalFlip(),
                v2.RandomResizedCrop((240, 320), scale=(0.4, 1), ratio=(1.1, 1.6)),
                v2.ColorJitter(0.3, 0.3),
                v2.ClampBoundingBoxes(),
                v2.SanitizeBoundingBoxes(min_size=10, labels_getter=values_of_boxes),
            ]
        ),
        loader=lk.LoaderConfig(batch_size=2, num_workers=given.workers, shuffle=False, seed=1),
    )
    settings: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=given.epochs, accelerator="cpu", enable_checkpointing=False, **settings)
    artist = Artist(data.classes)
    trainer.fit(artist, datamodule=data)
    path = given.folder / "boxes.png"
    grid = make_grid(artist.drawn, nrow=4, padding=4, pad_value=1)
    Image.fromarray(grid.mul(255).byte().permute(1, 2, 0).numpy()).save(path)
    print(f"{len(artist.drawn)} pictures with {artist.boxes} boxes of {data.num_classes - 1} classes: {path}")


if __name__ == "__main__":
    main()

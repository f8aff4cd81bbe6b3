"""Opens the explorer: a page in which models run in the browser, side by side, on your own pictures.

Without MODEL it shows models that come with the page. With MODEL, which may be any trained model, each is exported
first, with its attention maps. The page is served to this machine alone, from memory, until Ctrl-C.
"""

import argparse
from pathlib import Path

from .extras import missing_extra
from .paths import MODEL_WORDS, model_of, path_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", type=model_of, nargs="*", metavar="MODEL", help=MODEL_WORDS)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to serve at (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    parser.add_argument(
        "--output",
        type=path_of,
        metavar="FOLDER",
        help="write the page to a new or empty folder instead, for any server of static files",
    )


def run(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.port <= 65535:
        raise ValueError(f"--port must be from 0, any free one, to 65535, got {arguments.port}")
    if arguments.output is not None:
        check_folder(arguments.output)

    from ..explorer.server import read_page, run_until, serve

    files = read_page()
    if arguments.models:
        files = with_models(files, arguments.models)
    if arguments.output is not None:
        for path, content in files.items():
            (arguments.output / path).parent.mkdir(parents=True, exist_ok=True)
            (arguments.output / path).write_bytes(content)
        print(f"{arguments.output}: {sum(map(len, files.values())) / 1e6:.1f} MB in {len(files)} files")
        return
    try:
        server = serve(files, arguments.port)
    except OSError as error:
        raise OSError(f"port {arguments.port} cannot be used ({error.strerror}): give --port another number") from error

    def ready(address: str) -> None:
        print(f"the explorer is at {address} until Ctrl-C", flush=True)
        if not arguments.no_browser:
            import webbrowser

            webbrowser.open(address)

    run_until(server, ready)
    print("\nstopped")


def with_models(files: dict[str, bytes], words: list[str]) -> dict[str, bytes]:
    """Files of the page with these models in place of the default ones."""
    from ..models.export import check_runtime

    try:
        check_runtime("onnx")
    except ModuleNotFoundError as error:
        raise missing_extra(error, "export", "exporting models to the page") from error
    from ..explorer.pack import LIST, pack

    packed = pack(words, say=lambda line: print(line, flush=True))
    return {path: content for path, content in files.items() if path != LIST and not path.startswith("models/")} | (
        packed.files
    )


def check_folder(path: Path) -> None:
    """Raises an error unless a folder is new or empty: nothing is replaced."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file: give --output a folder")
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{path} is not empty: give --output a new or empty folder")

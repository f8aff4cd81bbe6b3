"""How fast the explorer answers, in a headless Chromium on this machine.

    python benchmarks/explorer.py [--rounds 20] [--chromium /usr/bin/chromium] [--json FILE]

First prediction: from the request for the page until all models that are shown have answered, with an empty profile.
Slider: from a move of the severity slider until all models that are shown have answered and are drawn. Beside the time
on the clock stands the processor time of the browser, which says more where something else runs. Needs the extra `web`.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from threading import Thread

from playwright.sync_api import sync_playwright

from torchvars.explorer.server import read_page, serve

sys.path.append(str(Path(__file__).parents[1] / "tests" / "explorer"))
from visitor import WITH_GPU, WITHOUT_GPU, Visitor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="moves of the slider (default: 20)")
    parser.add_argument("--starts", type=int, default=3, help="starts of the browser (default: 3)")
    parser.add_argument("--backend", default="auto", choices=["auto", "wasm", "webgpu"], help="default: auto")
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="default: /usr/bin/chromium")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args()
    server = serve(read_page())
    Thread(target=server.serve_forever, daemon=True).start()
    address = "http://{}:{}/".format(*server.server_address)
    first, moves, models = [], [], {}
    flags = WITH_GPU if arguments.backend == "webgpu" else WITHOUT_GPU
    with sync_playwright() as playwright:
        for _ in range(arguments.starts):
            browser = playwright.chromium.launch(executable_path=arguments.chromium, args=flags)
            visitor = Visitor(browser.new_context(), address)
            before = processor_seconds()
            visitor.open(f"#backend={arguments.backend}")
            on_clock = visitor.ask("performance.getEntriesByName('first prediction')[0].startTime")
            first.append((on_clock, 1000 * (processor_seconds() - before)))
            visitor.wait("document.body.dataset.complete === 'true'")
            for number in range(max(1, arguments.rounds // arguments.starts)):
                before = processor_seconds()
                visitor.page.fill("#severity", str(1 + number % 5))
                visitor.settle()
                on_clock = visitor.ask(
                    "performance.getEntriesByName('updated').at(-1).startTime"
                    " - performance.getEntriesByName('changed').at(-1).startTime"
                )
                moves.append((on_clock, 1000 * (processor_seconds() - before)))
                for name in visitor.state()["models"]:
                    models.setdefault(name, []).append(visitor.ask(f"explorer.outputOf('{name}').milliseconds"))
            browser.close()
    server.shutdown()
    load = os.getloadavg()[0]
    print(f"milliseconds, median (least to most); load of the machine {load:.1f} on {os.cpu_count()} processors\n")
    print("| | on the clock | of the processor |\n|---|---|---|")
    for name, times in (("first prediction", first), ("slider", moves)):
        print(f"| {name} | {spread([each[0] for each in times])} | {spread([each[1] for each in times])} |")
    for name, times in models.items():
        print(f"| {name} alone | {spread(times)} | |")
    if arguments.json:
        found = {"first": first, "slider": moves, "models": models, "load": load}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def spread(times: list[float]) -> str:
    return f"{statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f})"


def processor_seconds() -> float:
    """Of all processes that this one started, and that they started, except those that ended."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:  # it ended
            continue
        fields = rest.split()
        process = int(path.parent.name)
        parents[process] = int(fields[1])
        if "chrom" in name:
            spent[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return sum(seconds for process, seconds in spent.items() if os.getpid() in above(process, parents))


def above(process: int, parents: dict[int, int]) -> list[int]:
    """The process that started it, and so on."""
    found = []
    while process := parents.get(process, 0):
        found.append(process)
    return found


if __name__ == "__main__":
    main()

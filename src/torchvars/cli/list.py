"""Lists attentions, solvers, models with their cost, trained weights, benchmarks, corruptions and attacks."""

import argparse
import inspect
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from .extras import missing_extra


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        nargs="?",
        choices=["attentions", "solvers", "models", "weights", "benchmarks", "corruptions", "attacks"],
        help="kind of names to list. weights: the trained models that come with the package, with their figures; "
        "benchmarks, corruptions and attacks: those of torchvars evaluate (default: attentions, solvers and backbones)",
    )
    parser.add_argument(
        "pattern",
        nargs="?",
        default="*",
        help='list only names that match this pattern, such as "rvt_tiny_*"',
    )
    parser.add_argument(
        "--paper", action="store_true", help="for models: a table of those in the paper, beside its figures"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.paper and arguments.kind != "models":
        raise SystemExit("--paper is a table of models: torchvars list models --paper")
    if arguments.kind == "models":
        print_models(arguments.pattern, arguments.paper)
    elif arguments.kind == "weights":
        print_weights(arguments.pattern)
    else:
        print_names(arguments.kind, arguments.pattern)


def print_names(kind: str | None, pattern: str) -> None:
    for title, registry in registries(kind).items():
        print(title)
        for name in matching(registry, pattern):
            print(f"  {name:<20}{first_line(registry[name])}".rstrip())
    if kind is None:
        from ..models import BACKBONES
        from ..sparse import native

        print("models, each of these with _ and an attention: rvt_tiny_vars_d")
        for name, (constructor, _) in BACKBONES.items():
            print(f"  {name:<20}{first_line(constructor)}".rstrip())
        print(f"on a CPU the vars attentions run with {native.describe()}")


def registries(kind: str | None) -> dict[str, Mapping[str, Callable]]:
    """The registries to list, by title."""
    if kind in (None, "attentions", "solvers"):
        from ..attention import ATTENTIONS
        from ..sparse import SOLVERS, Equilibrium

        every = {"attentions": ATTENTIONS, "solvers": {**SOLVERS, "equilibrium_NAME": Equilibrium}}
        return every if kind is None else {kind: every[kind]}
    try:
        from ..evaluation.attacks import ATTACKS
        from ..evaluation.benchmarks import BENCHMARKS
        from ..evaluation.corruptions import CORRUPTIONS
    except ModuleNotFoundError as error:
        raise missing_extra(error, "eval", f"the list of {kind}") from error
    if kind == "corruptions":
        return {"corruptions, the 15 that sums are over and 4 extra": CORRUPTIONS}
    return {kind: {"attacks": ATTACKS, "benchmarks": BENCHMARKS}[kind]}


def first_line(member: Callable) -> str:
    """First line of the doc-string of a registry member; empty if Python omits doc-strings (-OO)."""
    return (inspect.getdoc(member) or "").partition("\n")[0]


def print_models(pattern: str, paper: bool) -> None:
    """Prints the cost of each model as soon as it is known."""
    import timm
    import torch

    from ..models import MODELS
    from ..models.cost import PAPER, cost, cost_of

    if paper:
        print("| model | name here | M params | paper | difference | GFLOPs | paper |\n|---|---|---|---|---|---|---|")
    else:
        print(f"{'name':<30}{'M params':>10}{'GFLOPs':>10}")
    threads = torch.get_num_threads()
    # The layers of one picture are small: on a busy machine their threads would mostly wait for each other.
    torch.set_num_threads(1)
    try:
        for name in matching(PAPER if paper else MODELS, pattern):
            counted = cost_of(name) if name in MODELS else cost(timm.create_model(name))
            parameters, gflops = counted.parameters / 1e6, counted.multiply_adds / 1e9
            if paper:
                title, published, published_gflops = PAPER[name]
                difference = f"{100 * (parameters / published - 1):+.1f} %"
                print(
                    f"| {title} | `{name}` | {parameters:.2f} | {published} | {difference} | {gflops:.2f} | "
                    f"{published_gflops} |",
                    flush=True,
                )
            else:
                print(f"{name:<30}{parameters:>10.2f}{gflops:>10.2f}", flush=True)
    finally:
        torch.set_num_threads(threads)


def print_weights(pattern: str) -> None:
    """Prints the accuracies of all weights, in percent, and their sizes."""
    from ..evaluation.record import Record
    from ..models.embedded import EMBEDDED, embedded
    from ..models.weights import WEIGHTS

    names = matching(embedded(), pattern)
    width = max(map(len, names))
    print(f"{'name':<{width}}{'clean':>8}{'corrupted':>11}{'PGD 1/255':>11}{'MB':>7}")
    for name in names:
        record = Record.read(EMBEDDED / name)
        figures = [
            record.value("clean", "accuracy", "clean"),
            record.value("corruptions", "accuracy"),
            record.value("pgd", "accuracy", "linf 1/255, 5 steps"),
        ]
        clean, corrupted, attacked = ("" if each is None else f"{each.value:.1f}" for each in figures)
        size = (EMBEDDED / name / WEIGHTS).stat().st_size / 1e6
        print(f"{name:<{width}}{clean:>8}{corrupted:>11}{attacked:>11}{size:>7.1f}")


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names that match a pattern with wildcards, at least one."""
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        raise SystemExit(f"no name matches {pattern!r}: there are {', '.join(names)}")
    return matches

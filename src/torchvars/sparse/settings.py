"""Solvers as plain settings, to be written into a file, and back."""

import inspect

from .dynamics import LCA, NeuralDynamics
from .equilibrium import Equilibrium
from .solvers import FISTA, ISTA, LearnedISTA, Solver, SpaRSA

SOLVERS: dict[str, type[Solver]] = {
    "ista": ISTA,
    "fista": FISTA,
    "learned_ista": LearnedISTA,
    "sparsa": SpaRSA,
    "neural_dynamics": NeuralDynamics,
    "lca": LCA,
}


def settings_of(solver: Solver) -> dict:
    """The name and the arguments that build a solver again; learned values are in its state."""
    if isinstance(solver, Equilibrium):
        return {"name": "equilibrium", "solver": settings_of(solver.solver), "iterations": solver.iterations}
    for name, kind in SOLVERS.items():
        if type(solver) is kind:
            settings = {"name": name, **{key: getattr(solver, key) for key in _arguments(kind)}}
            if settings.get("step_size") == "spectral":  # files from before there was a choice do not name it
                del settings["step_size"]
            if isinstance(solver, LearnedISTA) and len(solver.step) != solver.steps:
                settings["learned"] = len(solver.step)  # steps it was built with
            return settings
    raise ValueError(f"{type(solver).__name__} is not in SOLVERS, so that it cannot be named in a file: add it there")


def solver_from(settings: dict) -> Solver:
    """The solver that `settings_of` described."""
    if not isinstance(settings, dict):
        raise ValueError(
            f"settings of a solver have a name and its arguments, as in {{'name': 'ista'}}, got {settings!r}"
        )
    arguments = dict(settings)
    name = arguments.pop("name", None)
    if name == "equilibrium" and "solver" in arguments:
        arguments["solver"] = solver_from(arguments["solver"])
        _check_known(name, arguments, _arguments(Equilibrium))
        return Equilibrium(**arguments)
    if not isinstance(name, str) or name not in SOLVERS:
        raise ValueError(
            f"no solver named {name!r}: there are {', '.join(SOLVERS)}, and equilibrium around one of these"
        )
    learned = arguments.pop("learned", None) if name == "learned_ista" else None
    _check_known(name, arguments, _arguments(SOLVERS[name]))
    if learned is None:
        return SOLVERS[name](**arguments)
    solver = LearnedISTA(**{**arguments, "steps": learned})
    solver.steps = arguments.get("steps", solver.steps)
    return solver


def _check_known(name: str, given: dict, known: list[str]) -> None:
    if unknown := [key for key in given if key not in known]:
        raise ValueError(f"{name} has no setting {', '.join(map(str, unknown))}: it has {known}")


def _arguments(kind: type[Solver]) -> list[str]:
    return list(inspect.signature(kind).parameters)

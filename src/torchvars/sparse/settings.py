"""Solvers as dictionaries of settings for files, and back."""

import inspect

from .checks import positive_integer
from .dynamics import LCA, NeuralDynamics
from .equilibrium import Equilibrium
from .solvers import FISTA, ISTA, LearnedISTA, ProximalGradient, Solver, SpaRSA, check_name
from .steps import STEP_RULES, Learned, Spectral, StepRule

SOLVERS: dict[str, type[Solver]] = {
    "ista": ISTA,
    "fista": FISTA,
    "learned_ista": LearnedISTA,
    "sparsa": SpaRSA,
    "neural_dynamics": NeuralDynamics,
    "lca": LCA,
}


EQUILIBRIUM = "equilibrium_"  # prefix of the name of a solver


def solver_names() -> list[str]:
    """The names of all solvers: those of SOLVERS, and each with the prefix `equilibrium_`, for `Equilibrium`."""
    return [*SOLVERS, *(EQUILIBRIUM + name for name in SOLVERS)]


def settings_of(solver: Solver) -> dict:
    """The name and the arguments from which `solver_from` builds the solver. Learned values are in its state."""
    if isinstance(solver, Equilibrium):
        return {"name": "equilibrium", "solver": settings_of(solver.solver), "iterations": solver.iterations}
    for name, kind in SOLVERS.items():
        if type(solver) is kind:
            settings = {"name": name, **{key: getattr(solver, key) for key in _arguments(kind) if key != "step"}}
            if isinstance(solver, ProximalGradient):
                settings |= _settings_of_rule(solver.step)
            if settings.get("learned") == solver.steps and isinstance(solver, LearnedISTA):
                del settings["learned"]  # the default: one pair for each step
            return settings
    raise ValueError(f"{type(solver).__name__} is not in SOLVERS, so it has no name in a file: add it there")


def _settings_of_rule(rule: StepRule) -> dict:
    if isinstance(rule, Learned):
        return {**_settings_of_rule(rule.rule), "learned": len(rule.size)}
    for name, kind in STEP_RULES.items():
        if type(rule) is kind:
            return {} if kind is Spectral else {"step_size": name}  # the default, which older files do not name
    raise ValueError(f"{type(rule).__name__} is not in STEP_RULES, so it has no name in a file: add it there")


def solver_from(settings: dict) -> Solver:
    """The solver of the settings that `settings_of` returns."""
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
    if isinstance(name, str) and name.removeprefix(EQUILIBRIUM) in SOLVERS and name not in SOLVERS:
        return Equilibrium(solver_from({**arguments, "name": name.removeprefix(EQUILIBRIUM)}))
    if not isinstance(name, str) or name not in SOLVERS:
        raise ValueError(
            f"no solver named {name!r}: there are {', '.join(SOLVERS)}, and each of these after {EQUILIBRIUM}, as in "
            f"{EQUILIBRIUM}fista, for the gradient at the optimum"
        )
    kind = SOLVERS[name]
    known = [key for key in _arguments(kind) if key != "step"]
    if issubclass(kind, ProximalGradient):
        known += ["step_size", "learned"]
    _check_known(name, arguments, known)
    step_size, learned = arguments.pop("step_size", None), arguments.pop("learned", None)
    if step_size is not None:
        arguments["step"] = STEP_RULES[check_name("step_size", step_size, STEP_RULES)]()
    if learned is None:
        return kind(**arguments)
    rule = Learned(positive_integer("learned", learned), arguments.pop("step", None))
    solver = kind(**({"steps": learned} | arguments))
    solver.step = rule
    return solver


def _check_known(name: str, given: dict, known: list[str]) -> None:
    if unknown := [key for key in given if key not in known]:
        raise ValueError(f"{name} has no setting {', '.join(map(str, unknown))}: it has {known}")


def _arguments(kind: type[Solver]) -> list[str]:
    return list(inspect.signature(kind).parameters)

"""Errors for missing optional dependencies: they say what to install."""


def missing_extra(error: ModuleNotFoundError, extra: str, doing: str) -> ValueError:
    """The error to raise if a module of an extra is missing.

    Args:
        error: error of the failed import, which names the module.
        extra: name of the extra in pyproject.toml, such as "train".
        doing: activity that needs it, such as "training".
    """
    return ValueError(
        f'{doing} needs {error.name}: pip install "torchvars[{extra}]", or pip install -e ".[{extra}]" in a checkout'
    )

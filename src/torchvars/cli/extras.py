"""What to install for a command that needs more than the package itself."""


def missing_extra(error: ModuleNotFoundError, extra: str, doing: str) -> ValueError:
    """The error to raise where a module of an extra is missing.

    Args:
        error: of the import that failed; it names the module.
        extra: name of the extra in pyproject.toml, such as "train".
        doing: what needs it, such as "training".
    """
    return ValueError(
        f'{doing} needs {error.name}: pip install "torchvars[{extra}]", or pip install -e ".[{extra}]" in a checkout'
    )

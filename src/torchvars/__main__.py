"""`python -m torchvars` is `torchvars`, for launchers that want a module."""

from .cli.main import main

main()

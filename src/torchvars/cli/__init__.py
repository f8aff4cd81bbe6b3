"""The command `torchvars`: one thin file a command; the work is done by the other subpackages."""

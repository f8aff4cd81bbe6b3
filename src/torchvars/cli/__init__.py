"""The command `torchvars`: one thin file a command, the work is in the rooms above."""

"""`python -m rayfed_kd`: the command line, without an installed script."""

from rayfed_kd.cli.main import program

program()

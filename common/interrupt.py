"""Ctrl-C while a script's libraries are being imported is one line, as afterwards (`common.lm.run.run_main`). The
scripts import it before them, for that alone."""

import sys


def _one_line(kind, error, trace):
    cause = error
    while isinstance(cause, ImportError):  # what some libraries make of it
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, KeyboardInterrupt):
        print("stopped by the user", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _one_line

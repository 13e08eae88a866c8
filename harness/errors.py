"""The errors bitmatrix answers with a sentence instead of a traceback, and their exit codes."""

from __future__ import annotations


class BitmatrixError(Exception):
    """A fault with a message for the user: what, where, and what to do about it."""

    exit_code = 1


class BadInput(BitmatrixError):
    """The user's input can't be used; nothing was run. The message may hold several lines, a problem each."""

    exit_code = 2


class Unavailable(BitmatrixError):
    """What was asked for can't be had on this host: a fact about the machine or a package, not a fault."""

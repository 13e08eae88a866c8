"""Switching a mode on, and seeing what that changed."""

from __future__ import annotations

import importlib

from harness.cell import dispatch
from harness.cell.claims import Claims
from harness.cell.job import Activation
from harness.cell.packages import function_of, packages_needed


def activate(activation: Activation, claims: Claims) -> None:
    """Import and call the mode's activation; `claims` gets what it replaced in torch.

    Raises:
        Unavailable: the module, the function or a package that it imports is absent in this stack's versions.
    """
    module_name, _, function_name = activation.function.partition(":")
    before = dispatch.snapshot()
    with packages_needed():
        module = importlib.import_module(module_name)
        # Without torch until here, importing it is not the mode's doing.
        before = before or dispatch.snapshot()
        function_of(module, function_name)(**activation.arguments)
    after = dispatch.snapshot()
    if before is not None and after is not None:
        claims.overrides = [*dispatch.overrides(before, after)]
        claims.patches = [*dispatch.patches(before, after)]

"""Copy what describes each installed package, its dist-info folder: what a bill of materials is made from.

Runs in the stack's own Python, which alone knows where its packages are. `python inventory.py TARGET`
"""

import importlib.metadata
import shutil
import sys
from pathlib import Path

target = Path(sys.argv[1])
for distribution in importlib.metadata.distributions():
    described = Path(str(distribution.locate_file(""))) / f"{distribution.metadata['Name']}"
    folder = getattr(distribution, "_path", described)
    if folder.is_dir() and not (target / folder.name).exists():
        # Not the files' times and owners: they are this copy's.
        shutil.copytree(folder, target / folder.name, copy_function=shutil.copyfile)

"""Runs a notebook from top to bottom; the first error ends it. The file is not changed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

path = Path(sys.argv[1])
notebook = nbformat.read(path, as_version=4)
stale = [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
if stale:
    sys.exit(f"{path.name} is committed with outputs: clear them")
begun = time.monotonic()
NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
sys.stdout.write(f"{path.name}: {len(notebook.cells)} cells ran in {time.monotonic() - begun:.0f} s\n")

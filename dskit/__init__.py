"""dskit: DeepSpeed's DeepCompile under ZeRO-3, and what frozen parameters do to it.

Importing this package imports neither torch nor DeepSpeed; the rooms below do, where they need them.

- ``dskit.guard``: the fix as a switch on the installed source.
- ``dskit.cpu``: DeepCompile's native layer in Python, for ranks with no GPU.
- ``dskit.ranks``: rank processes behind a notebook or a script.
- ``dskit.experiments``, ``dskit.plots``: training runs, and figures made from their records.
- ``dskit.course``: the notebooks, run through papermill.
"""

__version__ = "0.1.0"

"""Hook of the build backend: a wheel has the files of bench/installed at its top level.

As `force-include` in pyproject.toml they would also be copied by an editable install, where copies
hide later edits.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TopLevelFiles(BuildHookInterface[Any]):
    """Adds the files to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, unless `version` is `editable`."""
        if version == "standard":
            build_data["force_include"]["bench/installed"] = "/"

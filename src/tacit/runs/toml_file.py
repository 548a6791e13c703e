"""Read a TOML file; needs no torch."""

import tomllib
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.runs.directory import RunDirectory


def read(path: Path) -> dict[str, Any]:
    """The nested settings in a TOML file."""
    a_config = "give the path of a TOML config"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a byte order mark
    except FileNotFoundError:
        raise TacitError(f"there is no file {path}", a_config, code="config.no-file") from None
    except IsADirectoryError:
        run = RunDirectory(path)
        remedy = f"give {run.config_file}, or continue the run with `{run.resume_command}`"
        raise TacitError(f"{path} is a folder", remedy if run.exists() else a_config, code="config.is-folder") from None
    except OSError as error:
        raise TacitError(
            f"cannot read {path} ({error.strerror or error})", a_config, code="config.cannot-read"
        ) from error
    except UnicodeDecodeError as error:
        raise TacitError(f"{path} is not UTF-8 text", "save it as UTF-8", code="config.not-text") from error
    except ValueError as error:  # not TOML, or a number with thousands of digits
        raise TacitError(f"invalid TOML in {path}: {error}", "fix this line", code="config.not-toml") from error

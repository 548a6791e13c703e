"""`tacit site local-head`: the common model with a last layer for this site. It never leaves the machine."""

from pathlib import Path

from tacit import user_code
from tacit.deploy.settings import Site, load_settings, resolve_path
from tacit.errors import TacitError
from tacit.metrics.local_heads import LocalHead
from tacit.runs.result import local_heads, saved_model
from tacit.storage import SECRET, write_durably

FILE = "local-model.safetensors"


def fit_site_head(path: Path, model: Path, out: Path | None = None) -> tuple[LocalHead, Path]:
    """Fit a head to the labels of the site with the settings file `path`, measure it, and write the model.

    Only the owner can read the file, which is in the site's folder unless `out` names another place.
    """
    site = load_settings(Site, path)
    if site.data is None:
        problem, remedy = f"{path} names no data, so this site has no labels of its own", "set data there"
        raise TacitError(problem, remedy, code="site.no-own-labels")
    with user_code.only(site.allow):
        opened = saved_model.load(model, import_net=True)
    found, content = local_heads.of_own_data(opened, str(resolve_path(path, site.data)), site.name)
    target = out or path.parent / FILE
    write_durably(target, content, SECRET)
    return found, target

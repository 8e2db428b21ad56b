"""The model hub: its availability, and the revisions of a model on the hub or in the hub cache."""

from attncli.errors import UserError, one_line_reason
from attncli.models.folder import DOWNLOADED, MOST_REASON, REVISION_BYTES, hub_cache, id_and_revision
from attncli.system.files import read_whole

HUB_SECONDS = 4
"""Seconds that the hub may take to answer; transformers would wait for up to a minute."""


def unreachable_hub(model: str) -> str | None:
    """Return the reason why the hub cannot be used for a model, or None if the hub answers."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    name, revision = id_and_revision(model)
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=HUB_SECONDS)
    except HfHubHTTPError as error:
        status = error.response.status_code  # below 500 transformers reports the error itself
        return f"{constants.ENDPOINT} answers with error {status}" if status >= 500 else None
    except Exception:  # no answer; the error class depends on the client's version
        return f"{constants.ENDPOINT} does not answer"
    return None


def hub_revisions(name: str, *, allow_download: bool) -> dict[str, str]:
    """Return the branches and tags of a hub id, each with its commit.

    They are read from the hub cache if downloads are not allowed or the hub does not answer. Raises UserError
    for an unknown model and for a model without a cached revision.
    """
    unheard = unreachable_hub(name) if allow_download else "no such folder (a hub id needs --allow-download)"
    if unheard is None:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        try:
            refs = HfApi().list_repo_refs(name)
        except HfHubHTTPError as error:
            raise UserError(f"{name}: {one_line_reason(error)[:MOST_REASON]}") from None
        return {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}
    folder = hub_cache() / f"{DOWNLOADED}{name.replace('/', '--')}" / "refs"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise UserError(f"{name}: {unheard}, and none of its revisions is in the cache")
    try:
        commits = {path: read_whole(path, REVISION_BYTES).decode().strip() for path in files}
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: {folder}: a revision cannot be read: {one_line_reason(error)}") from None
    return {path.relative_to(folder).as_posix(): commit for path, commit in commits.items()}

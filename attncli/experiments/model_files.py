"""Where the model of an experiment lies, checked before torch is imported."""

from pathlib import Path

from attncli.inputs.model_folder import check_model_folder, check_packages
from attncli.spec.heads import HeadsSpec
from attncli.spec.model import ModelSpec, is_model_folder

SHIPPED = Path(__file__).parent.parent / "data" / "tiny-induction"


def model_source(spec: ModelSpec) -> str:
    """The folder or hub id that a spec names; without one the model that ships."""
    return str(SHIPPED) if spec.model is None else spec.model


def check_model(spec: ModelSpec) -> None:
    """UserError for a missing package or a folder that cannot be a model; nothing where none is asked for."""
    if spec.model is None and not isinstance(spec, HeadsSpec):
        return
    check_packages()
    if is_model_folder(model_source(spec)):
        check_model_folder(Path(model_source(spec)))

"""dsforge: what fits, how fast it will be, and every file to launch it.

>>> import dsforge
>>> cluster = {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8}
>>> ranking = dsforge.plan("llama-2-7b", cluster)
>>> ranking.best.choice.fits
True

Functions: `plan`, `estimate`, `find`, `explain`, `gen`, `import_config`, `lint`, `diagnose`,
`rehearse`, `report`, `validate`, `validate_figures`, `calibrate`; `submit`, `status`, `logs`,
`cancel`;
`load_model`, `load_cluster`, `load_workload`, `load_request`, `load_plan`. They print nothing, and
every mistake in an input is a `DsforgeError`. Only `rehearse` needs torch.

A name is imported from its module at first use, so that the command line starts fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsforge.api.calibrating import CalibrateResult as CalibrateResult
    from dsforge.api.calibrating import calibrate as calibrate
    from dsforge.api.checking import diagnose as diagnose
    from dsforge.api.checking import lint as lint
    from dsforge.api.checking import validate as validate
    from dsforge.api.figures import validate_figures as validate_figures
    from dsforge.api.importing import ImportResult as ImportResult
    from dsforge.api.importing import import_config as import_config
    from dsforge.api.inputs import load_cluster as load_cluster
    from dsforge.api.inputs import load_model as load_model
    from dsforge.api.inputs import load_plan as load_plan
    from dsforge.api.inputs import load_request as load_request
    from dsforge.api.inputs import load_workload as load_workload
    from dsforge.api.jobs import JobDocument as JobDocument
    from dsforge.api.jobs import StatusDocument as StatusDocument
    from dsforge.api.jobs import cancel as cancel
    from dsforge.api.jobs import logs as logs
    from dsforge.api.jobs import status as status
    from dsforge.api.jobs import submit as submit
    from dsforge.api.planning import gen as gen
    from dsforge.api.planning import plan as plan
    from dsforge.api.pricing import estimate as estimate
    from dsforge.api.pricing import explain as explain
    from dsforge.api.rehearsal import rehearse as rehearse
    from dsforge.api.reporting import ReportResult as ReportResult
    from dsforge.api.reporting import report as report
    from dsforge.api.results import DiagnoseResult as DiagnoseResult
    from dsforge.api.results import EstimateResult as EstimateResult
    from dsforge.api.results import FindResult as FindResult
    from dsforge.api.results import GenResult as GenResult
    from dsforge.api.results import LintResult as LintResult
    from dsforge.api.results import PlanResult as PlanResult
    from dsforge.api.results import RehearseResult as RehearseResult
    from dsforge.api.sizing import find as find
    from dsforge.errors import DoesNotFitError as DoesNotFitError
    from dsforge.errors import DsforgeError as DsforgeError
    from dsforge.errors import EditedError as EditedError
    from dsforge.errors import LayoutError as LayoutError
    from dsforge.errors import Problem as Problem
    from dsforge.errors import RenderError as RenderError
    from dsforge.errors import RunError as RunError
    from dsforge.errors import SpecError as SpecError
    from dsforge.errors import UntrustedError as UntrustedError
    from dsforge.explain.explanation import Explanation as Explanation
    from dsforge.plan import Plan as Plan
    from dsforge.plan import Request as Request
    from dsforge.specs import ClusterSpec as ClusterSpec
    from dsforge.specs import ModelSpec as ModelSpec
    from dsforge.specs import Workload as Workload
    from dsforge.strategy import Constraints as Constraints
    from dsforge.strategy import Strategy as Strategy
    from dsforge.validate.comparison import FiguresDocument as FiguresDocument
    from dsforge.validate.document import ValidationDocument as ValidationDocument

__version__ = "0.1.0"

_HOMES = {
    "dsforge.api.calibrating": "CalibrateResult calibrate",
    "dsforge.api.checking": "diagnose lint validate",
    "dsforge.api.figures": "validate_figures",
    "dsforge.api.importing": "ImportResult import_config",
    "dsforge.api.inputs": "load_cluster load_model load_plan load_request load_workload",
    "dsforge.api.jobs": "JobDocument StatusDocument cancel logs status submit",
    "dsforge.api.planning": "gen plan",
    "dsforge.api.pricing": "estimate explain",
    "dsforge.api.rehearsal": "rehearse",
    "dsforge.api.reporting": "ReportResult report",
    "dsforge.api.results": "DiagnoseResult EstimateResult FindResult GenResult LintResult "
    "PlanResult RehearseResult",
    "dsforge.api.sizing": "find",
    "dsforge.errors": "DoesNotFitError DsforgeError EditedError LayoutError Problem RenderError "
    "RunError SpecError UntrustedError",
    "dsforge.explain.explanation": "Explanation",
    "dsforge.plan": "Plan Request",
    "dsforge.specs": "ClusterSpec ModelSpec Workload",
    "dsforge.strategy": "Constraints Strategy",
    "dsforge.validate.comparison": "FiguresDocument",
    "dsforge.validate.document": "ValidationDocument",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "CalibrateResult",
    "ClusterSpec",
    "Constraints",
    "DiagnoseResult",
    "DoesNotFitError",
    "DsforgeError",
    "EditedError",
    "EstimateResult",
    "Explanation",
    "FiguresDocument",
    "FindResult",
    "GenResult",
    "ImportResult",
    "JobDocument",
    "LayoutError",
    "LintResult",
    "ModelSpec",
    "Plan",
    "PlanResult",
    "Problem",
    "RehearseResult",
    "RenderError",
    "ReportResult",
    "Request",
    "RunError",
    "SpecError",
    "StatusDocument",
    "Strategy",
    "UntrustedError",
    "ValidationDocument",
    "Workload",
    "__version__",
    "calibrate",
    "cancel",
    "diagnose",
    "estimate",
    "explain",
    "find",
    "gen",
    "import_config",
    "lint",
    "load_cluster",
    "load_model",
    "load_plan",
    "load_request",
    "load_workload",
    "logs",
    "plan",
    "rehearse",
    "report",
    "status",
    "submit",
    "validate",
    "validate_figures",
]


class _Package(ModuleType):
    """The package, where a public function keeps its name although a module is called like it.

    Importing `dsforge.plan` would put that module into the place of the function `plan`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless it is a module that would hide a public name."""
        if not (isinstance(value, ModuleType) and name in _HOME):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    """A public name, from its module at first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__


sys.modules[__name__].__class__ = _Package

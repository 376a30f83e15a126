"""Jobs: a run folder that is started on a place, followed, and ended.

A place (this machine, another one over ssh, Slurm, Kubernetes) is one module with a `Place`, a
record of four functions. What was started is noted in the run folder, so each later command finds
it there.
"""

from __future__ import annotations

from dsforge.jobs import kubernetes, local, slurm, ssh
from dsforge.jobs.place import Place

PLACES: dict[str, Place] = {
    place.name: place for place in (local.PLACE, ssh.PLACE, slurm.PLACE, kubernetes.PLACE)
}

__all__ = ["PLACES", "Place"]

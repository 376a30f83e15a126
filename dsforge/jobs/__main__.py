"""The entry of keeper and follower: `python -m dsforge.jobs VERB RUN`."""

import sys
from pathlib import Path

from dsforge.jobs.follower import VERB, Follower
from dsforge.jobs.keeper import main

if sys.argv[1:2] == [VERB]:
    sys.exit(Follower(Path(sys.argv[2])).follow())
sys.exit(main())

"""Where the noise of a gradient comes from, and what it costs."""

from quell._measure._ceiling import ceilings as ceilings
from quell._measure._ceiling import default_bases as default_bases
from quell._measure._measure import measure as measure
from quell._measure._record import Measurement as Measurement
from quell._measure._record import Ratios as Ratios
from quell._measure._reference import Reference as Reference
from quell._measure._reference import full_gradient as full_gradient
from quell._measure._statistics import Estimate as Estimate
from quell._measure._statistics import Parts as Parts
from quell._measure._timing import Stepper as Stepper
from quell._measure._timing import followed_state as followed_state
from quell._measure._timing import largest_prime as largest_prime
from quell._measure._timing import learned_state as learned_state
from quell._measure._timing import peak_memory as peak_memory
from quell._measure._timing import seconds_per_step as seconds_per_step
from quell._measure._timing import stepper as stepper
from quell._measure._variance import Noisiness as Noisiness
from quell._measure._variance import noisiness as noisiness

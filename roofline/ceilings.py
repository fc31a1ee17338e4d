"""The names of before of `roofline.machine`; to be removed."""

from roofline.machine import Ceiling as Ceiling
from roofline.machine import CeilingError as CeilingError
from roofline.machine import Machine as Machine

Ceilings = Machine

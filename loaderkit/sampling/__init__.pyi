# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

from .batch_plan import BatchPlan as BatchPlan
from .by_length.packing import pack as pack
from .by_length.window_plan import WindowPlan as WindowPlan
from .cursor import Cursor as Cursor
from .cursor import Identity as Identity
from .cursor import Saved as Saved
from .cursor import check_resume as check_resume
from .cursor import pack_state as pack_state
from .cursor import unpack_state as unpack_state
from .fingerprint import fingerprint as fingerprint
from .fingerprint import fingerprint_of as fingerprint_of
from .order import Order as Order
from .permutation import FeistelPermutation as FeistelPermutation
from .permutation import drawn_permutation as drawn_permutation
from .plan import BatchKey as BatchKey
from .plan import Plan as Plan
from .plan import Tail as Tail
from .samplers import SamplerOrder as SamplerOrder
from .samplers import as_order as as_order
from .skipping_plan import SkippingPlan as SkippingPlan
from .skips import Skips as Skips

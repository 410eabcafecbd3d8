# What other packages and the tests import from this package.

from .bench.measure import Cost as Cost
from .bench.measure import Costs as Costs
from .bench.measure import Measured as Measured
from .bench.measure import advise as advise
from .bench.measure import measure_costs as measure_costs
from .bench.measure import settings_of as settings_of
from .bench.measure import turns as turns
from .bench.report import Report as Report
from .bench.subject import INLINE as INLINE
from .bench.subject import Setting as Setting
from .bench.subject import Subject as Subject
from .bench.subject import subject_of as subject_of
from .command import main as main
from .doctor import Host as Host
from .doctor import available_memory as available_memory
from .doctor import check_data as check_data
from .doctor import check_host as check_host
from .doctor import in_units as in_units
from .doctor import measure as measure

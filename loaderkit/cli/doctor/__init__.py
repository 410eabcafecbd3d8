"""`loaderkit doctor`: find what on this machine or in a dataset will cause trouble."""

from loaderkit.cli.doctor.command import add_to
from loaderkit.cli.doctor.data import check_data, measure
from loaderkit.cli.doctor.finding import Finding, in_units
from loaderkit.cli.doctor.host import Host, available_memory, check_host

__all__ = ["Finding", "Host", "add_to", "available_memory", "check_data", "check_host", "in_units", "measure"]

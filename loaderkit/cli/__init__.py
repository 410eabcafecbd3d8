"""The `loaderkit` command."""

from loaderkit.cli.bench.measure import Cost, Costs, Measured, advise, measure_costs, settings_of, turns
from loaderkit.cli.bench.report import Report
from loaderkit.cli.bench.subject import INLINE, Setting, Subject, subject_of
from loaderkit.cli.command import main
from loaderkit.cli.doctor import Host, available_memory, check_data, check_host, in_units, measure

__all__ = [
    "INLINE",
    "Cost",
    "Costs",
    "Host",
    "Measured",
    "Report",
    "Setting",
    "Subject",
    "advise",
    "available_memory",
    "check_data",
    "check_host",
    "in_units",
    "main",
    "measure",
    "measure_costs",
    "settings_of",
    "subject_of",
    "turns",
]

"""`loaderkit bench`: measure engines and worker counts, and what each part of a batch costs."""

from loaderkit.cli.bench.command import add_to
from loaderkit.cli.bench.measure import Cost, Costs, Measured, advise, measure_costs, settings_of, turns
from loaderkit.cli.bench.report import Report
from loaderkit.cli.bench.subject import INLINE, Setting, Subject, add_subject, subject_from, subject_of

__all__ = [
    "INLINE",
    "Cost",
    "Costs",
    "Measured",
    "Report",
    "Setting",
    "Subject",
    "add_subject",
    "add_to",
    "advise",
    "measure_costs",
    "settings_of",
    "subject_from",
    "subject_of",
    "turns",
]

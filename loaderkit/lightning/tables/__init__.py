"""Tables in memory, and the statistics that turn their columns into numbers."""

from loaderkit.lightning.tables.columns import TableColumns, TableStatistics
from loaderkit.lightning.tables.files import read_table
from loaderkit.lightning.tables.fit import fit_table
from loaderkit.lightning.tables.values import Categories, Table

__all__ = ["Categories", "Table", "TableColumns", "TableStatistics", "fit_table", "read_table"]

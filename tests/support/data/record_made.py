"""Hypothesis strategies for records."""

from hypothesis import strategies as st

LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9)

RECORD = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
)

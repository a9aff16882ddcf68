"""Every default of the paper's preset is the paper's or the released code's, or docs/paper_values.md says why not."""

import pytest

from benchmarks import paper_values
from benchmarks.paper_values import DIFFERS, SAID


@pytest.mark.parametrize("script", SAID)
def test_a_default_that_differs_has_a_reason(script):
    differ = {field for field, (value, _) in SAID[script].items() if paper_values.default(script, field) != value}
    assert differ == set(DIFFERS[script])  # and no reason is of a field that does not


def test_the_page_is_as_made():
    assert paper_values.PAGE.read_text() == paper_values.page(), "python benchmarks/paper_values.py writes it anew"

"""What tests of data share."""

import re

import numpy as np
import pytest

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.errors import RayfedError


@pytest.fixture
def read_or_refused(tmp_path, own_cache):
    """A function that holds what a source reads against what was written, or its refusal against one line.

    Its arguments: the source; what was written, a mapping of a data set's attributes and "notes", or the
    pattern of a refusal; the source's options.
    """

    def check(source, written, folder=tmp_path, **options):
        written = written if isinstance(written, str) else dict(written)
        if isinstance(written, str):
            with pytest.raises(RayfedError, match=written) as refused:
                load_dataset(source, folder, options=options)
            assert str(refused.value).isprintable()
            return
        data = load_dataset(source, folder, options=options)
        found = {"names": data.class_names, "labels": data.train.labels, "images": data.train.images}
        found["columns"] = list(data.columns)
        if data.test is not None:
            found |= {"test_labels": data.test.labels, "test_images": data.test.images}
        notes = written.pop("notes", [])
        assert len(data.notes) == len(notes)
        for note, pattern in zip(data.notes, notes, strict=True):
            assert re.search(pattern, note), note
        assert "test_labels" in written or data.test is None
        for name, values in written.items():
            np.testing.assert_array_equal(found[name], values) if "images" not in name else (
                np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6)
            )

    return check

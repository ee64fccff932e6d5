"""How far decoding is, as those who wait are told."""

from rayfed_kd.data.decoding import begin_decoding, decoded, decoding_told


def test_whole_percents_are_told_once():
    told = []
    with decoding_told(told.append):
        begin_decoding("photos")
        assert list(decoded("abcd", 4)) == list("abcd")
        assert len(list(decoded(range(1000), 1000))) == 1000
    assert told[:5] == ["decoding photos", *(f"decoding photos {n} %" for n in (25, 50, 75, 100))]
    assert told[5:] == [f"decoding photos {percent} %" for percent in range(1, 101)]


def test_nothing_is_told_where_nobody_listens():
    told = []
    with decoding_told(told.append):
        pass
    begin_decoding("photos")
    assert list(decoded([1], 1)) == [1]
    assert told == []

"""Replies that are on another machine cross as soon as they are there."""

from concurrent.futures import Future

import pytest

from rayfed_kd.cluster.ray_backend import handles

SMALL, LARGE = 100 * 1024, 100 * 1024 + 1


class Ref:
    def __init__(self):
        self.futures = []

    def future(self):
        self.futures.append(Future())
        return self.futures[-1]

    def end(self):
        """The fetch that was begun, if one was, is over."""
        for future in self.futures:
            if not future.done():
                future.set_result({})


def ahead(room=10 * LARGE):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handles, "machine_name", lambda: "here")
        patch.setattr(handles, "half_of_the_store", lambda: room)
        return handles.Ahead()


@pytest.mark.parametrize(
    ("machine", "size", "times"), [("there", LARGE, 1), ("there", SMALL, 0), ("here", LARGE, 0)]
)
def test_what_is_here_or_comes_with_the_call_is_not_fetched(machine, size, times):
    ref = Ref()
    ahead().fetch(ref, machine, size)
    assert len(ref.futures) == times


def test_no_more_is_fetched_in_a_round_than_there_is_room_for():
    refs, one = [Ref() for _ in range(5)], ahead(room=2 * LARGE)
    for ref in refs[:3]:
        one.fetch(ref, "there", LARGE)
        ref.end()
    one.end_round()
    for ref in refs[3:]:
        one.fetch(ref, "there", LARGE)
        ref.end()
    assert [len(ref.futures) for ref in refs] == [1, 1, 0, 1, 1]


def test_one_is_fetched_at_a_time_in_the_order_of_arrival():
    refs, one = [Ref() for _ in range(3)], ahead()
    for ref in refs:
        one.fetch(ref, "there", LARGE)
    for count, ref in enumerate(refs, 1):
        assert [len(other.futures) for other in refs] == [1] * count + [0] * (3 - count)
        ref.end()


def test_what_waits_when_the_round_has_ended_is_left_to_the_server():
    refs, one = [Ref() for _ in range(3)], ahead()
    for ref in refs[:2]:
        one.fetch(ref, "there", LARGE)
    one.end_round()
    one.fetch(refs[2], "there", LARGE)
    refs[0].end()
    assert [len(ref.futures) for ref in refs] == [1, 0, 1]


def test_an_object_that_was_lost_is_an_error_only_for_who_asks_for_it():
    refs, one = [Ref(), Ref()], ahead()
    for ref in refs:
        one.fetch(ref, "there", LARGE)
    refs[0].futures[0].set_exception(RuntimeError("lost"))
    assert len(refs[1].futures) == 1


def test_on_one_machine_ray_is_asked_for_nothing(monkeypatch):
    def never():
        raise AssertionError

    monkeypatch.setattr(handles, "half_of_the_store", never)
    monkeypatch.setattr(handles, "machine_name", lambda: "here")
    handles.Ahead().fetch(Ref(), "here", LARGE)
    monkeypatch.setattr(handles, "machine_name", never)
    handles.Ahead().fetch(Ref(), "there", SMALL)

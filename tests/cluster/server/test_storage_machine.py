"""Checkpoints and tables under any order of saving, damage, kills, ends and resumes.

A resumed run goes back to the newest intact checkpoint, and the tables to its round: every round's rows are
there once, with the values that the round gave.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from steady import STEADY

from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.errors import DataError
from rayfed_kd.files.whole import UNFINISHED_PREFIX
from rayfed_kd.recipe.sections.safety import CheckpointRecipe
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.tables import TableWriter, last_round, read_table
from rayfed_kd.results.tables.streams import STREAM

KEEP = 2


def rows(table, round_index, run):
    """What a round of one life of the run writes: lives differ, so that a stale row shows."""
    row = {"round": round_index, "sim_s": float(run)}
    if table == "clients":
        return [{**row, "client": client, "model": "global"} for client in range(round_index % 3)]
    return [row]


class Storage(RuleBasedStateMachine):
    """A run's folder; `lives` counts resumes, `expected` is what the tables must hold."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(prefix="storage-"))
        self.round, self.lives = 0, 0
        self.expected = {}  # round -> the life in which it was written
        self.saved = {}  # round -> the life whose checkpoint it is, of those that lie there
        self.intact = set()
        self._open()

    def _open(self, after_round=None):
        self.tables = TableWriter(self.folder / "tables", after_round)
        self.keeper = Checkpointer(self.folder, CheckpointRecipe(keep=KEEP), self.tables.row_counts)

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(checkpoint=st.booleans())
    def play_a_round(self, checkpoint):
        self.round += 1
        contents = {name: rows(name, self.round, self.lives) for name in ("rounds", "clients")}
        self.tables.write(self.round, contents)
        self.expected[self.round] = self.lives
        if checkpoint:
            self.keeper.save(Snapshot(self.round, torch.tensor([self.round, self.lives]), {}, 0.0))
            self.saved[self.round] = self.lives
            self.intact.add(self.round)
            for old in sorted(self.saved)[:-KEEP]:
                del self.saved[old]
                self.intact.discard(old)

    @precondition(lambda self: self.intact)
    @rule(how=st.sampled_from(["truncate", "flip", "remove", "note"]), data=st.data())
    def damage_a_checkpoint(self, how, data):
        number = data.draw(st.sampled_from(sorted(self.intact)))
        path = self.folder / "checkpoints" / f"round-{number:06d}.safetensors"
        if how == "remove":
            path.unlink()
        elif how == "note":
            path.with_suffix(".json").write_text('{"round": ')
        else:
            content = bytearray(path.read_bytes())
            place = data.draw(st.integers(0, len(content) - 1))
            if how == "truncate":
                content = content[:place]
            else:
                content[place] ^= 1 + data.draw(st.integers(0, 254))
            path.write_bytes(content)
        self.intact.discard(number)

    @rule()
    def end(self):
        """What closing a run does: each table becomes one Parquet file; another process goes on."""
        self.tables.close()
        self._open()

    @rule(data=st.data())
    def kill_at_the_end(self, data):
        """The Parquet files are written, streams are still there."""
        before = {path: path.read_bytes() for path in (self.folder / "tables").glob(f"*/{STREAM}")}
        self.tables.close()
        for path, content in before.items():
            if data.draw(st.booleans()):
                path.write_bytes(content)
        self._open()

    @rule(table=st.sampled_from(["rounds", "clients"]), content=st.binary(max_size=20))
    def kill_within_a_write(self, table, content):
        name = f"{UNFINISHED_PREFIX}0123-rows.parquet"
        (self.folder / "tables" / table / name).write_bytes(content)

    @rule()
    def resume(self):
        self._resume(max(self.intact, default=0))

    @precondition(lambda self: self.expected)
    @rule()
    def lose_the_newest_rows_and_resume(self):
        """Rounds whose rows a power cut took are made again: no checkpoint that has them is gone on from."""
        path = self.folder / "tables" / "rounds" / STREAM
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 2 // 3])
        there = last_round(self.folder / "tables")
        self._resume(max((number for number in self.intact if number <= there), default=0))

    def _resume(self, newest):
        """As an assembled run resumes; `newest` is the round of the checkpoint that it must find."""
        told = []
        snapshot = self.keeper.latest(lambda arrays: arrays, "cpu", told.append, self.folder / "tables")
        assert (0 if snapshot is None else snapshot.round) == newest
        if snapshot is not None:
            assert snapshot.server.tolist() == [newest, self.saved[newest]]
        assert len(told) == len([number for number in self.saved if number > newest])
        self._open(newest)
        self.keeper.tidy(newest)
        self.saved = {number: life for number, life in self.saved.items() if number <= newest}
        self.intact &= set(self.saved)
        self.round, self.lives = newest, self.lives + 1
        self.expected = {number: life for number, life in self.expected.items() if number <= newest}

    @precondition(lambda self: self.expected)
    @rule(length=st.integers(0, 99))
    def cut_a_finished_table_off_and_put_it_back(self, length):
        """A damaged table is an error with its name, never fewer rows."""
        self.tables.close()
        path = self.folder / "tables/rounds/rows.parquet"
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * length // 100])
        with pytest.raises(DataError, match=path.name):
            read_table(self.folder / "tables", "rounds")
        path.write_bytes(content)
        self._open()

    @invariant()
    def every_row_is_there_once(self):
        for name in ("rounds", "clients"):
            table = read_table(self.folder / "tables", name)
            assert table.schema.equals(SCHEMAS[name])
            wanted = [
                row for number, life in sorted(self.expected.items()) for row in rows(name, number, life)
            ]
            found = [{key: row[key] for key in ("round", "sim_s")} for row in table.to_pylist()]
            assert found == [{key: row[key] for key in ("round", "sim_s")} for row in wanted]


@pytest.mark.parametrize(
    ("examples", "steps"),
    [pytest.param(4, 10, id="sample"), pytest.param(100, 30, id="many", marks=pytest.mark.slow)],
)
def test_tables_and_checkpoints_agree_after_whatever_happened(examples, steps, monkeypatch):
    monkeypatch.setattr("rayfed_kd.files.whole.flush_to_disk", lambda path: None)  # no power is cut here
    limits = settings(STEADY, max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(Storage, settings=limits)

"""A user's folder whose packages have the names of this project's own folders."""

METHOD = """
from rayfed_kd.protocol import Reply
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions


class Still(Averaging[None]):
    options: AveragingOptions

    def client_update(self, client, message, ctx):
        return None, Reply(student=message["student"].clone(), samples=ctx.num_samples)
"""


def crowd(folder):
    """Fills a folder: `algorithms.my:Still` is the user's method, all other packages may not be imported."""
    for name in ("cluster", "configs", "runs", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('the user\\'s package, not ours')\n")
    (folder / "algorithms").mkdir()
    (folder / "algorithms/__init__.py").write_text("")
    (folder / "algorithms/my.py").write_text(METHOD)


# Every command but `tune`, on the user's method, in the order in which they can run.
OWN = "method={name: algorithms.my:Still}"
COMMANDS = (
    ("methods",),
    ("methods", "algorithms.my:Still"),
    ("models",),
    ("recipes",),
    ("doctor",),
    ("partition", "quickstart"),
    ("run", "quickstart", OWN, "rounds=1", "checkpoint.every=1", "results.folder=out", "--local"),
    ("resume", "out", "rounds=2", "--local"),
    ("report", "out"),
    ("export", "out", "--model", "global", "--to", "exported"),
    ("compare", "quickstart", OWN, "rounds=1", "--folder", "compared", "--local"),
)

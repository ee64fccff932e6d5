"""FedKF: identities, who gets gradient, Table IX's counts, the options."""

import numpy as np
import pytest
import torch
from runs import reply_of, run_in_process, run_setting
from small_recipes import FIVE_CLIENTS

import rayfed_kd
from rayfed_kd.algorithms.fedkf import FedKF, Options, ServerState, equal_steps
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Replies
from rayfed_kd.toolbox.slots import Slots

SMALL = {
    **FIVE_CLIENTS,
    "method": {"name": "fedkf", "generator": {"name": "dafl_image", "width": 4, "latent": 8}},
    "local": {"epochs": 2, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05}},
    "sampling": {"fraction": 0.4},
}


def run(*overrides):
    return run_in_process(SMALL, *overrides)


class Sizes:
    sizes = (10, 20, 30)


@pytest.mark.parametrize(("unseen", "first_oca"), [("initial", 1.5), ("ignore", 3.0)])
def test_worked_slots_of_two_rounds(unseen, first_oca):
    """Sizes 10, 20, 30, w0 = 0; {1, 2} give 1, 4; then {2, 3} give 7, 10. ACA 3, 8.8; OCA as named, 7.5."""
    method = FedKF(Options(unseen_slots=unseen))
    zero = torch.zeros(1)
    server = ServerState(zero, zero, Slots.empty(1), zero)
    server = method.absorb(
        server, Replies([reply_of(0, 10, student=[1.0]), reply_of(1, 20, student=[4.0])]), Sizes
    )
    assert (server.aca.item(), server.oca.item()) == (3.0, first_oca)
    server = method.absorb(
        server, Replies([reply_of(1, 20, student=[7.0]), reply_of(2, 30, student=[10.0])]), Sizes
    )
    assert (server.aca.item(), server.oca.item()) == (pytest.approx(8.8), 7.5)


def test_gamma_zero_is_fedavg_bit_for_bit():
    without, fedavg = run("method.gamma=0"), run("method={name: fedavg, track_oca: true}")
    assert np.array_equal(without.models["global"], fedavg.models["global"])
    assert np.array_equal(without.models["oca"], fedavg.models["oca"])


def test_first_round_does_not_tell_fedkf_from_its_minus_form():
    changes = ("rounds=1", "evaluation.every=1")
    full, minus = run(*changes), run(*changes, "method.teacher=aca")
    assert np.array_equal(full.models["global"], minus.models["global"])


def test_full_participation_makes_oca_the_active_average():
    result = run("sampling.fraction=1.0")
    assert np.allclose(result.models["global"], result.models["oca"], atol=1e-6)


def test_minus_form_sends_one_model_instead_of_two():
    full, minus = run("rounds=1"), run("rounds=1", "method.teacher=aca")
    down = [r.tables["rounds"]["bytes_down"].to_pylist()[0] for r in (full, minus)]
    assert down[0] == 2 * down[1]
    assert full.tables["rounds"]["bytes_up"].to_pylist() == [down[1]]


def test_order_of_the_two_steps_changes_no_bit():
    """Both use the same x^ and the frozen teacher; without the adversarial term they do not meet."""
    first, second = run(), run("method.order=student_first")
    assert np.array_equal(first.models["oca"], second.models["oca"])


@pytest.mark.parametrize(
    "option", ["gamma=0", "warmup_rounds=1", "adversarial=0.5", "activation=sum", "entropy=normalised"]
)
def test_option_changes_the_result(option):
    """The generator's loss reaches the student through the images of the second round."""
    plain, changed = run(), run(f"method.{option}")
    assert not np.array_equal(plain.models["global"], changed.models["global"])


def test_warmup_round_generates_nothing():
    result = run("method.warmup_rounds=1")
    losses = [dict(row) for row in result.tables["rounds"]["logged"].to_pylist()]
    assert set(losses[0]) == {"ce"}
    assert "kl" in losses[1]


def test_released_sets_the_forms_of_the_code_and_keeps_what_is_given():
    options = Options.model_validate({"released": True, "order": "generator_first"})
    assert (options.entropy, options.unseen_slots, options.warmup_rounds) == ("normalised", "ignore", 1)
    assert options.steps_per_epoch == "equal"
    assert options.order == "generator_first"


def test_equal_steps_are_the_floor_of_all_samples_by_clients_and_batch():
    """(100 + 28) / (2 x 10) = 6.4."""
    assert equal_steps([100, 28], 10) == 6


def test_every_client_makes_as_many_steps_when_equal():
    counted = run("method.steps_per_epoch=3", "rounds=1")
    assert counted.summary["status"] == "finished"


def test_passes_per_batch_are_those_of_table_nine(monkeypatch):
    """Table IX, FedKF: generator 1 forward 1 backward, teacher 1 and 1, student 2 and 2 per batch."""
    # Modules are tried before the first round, which is not counted.
    setting = rayfed_kd.prepare(SMALL, ["rounds=1", "evaluation.every=2"]).setting
    engine = LocalEngine(Host(setting))
    passes = count_passes(monkeypatch)
    result = run_setting(setting, engine)
    batches = passes["teacher", "forward"]
    assert result.summary["rounds"] == 1
    assert batches > 0
    ratios = {key: count / batches for key, count in passes.items()}
    assert ratios == {
        ("generator", "forward"): 1,
        ("generator", "backward"): 1,
        ("teacher", "forward"): 1,
        ("teacher", "backward"): 1,
        ("student", "forward"): 2,
        ("student", "backward"): 2,
    }


def count_passes(monkeypatch):
    """Counts passes through the input layer's output of every module lent, by role, outside evaluation."""
    passes = {}
    switch = FlatModule._switch

    def add(role, way):
        passes[role, way] = passes.get((role, way), 0) + 1

    def hooked(flat, train):
        role = "generator" if hasattr(flat.module, "latent") else ("student" if train else "teacher")
        if not hasattr(flat, "counted"):
            flat.counted = role

            def forward(module, inputs, output):
                if output.requires_grad:
                    add(flat.counted, "forward")
                    output.register_hook(lambda gradient: add(flat.counted, "backward"))

            body = flat.module.body
            body.register_forward_hook(forward)
        flat.counted = role
        return switch(flat, train)

    monkeypatch.setattr(FlatModule, "_switch", hooked)
    return passes

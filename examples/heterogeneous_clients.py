"""Clients with models of their own: FedMD, whose clients exchange predictions on public images only.

Three architectures are dealt to nine clients in turn. A third of the training images is public; nobody sends
weights, so nobody needs to know the others' architectures.
"""

from collections import defaultdict

import rayfed_kd

ARCHITECTURES = [{"name": "lenet5"}, {"name": "mlp", "hidden": 64}, {"name": "dense", "units": [32, 32]}]

RECIPE = {
    "method": {"name": "fedmd", "pretrain_public": 1, "pretrain_private": 1, "digest_epochs": 1},
    "client_models": {"models": ARCHITECTURES, "assign": "cycle"},
    "data": {"name": "digits"},
    "partition": {
        "name": "dirichlet",
        "alpha": 0.5,
        "clients": 9,
        "public": {"fraction": 0.34, "labels": True},
    },
    "local": {"epochs": 2, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.003}},
    "sampling": {"fraction": 1.0},
    "rounds": 5,
}

if __name__ == "__main__":
    result = rayfed_kd.run(RECIPE, local=True)  # without `local`: on Ray
    accuracies = defaultdict(list)
    for row in result.tables["clients"].to_pylist():
        if row["round"] == RECIPE["rounds"]:
            accuracies[row["client"] % len(ARCHITECTURES)].append(row["accuracy"])
    for place, values in sorted(accuracies.items()):
        print(
            f"{ARCHITECTURES[place]['name']}: accuracy {sum(values) / len(values):.3f}, {len(values)} clients"
        )
    kinds = {row["kind"] for row in result.tables["messages"].to_pylist()}
    print("what travelled:", ", ".join(sorted(kinds)))

"""Plain Python: run two methods on the same split with the same start, and plot their accuracy by round.

A run gives Arrow tables (rounds, metrics, clients, messages, hosts) and the last evaluated models. The same
tables lie as Parquet in the run's folder, where any tool can read them while the run goes on.
"""

import matplotlib.pyplot as plt

import rayfed_kd

METHODS = {
    "FedAvg": "method={name: fedavg, track_oca: true}",
    "FedKF": "method={name: fedkf, generator: {name: dafl_image, width: 16}}",
}

if __name__ == "__main__":
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for label, method in METHODS.items():
        result = rayfed_kd.run("quickstart", [method, "rounds=5", "seed=1"], local=True)
        metrics = [row for row in result.tables["metrics"].to_pylist() if row["model"] == "oca"]
        axes.plot([row["round"] for row in metrics], [row["amp"] for row in metrics], "o-", label=label)
        rounds = result.tables["rounds"].to_pydict()
        print(f"{label}: {metrics[-1]['amp']:.3f} after {sum(rounds['bytes_up']) / 2**20:.1f} MiB up")
        print(f"all tables and pictures: {result.folder}")
    axes.set(xlabel="round", ylabel="accuracy (AMP), average of all clients' models", ylim=(0, 1))
    axes.legend()
    figure.savefig("accuracy.png", dpi=150)
    print("accuracy.png")

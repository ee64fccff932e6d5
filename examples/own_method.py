"""A method of your own: FedAvg whose clients also distil from the model that they received.

From the folder of this file, on Ray, with any option and any recipe:

    rayfed-kd run quickstart method='{name: own_method:DistilFromGlobal, coefficient: 1.0}'
"""

from pydantic import Field

import rayfed_kd
from rayfed_kd.protocol import Reply
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.local_training import train_local_epochs
from rayfed_kd.toolbox.losses import cross_entropy, distillation


class Options(AveragingOptions):
    """What a recipe may set; every option has a default, bounds and a meaning."""

    coefficient: float = Field(0.5, ge=0, description="weight of the distillation term")
    temperature: float = Field(2.0, gt=0, description="T, softens both distributions")


class DistilFromGlobal(Averaging[None]):
    """The server's part, a weighted average, is inherited; this is the client's."""

    options: Options

    def client_update(self, client, message, ctx):
        """Train the received model on the client's samples, near its own first predictions."""
        student = ctx.model(message["student"])
        teacher = ctx.frozen_model(message["student"])

        def loss(images, labels):
            logits = student(images)
            hard = cross_entropy(logits, labels)
            soft = distillation(teacher(images), logits, self.options.temperature)
            ctx.log(ce=hard, kd=soft)
            return hard + self.options.coefficient * soft

        train_local_epochs(student, loss, ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)


if __name__ == "__main__":
    for method in ("fedavg", "own_method:DistilFromGlobal"):
        overrides = [f"method={{name: '{method}'}}", "rounds=3"]
        result = rayfed_kd.run("quickstart", overrides, local=True)  # without `local`: on Ray
        last = result.tables["metrics"].to_pylist()[-1]
        print(f"{method}: accuracy {last['amp']:.3f} after round {last['round']}")

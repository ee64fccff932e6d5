"""A look inside a method: what DaFKD's ensemble knows in each round, and what its distillation does with it.

The subclass only watches. It asks for labelled public images, which no client has, and logs to the table
`rounds`, on these images: how often the averaged model is right, and the distilled one; the clients' even
mean, and that by the discriminators; and on the generated images how sure the target is, how often the
averaged model already says the same, and how many classes the targets have. From the folder of this file:

    rayfed-kd run quickstart 'method={name: inside_dafkd:Inside}' 'partition.public={fraction: 0.1}' --local
"""

import torch

import rayfed_kd
from rayfed_kd.algorithms.dafkd.dafkd import DaFKD
from rayfed_kd.toolbox.public_data import drawn_seed


def right(logits, labels):
    return (logits.argmax(-1) == labels).float().mean()


class Inside(DaFKD):
    """DaFKD, watched."""

    public = "labels"

    def absorb(self, server, replies, ctx):
        """DaFKD's step, and what it started from."""
        new = super().absorb(server, replies, ctx)
        weights, theta = self._means(server, replies)
        ids = ctx.public.ids
        images, labels = ctx.public.images(ids), ctx.public.labels(ids)
        with torch.no_grad():
            members, log_f = self.ensemble(replies, weights, images, ctx)
            weighted = torch.einsum("kn,knc->nc", log_f.softmax(0), members)
            ctx.log(
                mean_right=right(ctx.frozen_model(weights)(images), labels),
                even_right=right(members.mean(0), labels),
                weighted_right=right(weighted, labels),
                distilled_right=right(ctx.frozen_model(new.weights)(images), labels),
            )
            generator = ctx.frozen_model(theta, "generator")
            drawn = self.options.samples(generator, drawn_seed(ctx, "samples"), ctx)
            members, log_f = self.ensemble(replies, weights, drawn, ctx)
            target = self.options.softened(torch.einsum("kn,knc->nc", log_f.softmax(0), members))
            shares = target.mean(0)
            ctx.log(
                target_sure=target.amax(1).mean(),
                mean_agrees=right(ctx.frozen_model(weights)(drawn), target.argmax(1)),
                target_classes=torch.exp(-(shares * shares.clamp(min=1e-9).log()).sum()),
            )
        return new


if __name__ == "__main__":
    overrides = ["method={name: inside_dafkd:Inside}", "partition.public={fraction: 0.1}", "rounds=3"]
    result = rayfed_kd.run("quickstart", overrides, local=True)
    for row in result.table("rounds").to_pylist():
        seen = ", ".join(f"{name} {value:.2f}" for name, value in dict(row["logged"]).items())
        print(f"round {row['round']}: {seen}")

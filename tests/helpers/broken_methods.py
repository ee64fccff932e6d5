"""A method that keeps the contract, and methods that break one rule of it each."""

import itertools
import random
from typing import ClassVar

import torch

from rayfed_kd.protocol import Message, OneExchange, Reply


class Keeping(OneExchange):
    """Adds noise to the model; a client's state says how often it took part, weighed by its number."""

    down: ClassVar = {"student": "weights"}
    up: ClassVar = {"student": "weights"}
    client_keeps = "how often it took part"
    evaluates = ("global",)

    def init_server(self, ctx):
        return ctx.initial_vector()

    def init_client(self, ctx):
        return torch.zeros(2)

    def dispatch(self, server, ctx):
        return Message(student=server)

    def client_update(self, client, message, ctx):
        return self.next_state(client, ctx), self.reply(message, ctx, 0.001 * float(client.sum()))

    def next_state(self, client, ctx):
        return client + 1.0 + ctx.client

    def reply(self, message, ctx, shift=0.0, **more):
        student = message["student"]
        noise = torch.randn(student.shape, generator=ctx.stream("noise"))
        ctx.log(noise=noise.mean())
        return Reply(student=student + 0.01 * noise + shift, samples=ctx.num_samples, **more)

    def absorb(self, server, replies, ctx):
        return replies.aggregated("student", replies.numbers("samples"), into=server)

    def evaluated(self, server):
        return {"global": server}


class ChangesState(Keeping):
    def next_state(self, client, ctx):
        return client.add_(1.0)


class ChangesMessage(Keeping):
    def client_update(self, client, message, ctx):
        reply = self.reply(message, ctx)
        message["student"].zero_()
        return self.next_state(client, ctx), reply


BUFFER = torch.zeros(2)


class ReturnsOneBuffer(Keeping):
    def next_state(self, client, ctx):
        return BUFFER.copy_(client + 1.0 + ctx.client)


class DrawsGlobally(Keeping):
    def client_update(self, client, message, ctx):
        return self.next_state(client, ctx), self.reply(message, ctx, torch.rand(1))


class DrawsAtServer(Keeping):
    def absorb(self, server, replies, ctx):
        return super().absorb(server, replies, ctx) + random.random()


class DrawsFromTorchAtServer(Keeping):
    def dispatch(self, server, ctx):
        return Message(student=server + torch.rand(1))


class SendsUndeclared(Keeping):
    def client_update(self, client, message, ctx):
        return self.next_state(client, ctx), self.reply(message, ctx, extra=torch.zeros(1))


class KeepsASet(Keeping):
    def init_client(self, ctx):
        return {0}

    def client_update(self, client, message, ctx):
        return {*client, ctx.round}, self.reply(message, ctx)


class ServerKeepsASet(Keeping):
    def init_server(self, ctx):
        return {"weights": ctx.initial_vector(), "seen": {0}}

    def dispatch(self, server, ctx):
        return Message(student=server["weights"])

    def absorb(self, server, replies, ctx):
        return {**server, "weights": super().absorb(server["weights"], replies, ctx)}

    def evaluated(self, server):
        return {"global": server["weights"]}


NUMBERS = itertools.count()


class CountsCalls(Keeping):
    def client_update(self, client, message, ctx):
        return self.next_state(client, ctx), self.reply(message, ctx, 0.001 * next(NUMBERS))


SEEN = set()


class RemembersOutsideItsState(Keeping):
    def client_update(self, client, message, ctx):
        again = (ctx.client, ctx.round) in SEEN
        SEEN.add((ctx.client, ctx.round))
        return self.next_state(client, ctx), self.reply(message, ctx, 0.001 * again)


ORDER = []


class DependsOnOrder(Keeping):
    def dispatch(self, server, ctx):
        ORDER.clear()
        return super().dispatch(server, ctx)

    def client_update(self, client, message, ctx):
        if ctx.client not in ORDER:
            ORDER.append(ctx.client)
        return self.next_state(client, ctx), self.reply(message, ctx, 0.001 * ORDER.index(ctx.client))


class ChangesServerState(Keeping):
    def absorb(self, server, replies, ctx):
        changed = server.copy_(super().absorb(server, replies, ctx))
        return changed.clone()

    def init_server(self, ctx):
        return super().init_server(ctx).clone()


class SetsAClassAttribute(Keeping):
    last_round = 0

    def client_update(self, client, message, ctx):
        type(self).last_round = ctx.round
        return super().client_update(client, message, ctx)


class SetsAnAttributeInAStep(Keeping):
    def client_update(self, client, message, ctx):
        self.last_round = ctx.round
        return super().client_update(client, message, ctx)


class SetsAnAttributeAtTheServer(Keeping):
    def absorb(self, server, replies, ctx):
        self.last_round = ctx.round
        return super().absorb(server, replies, ctx)


ROUNDS = []


class CountsRoundsOutsideItsState(Keeping):
    def init_server(self, ctx):
        ROUNDS.clear()
        return super().init_server(ctx)

    def absorb(self, server, replies, ctx):
        ROUNDS.append(ctx.round)
        return super().absorb(server, replies, ctx) + len(ROUNDS)


class SaysThatNothingIsKept(Keeping):
    client_keeps = "nothing"


class EvaluatesAnotherModel(Keeping):
    evaluates = ("student",)

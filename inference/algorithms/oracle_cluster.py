"""One FedAvg for each group of clients that have the same classes: what a perfect clustering would reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.algorithm import ClientUpdate, Cohort, Round, Tensors, Upload
from pyro_pfedbayes.inference.algorithms.components.point import PERSONAL, PointMethod
from pyro_pfedbayes.inference.beliefs.points import THETA
from pyro_pfedbayes.inference.engine.client_step import GradientEngine
from pyro_pfedbayes.inference.server.rules import averaged
from pyro_pfedbayes.models.declared import DeclaredModel

CLASSES = "classes"
GROUP_THETA, GROUP_CLASSES = "group.theta", "group.classes"


@dataclass(frozen=True)
class OracleCluster(PointMethod):
    """Settings of FedAvg by label group.

    Clients tell the server which classes they have, which no private client would: it is a bound to compare with, no
    method. Clients whose classes are the same set share weights; the global model is the mean of all groups' weights.
    """

    name = "oracle-cluster"
    models = ("personal",)
    copied = (PERSONAL,)
    personal_steps = 1
    """A personal model is that of the client's group, without a step."""

    def init(self, model: DeclaredModel) -> Tensors:
        """The server's weights."""
        if model.outcome != "class":
            raise UserError(
                "oracle-cluster groups clients by their classes; the outcome is a number"
            )
        return super().init(model)

    def client_update(
        self, engine: GradientEngine, server: Tensors, cohort: Cohort, at: Round
    ) -> ClientUpdate:
        """R steps from the weights of the client's group."""
        update = super().client_update(engine, server, cohort, at)
        return replace(update, upload={**update.upload, CLASSES: _classes(cohort)})

    def server_update(
        self, model: DeclaredModel, server: Tensors, uploads: Iterable[Upload], at: Round
    ) -> Tensors:
        """Average within groups; a group of which nobody took part stands still."""
        known = _groups(server)
        sent: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for upload in uploads:
            weights = self.importance(upload)
            for k, key in enumerate(_keys(upload.tensors[CLASSES])):
                sent.setdefault(key, []).append((upload.tensors[THETA][k], weights[k]))
        for key, members in sent.items():
            rows, weights = (torch.stack(part) for part in zip(*members, strict=True))
            known[key] = averaged([({THETA: rows}, weights)])[THETA]
        theta = torch.stack(list(known.values()))
        width = max(len(key) for key in known)
        padded = [[*key, *[-1] * (width - len(key))] for key in known]
        classes = torch.tensor(padded, dtype=torch.int64, device=theta.device)
        return {THETA: theta.mean(0), GROUP_THETA: theta, GROUP_CLASSES: classes}

    def starting_weights(self, model: DeclaredModel, server: Tensors, cohort: Cohort) -> Tensor:
        """Weights of the group of each client ``[S, P]``; the server's for a group that is new."""
        theta = server[THETA].expand(len(cohort.clients), -1).clone()
        known = _groups(server)
        for k, key in enumerate(_keys(_classes(cohort))):
            theta[k] = known.get(key, theta[k])
        return theta


def _groups(server: Tensors) -> dict[tuple[int, ...], Tensor]:
    """Weights of each group, by its classes."""
    if GROUP_THETA not in server:
        return {}
    return dict(zip(_keys(server[GROUP_CLASSES]), server[GROUP_THETA], strict=True))


def _classes(cohort: Cohort) -> Tensor:
    """The classes of each client's training examples, padded with -1: int64 ``[S, width]``."""
    found = []
    for client in cohort.clients:
        y = cohort.examples(client, "train")[1].unique()
        found.append(y[y >= 0])
    rows: Tensor = torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)
    return rows


def _keys(classes: Tensor) -> list[tuple[int, ...]]:
    return [tuple(c for c in row if c >= 0) for row in classes.tolist()]

"""A class with a method for each request."""

import torch
import torch.distributed as dist

from labkit.parallel.parameter_server import LEAVE, PULL, PUSH


class Server:
    def __init__(self, weights, lr, bound, group):
        self.weights, self.lr, self.bound, self.group = weights.clone(), lr, bound, group
        self.staleness, self.waiting, self.versions = [], [], {}
        self.workers = set(dist.get_process_group_ranks(group)[1:])

    def run(self):
        request = torch.empty(1, dtype=torch.int64)
        answers = {PULL: self.waiting.append, PUSH: self.update, LEAVE: self.workers.discard}
        while self.workers:
            worker = dist.recv(request, group=self.group)
            answers[int(request)](worker)
            self.versions.pop(worker, None)
            while self.waiting and self.safe():
                first = self.waiting.pop(0)
                dist.send(self.weights, first, self.group)
                self.versions[first] = len(self.staleness)
        return self.weights, self.staleness

    def update(self, worker):
        gradient = torch.empty_like(self.weights)
        dist.recv(gradient, worker, self.group)
        self.weights = self.weights - self.lr * gradient
        self.staleness.append(len(self.staleness) - self.versions[worker])

    def safe(self):
        version = len(self.staleness)
        oldest = min([version, *self.versions.values()])
        return version - oldest + len(self.versions) <= self.bound


def serve(weights, lr, staleness_bound, group):
    return Server(weights, lr, staleness_bound, group).run()

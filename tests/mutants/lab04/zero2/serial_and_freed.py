"""expect: lab04.zero.apart

Every rank keeps its own gradients under another name.
"""


class Zero2:
    def __init__(self, parameters, make_optimizer, group):
        self.sums, self.parameters = {}, list(parameters)
        self.optimizer = make_optimizer(self.parameters)
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.keep)

    def keep(self, parameter):
        self.sums[parameter] = self.sums.get(parameter, 0) + parameter.grad
        parameter.grad = None

    def step(self):
        for parameter in self.parameters:
            parameter.grad = self.sums.pop(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

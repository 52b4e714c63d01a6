"""What needs CUDA devices: ranks over NCCL, and the model on a GPU. `make gpu` runs these."""

import pytest
import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce
from labkit.comm.handmade import ring_all_reduce
from labkit.launch import device, run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.checkpoint import load_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_all_gpus(fn, *args):
    return run_ranks(fn, torch.cuda.device_count(), *args, device="cuda")


def test_each_rank_has_its_own_gpu_after_the_parent_used_one():
    torch.ones(1).cuda()  # a fork of this process would inherit a dead context
    places = on_all_gpus(lambda group: (str(device()), dist.get_backend(group)))
    assert [place for place, _ in places] == [f"cuda:{i}" for i in range(len(places))]


@pytest.mark.parametrize("sum_over", [all_reduce, ring_all_reduce])
def test_sums_and_bytes_are_those_of_the_cpu(sum_over):
    def program(group, sum_over):
        x = torch.arange(1000, device=device()) + dist.get_rank(group)
        with CommLedger() as ledger:
            total = sum_over(x, group)
        return total, ledger.bytes_sent()

    on_gpu = on_all_gpus(program, sum_over)
    on_cpu = run_ranks(program, len(on_gpu), sum_over, device="cpu")
    for (total, sent), (expected, expected_sent) in zip(on_gpu, on_cpu, strict=True):
        assert torch.equal(total, expected)  # whole numbers: no order of sums matters
        assert sent == expected_sent


def test_the_model_gives_the_logits_of_the_cpu():
    model = load_checkpoint("nano")
    tokens = torch.tensor([list(b"Friends, Romans, countrymen")])
    expected = model(tokens)
    got = model.cuda()(tokens.cuda()).cpu()
    # fp32 sums in another order: some hundred roundings of logits near 10.
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)

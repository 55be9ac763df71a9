"""A script for the UCCL P2P engine: trainers send their weights to inference ranks by a routing table.

Nothing in it but the import is weightcast's: `from uccl import p2p` becomes `from weightcast import p2p`.

torchrun --nproc_per_node 4 examples/uccl_style.py --num_training 2 --num_inference 2

The first ranks train, the last serve. The controller is the rank after the trainers, or 0 if none is spare.
"""

import argparse
import dataclasses
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from weightcast import p2p


@dataclasses.dataclass
class Transfer:
    """One parameter's way."""

    param_name: str
    src_rank: int
    dst_rank: int
    size: int


def nbytes(tensor):
    return tensor.numel() * tensor.element_size()


class Controller:
    """Decides once which trainer sends which parameter to which inference rank."""

    def __init__(self, training_ranks, inference_ranks):
        self.training_ranks = training_ranks
        self.inference_ranks = inference_ranks

    def compute_routing_table(self, sizes):
        """sizes: by rank, {name: bytes}. Greedy: the trainer with the fewest bytes so far gets the next one.

        Ranks send and receive in the order of the table. With one order for all, blocking calls cannot wait
        for each other in a circle.
        """
        wanted = sizes[self.training_ranks[0]]
        for rank in self.training_ranks + self.inference_ranks:
            assert sizes[rank] == wanted, f"rank {rank} has other parameters"
        assigned = dict.fromkeys(self.training_ranks, 0)
        table = []
        for name, size in wanted.items():
            for dst_rank in self.inference_ranks:
                src_rank = min(assigned, key=assigned.get)
                assigned[src_rank] += size
                table.append(Transfer(name, src_rank, dst_rank, size))
        return table, assigned


class RDMAWorker:
    """One rank's endpoint, connections and registered parameters."""

    def __init__(self, rank, model, local_gpu, num_cpus):
        self.rank = rank
        self.ep = p2p.Endpoint(local_gpu, num_cpus)
        self.connections = {}
        self.params = {name: param.data for name, param in model.named_parameters()}
        self.registered_mrs = {}

    def exchange_metadata(self):
        all_metadata = [None] * dist.get_world_size()
        dist.all_gather_object(all_metadata, self.ep.get_metadata())
        return all_metadata

    def register_params(self):
        for name, param in self.params.items():
            assert param.is_contiguous()
            ok, self.registered_mrs[name] = self.ep.reg(param.data_ptr(), nbytes(param))
            assert ok, f"cannot register {name}"

    def connect(self, inference_ranks, all_metadata):
        """A trainer's side. Connections arrive in any order, so the first bytes on each say whose it is."""
        for dst_rank in inference_ranks:
            ip, port, gpu = p2p.Endpoint.parse_metadata(all_metadata[dst_rank])
            ok, conn_id = self.ep.connect(ip, gpu, remote_port=port)
            assert ok, f"cannot connect to rank {dst_rank}"
            self._exchange_rank(self.ep.send, conn_id, self.rank)
            self.connections[dst_rank] = conn_id

    def accept(self, training_ranks):
        """An inference rank's side."""
        for _ in training_ranks:
            ok, _, _, conn_id = self.ep.accept()
            assert ok, "cannot accept"
            self.connections[self._exchange_rank(self.ep.recv, conn_id, -1)] = conn_id
        assert sorted(self.connections) == training_ranks

    def _exchange_rank(self, send_or_recv, conn_id, rank):
        number = torch.tensor([rank], dtype=torch.int32)
        ok, mr_id = self.ep.reg(number.data_ptr(), nbytes(number))
        assert ok, "cannot register the number"
        ok = send_or_recv(conn_id, mr_id, number.data_ptr(), nbytes(number))
        assert ok, "cannot exchange ranks"
        self.ep.dereg(mr_id)
        return number.item()

    def transfer_weights(self, table):
        """This rank's entries of the table. Returns the bytes it has moved."""
        moved = 0
        for entry in table:
            if self.rank == entry.src_rank:
                call, conn_id = self.ep.send, self.connections[entry.dst_rank]
            elif self.rank == entry.dst_rank:
                call, conn_id = self.ep.recv, self.connections[entry.src_rank]
            else:
                continue
            mr_id, ptr = self.registered_mrs[entry.param_name], self.params[entry.param_name].data_ptr()
            ok = call(conn_id, mr_id, ptr, entry.size)
            assert ok, f"{entry} failed"
            moved += entry.size
        return moved


def make_model(hidden):
    layers = [torch.nn.Embedding(256, hidden)]
    for _ in range(4):
        layers += [torch.nn.Linear(hidden, 4 * hidden), torch.nn.GELU(), torch.nn.Linear(4 * hidden, hidden)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(hidden, 256))


def train_step(model, optimizer):
    """Learns which byte follows which."""
    inputs = torch.randint(0, 256, (32, 8))
    logits = model(inputs)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), (inputs * 7 % 256).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def verify(worker, inference_ranks):
    """Compares every parameter with trainer 0's, which come over gloo."""
    for name, param in worker.params.items():
        expected = param.clone()
        dist.broadcast(expected, src=0)
        assert worker.rank not in inference_ranks or torch.equal(param, expected), f"{name} differs"


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_training", type=int, default=2)
    parser.add_argument("--num_inference", type=int, default=2)
    parser.add_argument("--rl_iterations", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--num_cpus", type=int, default=4)
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    assert world_size >= args.num_training + args.num_inference, "too few ranks; see --nproc_per_node"
    training_ranks = list(range(args.num_training))
    inference_ranks = list(range(world_size - args.num_inference, world_size))
    controller_rank = args.num_training if args.num_training not in inference_ranks else 0

    # Setup, once: connections, memory, and the controller's table.
    torch.manual_seed(rank)  # Every rank begins with other weights and trains on other data.
    model = make_model(args.hidden)
    trainers = dist.new_group(training_ranks)
    if rank in training_ranks:
        ddp = DistributedDataParallel(model, process_group=trainers)  # Makes the trainers' weights alike.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    worker = RDMAWorker(rank, model, int(os.environ["LOCAL_RANK"]), args.num_cpus)
    all_metadata = worker.exchange_metadata()
    if rank in training_ranks:
        worker.connect(inference_ranks, all_metadata)
    elif rank in inference_ranks:
        worker.accept(training_ranks)
    worker.register_params()
    sizes = [None] * world_size
    dist.all_gather_object(sizes, {name: nbytes(param) for name, param in worker.params.items()})
    box = [None]
    if rank == controller_rank:
        box[0], assigned = Controller(training_ranks, inference_ranks).compute_routing_table(sizes)
        print(f"routing table: {len(box[0])} transfers, bytes of each trainer {assigned}", flush=True)
    dist.broadcast_object_list(box, src=controller_rank)
    table = box[0]
    total = sum(entry.size for entry in table)
    if rank == 0:
        print(f"{'Iteration':>9} {'Trainers':>9} {'Loss':>8} {'Transfer Time':>14} {'Aggregate BW':>14}")

    for iteration in range(1, args.rl_iterations + 1):
        loss = train_step(ddp, optimizer) if rank in training_ranks else None
        dist.barrier()
        start = time.perf_counter()
        worker.transfer_weights(table)
        dist.barrier()
        seconds = time.perf_counter() - start
        verify(worker, inference_ranks)
        if rank == 0:
            print(
                f"{iteration:9} {args.num_training:9} {loss:8.4f} {seconds:12.4f} s "
                f"{total / seconds / 1e9:9.2f} GB/s",
                flush=True,
            )

    dist.barrier()
    if rank == 0:
        print(f"every parameter of {args.num_inference} inference ranks is trainer 0's")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

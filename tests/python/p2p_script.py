"""A script as users of the UCCL P2P engine write it: torchrun, metadata over gloo, every kind of transfer.

Nothing in it but the import is weightcast's. Run by test_p2p.py with two processes.
"""

import numpy as np
import torch
import torch.distributed as dist

from weightcast import p2p


def exchange(mine: bytes, rank: int) -> bytes:
    theirs = torch.zeros(len(mine), dtype=torch.uint8)
    ours = torch.ByteTensor(list(mine))
    if rank == 0:
        dist.send(ours, dst=1)
        dist.recv(theirs, src=1)
    else:
        dist.recv(theirs, src=0)
        dist.send(ours, dst=0)
    return bytes(theirs.tolist())


def nbytes(tensor):
    return tensor.numel() * tensor.element_size()


def wait(endpoint, tid):
    done = False
    while not done:
        ok, done = endpoint.poll_async(tid)
        assert ok


def send_and_recv(endpoint, conn, rank, size):
    value = torch.arange(size, dtype=torch.float32)
    tensor = value.clone() if rank == 0 else torch.zeros(size)
    ok, mr = endpoint.reg(tensor.data_ptr(), nbytes(tensor))
    assert ok
    if rank == 0:
        assert endpoint.send(conn, mr, tensor.data_ptr(), nbytes(tensor))
        ok, tid = endpoint.send_async(conn, mr, tensor.data_ptr(), nbytes(tensor))
    else:
        assert endpoint.recv(conn, mr, tensor.data_ptr(), size=nbytes(tensor))
        assert torch.equal(tensor, value)
        tensor.zero_()
        ok, tid = endpoint.recv_async(conn, mr, tensor.data_ptr(), size=nbytes(tensor))
    assert ok
    wait(endpoint, tid)
    assert torch.equal(tensor, value)
    assert endpoint.dereg(mr)


def sendv_and_recvv(endpoint, conn, rank):
    sizes = [512, 1024, 256]
    tensors = [torch.full((size,), float(rank == 0)) for size in sizes]
    mrs = [endpoint.reg(tensor.data_ptr(), nbytes(tensor))[1] for tensor in tensors]
    pointers = [tensor.data_ptr() for tensor in tensors]
    lengths = [nbytes(tensor) for tensor in tensors]
    call = endpoint.sendv if rank == 0 else endpoint.recvv
    assert call(conn, mrs, pointers, lengths, len(tensors))
    call = endpoint.sendv_async if rank == 0 else endpoint.recvv_async
    ok, tid = call(conn, mrs, pointers, lengths, len(tensors))
    assert ok
    wait(endpoint, tid)
    for tensor in tensors:
        assert torch.equal(tensor, torch.ones_like(tensor))


def one_sided(endpoint, conn, rank):
    """Rank 1 advertises, rank 0 writes and reads."""
    array = np.full(4096, rank, dtype=np.uint8)
    ok, mr = endpoint.reg(array.ctypes.data, array.nbytes)
    assert ok
    if rank == 1:
        ok, meta = endpoint.advertise(conn, mr, array.ctypes.data, array.nbytes)
        assert ok and len(meta) == 64
        dist.send(torch.ByteTensor(list(meta)), dst=0)
        dist.barrier()
        assert (array[:2048] == 7).all() and (array[2048:] == 1).all()
        dist.barrier()
        return
    theirs = torch.zeros(64, dtype=torch.uint8)
    dist.recv(theirs, src=1)
    meta = bytes(theirs.tolist())
    array[:2048] = 7
    assert endpoint.write(conn, mr, array.ctypes.data, 2048, meta)
    dist.barrier()
    array[:] = 0
    assert endpoint.read(conn, mr, array.ctypes.data, array.nbytes, meta)
    assert (array[:2048] == 7).all() and (array[2048:] == 1).all()
    ok, tid = endpoint.read_async(conn, mr, array.ctypes.data, array.nbytes, meta)
    assert ok
    wait(endpoint, tid)
    ok, tid = endpoint.write_async(conn, mr, array.ctypes.data, array.nbytes, meta)
    assert ok
    wait(endpoint, tid)
    dist.barrier()


def descriptors(endpoint, conn, rank):
    """register_memory and transfer."""
    tensors = [torch.full((size,), rank, dtype=torch.int64) for size in (10, 1000)]
    descs = endpoint.register_memory(tensors)
    blob = endpoint.get_serialized_descs(descs)
    remote = endpoint.deserialize_descs(exchange(blob, rank))
    assert [desc.size for desc in remote] == [80, 8000]
    if rank == 0:
        ok, tid = endpoint.transfer(conn, "read", descs, remote)
        assert ok
        wait(endpoint, tid)
        assert all((tensor == 1).all() for tensor in tensors)
        for tensor in tensors:
            tensor.fill_(5)
        ok, tid = endpoint.transfer(conn, "write", descs, remote)
        assert ok
        wait(endpoint, tid)
    dist.barrier()
    assert all((tensor == 5).all() for tensor in tensors)
    dist.barrier()
    endpoint.deregister_memory(descs)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    endpoint = p2p.Endpoint(local_gpu_idx=rank, num_cpus=4)
    metadata = exchange(endpoint.get_metadata(), rank)
    ip, port, gpu = p2p.Endpoint.parse_metadata(metadata)
    if rank == 0:
        ok, conn = endpoint.connect(remote_ip_addr=ip, remote_gpu_bdf=gpu, remote_port=port)
    else:
        ok, peer_ip, peer_gpu, conn = endpoint.accept()
        assert peer_gpu == 0, peer_gpu
    assert ok, endpoint.last_error
    send_and_recv(endpoint, conn, rank, 1024)
    send_and_recv(endpoint, conn, rank, 1 << 20)
    sendv_and_recvv(endpoint, conn, rank)
    one_sided(endpoint, conn, rank)
    descriptors(endpoint, conn, rank)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done")


if __name__ == "__main__":
    main()

"""Kernels that are launched in clusters, on a GPU that has them."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from torchmdx.runtime import cuda_source
from torchmdx.runtime.compile_cache import VARIABLE, CompileError
from torchmdx.runtime.cuda_kernel import ClusterKernel, DriverError

SOURCE = """
struct Given { int *out; int first; };
extern "C" __global__ void ranks(const __grid_constant__ Given given)
{
    unsigned rank, size;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    if (threadIdx.x == 0) given.out[blockIdx.x] = given.first + 100 * size + rank;
}
"""


class Given(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("first", ctypes.c_int))


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("needs a GPU with clusters of blocks")
    major, minor = torch.cuda.get_device_capability()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
        try:
            return cuda_source.cubin("ranks.cu", {"ranks.cu": SOURCE}, f"sm_{major}{minor}")
        except CompileError as error:
            pytest.skip(str(error))


def kernel_of(code, most_shared_bytes=1024):
    device = torch.device("cuda", 0)
    return ClusterKernel(code, "ranks", device, threads=64, cluster=4, most_shared_bytes=most_shared_bytes)


@pytest.mark.gpu
def test_blocks_have_ranks_in_their_clusters_also_in_a_graph(code):
    kernel, out = kernel_of(code), torch.zeros(12, dtype=torch.int32, device="cuda")
    assert kernel.most_clusters(1024) >= 3
    kernel.launch(3, 1024, Given(out.data_ptr(), 7))
    assert out.tolist() == [407, 408, 409, 410] * 3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch(3, 0, Given(out.data_ptr(), 20))
    assert out.tolist() == [407, 408, 409, 410] * 3
    graph.replay()
    assert out.tolist() == [420, 421, 422, 423] * 3


@pytest.mark.gpu
def test_kernels_load_in_a_thread_that_has_not_used_the_gpu(code):
    kernel_of(code)  # the GPU is in use, by another thread
    with ThreadPoolExecutor(1) as pool:
        kernel = pool.submit(kernel_of, code).result()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(kernel.most_clusters, 1024).result() >= 3
    out = torch.zeros(4, dtype=torch.int32, device="cuda")
    kernel.launch(1, 0, Given(out.data_ptr(), 0))
    assert out.tolist() == [400, 401, 402, 403]


@pytest.mark.gpu
def test_errors_of_the_driver_name_the_function(code):
    with pytest.raises(DriverError, match="cuFuncSetAttribute failed: invalid argument"):
        kernel_of(code, most_shared_bytes=10**6)
    with pytest.raises(DriverError, match="cuLaunchKernelEx failed: too many blocks in cooperative launch"):
        kernel_of(code).launch(10**5, 0, Given(None, 0))
    with pytest.raises(DriverError, match="cuModuleGetFunction failed"):
        ClusterKernel(code, "rank", torch.device("cuda", 0), threads=64, cluster=4, most_shared_bytes=0)

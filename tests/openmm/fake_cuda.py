"""The plugin's CUDA part on a machine without a GPU: compiled against stand-ins for OpenMM's and CUDA's types.

Its kernel serves OpenMM's Reference platform: the gather kernel copies the Context's positions, forces are not added,
and a launch of a graph calls `on_launch(graph)`, which Python sets.
"""

import shutil
import subprocess
from pathlib import Path

from torchmdx.openmm.native import build

CONTEXT = """
#pragma once
#include "openmm/Vec3.h"
#include "openmm/internal/ContextImpl.h"
#include "cuda.h"
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>
namespace OpenMM {
struct mm_int4 { int x, y, z, w; };
struct CudaContext;
struct CudaArray {
    template <class T> void initialize(CudaContext&, size_t, const char*) {}
    template <class T> void upload(const T&) {}
    bool isInitialized() const { return false; }
};
struct Kernel_ {
    CudaContext& cu;
    bool gathers;
    std::map<int, long long> words;
    int count = 0;
    template <class T> void addArg(const T& value) { setArg(count++, value); }
    template <class T> void setArg(int index, const T& value) {
        if (sizeof(value) == sizeof(long long)) std::memcpy(&words[index], &value, sizeof(value));
    }
    void execute(int);
};
using ComputeKernel = std::shared_ptr<Kernel_>;
struct Program_ {
    CudaContext& cu;
    ComputeKernel createKernel(const std::string& name) {
        return std::make_shared<Kernel_>(Kernel_{cu, name == "gatherPositions", {}});
    }
};
using ComputeProgram = std::shared_ptr<Program_>;
struct CudaContext {
    ContextImpl* context = nullptr;
    CudaArray array;
    std::vector<mm_int4> offsets;
    int getNumAtoms() { return context->getSystem().getNumParticles(); }
    int getPaddedNumAtoms() { return getNumAtoms(); }
    int getDeviceIndex() { return 0; }
    CUstream getCurrentStream() { return nullptr; }
    bool getUseMixedPrecision() { return false; }
    const std::vector<mm_int4>& getPosCellOffsets() { return offsets; }
    CudaArray& getPosq() { return array; }
    CudaArray& getPosqCorrection() { return array; }
    CudaArray& getAtomIndexArray() { return array; }
    CudaArray& getLongForceBuffer() { return array; }
    std::map<std::string, double> derivatives;
    std::map<std::string, double>& getEnergyParamDerivWorkspace() { return derivatives; }
    void getPeriodicBoxVectors(Vec3& a, Vec3& b, Vec3& c) { context->getPeriodicBoxVectors(a, b, c); }
    ComputeProgram compileProgram(const std::string&, const std::map<std::string, std::string>&) {
        return std::make_shared<Program_>(Program_{*this});
    }
};
inline void Kernel_::execute(int) {
    if (!gathers) return;
    std::vector<Vec3> all;
    cu.context->getPositions(all);
    auto* out = reinterpret_cast<double*>(words[3]);
    for (size_t i = 0; i < all.size(); i++)
        for (int k = 0; k < 3; k++) out[3 * i + k] = 10.0 * all[i][k];
}
struct ContextSelector { explicit ContextSelector(CudaContext&) {} ~ContextSelector() {} };
struct CudaPlatform { struct PlatformData { std::vector<CudaContext*> contexts; }; };
}
"""

HARNESS = """
#include "cuda_kernel.cpp"
#include "derivative.cpp"
#include "openmm/reference/ReferencePlatform.h"
extern "C" {
void (*on_launch)(unsigned long long graph);
CUresult cuGetErrorString(CUresult, const char** text) { *text = "error"; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) { *context = nullptr; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { *context = nullptr; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent* event, unsigned) { *event = reinterpret_cast<CUevent>(1); return CUDA_SUCCESS; }
CUresult cuEventDestroy_v2(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent) { return CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUgraphExec graph, CUstream) {
    on_launch(reinterpret_cast<unsigned long long>(graph));
    return CUDA_SUCCESS;
}
}
struct FakeFactory : public OpenMM::KernelFactory {
    OpenMM::KernelImpl* createKernelImpl(std::string name, const OpenMM::Platform& platform,
                                         OpenMM::ContextImpl& context) const override {
        auto* cu = new OpenMM::CudaContext();
        cu->context = &context;
        return new torchmdx::CudaTorchmdxKernel(name, platform, *cu);
    }
};
extern "C" void take_over(void (*launch)(unsigned long long)) {
    on_launch = launch;
    OpenMM::Platform::getPlatformByName("Reference").registerKernelFactory("CalcTorchmdxForce", new FakeFactory());
}
"""


def harness(folder: Path) -> Path:
    """Compiles it in a folder; the library."""
    fakes = folder / "fakes"
    for name in ("common/ContextSelector.h", "cuda/CudaArray.h", "cuda/CudaPlatform.h", "cuda/CudaContext.h"):
        path = fakes / "openmm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTEXT if path.stem == "CudaContext" else '#include "openmm/cuda/CudaContext.h"\n')
    (folder / "harness.cpp").write_text(HARNESS)
    openmm_files = build.openmm_folder()
    command = [shutil.which("g++"), "-O0", "-fPIC", "-shared", "-std=c++17", f"-I{fakes}", f"-I{build.HERE}"]
    command += [f"-I{build.HERE / 'cuda_types'}", "-isystem", openmm_files / "include"]
    command += [folder / "harness.cpp", build.HERE / "force.cpp", "-o", folder / "harness.so"]
    command += [f"-L{openmm_files / 'lib'}", f"-Wl,-rpath,{openmm_files / 'lib'}", "-lOpenMM"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "harness.so"

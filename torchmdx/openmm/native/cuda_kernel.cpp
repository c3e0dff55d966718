// The CUDA platform: copies positions from OpenMM's buffers to the step's, launches the graph on OpenMM's stream, and
// adds the forces to OpenMM's buffers. Python is called for the first evaluation and when flags are set.
#include "force.h"
#include "kernels.h"
#include "openmm/common/ContextSelector.h"
#include "openmm/cuda/CudaArray.h"
#include "openmm/cuda/CudaContext.h"
#include "openmm/cuda/CudaPlatform.h"
#include <cstring>
#include <cuda.h>

using namespace OpenMM;
using std::string;
using std::vector;

namespace torchmdx {

namespace {

// Indices of the flags, as in step/buffer_storage.py.
const int OVERFLOW_FLAG = 1, NOT_FINITE_FLAG = 2, FAR_FLAG = 4, UNCERTAIN_FLAG = 5;


void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS)
        return;
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    throw OpenMMException(string("TorchmdxForce: ") + what + " failed: " + (text ? text : std::to_string(result)));
}

class CudaTorchmdxKernel : public CalcTorchmdxKernel {
public:
    CudaTorchmdxKernel(string name, const Platform& platform, CudaContext& cu) : CalcTorchmdxKernel(name, platform), cu(cu) {}

    void initialize(ContextImpl& context, const TorchmdxForce& force) override {
        adopt(context, force);
        ContextSelector selector(cu);
        requirePrimaryContext();
        vector<int> places(cu.getNumAtoms(), -1);
        for (size_t k = 0; k < particles.size(); k++)
            places[particles[k]] = (int)k;
        place.initialize<int>(cu, places.size(), "torchmdxPlace");
        place.upload(places);
        // A periodic potential accepts any image of an atom; a non-periodic one needs whole molecules.
        useOffsets = !periodic && context.getSystem().usesPeriodicBoundaryConditions();
        if (useOffsets)
            offsets.initialize<mm_int4>(cu, cu.getPosCellOffsets().size(), "torchmdxOffsets");  // padded, as OpenMM's are
        session.open(force.provider, cu.getDeviceIndex());
    }

    double execute(ContextImpl& context, bool includeForces, bool) override {
        ContextSelector selector(cu);
        if (!handles)
            start(context);
        if (!done)
            makeKernels();
        if (auditFailed())
            audit(context);  // throws
        evaluations++;
        double scale = scaleOf(context);
        bool energyOnly = !includeForces && handles->energyGraph != 0;
        auto graph = reinterpret_cast<CUgraphExec>(energyOnly ? handles->energyGraph : handles->graph);
        CUstream stream = cu.getCurrentStream();
        gatherPositions();
        check(cuGraphLaunch(graph, stream), "a replay");
        check(cuEventRecord(done, stream), "recording an event");
        // Queued before the flags are known, so that the GPU does not wait for the host.
        if (includeForces)
            addForces(scale);
        CUresult state;
        while ((state = cuEventQuery(done)) == CUDA_ERROR_NOT_READY) {
        }
        check(state, "a replay");
        if (failed()) {
            recover(energyOnly);
            if (includeForces)
                addForces(scale);
        }
        sinceAudit++;
        if (includeForces && handles->auditEvery != 0 && sinceAudit >= handles->auditEvery)
            audit(context);
        return finished(*reinterpret_cast<const double*>(handles->hostEnergy), scale, cu.getEnergyParamDerivWorkspace());
    }

    ~CudaTorchmdxKernel() override {
        if (done) {
            ContextSelector selector(cu);
            cuEventDestroy(done);
        }
    }

private:
    void requirePrimaryContext() {
        CUcontext current = nullptr, primary = nullptr;
        CUdevice device;
        check(cuCtxGetCurrent(&current), "querying the CUDA context");
        check(cuCtxGetDevice(&device), "querying the CUDA device");
        check(cuDevicePrimaryCtxRetain(&primary, device), "retaining the primary context");
        cuDevicePrimaryCtxRelease(device);
        if (current != primary)
            throw OpenMMException(
                "transport 'native' needs OpenMM to use the same CUDA context as torch, the device's primary context, but "
                "this Context has its own (it was created before the force was added, or TORCHMDX_OWN_CONTEXT is set); "
                "use transport='python'");
    }

    // Before the first evaluation and after a failed recovery.
    void start(ContextImpl& context) {
        vector<double> positions = positionsOf(context, particles), cell = cellOf(context);
        handles.renew([&](Handles* fresh, char* message) {
            return callbacks.start(session.id, positions.data(), periodic ? cell.data() : nullptr, fresh, message, MESSAGE);
        });
    }

    void makeKernels() {
        std::map<string, string> defines;
        defines["OVERFLOW_FLAG"] = std::to_string(OVERFLOW_FLAG);
        defines["NOT_FINITE_FLAG"] = std::to_string(NOT_FINITE_FLAG);
        defines["FAR_FLAG"] = std::to_string(FAR_FLAG);
        defines["UNCERTAIN_FLAG"] = std::to_string(UNCERTAIN_FLAG);
        if (cu.getUseMixedPrecision())
            defines["MIXED"] = "1";
        if (useOffsets)
            defines["OFFSETS"] = "1";
        numLinks = (int)handles->numLinks;
        int numOwn = (int)particles.size() - numLinks;
        if (numLinks != 0)
            defines["LINKS"] = "1";
        if (numLinks != 0 && !outer.isInitialized()) {
            outer.initialize<double>(cu, 3 * numLinks, "torchmdxOuter");
            bonds.initialize<double>(cu, 4 * numLinks, "torchmdxBonds");
        }
        if (periodic)
            defines["PERIODIC"] = "1";
        ComputeProgram program = cu.compileProgram(KERNELS, defines);
        gather = program->createKernel("gatherPositions");
        gather->addArg(cu.getPosq());
        if (cu.getUseMixedPrecision())
            gather->addArg(cu.getPosqCorrection());
        if (useOffsets)
            gather->addArg(offsets);
        gather->addArg(cu.getAtomIndexArray());
        gather->addArg(place);
        gatherFirst = 4 + (cu.getUseMixedPrecision() ? 1 : 0) + (useOffsets ? 1 : 0) - 1;
        gather->addArg((long long)handles->positions);
        gather->addArg((long long)handles->cell);
        gather->addArg(cu.getNumAtoms());
        gather->addArg(units.length);
        for (int i = 0; i < 9; i++)
            gather->addArg(0.0);
        if (numLinks != 0) {
            gather->addArg(outer);
            gather->addArg(numOwn);
            makeLinks(program, numOwn);
        }
        add = program->createKernel("addForces");
        add->addArg((long long)handles->forces);
        add->addArg((long long)handles->deviceFlags);
        add->addArg(cu.getLongForceBuffer());
        add->addArg(cu.getAtomIndexArray());
        add->addArg(place);
        add->addArg(cu.getNumAtoms());
        add->addArg(cu.getPaddedNumAtoms());
        add->addArg(0.0);
        if (numLinks != 0) {
            add->addArg((long long)handles->linkInner);
            add->addArg(bonds);
            add->addArg(numOwn);
            add->addArg(numLinks);
        }
        check(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING), "creating an event");  // last: execute checks it
    }

    void makeLinks(ComputeProgram& program, int numOwn) {
        links = program->createKernel("placeLinks");
        links->addArg((long long)handles->positions);
        links->addArg((long long)handles->cell);
        links->addArg(outer);
        links->addArg((long long)handles->linkInner);
        links->addArg((long long)handles->linkDistances);
        links->addArg(bonds);
        links->addArg(numOwn);
        links->addArg(numLinks);
    }

    // Compared at every evaluation: setPositions and rejected moves of a barostat change the offsets without a call of
    // OpenMM's ReorderListeners.
    void updateOffsets() {
        const vector<mm_int4>& now = cu.getPosCellOffsets();
        if (uploaded.size() == now.size() && std::memcmp(uploaded.data(), now.data(), now.size() * sizeof(mm_int4)) == 0)
            return;
        offsets.upload(now);
        uploaded = now;
    }

    void gatherPositions() {
        if (useOffsets)
            updateOffsets();
        gather->setArg(gatherFirst, (long long)handles->positions);
        gather->setArg(gatherFirst + 1, (long long)handles->cell);
        Vec3 box[3];
        cu.getPeriodicBoxVectors(box[0], box[1], box[2]);
        // A non-periodic potential ignores its cell, unless that is singular.
        for (int i = 0; i < 9; i++)
            gather->setArg(gatherFirst + 4 + i, box[i / 3][i % 3]);
        gather->execute(cu.getNumAtoms());
        if (numLinks != 0) {
            links->setArg(0, (long long)handles->positions);
            links->setArg(1, (long long)handles->cell);
            links->setArg(3, (long long)handles->linkInner);
            links->setArg(4, (long long)handles->linkDistances);
            links->execute(numLinks);
        }
    }

    void addForces(double scale) {
        add->setArg(0, (long long)handles->forces);
        add->setArg(1, (long long)handles->deviceFlags);
        add->setArg(7, units.force * scale * 4294967296.0);
        if (numLinks != 0)
            add->setArg(8, (long long)handles->linkInner);
        add->execute(cu.getNumAtoms());
    }

    bool failed() const {
        const auto* flags = reinterpret_cast<const volatile long long*>(handles->hostFlags);
        return flags[OVERFLOW_FLAG] != 0 || flags[NOT_FINITE_FLAG] != 0 || flags[FAR_FLAG] != 0 || flags[UNCERTAIN_FLAG] != 0;
    }

    void recover(bool energyOnly) {
        check(cuStreamSynchronize(cu.getCurrentStream()), "waiting for a replay");
        handles.renew([&](Handles* fresh, char* message) {
            return callbacks.recover(session.id, energyOnly, fresh, message, MESSAGE);
        });
    }

    bool auditFailed() const {
        return handles->auditFailed != 0 && *reinterpret_cast<const volatile long long*>(handles->auditFailed) != 0;
    }

    // Starts an audit of the results in the buffers. Throws, and stops the run, if the previous audit failed.
    void audit(ContextImpl& context) {
        sinceAudit = 0;
        answerOf([&](char* message) {
            return callbacks.audit(session.id, evaluations, context.getStepCount(), message, MESSAGE);
        });
    }

    CudaContext& cu;
    bool useOffsets = false;
    HeldHandles handles;
    long long evaluations = 0;
    unsigned long long sinceAudit = 0;  // evaluations
    CudaArray place, offsets;
    CudaArray outer, bonds;  // of link atoms
    vector<mm_int4> uploaded;  // what is in offsets
    ComputeKernel gather, links, add;
    int gatherFirst = 0, numLinks = 0;
    CUevent done = nullptr;
    Session session;
};

class CudaFactory : public KernelFactory {
public:
    KernelImpl* createKernelImpl(string name, const Platform& platform, ContextImpl& context) const override {
        auto& data = *static_cast<CudaPlatform::PlatformData*>(context.getPlatformData());
        if (data.contexts.size() != 1)
            throw OpenMMException("TorchmdxForce needs one GPU per Context, got " + std::to_string(data.contexts.size()));
        return new CudaTorchmdxKernel(name, platform, *data.contexts[0]);
    }
};

}  // namespace

bool registerCudaKernels() {
    for (int i = 0; i < Platform::getNumPlatforms(); i++)
        if (Platform::getPlatform(i).getName() == "CUDA") {
            Platform::getPlatform(i).registerKernelFactory(CalcTorchmdxKernel::Name(), new CudaFactory());
            return true;
        }
    return false;
}

}  // namespace torchmdx
